//! `cargo xtask agents`: coding agents as they are published, each under its preset, in the full machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::build;
use crate::command::{progress, run};
use crate::kernel::DEFAULT_SERIES;
use crate::machine::{Copied, Machine};
use crate::vm::{conclude, prepare, to_stdout};

/// A package of the npm registry, the part of it that runs (in it), and where that goes in the machine.
const PACKAGES: [(&str, &str, &str); 2] = [
    (
        "@openai/codex@0.171.0",
        "@openai/codex/node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl",
        "/opt/agents/codex",
    ),
    (
        "@anthropic-ai/claude-code@2.1.197",
        "@anthropic-ai/claude-code/bin/claude.exe",
        "/opt/agents/claude-code/claude",
    ),
];
/// In MiB: what is copied into the machine lies in its memory first.
const MEMORY: u32 = 6144;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Kernel series; 7 is the newest 7.x
    #[arg(long, value_name = "SERIES", default_value = DEFAULT_SERIES)]
    kernel: String,
    /// Use the programs in target/dist as they are
    #[arg(long)]
    no_build: bool,
    /// Only the tests whose names contain this
    #[arg(default_value = "agents::")]
    filter: String,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    let programs =
        if args.no_build { build::target_directory().join("dist") } else { build::build(false)? };
    let machine = Machine {
        programs,
        timeout: Duration::from_hours(1),
        memory: MEMORY,
        copies: packages()?,
        command: ["system-tests", "--ignored", &args.filter].map(Into::into).to_vec(),
        ..prepare(&args.kernel, true)?
    };
    let report = machine.boot(to_stdout)?;
    Ok(ExitCode::from(conclude(&report)))
}

/// The packages, installed where they are not yet.
fn packages() -> Result<Vec<Copied>> {
    let place = build::target_directory().join("agents");
    fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
    let copied = PACKAGES.iter().map(|(package, part, guest)| {
        let prefix = place.join(package.replace(['@', '/'], "_"));
        let host = prefix.join("lib/node_modules").join(part);
        if !host.exists() {
            install(package, &prefix)?;
        }
        Ok(Copied { host, guest: PathBuf::from(guest) })
    });
    copied.collect()
}

fn install(package: &str, prefix: &Path) -> Result<()> {
    progress(&format!("installing {package}"));
    let mut npm = Command::new("npm");
    npm.args(["install", "--silent", "--no-audit", "--no-fund", "--global", "--prefix"]);
    run(npm.arg(prefix).arg(package)).with_context(|| format!("installing {package}"))
}
