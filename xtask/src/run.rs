//! `cargo xtask run`: the project's main job, on this host or where it cannot be done, in a machine.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::build::{self, Profile};
use crate::command::{line, progress};
use crate::kernel::DEFAULT_SERIES;
use crate::machine::{Copied, Machine};
use crate::vm;

/// Where the demonstration is in the machine.
const DEMO: &str = "/opt/demo";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Kernel series of the machine, where one is needed
    #[arg(long, value_name = "SERIES", default_value = DEFAULT_SERIES)]
    kernel: String,
    /// Use a machine even if this host can enforce
    #[arg(long)]
    vm: bool,
    /// What follows `sandbox run`; without any, a demonstration
    #[arg(last = true, value_name = "ARGS")]
    run: Vec<OsString>,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let programs = build::build(Profile::Release)?;
    if !args.vm && can_enforce(&programs) {
        progress("this host can enforce: running here");
        return on_host(&programs, args);
    }
    progress(&format!(
        "this host cannot enforce (see `{} doctor`, as root): running in a machine",
        programs.join("sandbox").display()
    ));
    let demo = Copied { host: build::workspace().join("demo"), guest: DEMO.into() };
    let machine = Machine {
        command: command(Path::new("sandbox"), Path::new(DEMO), args),
        timeout: Duration::from_hours(1),
        copies: vec![demo],
        ..vm::prepare(&args.kernel, true)?
    };
    let report = machine.boot(vm::to_stdout)?;
    Ok(ExitCode::from(vm::conclude(&report)))
}

/// Whether `sandbox doctor` saw everything denied that must be.
fn can_enforce(programs: &Path) -> bool {
    rustix::process::geteuid().is_root()
        && Command::new(programs.join("sandbox"))
            .arg("doctor")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
}

fn on_host(programs: &Path, args: &Args) -> Result<ExitCode> {
    let words = command(&programs.join("sandbox"), &build::workspace().join("demo"), args);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    let status = command.status().with_context(|| format!("cannot start: {}", line(&command)))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(vm::DIED)))
}

fn command(sandbox: &Path, demo: &Path, args: &Args) -> Vec<OsString> {
    if args.run.is_empty() {
        return vec![demo.join("run.sh").into(), sandbox.into()];
    }
    let mut words: Vec<OsString> = vec![sandbox.into(), "run".into()];
    words.extend(args.run.iter().cloned());
    words
}
