//! Patterns, walked as the kernel walks them, against the meaning of the rules.

use super::compile_properties::KEYS;
use super::compile_tests::{BASE, ONE, at, compiled, context, decision, mounted, table, walker};
use super::decide;
use super::expand::{Placed, expand};
use super::glob::Glob;
use super::patterns::anchor::anchor;
use super::rule::{Kind, Step};
use super::{compile, load_text};
use crate::kernel::mounts::{Components, MountTable};
use proptest::prelude::*;
use sandbox_common::decide::{Moved, renaming};
use sandbox_common::pattern::Endings;
use std::fmt::Write as _;

#[test]
fn a_name_anywhere_is_closed_in_every_file_system() {
    let sandbox = compiled(
        "read.deny = ['**/.env', '**/.git/**']\nwrite.allow = ['@/w']",
        "1 0 1 / /\n2 1 2 / @/w/mnt",
    );
    for dir in ["@/w", "/", "@/w/a/b", "@/w/mnt", "@/w/.env/x"] {
        let of = |name: &str| sandbox.of(&format!("{dir}/{name}")).0;
        assert_eq!(of(".env"), -1, "{dir}");
        assert_eq!(of(".env/x/y"), -1, "{dir}");
        assert_eq!(of(".git/x/y"), -2, "{dir}");
    }
    assert_eq!(sandbox.of("@/w/.git").0, compiled("", ONE).of("@").0);
    assert!(sandbox.of("@/w/.envx").0 > 0 && sandbox.of("@/w/x.env").0 > 0);
    let unknown = walker(&sandbox.policy).walk(0, &at("/x/.env"), false).unwrap();
    let found = decision(unknown, Kind::Read);
    assert!(!found.allow && found.rule == 1);
    let unknown = walker(&sandbox.policy).walk(0, &at("/x/env"), false).unwrap();
    assert!(decision(unknown, Kind::Read).allow);
}

#[test]
fn what_was_compiled_last_is_taken_for_the_very_same_patterns_alone() {
    let of = |rules: &str| {
        let sandbox = compiled(rules, ONE);
        (sandbox.of("@/w/a.pem").0, sandbox.of("@/w/.env").0)
    };
    for _ in 0..2 {
        let (pem, env) = of("read.deny = ['**/*.pem']");
        assert!(pem == -1 && env > 0);
        let (pem, env) = of("read.deny = ['**/.env']");
        assert!(pem > 0 && env == -1);
    }
    // The same under another number, and opened by a place that is spelled out.
    assert_eq!(of("read.deny = ['@/w/x', '**/.env']").1, -2);
    assert_eq!(of("read.deny = ['@/w/x', '**/.env']\nread.allow = ['@/w/.env']").1, 3);
    assert_eq!(of("read.deny = ['@/w/x', '**/.env']").1, -2);
}

#[test]
fn the_deeper_match_decides_then_the_path_that_is_spelled_out_then_deny() {
    let sandbox = compiled(
        "read.deny = ['**/secret', '@/w/*.pem', '@/w/both*']\n\
         read.allow = ['@/w/a/secret', '@/w/ca.pem', '**/secret/public', '@/w/*both']",
        ONE,
    );
    assert_eq!(sandbox.of("@/w/secret").0, -1);
    assert_eq!(sandbox.of("@/w/secret/x").0, -1);
    assert_eq!(sandbox.of("@/w/secret/public/x").0, 6);
    assert_eq!(sandbox.of("@/w/secret/public/secret").0, -1);
    assert_eq!(sandbox.of("@/w/a/secret").0, 4);
    assert_eq!(sandbox.of("@/w/a/secret/secret").0, -1);
    assert_eq!(sandbox.of("@/w/ca.pem").0, 5);
    assert_eq!(sandbox.of("@/w/key.pem").0, -2);
    assert_eq!(sandbox.of("@/w/both").0, -3);
    assert_eq!(sandbox.of("@/w/a-both").0, 7);
}

