//! No layer widens another one.

use super::compile_properties::KEYS;
use super::compile_tests::{BASE, at, context, decision, mounted, table, walker};
use super::diagnostic::PolicyError;
use super::expand::{Placed, expand};
use super::layers::{Setting, over, user_policy};
use super::rule::{Defaults, Kind, Policy, Protocol};
use super::source::Source;
use super::trust::Trust;
use super::{Context, compile, decide, load_text, parse};
use proptest::prelude::*;
use sandbox_common::subject::Mode;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const ONE: &str = "1 0 1 / /";

fn limited(own: &str, ceilings: &[&str]) -> Policy {
    let policy = load_text("own.toml", format!("version = 1\n{own}")).unwrap();
    ceilings.iter().fold(policy, |policy, text| {
        let text = format!("version = 1\n{text}");
        parse::limit(policy, Source::new("ceiling.toml", "managed", text)).unwrap()
    })
}

/// Whether the compiled policy and the reference allow something.
fn verdicts(policy: &Policy, kind: Kind, path: &str) -> (bool, bool) {
    let placed = expand(policy, &context()).unwrap();
    let (compiled, _) = compile(policy, &context(), &table(ONE)).unwrap();
    let (dev, place) = table(ONE).locate(&at(path)).unwrap();
    let rights = walker(&compiled).walk(dev, &place, false).unwrap();
    let said = decide::path(&placed, policy.defaults, kind, &at(path));
    let found = decision(rights, kind);
    if found.allow == said.allow && !found.allow {
        assert_eq!(found.rule, said.rule, "{kind:?} {path}");
    }
    (found.allow, said.allow)
}

#[test]
fn allowed_is_what_every_layer_allows() {
    let own = "[files]\nwrite.allow = ['/w', '/v/a']\nread.allow = ['/h/s/pub', '/x/.env']\n";
    let ceiling =
        "[files]\nwrite.allow = ['/w/b', '/v']\nread.deny = ['/h/s', '**/.env', '/w/q']\n";
    let policy = limited(own, &[ceiling]);
    for (kind, path, allow) in [
        (Kind::Write, "/w/a", false),
        (Kind::Write, "/w/b/c", true),
        (Kind::Write, "/v/a/x", true),
        (Kind::Write, "/v/b", false),
        (Kind::Read, "/h/s/pub", false),
        (Kind::Read, "/h/s", false),
        (Kind::Read, "/x/.env", false),
        (Kind::Read, "/x/env", true),
        (Kind::Read, "/w/q/r", false),
        (Kind::Execute, "/w/b", true),
        (Kind::Connect, "/w/b", false),
    ] {
        assert_eq!(verdicts(&policy, kind, path), (allow, allow), "{kind:?} {path}");
    }
}

#[test]
fn a_pattern_opens_nothing_that_another_layer_closes() {
    let own = "[files]\nread.default = 'deny'\nread.allow = ['/w/**/pub', '/w/**/bin/**']\n";
    let ceiling =
        "[files]\nread.deny = ['**/secret', '/w/closed', '/w/c']\nread.allow = ['/w/c/d']";
    let policy = limited(own, &[ceiling]);
    for (path, allow) in [
        ("/w/a/pub/x", true),
        ("/w/a/secret/pub", false),
        ("/w/a/pub/secret", false),
        ("/w/closed/a/pub", false),
        ("/w/closedx/a/pub", true),
        ("/w/c/pub", false),
        ("/w/bin/x", true),
        ("/w/bin/secret/bin/x", false),
        ("/x/pub", false),
    ] {
        assert_eq!(verdicts(&policy, Kind::Read, path), (allow, allow), "{path}");
    }
    // Where another layer opens again within what it closes, a pattern does not follow.
    assert_eq!(verdicts(&policy, Kind::Read, "/w/c/d/pub"), (false, true));
}

#[test]
fn a_pattern_begins_anew_where_the_other_layer_opens() {
    let policy =
        limited("[files]\nwrite.allow = ['/w/**']", &["[files]\nwrite.allow = ['/*/a/**/out']"]);
    for (path, allow) in
        [("/w/a/b/out/x", true), ("/w/a/b", false), ("/w/out", false), ("/v/a/out", false)]
    {
        assert_eq!(verdicts(&policy, Kind::Write, path), (allow, allow), "{path}");
    }
}

