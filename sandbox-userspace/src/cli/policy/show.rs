//! `sandbox policy show`: the texts that a session's rules come from, as they are numbered in events.

use super::{FAILURE, context};
use crate::policy::{self, Policy, PolicyError, worktree};
use clap::Args;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args, Debug)]
pub(super) struct ShowArgs {
    /// A policy file, or the name of a preset; `default` without it
    policy: Option<PathBuf>,
    /// Show what a session of the calling user's agent in this directory would have, too
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
}

/// Prints the texts, each under its name, in the order in which their rules count.
pub(super) fn execute(args: &ShowArgs) -> ExitCode {
    match read(args.policy.as_deref(), args.workspace.as_deref()) {
        Ok((policy, refusal)) => {
            for source in &policy.sources {
                anstream::println!(
                    "# {} ({})\n{}",
                    source.name,
                    source.layer,
                    plain(source.text())
                );
            }
            if let Some(refusal) = refusal {
                anstream::eprintln!("warning: {}\n{}", plain(&refusal), worktree::HELP);
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            anstream::eprintln!("{}", error.coloured());
            ExitCode::from(FAILURE)
        }
    }
}

/// The policy, and why the workspace's repository adds nothing to it.
fn read(named: Option<&Path>, dir: Option<&Path>) -> Result<(Policy, Option<String>), PolicyError> {
    let preset = named.and_then(Path::to_str).and_then(policy::load_preset);
    let policy = preset.unwrap_or_else(|| policy::load(named))?;
    let Some(dir) = dir else { return Ok((policy, None)) };
    let context = context(dir, &policy)?;
    let user = rustix::process::geteuid().as_raw();
    let (policy, refusal) = worktree::extend(policy, &context, user)?;
    Ok((policy, refusal.map(|refusal| refusal.message())))
}

/// A text that no terminal obeys.
fn plain(text: &str) -> String {
    let shown = |c: char| -> String {
        if c.is_control() && c != '\n' && c != '\t' { c.escape_debug().collect() } else { c.into() }
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::preset;

    #[test]
    fn presets_and_files_are_shown_in_the_order_of_their_rules() {
        let names = |policy: &Policy| -> Vec<String> {
            policy.sources.iter().map(|source| source.name.clone()).collect()
        };
        for preset in preset::NAMES {
            let (policy, _) = read(Some(Path::new(preset)), None).unwrap();
            assert!(names(&policy).contains(&format!("preset:{preset}")), "{preset}");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p.toml");
        let text = "version = 1\nextends = ['default', 'toolchains']\nfiles.read.deny = ['/x']\n";
        std::fs::write(&file, text).unwrap();
        let (policy, _) = read(Some(&file), Some(dir.path())).unwrap();
        let file = file.to_str().unwrap();
        let presets = ["base", "persistence", "credentials", "default", "toolchains"];
        let mut expected = presets.map(|name| format!("preset:{name}")).to_vec();
        expected.push(file.to_owned());
        assert_eq!(names(&policy), expected);
    }

    #[test]
    fn a_terminal_obeys_nothing_of_it() {
        assert_eq!(plain("a\tb\n\u{1b}[2Jc"), "a\tb\n\\u{1b}[2Jc");
    }
}
