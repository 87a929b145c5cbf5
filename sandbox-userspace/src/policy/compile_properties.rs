//! The compiled policy against the meaning of the rules, on random rules, mounts and paths.

use super::compile_tests::{BASE, ONE, at, context, decision, mounted, table, walk, walker};
use super::expand::expand;
use super::rule::Kind;
use super::{compile, decide, load_text};
use crate::kernel::mounts::MountTable;
use proptest::prelude::*;
use std::fmt::Write as _;

/// The lists that random policies have.
pub(super) const KEYS: [&str; 8] = [
    "read.allow",
    "read.deny",
    "write.allow",
    "write.deny",
    "delete.allow",
    "delete.deny",
    "attributes.allow",
    "attributes.deny",
];

fn path() -> impl Strategy<Value = String> {
    proptest::collection::vec(prop_oneof![Just("a"), Just("b"), Just("c")], 0..6)
        .prop_map(|names| names.iter().fold(BASE.to_owned(), |path, name| path + "/" + name))
}

fn rules() -> impl Strategy<Value = Vec<(usize, String, bool)>> {
    proptest::collection::vec((0..KEYS.len(), path(), any::<bool>()), 0..14)
}

fn policy_text(rules: &[(usize, String, bool)]) -> String {
    let mut text = "version = 1\n[files]\n".to_owned();
    for (index, key) in KEYS.iter().enumerate() {
        let list: Vec<String> = rules
            .iter()
            .filter(|(list, ..)| *list == index)
            .map(|(_, path, beneath)| format!("{path}{}", if *beneath { "/**" } else { "" }))
            .collect();
        writeln!(text, "{key} = {list:?}").unwrap();
    }
    text
}

/// Holds the compiled policy to the rules on every path.
fn agree(text: &str, table: &MountTable, paths: &[String]) -> Result<(), TestCaseError> {
    let policy = load_text("p.toml", text.to_owned()).unwrap();
    let placed = expand(&policy, &context()).unwrap();
    let (compiled, warnings) = compile(&policy, &context(), table).unwrap();
    prop_assert_eq!(&warnings, &[]);
    for path in paths {
        let (dev, place) = table.locate(&at(path)).unwrap();
        let rights = walk(&compiled, dev, &place).unwrap();
        for kind in Kind::ALL {
            prop_assert_eq!(
                decision(rights, kind),
                decide::path(&placed, policy.defaults, kind, &at(path)),
                "{:?} of {} with {}",
                kind,
                path,
                text
            );
        }
    }
    let roots = || compiled.roots.iter().filter(|(dev, _)| *dev != 0).map(|(_, root)| root.below);
    let mut ids: Vec<u32> = roots().map(|root| root.node).collect();
    ids.extend(compiled.edges.iter().map(|edge| edge.to.id));
    let count = u32::try_from(ids.len()).unwrap();
    ids.sort_unstable();
    prop_assert_eq!(ids, (1..=count).collect::<Vec<_>>());
    let counts = compiled.edges.iter().map(|edge| (edge.to.id, edge.to.edges));
    for (id, count) in roots().map(|root| (root.node, root.edges)).chain(counts) {
        let edges = compiled.edges.iter().filter(|edge| edge.from == id).count();
        prop_assert_eq!(usize::try_from(count).unwrap(), edges);
    }
    Ok(())
}

proptest! {
    #[test]
    fn one_file_system_agrees_with_the_rules(
        rules in rules(), paths in proptest::collection::vec(path(), 12),
    ) {
        agree(&policy_text(&rules), &table(ONE), &paths)?;
    }

    /// Which symbolic links are followed.
    #[test]
    fn links_are_followed_as_the_rules_say(
        rules in rules(), paths in proptest::collection::vec(path(), 12),
    ) {
        let (text, table) = (policy_text(&rules), table(ONE));
        let policy = load_text("p.toml", text.clone()).unwrap();
        let placed = expand(&policy, &context()).unwrap();
        let (compiled, _) = compile(&policy, &context(), &table).unwrap();
        for path in &paths {
            let (dev, names) = table.locate(&at(path)).unwrap();
            let place = walker(&compiled).place(dev, &names, false).unwrap();
            let said = decide::following(&placed, policy.defaults, &at(path), &[]);
            let found = sandbox_common::decide::following(&place);
            prop_assert_eq!(found.allowed(), said.allow, "{} with {}", path, text);
            prop_assert!(found.allowed() || found.rule == said.rule);
        }
    }

    #[test]
    fn many_file_systems_agree_with_the_rules(
        rules in rules(),
        points in proptest::collection::vec(path(), 0..5),
        paths in proptest::collection::vec(path(), 12),
    ) {
        let mounts = (2..).zip(&points).map(|(minor, point)| (minor, "/r/s", point.as_str()));
        agree(&policy_text(&rules), &mounted(mounts).1, &paths)?;
    }

    /// Bind mounts of one file system anywhere: what a rule closes by one path is open by no other,
    /// unless a rule opens that very place, or one beneath the closed one, by name.
    #[test]
    fn bind_mounts_open_nothing(
        rules in rules(),
        binds in proptest::collection::vec((path(), path()), 0..4),
        paths in proptest::collection::vec(path(), 12),
    ) {
        let mounts = binds.iter().map(|(root, point)| (1, root.as_str(), point.as_str()));
        let (lines, table) = mounted(mounts);
        let text = policy_text(&rules);
        let policy = load_text("p.toml", text.clone()).unwrap();
        let placed = expand(&policy, &context()).unwrap();
        let (compiled, _) = compile(&policy, &context(), &table).unwrap();
        for path in &paths {
            let (dev, place) = table.locate(&at(path)).unwrap();
            let rights = walk(&compiled, dev, &place).unwrap();
            for kind in Kind::ALL {
                let said = decide::path(&placed, policy.defaults, kind, &at(path));
                let named = placed.iter().any(|rule| {
                    let at = table.locate(&rule.path);
                    rule.allow && rule.speaks_of(kind)
                        && at.is_some_and(|(_, at)| place.starts_with(&at))
                });
                prop_assert!(
                    said.allow || named || !decision(rights, kind).allow,
                    "{:?} of {} with {} and {}", kind, path, text, lines
                );
            }
        }
    }
}