#[test]
fn a_pattern_that_denies_reaches_into_mounts_and_follows_the_place() {
    let sandbox = compiled(
        "read.deny = ['@/w/**/key', '/mnt/*/top']\nread.allow = ['@/w/**']",
        "1 0 1 / /\n2 1 2 / @/w/disk\n3 1 1 /srv/x @/w/bound\n4 1 3 /part /mnt\n5 1 3 / /whole",
    );
    assert_eq!(sandbox.of("@/w/disk/a/key").0, -1);
    assert_eq!(sandbox.of("@/w/bound/key").0, -1);
    assert_eq!(sandbox.of("/srv/x/y/key").0, -1);
    assert!(sandbox.of("/srv/key").0 > 0);
    assert_eq!(sandbox.of("/mnt/a/top").0, -2);
    assert_eq!(sandbox.of("/whole/part/a/top/x").0, -2);
    assert!(sandbox.of("/whole/a/top").0 > 0);
}

#[test]
fn a_pattern_that_denies_the_mount_point_closes_the_whole_mount() {
    let sandbox = compiled(
        "write.allow = ['@/w/**']\nwrite.deny = ['@/w/ven*']",
        "1 0 1 / /\n2 1 2 / @/w/vendor\n3 1 3 /sub @/w/venx/deep",
    );
    assert_eq!(sandbox.of("@/w/vendor").1, -2);
    assert_eq!(sandbox.of("@/w/vendor/x").1, -2);
    assert_eq!(sandbox.of("@/w/venx/deep/x").1, -2);
    assert_eq!(sandbox.of("@/w/x").1, 1);
}

#[test]
fn a_pattern_that_allows_does_not_cross_a_mount_point() {
    let sandbox = compiled(
        "read.deny = ['~/.ssh/**', '@/w/**']\nread.allow = ['@/w/**/pub']",
        "1 0 1 / /\n2 1 1 @/home/.ssh @/w/in\n3 1 2 / @/w/disk\n4 1 3 / @/other",
    );
    assert_eq!(sandbox.of("@/w/a/pub").0, 3);
    assert_eq!(sandbox.of("@/w/in/pub").0, -1);
    assert_eq!(sandbox.of("@/w/disk/pub").0, -2);
    let what = "the pattern opens nothing of what is mounted at";
    assert_eq!(sandbox.warnings, [format!("{what} `@/w/disk`"), format!("{what} `@/w/in`")]);
}

#[test]
fn a_bind_mount_does_not_open_what_a_pattern_closes_by_another_path() {
    let sandbox = compiled(
        "read.deny = ['**/.env', '/srv/*/data/**']\nread.allow = ['@/w/**']",
        "1 0 1 / /\n2 1 1 /x/.env/sub @/w/in\n3 1 1 /srv/a/data/part @/w/data",
    );
    assert_eq!(sandbox.of("@/w/in/x").0, -1);
    assert_eq!(sandbox.of("@/w/data/x").0, -2);
    assert_eq!(sandbox.of("@/w/x").0, 3);
}

#[test]
fn running_has_rules_of_its_own() {
    let sandbox = compiled(
        "exec.deny = ['@/w/**']\nexec.allow = ['@/w/**/bin/*']\n\
         [network]\nunix.allow = ['/run/user/*/keyring/ssh']",
        ONE,
    );
    let of = |path: &str, kind| decision(sandbox.rights(path), kind);
    for (path, allow, rule) in
        [("@/x", true, 0), ("@/w/x", false, 1), ("@/w/a/bin/x", true, 2), ("@/w/bin", false, 1)]
    {
        let found = of(path, Kind::Execute);
        assert_eq!((found.allow, found.rule), (allow, rule), "{path}");
        assert!(of(path, Kind::Read).allow);
    }
    assert!(of("/run/user/1000/keyring/ssh", Kind::Connect).allow);
    assert!(!of("/run/user/1000/bus", Kind::Connect).allow);
}

