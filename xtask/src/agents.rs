//! `cargo xtask agents`: coding agents as they are published, each under its preset, in the full machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::build::{self, Profile};
use crate::command::{progress, run};
use crate::kernel::DEFAULT_SERIES;
use crate::machine::{Copied, Machine};
use crate::vm::{conclude, prepare, to_stdout};

/// A published agent: what is installed, the part of it that runs, and where that goes in the machine.
struct Package {
    name: &'static str,
    registry: Registry,
    part: &'static str,
    guest: &'static str,
}

enum Registry {
    Npm,
    /// By the list of all packages that it takes.
    PyPi(&'static str),
}

const PACKAGES: [Package; 5] = [
    Package {
        name: "@openai/codex@0.171.0",
        registry: Registry::Npm,
        part: "lib/node_modules/@openai/codex/node_modules/@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl",
        guest: "/opt/agents/codex",
    },
    Package {
        name: "@anthropic-ai/claude-code@2.1.197",
        registry: Registry::Npm,
        part: "lib/node_modules/@anthropic-ai/claude-code/bin/claude.exe",
        guest: "/opt/agents/claude-code/claude",
    },
    Package {
        name: "@google/gemini-cli@0.61.0",
        registry: Registry::Npm,
        part: "lib/node_modules/@google/gemini-cli",
        guest: "/opt/agents/gemini-cli",
    },
    Package {
        name: "opencode-ai@1.18.33",
        registry: Registry::Npm,
        part: "lib/node_modules/opencode-ai/bin/opencode.exe",
        guest: "/opt/agents/opencode/opencode",
    },
    Package {
        name: "aider-chat@0.86.2",
        registry: Registry::PyPi("tests/src/system/agents/aider.txt"),
        part: "",
        guest: "/opt/agents/aider",
    },
];
/// Of Python in the machine. aider asks for an older one, but works with it.
const PYTHON: &str = "3.13";
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
    let programs = if args.no_build {
        build::target_directory().join("dist")
    } else {
        build::build(Profile::Release)?
    };
    let machine = Machine {
        programs,
        timeout: Duration::from_hours(1),
        memory: MEMORY,
        copies: packages(&args.filter)?,
        command: ["system-tests", "--ignored", &args.filter].map(Into::into).to_vec(),
        ..prepare(&args.kernel, true)?
    };
    let report = machine.boot(to_stdout)?;
    Ok(ExitCode::from(conclude(&report)))
}

/// The packages that the tests want, installed where they are not yet.
fn packages(filter: &str) -> Result<Vec<Copied>> {
    let place = build::target_directory().join("agents");
    fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
    let wanted = PACKAGES.iter().filter(|package| package.is_wanted(filter));
    let copied = wanted.map(|package| {
        let prefix = place.join(package.name.replace(['@', '/'], "_"));
        let host = prefix.join(package.part);
        if !host.exists() {
            package.install(&prefix)?;
        }
        Ok(Copied { host, guest: PathBuf::from(package.guest) })
    });
    copied.collect()
}

impl Package {
    /// Whether tests of the filter may be about it: they are called by the directory of the agent.
    fn is_wanted(&self, filter: &str) -> bool {
        let word = filter.trim_start_matches("agents::");
        let directory = self.guest.trim_start_matches("/opt/agents/");
        let agent = directory.split('/').next().unwrap_or_default().replace('-', "_");
        agent.contains(word) || word.contains(&agent)
    }

    fn install(&self, prefix: &Path) -> Result<()> {
        progress(&format!("installing {}", self.name));
        let mut command = match self.registry {
            Registry::Npm => {
                let mut npm = Command::new("npm");
                npm.args(["install", "--silent", "--no-audit", "--no-fund", "--global"]);
                npm.arg("--prefix").arg(prefix).arg(self.name);
                npm
            }
            Registry::PyPi(list) => {
                let mut pip = Command::new("python3");
                pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:"]);
                pip.args(["--ignore-requires-python", "--python-version", PYTHON]);
                // Older ones are not implied by newer ones.
                for platform in
                    ["manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_5"]
                {
                    pip.arg("--platform").arg(format!("{platform}_x86_64"));
                }
                pip.args(["--target".as_ref(), prefix.as_os_str(), "--requirement".as_ref()]);
                pip.arg(build::workspace().join(list));
                pip
            }
        };
        run(&mut command).with_context(|| format!("installing {}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_want_their_agents() {
        let of = |filter: &'static str| {
            let wanted = PACKAGES.iter().filter(move |package| package.is_wanted(filter));
            wanted.map(|package| package.guest)
        };
        assert_eq!(of("agents::").count(), PACKAGES.len());
        for filter in ["codex", "agents::codex", "agents::codex_in_its_own_bubblewrap"] {
            assert_eq!(of(filter).collect::<Vec<_>>(), ["/opt/agents/codex"], "{filter}");
        }
        assert_eq!(of("agents::gemini_cli").collect::<Vec<_>>(), ["/opt/agents/gemini-cli"]);
    }
}
