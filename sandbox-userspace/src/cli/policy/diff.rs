//! `sandbox policy diff`: what one policy says that another one does not.

use super::FAILURE;
use super::look::{opening, user};
use crate::policy::rule::closes;
use crate::policy::{Policy, PolicyError};
use crate::sinks::escape::printable;
use clap::Args;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit status where they differ.
const DIFFERENT: u8 = 1;

#[derive(Args, Debug)]
pub(super) struct DiffArgs {
    /// A policy file, or the name of a preset
    old: PathBuf,
    /// Another one
    new: PathBuf,
    /// Print one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// Something that one of two policies says.
#[derive(Debug, PartialEq, Eq, serde::Serialize)]
pub(in crate::cli) struct Difference {
    /// In the new policy, and not in the old one.
    added: bool,
    /// More is allowed with it than without.
    opens: bool,
    key: String,
    text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

pub(super) fn execute(args: &DiffArgs) -> ExitCode {
    let found = user().and_then(|user| {
        let read = |path: &Path| opening(Some(path), &user);
        Ok::<_, PolicyError>(differences(&read(&args.old)?, &read(&args.new)?))
    });
    match found {
        Err(error) => {
            anstream::eprintln!("{}", error.coloured());
            ExitCode::from(FAILURE)
        }
        Ok(found) => {
            if args.json {
                anstream::println!("{}", serde_json::json!({ "differences": found }));
            } else {
                show(&found);
            }
            if found.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) }
        }
    }
}

/// Rules are the same where key and text are; an order of rules does not matter to any verdict.
pub(in crate::cli) fn differences(old: &Policy, new: &Policy) -> Vec<Difference> {
    let mut found = Vec::new();
    for (key, a, b) in [
        ("files.read.default", old.defaults.read, new.defaults.read),
        ("files.exec.default", old.defaults.execute, new.defaults.execute),
        ("environment.secrets", old.secrets, new.secrets),
    ] {
        let word = |allow: bool| if allow { "allow" } else { "deny" }.to_owned();
        if a != b {
            let of = |added, allow| Difference {
                added,
                opens: b,
                key: key.to_owned(),
                text: word(allow),
                file: None,
                line: None,
            };
            found.extend([of(false, a), of(true, b)]);
        }
    }
    if old.mode != new.mode {
        let of = |added, policy: &Policy| Difference {
            added,
            opens: new.mode == sandbox_common::subject::Mode::Audit,
            key: "mode".to_owned(),
            text: format!("{:?}", policy.mode).to_lowercase(),
            file: None,
            line: None,
        };
        found.extend([of(false, old), of(true, new)]);
    }
    let limits = |policy: &Policy| {
        let limits = policy.limits;
        [("limits.memory", limits.memory), ("limits.pids", limits.pids), ("limits.cpu", limits.cpu)]
    };
    for ((key, a), (_, b)) in limits(old).into_iter().zip(limits(new)).filter(|(a, b)| a != b) {
        let opens = b.is_none_or(|b| a.is_some_and(|a| b > a));
        let of = |added, limit: Option<u64>| {
            let text = limit?.to_string();
            Some(Difference { added, opens, key: key.to_owned(), text, file: None, line: None })
        };
        found.extend([of(false, a), of(true, b)].into_iter().flatten());
    }
    let (before, after) = (rules(old), rules(new));
    let lost = before.iter().filter(|(rule, _)| !after.contains_key(rule));
    let gained = after.iter().filter(|(rule, _)| !before.contains_key(rule));
    let tell = |added: bool| {
        move |((key, text), (file, line)): (&(&str, &str), &(&str, u32))| Difference {
            added,
            opens: closes(key) != added,
            key: (*key).to_owned(),
            text: (*text).to_owned(),
            file: Some((*file).to_owned()),
            line: Some(*line),
        }
    };
    found.extend(lost.map(tell(false)).chain(gained.map(tell(true))));
    found
}

/// By key and text, where it stands.
fn rules(policy: &Policy) -> BTreeMap<(&str, &str), (&str, u32)> {
    let place = |origin: &crate::policy::rule::Origin| {
        origin.place.source.position(origin.place.span.clone()).line
    };
    let rules = policy.origins().map(|origin| {
        let at = (origin.place.source.name.as_str(), place(origin));
        ((origin.key, origin.text.as_str()), at)
    });
    rules.collect()
}

/// One line each.
pub(in crate::cli) fn show(found: &[Difference]) {
    found.iter().for_each(print);
}

fn print(difference: &Difference) {
    let Difference { added, opens, key, text, file, line } = difference;
    let sign = if *added { '+' } else { '-' };
    let effect = if *opens { "opens" } else { "closes" };
    let place = match (file, line) {
        (Some(file), Some(line)) => format!(" ({}:{line})", printable(file.as_bytes())),
        _ => String::new(),
    };
    anstream::println!("{sign} {key} \"{}\"{place}: {effect}", printable(text.as_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::load_text;

    #[test]
    fn what_is_said_once_is_a_difference() {
        let policy = |text: &str| load_text("p.toml", format!("version = 1\n{text}")).unwrap();
        let old = policy("[files]\nread.deny = ['/a', '/b']\nwrite.allow = ['/w']\n");
        let new = policy(
            "mode = 'audit'\n[files]\nread.default = 'deny'\nread.deny = ['/b', '/c']\nwrite.allow = ['/w']\n",
        );
        let told: Vec<_> = differences(&old, &new)
            .into_iter()
            .map(|d| (d.added, d.opens, format!("{} {}", d.key, d.text), d.line))
            .collect();
        assert_eq!(
            told,
            [
                (false, false, "files.read.default allow".to_owned(), None),
                (true, false, "files.read.default deny".to_owned(), None),
                (false, true, "mode enforce".to_owned(), None),
                (true, true, "mode audit".to_owned(), None),
                (false, true, "files.read.deny /a".to_owned(), Some(3)),
                (true, false, "files.read.deny /c".to_owned(), Some(5)),
            ]
        );
        assert!(differences(&old, &old).is_empty());
        let asks = policy(
            "[files]\nread.deny = ['/a', '/b']\nwrite.allow = ['/w']\nexec.ask = ['git push']\n",
        );
        let told = differences(&old, &asks);
        assert!(told.len() == 1 && told[0].added && !told[0].opens, "{told:?}");
        assert!(differences(&asks, &old)[0].opens);
    }
}