#[test]
fn addresses_are_those_that_every_layer_names() {
    let own = "[network]\nallow = ['10.0.0.0/8:1000-3000', '[2001:db8::1]', '192.0.2.1:53/udp']";
    let ceiling = "[network]\nallow = ['10.1.0.0/16:2000-4000/tcp', '[2001:db8::]/32:443', '192.0.2.0/24/tcp']";
    let policy = limited(own, &[ceiling, "[files]\nread.deny = ['/x']"]);
    let reach = |protocol, to: &str, port| {
        decide::reach(&policy, protocol, to.parse::<IpAddr>().unwrap(), port).allow
    };
    assert!(reach(Protocol::Tcp, "10.1.2.3", 2500) && reach(Protocol::Tcp, "2001:db8::1", 443));
    for (protocol, to, port) in [
        (Protocol::Udp, "10.1.2.3", 2500),
        (Protocol::Tcp, "10.1.2.3", 1500),
        (Protocol::Tcp, "10.2.2.3", 2500),
        (Protocol::Tcp, "2001:db8::2", 443),
        (Protocol::Udp, "192.0.2.1", 53),
    ] {
        assert!(!reach(protocol, to, port), "{to}");
    }
    let none = limited(own, &["[network]\nallow = []"]);
    let (compiled, _) = compile(&none, &context(), &table(ONE)).unwrap();
    assert!(compiled.ports.iter().all(|entry| !entry.allow));
}

#[test]
fn reporting_only_is_for_the_administrator_to_allow() {
    let mode = |own: &str, ceilings: &[&str]| limited(own, ceilings).effective_mode();
    assert_eq!(mode("mode = 'audit'", &[]), Mode::Audit);
    assert_eq!(mode("mode = 'audit'", &[""]), Mode::Enforce);
    assert_eq!(mode("mode = 'audit'", &["mode = 'audit'"]), Mode::Audit);
    assert_eq!(mode("mode = 'audit'", &["mode = 'audit'", "mode = 'enforce'"]), Mode::Enforce);
    assert_eq!(mode("", &["mode = 'audit'"]), Mode::Enforce);
}

/// Rules over few names, so that they meet; `patterns`: with wildcards.
fn text(patterns: bool) -> impl Strategy<Value = String> {
    let mut names = vec!["a", "b", ".env"];
    if patterns {
        names.extend(["**", "*", "?", "a*"]);
    }
    let path = proptest::collection::vec(proptest::sample::select(names), 0..4);
    let path = (path, any::<bool>()).prop_filter_map("no rule", |(parts, beneath)| {
        let end = if beneath { "/**" } else { "" };
        let text = format!("/{}{end}", parts.join("/"));
        super::check::path::parse(&text).is_ok().then_some(text)
    });
    let rule = (proptest::sample::select(KEYS.to_vec()), path);
    (proptest::collection::vec(rule, 0..7), any::<bool>()).prop_map(|(rules, closed)| {
        let mut text = String::from("[files]\n");
        if closed {
            text.push_str("read.default = 'deny'\n");
        }
        for key in KEYS {
            let list: Vec<&String> =
                rules.iter().filter(|(of, _)| *of == key).map(|(_, path)| path).collect();
            if !list.is_empty() {
                writeln!(text, "{key} = {list:?}").unwrap();
            }
        }
        text
    })
}

fn object() -> impl Strategy<Value = String> {
    let names = vec!["a", "b", ".env", "ab"];
    proptest::collection::vec(proptest::sample::select(names), 0..6)
        .prop_map(|parts| format!("/{}", parts.join("/")))
}

/// A ceiling alone: beneath it everything is open.
fn alone(ceiling: &str) -> Policy {
    Policy { defaults: Defaults::OPEN, ..limited("", &[ceiling]) }
}

proptest! {
    /// Without patterns that allow the joined policy is exactly what all layers allow.
    #[test]
    fn spelled_out_layers_are_joined_exactly(
        own in text(false), ceilings in proptest::collection::vec(text(false), 1..3),
        paths in proptest::collection::vec(object(), 16),
    ) {
        let ceilings: Vec<&str> = ceilings.iter().map(String::as_str).collect();
        let policy = limited(&own, &ceilings);
        let placed = expand(&policy, &context()).unwrap();
        let (compiled, _) = compile(&policy, &context(), &table(ONE)).unwrap();
        let walker = walker(&compiled);
        for path in &paths {
            let (dev, place) = table(ONE).locate(&at(path)).unwrap();
            let rights = walker.walk(dev, &place, false).unwrap();
            for kind in [Kind::Read, Kind::Write] {
                let said = decide::path(&placed, policy.defaults, kind, &at(path));
                prop_assert_eq!(decision(rights, kind), said, "{:?} {} {} {:?}", kind, path, own, ceilings);
            }
        }
    }

    /// With patterns and bind mounts: the joined policy allows nothing that one of the layers, compiled
    /// alone, does not.
    #[test]
    fn adding_a_layer_never_widens(
        own in text(true), ceiling in text(true), more in text(true),
        binds in proptest::collection::vec((object(), object()), 0..3),
        paths in proptest::collection::vec(object(), 16),
    ) {
        let binds = binds.iter().map(|(root, point)| (1, root.as_str(), point.as_str()));
        let (lines, table) = mounted(binds);
        let compiled = |policy: &Policy| compile(policy, &context(), &table).unwrap().0;
        let joined = compiled(&limited(&own, &[&ceiling, &more]));
        let single = [
            ("own", compiled(&limited(&own, &[]))),
            ("ceiling", compiled(&alone(&ceiling))),
            ("more", compiled(&alone(&more))),
        ];
        let joined = walker(&joined);
        for path in &paths {
            let (dev, place) = table.locate(&at(path)).unwrap();
            let rights = joined.walk(dev, &place, false).unwrap();
            for kind in [Kind::Read, Kind::Write] {
                for (name, layer) in &single {
                    let by = walker(layer).walk(dev, &place, false).unwrap();
                    prop_assert!(
                        !decision(rights, kind).allow || decision(by, kind).allow,
                        "{:?} of {} with {}: {}\n{}\n{}\n{}", kind, path, lines, name, own, ceiling, more
                    );
                }
            }
        }
    }
}

