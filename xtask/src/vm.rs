//! `cargo xtask vm`: a command in a virtual machine.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::build::{self, Profile};
use crate::cache::Cache;
use crate::image;
use crate::kernel::{DEFAULT_SERIES, Kernel};
use crate::machine::{Copied, Machine, Outcome, Report};
use crate::packages;

/// Exit statuses for an end that is not the command's own.
pub(crate) const DIED: u8 = 123;
const TIMED_OUT: u8 = 124;

#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags of a command line")]
pub(crate) struct Args {
    /// Kernel series; 7 is the newest 7.x
    #[arg(long, value_name = "SERIES", default_value = DEFAULT_SERIES)]
    kernel: String,
    /// Boot Debian with systemd and D-Bus instead of an initramfs with static programs only
    #[arg(long)]
    full: bool,
    /// More kernel parameters, for example "lsm=landlock,yama"
    #[arg(long, value_name = "PARAMETERS", default_value = "", allow_hyphen_values = true)]
    cmdline: String,
    /// Count instructions: one CPU, time advances with what is executed
    #[arg(long)]
    icount: bool,
    /// Seconds after which the machine is ended
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    timeout: u64,
    /// Memory in MiB
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    memory: u32,
    /// Copy a file or directory into the machine; repeatable
    #[arg(long = "copy", value_name = "HOST:GUEST", value_parser = parse_copy)]
    copies: Vec<Copied>,
    /// Load another kernel module too, as the tests of btrfs need it; repeatable
    #[arg(long = "module", value_name = "NAME")]
    modules: Vec<String>,
    /// Use the programs in target/dist as they are
    #[arg(long)]
    no_build: bool,
    /// Build the programs unoptimised
    #[arg(long)]
    debug: bool,
    /// The command, run as root; its exit status becomes ours, but for 123 (the machine died) and
    /// 124 (time is over)
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let programs = if args.no_build {
        build::target_directory().join("dist")
    } else {
        build::build(Profile::shipped_or_dev(args.debug))?
    };
    let machine = Machine {
        programs,
        cmdline: args.cmdline.clone(),
        icount: args.icount,
        timeout: Duration::from_secs(args.timeout),
        memory: args.memory,
        copies: args.copies.clone(),
        modules: args.modules.clone(),
        command: args.command.clone(),
        ..prepare(&args.kernel, args.full)?
    };
    let report = machine.boot(to_stdout)?;
    Ok(ExitCode::from(conclude(&report)))
}

/// A machine with this kernel, and with Debian in it if `full`; what is missing is fetched.
pub(crate) fn prepare(series: &str, full: bool) -> Result<Machine> {
    packages::ensure(packages::MACHINE)?;
    let cache = Cache::open()?;
    let kernel = Kernel::obtain(&cache, series)?;
    let disk = if full { Some(image::obtain(&cache)?) } else { None };
    Ok(Machine::new(kernel, disk))
}

/// Explains an end that is not the command's own, and gives the exit status.
pub(crate) fn conclude(report: &Report) -> u8 {
    if let Some(problem) = report.outcome.problem() {
        eprintln!("{}\nxtask: {problem}", report.console_tail);
    }
    match report.outcome {
        Outcome::Exited(status) => status,
        Outcome::Died(_) => DIED,
        Outcome::TimedOut(_) => TIMED_OUT,
    }
}

/// A sink for what the command prints: our stdout, at once.
pub(crate) fn to_stdout(bytes: &[u8]) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes)?;
    stdout.flush()
}

fn parse_copy(text: &str) -> Result<Copied> {
    let (host, guest) = text.rsplit_once(':').context("expected HOST:GUEST")?;
    let (host, guest) = (PathBuf::from(host), PathBuf::from(guest));
    if !guest.is_absolute() {
        bail!("the path in the machine must be absolute: {}", guest.display());
    }
    Ok(Copied { host, guest })
}