#[test]
fn what_no_rule_names_can_be_closed() {
    let sandbox = compiled(
        "read.default = 'deny'\nexec.default = 'deny'\nread.allow = ['/usr/**', '**/*.md']",
        "1 0 1 / /\n2 1 2 / /mnt",
    );
    let read = |path: &str| decision(sandbox.rights(path), Kind::Read);
    assert!(read("/usr/bin/x").allow && read("/mnt/README.md").allow);
    for path in ["/usr", "/etc/passwd", "/mnt/x"] {
        assert!(!read(path).allow && read(path).rule == 0, "{path}");
    }
    assert!(!decision(sandbox.rights("/usr/bin/x"), Kind::Execute).allow);
    let later = walker(&sandbox.policy).walk(0, &at("/x"), false).unwrap();
    assert_eq!(later.allow, 0);
}

#[test]
fn braces_are_spelled_out_paths() {
    let sandbox = compiled("read.deny = ['@/{a,b/c}/x', '**/.env{,.local}']", ONE);
    for path in ["@/a/x", "@/b/c/x"] {
        assert_eq!(sandbox.of(path).0, -1);
    }
    for path in ["@/a/.env", "/.env.local"] {
        assert_eq!(sandbox.of(path).0, -2);
    }
    assert!(sandbox.of("/.env.example").0 > 0 && sandbox.of("@/b/x").0 > 0);
}

/// The kernel takes equal numbers for equal futures when a directory moves.
#[test]
fn places_with_the_same_future_are_one_state() {
    let state = |rules: &str, path: &str| {
        let policy = compiled(rules, ONE).policy;
        let patterns = policy.patterns.unwrap();
        let start = policy.roots[1].1.below.pattern;
        at(&path.replace('@', BASE))
            .iter()
            .fold(start, |state, name| patterns.step(state, patterns.classify(name, false)).0)
    };
    let anywhere = |path: &str| state("write.deny = ['**/.git/hooks/**', '**/*.key']", path);
    for path in ["/a", "/a/b/c", "/.git/x", "/.git/hooks/x", "/x.key/y"] {
        assert_eq!(anywhere(path), anywhere("/"), "{path}");
    }
    assert_ne!(anywhere("/a/.git"), anywhere("/a/git"));
    assert_ne!(anywhere("/a/.git/hooks"), anywhere("/a/.git/h"));
    assert_eq!(anywhere("/a/.git"), anywhere("/b/.git"));
    let based = |path: &str| state("write.deny = ['@/w/*/x/y', '@/w/v*/x/z']", path);
    for path in ["/a", "@/other", "@/w/a/b", "@/w/a/x/b"] {
        assert_eq!(based(path), 0, "{path}");
    }
    assert_eq!(based("@/w/a"), based("@/w/b"));
    assert_ne!(based("@/w/a"), based("@/w/vb"));
    assert_ne!(based("@/w/a"), 0);
}

fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
    (0..count).map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn too_much_is_an_error_at_the_rule_that_does_not_fit() {
    let error = |rules: &str| {
        let text = format!("version = 1\n[files]\nread.deny = [\n{rules}\n]");
        let policy = load_text("p.toml", text).unwrap();
        compile(&policy, &context(), &table(ONE)).err().unwrap()
    };
    // Each is told apart from every other one.
    let names = lines(300, |n| format!("'**/{n}',"));
    let found = error(&names);
    assert_eq!(found.diagnostics.len(), 1);
    assert!(found.diagnostics[0].message.contains("more than"), "{found}");
    let line = found.diagnostics[0].position.as_ref().unwrap().line;
    assert!((200..=299).contains(&line), "{line}");
    let deep = lines(16, |n| format!("'**/a{n}/**/b{n}',"));
    assert!(error(&deep).diagnostics[0].message.contains("too much"));
    let wide = "'**/*a??????????????????b*'";
    assert!(error(wide).diagnostics[0].message.contains("kinds of names"));
}

#[test]
fn many_names_of_one_rule_are_one_kind() {
    let names: Vec<String> = (0..1000).map(|n| format!("n{n}")).collect();
    let sandbox = compiled(&format!("read.deny = ['**/{{{}}}']", names.join(",")), ONE);
    assert_eq!(sandbox.of("/x/n999").0, -1);
    assert!(sandbox.of("/x/n1000").0 > 0);
}

