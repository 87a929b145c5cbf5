//! `sandbox policy show`: the texts that a session's rules come from, as they are numbered in events.

use super::FAILURE;
use super::explain::named;
use super::look::{Look, Where, look};
use crate::policy::explain::Named;
use crate::policy::source::Source;
use crate::policy::{self, Policy, PolicyError};
use clap::Args;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

#[derive(Args, Debug)]
pub(super) struct ShowArgs {
    /// A policy file, or the name of a preset; `default` without it
    policy: Option<PathBuf>,
    /// Show what a session of the user's agent in this directory would have, with all layers
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Print every rule in one line with where it comes from, instead of the texts: what a session in
    /// the current directory, or that of --workspace, would have
    #[arg(long)]
    effective: bool,
    /// With --effective: print one JSON object on standard output
    #[arg(long, requires = "effective")]
    json: bool,
}

/// Prints the texts, each under its name, in the order in which their rules count.
pub(super) fn execute(args: &ShowArgs) -> ExitCode {
    let workspace = match (&args.workspace, args.effective) {
        (None, true) => Some(Path::new(".")),
        (dir, _) => dir.as_deref(),
    };
    match read(args.policy.as_deref(), workspace) {
        Ok((policy, warnings)) => {
            if args.json {
                anstream::println!("{}", json(&policy));
            } else if args.effective {
                effective(&policy);
            } else {
                for source in sources(&policy) {
                    let name = plain(&source.name);
                    anstream::println!("# {name} ({})\n{}", source.layer, plain(source.text()));
                }
            }
            for warning in warnings {
                anstream::eprintln!("{}", plain(&warning.to_string()));
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            anstream::eprintln!("{}", error.coloured());
            ExitCode::from(FAILURE)
        }
    }
}

/// The policy, and what there is to know about it.
fn read(
    named: Option<&Path>,
    dir: Option<&Path>,
) -> Result<(Policy, Vec<policy::diagnostic::Diagnostic>), PolicyError> {
    let Some(dir) = dir else {
        let preset = named.and_then(Path::to_str).and_then(policy::load_preset);
        return Ok((preset.unwrap_or_else(|| policy::load(named))?, Vec::new()));
    };
    let at = Where { policy: named.map(Path::to_owned), workspace: Some(dir.to_owned()) };
    let Look { policy, warnings, .. } = look(&at)?;
    Ok((policy, warnings))
}

/// All texts, the policy's own first.
fn sources(policy: &Policy) -> impl Iterator<Item = &Arc<Source>> {
    policy.sources.iter().chain(policy.ceilings.iter().flat_map(|ceiling| &ceiling.sources))
}

/// Every rule, and what holds where none speaks.
fn effective(policy: &Policy) {
    let word = |allow: bool| if allow { "allow" } else { "deny" };
    anstream::println!("mode {:?}", format!("{:?}", policy.effective_mode()).to_lowercase());
    anstream::println!("files.read.default {:?}", word(policy.defaults.read));
    anstream::println!("files.exec.default {:?}", word(policy.defaults.execute));
    anstream::println!("environment.secrets {:?}", word(policy.secrets));
    for rule in rules(policy) {
        anstream::println!("{}", named(&rule));
    }
    for ceiling in &policy.ceilings {
        let Some(source) = ceiling.sources.last() else { continue };
        for limit in limits(ceiling) {
            anstream::println!(
                "{limit} and nothing else ({}, {})",
                plain(&source.name),
                source.layer
            );
        }
    }
}

/// The keys of a ceiling whose lists are all that it allows.
fn limits(ceiling: &Policy) -> BTreeSet<&'static str> {
    let mut limits: BTreeSet<&str> = ceiling
        .said
        .iter()
        .copied()
        .filter(|key| matches!(*key, "files.write.allow" | "network.allow" | "network.unix.allow"))
        .collect();
    limits.extend((!ceiling.defaults.read).then_some("files.read.allow"));
    limits.extend((!ceiling.defaults.execute).then_some("files.exec.allow"));
    limits
}

fn rules(policy: &Policy) -> Vec<Named> {
    let mut origins: Vec<_> = policy.origins().collect();
    origins.sort_by_key(|origin| (origin.key, origin.id));
    origins.into_iter().map(Named::of).collect()
}

fn json(policy: &Policy) -> serde_json::Value {
    let ceilings: Vec<_> = policy
        .ceilings
        .iter()
        .filter_map(|ceiling| {
            let source = ceiling.sources.last()?;
            Some(serde_json::json!({
                "file": source.name, "layer": source.layer, "nothing_else": limits(ceiling),
            }))
        })
        .collect();
    serde_json::json!({
        "mode": format!("{:?}", policy.effective_mode()).to_lowercase(),
        "defaults": { "files.read": policy.defaults.read, "files.exec": policy.defaults.execute,
                      "environment.secrets": policy.secrets },
        "rules": rules(policy), "ceilings": ceilings,
    })
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
        assert_eq!(rules(&policy).len(), policy.count());
        assert!(sources(&policy).any(|source| source.name == "sandbox:own"));
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