/// A home, a workspace and a directory of the administrator, all of them this user's.
struct Machine {
    _guard: tempfile::TempDir,
    setting: Setting,
}

fn machine() -> Machine {
    let guard = tempfile::tempdir().unwrap();
    let dir = guard.path().canonicalize().unwrap();
    for name in ["etc/sandbox/managed.d", "home/.config/sandbox", "w"] {
        std::fs::create_dir_all(dir.join(name)).unwrap();
    }
    let user = rustix::process::geteuid().as_raw();
    let setting = Setting {
        managed: dir.join("etc/sandbox/managed.d"),
        root: user,
        home: dir.join("home"),
        user,
        workspace: dir.join("w"),
        named: None,
    };
    for path in [setting.managed.parent().unwrap(), &setting.managed] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    Machine { _guard: guard, setting }
}

impl Machine {
    fn put(path: &Path, text: &str) -> PathBuf {
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o644)).unwrap();
        path.to_owned()
    }

    fn managed(&self, name: &str, text: &str) -> PathBuf {
        Self::put(&self.setting.managed.join(name), text)
    }

    fn over(&self) -> Result<(Policy, Option<String>), PolicyError> {
        let text = "version = 1\n[files]\nwrite.allow = ['/']\nread.allow = ['/s/x']";
        over(load_text("own.toml", text.to_owned()).unwrap(), &self.setting)
    }

    fn allows(&self, kind: Kind, path: &Path) -> bool {
        let (policy, _) = self.over().unwrap();
        let Setting { home, workspace, .. } = self.setting.clone();
        let context = Context {
            home,
            workspace,
            tmpdir: "/nonexistent".into(),
            terminal: None,
            surroundings: crate::policy::services::Surroundings::default(),
        };
        let placed: Vec<Placed> = expand(&policy, &context).unwrap();
        let path = crate::kernel::mounts::to_components(path);
        decide::path(&placed, policy.defaults, kind, &path).allow
    }

    fn refused(&self) -> String {
        self.over().expect_err("must be refused").to_string()
    }
}

#[test]
fn policies_and_trust_are_unwritable_whatever_the_policy_says() {
    let mut machine = machine();
    let named = Machine::put(&machine.setting.home.join("my policy.toml"), "");
    machine.setting.named = Some(named.clone());
    let Setting { home, workspace, managed, .. } = machine.setting.clone();
    for closed in [
        Path::new("/etc/sandbox"),
        Path::new("/etc/sandbox/managed.d/x.toml"),
        Path::new("/run/sandbox/01234567/session.json"),
        &managed.join("x.toml"),
        &home.join(".config/sandbox/policy.toml"),
        &home.join(".config/sandbox/trusted.json"),
        &workspace.join(".sandbox.toml"),
        &named,
    ] {
        assert!(!machine.allows(Kind::Write, closed), "{}", closed.display());
    }
    assert!(machine.allows(Kind::Write, &home.join(".config/sandbox2")));
    assert!(machine.allows(Kind::Write, &workspace.join("sandbox.toml")));
}