fn name() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec!["a", "b", "c", "ab", "bc", "a.b", "x.b", "ä", "A", "aäb"])
}

fn path() -> impl Strategy<Value = String> {
    proptest::collection::vec(name(), 0..6).prop_map(|names| format!("{BASE}/{}", names.join("/")))
}

fn component() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(vec![
        "a", "b", "c", "A", "ä", "**", "**", "*", "?", "a*", "*b", "*.b", "[ab]", "[!a]", "[!A-C]",
        "{a,bc}", "a?b", "*a*", "{*.b,?}",
    ])
}

fn pattern() -> impl Strategy<Value = String> {
    let components = proptest::collection::vec(component(), 1..5);
    (any::<bool>(), components, any::<bool>()).prop_filter_map(
        "** alone",
        |(everywhere, components, beneath)| {
            let path = components.join("/") + if beneath { "/**" } else { "" };
            let named = components.iter().any(|component| *component != "**");
            match (everywhere, named) {
                (true, true) => Some(format!("**/{path}")),
                (true, false) => None,
                (false, _) => Some(format!("{BASE}/{path}")),
            }
        },
    )
}

fn rules(denials: bool) -> impl Strategy<Value = String> {
    let rule = (0usize..12, prop_oneof![2 => pattern(), 1 => path()]);
    let defaults = (any::<bool>(), any::<bool>());
    (proptest::collection::vec(rule, 0..9), defaults).prop_map(move |(rules, (read, execute))| {
        let mut text = "version = 1\n[files]\n".to_owned();
        for (kind, allow) in [("read", read), ("exec", execute)] {
            writeln!(text, "{kind}.default = '{}'", if allow { "allow" } else { "deny" }).unwrap();
        }
        let keys = [&KEYS[..], &["exec.allow", "exec.deny"]].concat();
        let unix = ["unix.allow", "unix.deny"];
        for (index, key) in keys.iter().chain(&unix).enumerate() {
            if index == keys.len() {
                text.push_str("[network]\n");
            }
            let of_key = rules.iter().filter(|(list, _)| *list == index);
            let list: Vec<&String> = of_key
                .map(|(_, rule)| rule)
                .filter(|rule| {
                    !(denials && key.ends_with("allow") && rule.contains(['*', '?', '[']))
                })
                .collect();
            writeln!(text, "{key} = {list:?}").unwrap();
        }
        text
    })
}

/// Holds a policy to its rules on every path.
fn agree(text: &str, table: &MountTable, paths: &[String]) -> Result<(), TestCaseError> {
    let policy = load_text("p.toml", text.to_owned()).unwrap();
    let placed = expand(&policy, &context()).unwrap();
    let (compiled, _) = compile(&policy, &context(), table).unwrap();
    let walker = walker(&compiled);
    for path in paths {
        let (dev, place) = table.locate(&at(path)).unwrap();
        let rights = walker.walk(dev, &place, false).unwrap();
        for kind in Kind::ALL {
            let said = decide::path(&placed, policy.defaults, kind, &at(path));
            prop_assert_eq!(decision(rights, kind), said, "{:?} of {} with {}", kind, path, text);
        }
    }
    Ok(())
}

fn folded(name: &[u8]) -> Vec<u8> {
    name.to_ascii_lowercase()
}

/// One of a few bytes: letters, characters of several bytes and their parts.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let byte = proptest::sample::select(b"aAbz.\xc3\xa4\xe2\x82\xac\xf0\x9d\x84\x9e\xff".to_vec());
    proptest::collection::vec(byte, 1..9)
}

proptest! {
    #[test]
    fn one_file_system_agrees_with_the_rules(
        text in rules(false), paths in proptest::collection::vec(path(), 20),
    ) {
        agree(&text, &table(ONE), &paths)?;
    }

    #[test]
    fn denials_agree_with_the_rules_over_many_file_systems(
        text in rules(true),
        points in proptest::collection::vec(path(), 0..4),
        paths in proptest::collection::vec(path(), 20),
    ) {
        let mounts = (2..).zip(&points).map(|(minor, point)| (minor, "/", point.as_str()));
        agree(&text, &mounted(mounts).1, &paths)?;
    }

    /// What the rules close by one path is open by no other, unless a rule opens the place by name or
    /// a pattern does in its own file system.
    #[test]
    fn bind_mounts_open_nothing(
        text in rules(false),
        binds in proptest::collection::vec((path(), path()), 0..4),
        paths in proptest::collection::vec(path(), 20),
    ) {
        let mounts = binds.iter().map(|(root, point)| (1, root.as_str(), point.as_str()));
        let (lines, table) = mounted(mounts);
        let policy = load_text("p.toml", text.clone()).unwrap();
        let placed = expand(&policy, &context()).unwrap();
        let (compiled, _) = compile(&policy, &context(), &table).unwrap();
        let anchored = anchor(&placed, &table, []).0;
        let walker = walker(&compiled);
        let opens = |rule: &Placed, kind: Kind, place: &Components| {
            rule.allow && rule.speaks_of(kind) && decide::depth(rule, place).is_some()
        };
        for path in &paths {
            let (dev, place) = table.locate(&at(path)).unwrap();
            let rights = walker.walk(dev, &place, false).unwrap();
            for kind in Kind::ALL {
                let said = decide::path(&placed, policy.defaults, kind, &at(path));
                let spelled = placed.iter().any(|rule| {
                    let at = table.locate(&rule.path);
                    rule.tail.is_empty() && rule.allow && rule.speaks_of(kind)
                        && at.is_some_and(|(_, at)| place.starts_with(&at))
                });
                let matched = anchored.iter().any(|found| {
                    found.dev == dev && opens(&found.rule, kind, &place)
                });
                prop_assert!(
                    said.allow || spelled || matched || !decision(rights, kind).allow,
                    "{:?} of {} with {} and {}", kind, path, text, lines
                );
            }
        }
    }

    #[test]
    fn names_are_bytes(
        globs in proptest::collection::vec(component(), 1..6),
        names in proptest::collection::vec(bytes(), 20),
    ) {
        let list: Vec<String> = globs.iter().filter(|glob| **glob != "**")
            .map(|glob| format!("**/{glob}")).collect();
        let text = format!("version = 1\nfiles.read.deny = {list:?}");
        let policy = load_text("p.toml", text.clone()).unwrap();
        let placed = expand(&policy, &context()).unwrap();
        let (compiled, _) = compile(&policy, &context(), &table(ONE)).unwrap();
        let walker = walker(&compiled);
        let dev = sandbox_common::path::kernel_dev(8, 1);
        let folded_rules: Vec<Placed> = placed.iter().cloned().map(|mut rule| {
            for step in &mut rule.tail {
                if let Step::Name(glob) = step {
                    *glob = glob.folded();
                }
            }
            rule
        }).collect();
        for name in names {
            let place = [b"x".to_vec(), name];
            let said = decide::path(&placed, policy.defaults, Kind::Read, &place);
            let found = walker.walk(dev, &place, false).unwrap();
            prop_assert_eq!(decision(found, Kind::Read), said, "{:?} {}", place, text);
            let place = [b"x".to_vec(), folded(&place[1])];
            let said = decide::path(&folded_rules, policy.defaults, Kind::Read, &place);
            let found = walker.walk(dev, &place, true).unwrap();
            prop_assert_eq!(decision(found, Kind::Read), said, "folded {:?} {}", place, text);
        }
    }

    /// What the ends of a name rule out, no automaton finds; and they rule out most.
    #[test]
    fn endings_rule_out_no_match(
        globs in proptest::collection::vec(component(), 1..6),
        names in proptest::collection::vec(bytes(), 20),
    ) {
        let list: Vec<String> = globs.iter().filter(|glob| **glob != "**")
            .map(|glob| format!("**/{glob}")).collect();
        let sandbox = compiled(&format!("read.deny = {list:?}"), ONE);
        let Some(patterns) = &sandbox.policy.patterns else { return Ok(()) };
        let endings = Endings::of(patterns);
        let none = usize::from(patterns.cells[patterns.pairs as usize]);
        for name in names.iter().filter(|name| name.len() > 1) {
            let pair = |at: usize| u16::from_le_bytes([name[at], name[at + 1]]);
            prop_assert!(
                endings.may_match(pair(0), pair(name.len() - 2))
                    || patterns.classify(name, false) == none,
                "{:?} with {:?}", name, list
            );
        }
    }

    /// A folded glob matches the folded name wherever the glob matches the name.
    #[test]
    fn folding_loses_no_match(glob in component(), name in bytes()) {
        if let Ok(glob) = super::check::path::glob(glob) {
            let negated = glob.0.iter().any(|atom| {
                matches!(atom, super::glob::Atom::One { set, negated: true } if *set != 0)
            });
            prop_assert!(!glob.matches(&name) || negated || glob.folded().matches(&folded(&name)));
        }
        let plain = Glob::literal(&name);
        prop_assert!(plain.folded().matches(&folded(&name)));
    }
}