#[test]
fn the_administrators_files_are_ceilings_each() {
    let machine = machine();
    assert!(machine.allows(Kind::Read, Path::new("/s/x")));
    machine.managed("10.toml", "version = 1\n[files]\nread.deny = ['/s']\n");
    machine.managed("20.json", r#"{"version": 1, "files": {"write.allow": 1}}"#);
    assert!(machine.refused().contains("20.json:1:"));
    machine.managed("20.json", r#"{"version": 1, "files": {"write": {"allow": ["/w"]}}}"#);
    assert!(!machine.allows(Kind::Read, Path::new("/s/x")));
    assert!(machine.allows(Kind::Write, Path::new("/w/x")));
    assert!(!machine.allows(Kind::Write, Path::new("/v/x")));
    let (policy, _) = machine.over().unwrap();
    let layers: Vec<_> = policy.origins().map(|origin| origin.place.source.layer).collect();
    assert_eq!(layers.iter().filter(|layer| **layer == "managed").count(), 2);
}

#[test]
fn half_a_ceiling_starts_nothing() {
    let machine = machine();
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    };
    let good = "version = 1\n";
    let file = machine.managed("a.toml", good);
    assert!(machine.over().is_ok());
    let etc = machine.setting.managed.parent().unwrap().to_owned();
    for path in [&file, &machine.setting.managed, &etc] {
        let before = path.metadata().unwrap().mode() & 0o777;
        for wide in [0o020, 0o002] {
            mode(path, before | wide);
            let text = machine.refused();
            assert!(
                text.contains("others than its owner may write it") && text.contains("chmod go-w")
            );
        }
        mode(path, before);
    }
    machine.managed("a.toml", "version = 1\n[files\n");
    assert!(machine.refused().contains("a.toml:2:"));
    machine.managed("a.toml", "");
    assert!(machine.refused().contains("`version` is missing"));
    std::fs::write(&file, [0x80]).unwrap();
    assert!(machine.refused().contains("is not UTF-8"));
    std::fs::remove_file(&file).unwrap();
    for (name, part) in [("a.toml~", "is no policy"), ("README", "is no policy")] {
        let odd = machine.managed(name, good);
        assert!(machine.refused().contains(part));
        std::fs::remove_file(odd).unwrap();
    }
    symlink("/etc/passwd", &file).unwrap();
    assert!(machine.refused().contains("is a symbolic link"));
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    assert!(machine.refused().contains("is no regular file"));
    std::fs::remove_dir(&file).unwrap();
    std::fs::remove_dir(&machine.setting.managed).unwrap();
    assert!(machine.over().is_ok());
    std::fs::write(&machine.setting.managed, good).unwrap();
    assert!(machine.refused().contains("is no directory"));
}

#[test]
fn somebody_elses_ceiling_starts_nothing() {
    let mut machine = machine();
    machine.managed("a.toml", "version = 1\n");
    machine.setting.root += 1;
    let text = machine.refused();
    assert!(text.contains("who is not trusted with it") && text.contains("chown"), "{text}");
}

#[test]
fn a_project_narrows_until_it_is_trusted() {
    let machine = machine();
    let Setting { home, user, workspace, .. } = machine.setting.clone();
    let text =
        "version = 1\n[files]\nread.deny = ['/q']\nread.allow = ['/s/y']\nwrite.allow = ['/w']\n";
    Machine::put(&workspace.join(".sandbox.toml"), text);
    machine.managed("a.toml", "version = 1\n[files]\nread.deny = ['/s']\n");
    let (policy, notice) = machine.over().unwrap();
    assert!(notice.unwrap().contains("is not trusted"));
    assert_eq!(policy.ceilings.len(), 3);
    assert!(!machine.allows(Kind::Read, Path::new("/q")));
    assert!(!machine.allows(Kind::Write, Path::new("/v")));

    let mut trust = Trust::open(&home, user).unwrap();
    trust.add(&workspace, text);
    let path = trust.save(None).unwrap().to_owned();
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
    let (policy, notice) = machine.over().unwrap();
    assert_eq!((notice, policy.ceilings.len()), (None, 2));
    assert!(!machine.allows(Kind::Read, Path::new("/q")));
    assert!(machine.allows(Kind::Write, Path::new("/v")));
    // Nor does trust go beyond the administrator.
    assert!(!machine.allows(Kind::Read, Path::new("/s/y")));

    // One byte more, and it is another file.
    Machine::put(&workspace.join(".sandbox.toml"), &format!("{text}#"));
    assert!(machine.over().unwrap().1.is_some());
    // The same content elsewhere is not what was trusted.
    assert!(!Trust::open(&home, user).unwrap().has(&home, text));
    trust.remove(&workspace);
    trust.save(None).unwrap();
    assert!(!Trust::open(&home, user).unwrap().has(&workspace, text));
    std::fs::write(&path, "[{}]").unwrap();
    assert!(machine.refused().contains("trusted.json"));
}

#[test]
fn a_users_own_policy_must_be_the_users() {
    let machine = machine();
    let Setting { home, user, .. } = machine.setting.clone();
    assert!(user_policy(&home, user).unwrap().is_none());
    let file = Machine::put(&home.join(".config/sandbox/policy.toml"), "version = 1\n");
    assert!(user_policy(&home, user).unwrap().is_some());
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
    let text = user_policy(&home, user).unwrap_err().to_string();
    assert!(text.contains("others than its owner may write it"), "{text}");
    assert!(BASE.starts_with('/'));
}