#[test]
fn endings_leave_few_names_to_the_automata() {
    let sandbox = compiled("read.deny = ['**/.env', '**/.env.*', '**/*.pem', '**/id_*']", ONE);
    let endings = Endings::of(sandbox.policy.patterns.as_ref().unwrap());
    let may_match = |name: &[u8; 6]| {
        endings.may_match(
            u16::from_le_bytes([name[0], name[1]]),
            u16::from_le_bytes([name[4], name[5]]),
        )
    };
    assert!(may_match(b".env.x") && may_match(b"id_rsa") && may_match(b"ca.pem"));
    let plain = |name: &&[u8; 6]| !may_match(name);
    let names = [b"lib.rs", b"a.json", b"main.c", b"README", b"x.html", b"mod.rs", b"t.conf"];
    assert_eq!(names.iter().copied().filter(plain).count(), names.len());
}

#[test]
fn the_reference_knows_that_what_allows_stops_at_mount_points() {
    let text =
        "version = 1\nfiles.read.deny = ['/v/**', '/v/m/**/x']\nfiles.read.allow = ['/v/**/*.pub']";
    let policy = load_text("p.toml", text.to_owned()).unwrap();
    let placed = expand(&policy, &context()).unwrap();
    let (point, elsewhere) = (at("v/m"), at("w"));
    let allow = |path: &str, points: &[&[Vec<u8>]]| {
        decide::path_across(&placed, policy.defaults, Kind::Read, &at(path), points).allow
    };
    assert!(allow("v/m/a.pub", &[]));
    assert!(allow("v/m/a.pub", &[&elsewhere]));
    assert!(!allow("v/m/a.pub", &[&elsewhere, &point]));
    assert!(allow("v/a.pub", &[&point]));
    assert!(!allow("v/m/d/x", &[&point]));
}

/// Deleting is opened by a pattern where a place closes it.
#[test]
fn what_a_pattern_lets_go_is_renamed() {
    let sandbox = compiled(
        "write.allow = ['@/w/**']\ndelete.deny = ['@/w']\ndelete.allow = ['@/w/**/*.pem']",
        ONE,
    );
    let place = |path: &str| {
        let (dev, names) = table(ONE).locate(&at(&path.replace('@', BASE))).unwrap();
        walker(&sandbox.policy).place(dev, &names, false).unwrap()
    };
    let (pem, secret) = (place("@/w/x.pem"), place("@/w/secret"));
    let other = (Moved::Other, Moved::Other);
    let (gone, _) = renaming(&pem, &secret, other, false, false);
    assert!(gone.allowed(), "{gone:?} {pem:?} {secret:?}");
    let (kept, is_new) = renaming(&secret, &pem, other, false, false);
    assert_eq!((kept.rule, is_new), (2, false));
}
