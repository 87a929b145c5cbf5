use super::super::compile_tests::{BASE, at, context, table};
use super::super::decide::Reach;
use super::super::rule::Direction;
use super::super::{load, load_preset, load_text, names, parse, ports};
use super::*;
use proptest::collection::vec as list;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::cell::RefCell;
use std::fmt::Write as _;

const ONE: &str = "1 0 1 / /";

fn policy(text: &str) -> Policy {
    load_text("p.toml", format!("version = 1\n{}", text.replace('@', BASE))).unwrap()
}

fn limited(own: &str, layer: &'static str, ceiling: &str) -> Policy {
    let text = format!("version = 1\n{}", ceiling.replace('@', BASE));
    parse::limit(policy(own), Source::new("c.toml", layer, text)).unwrap()
}

fn explained(policy: &Policy, kind: Kind, path: &str) -> Answer {
    let (context, table) = (context(), table(ONE));
    let asked = Asked::new(policy, &context, &table).unwrap();
    asked.explain(&Object::Path(at(&path.replace('@', BASE))), Wish::File(kind))
}

fn reached(policy: &Policy, to: &str, port: u16) -> Answer {
    let (context, table) = (context(), table(ONE));
    let asked = Asked::new(policy, &context, &table).unwrap();
    asked.explain(&Object::Address(to.parse().unwrap(), port), Wish::Reach(Protocol::Tcp))
}

fn add(key: &'static str, text: &str) -> Change {
    Change::Add { key, text: text.replace('@', BASE) }
}

#[test]
fn an_answer_names_the_rule_and_what_would_turn_it() {
    let policy =
        policy("[files]\nread.deny = ['/s/**', '/t', '**/.env']\nwrite.allow = ['/w/**']\n");
    let read = |path| explained(&policy, Kind::Read, path);
    let answer = read("/s/key");
    assert!(!answer.allow);
    let rule = answer.rule.unwrap();
    assert_eq!(
        (rule.key, rule.text.as_str(), rule.file.as_str()),
        ("files.read.deny", "/s/**", "p.toml")
    );
    assert_eq!((rule.line, rule.layer), (3, "user"));
    assert_eq!(answer.change, add("files.read.allow", "/s/key"));
    assert_eq!(read("/x/.env").change, add("files.read.allow", "/x/.env"));
    assert_eq!(read("/x").change, add("files.read.deny", "/x"));
    assert!(read("/x").allow && read("/x").rule.is_none());
    // At the same place the denial would win.
    let Change::Remove { rule, preset: None } = read("/t").change else { panic!() };
    assert_eq!(rule.text, "/t");
    let write = explained(&policy, Kind::Write, "/v/[x]");
    assert!(!write.allow && write.rule.is_none());
    assert_eq!(write.change, add("files.write.allow", r"/v/\[x\]"));
    let Change::Remove { preset, .. } =
        explained(&load(None).unwrap(), Kind::Read, "@/home/.netrc").change
    else {
        panic!()
    };
    assert_eq!(preset.as_deref(), Some("credentials"));
}

#[test]
fn deleting_and_attributes_are_explained_apart_from_writing() {
    let policy = policy(
        "[files]\nwrite.allow = ['/w']\nwrite.deny = ['/w/c']\ndelete.deny = ['/w/r/**']\n\
         delete.allow = ['/c']\nattributes.deny = ['/w/**/*.sh']\n",
    );
    let deny = explained(&policy, Kind::Delete, "/w/r/x");
    assert_eq!((deny.allow, deny.rule.unwrap().key), (false, "files.delete.deny"));
    assert_eq!(deny.change, add("files.delete.allow", "/w/r/x"));
    let open = explained(&policy, Kind::Write, "/w/r/x");
    assert_eq!((open.allow, open.rule.unwrap().key), (true, "files.write.allow"));
    let cached = explained(&policy, Kind::Delete, "/c/x");
    assert_eq!((cached.allow, cached.rule.unwrap().key), (true, "files.delete.allow"));
    assert!(!explained(&policy, Kind::Write, "/c/x").allow);
    let script = explained(&policy, Kind::Attributes, "/w/a/x.sh");
    assert_eq!((script.allow, script.rule.unwrap().key), (false, "files.attributes.deny"));
    assert_eq!(script.change, add("files.attributes.allow", "/w/a/x.sh"));
    // A rule about writing is about all of it.
    for kind in [Kind::Write, Kind::Delete, Kind::Attributes] {
        let closed = explained(&policy, kind, "/w/c/x");
        assert_eq!((closed.allow, closed.rule.unwrap().key), (false, "files.write.deny"));
    }
}

#[test]
fn a_ceiling_leaves_of_deleting_what_its_lists_name() {
    let own = "[files]\nwrite.allow = ['/w', '/c']\n";
    let of = |ceiling: &str, kind, path: &str| {
        explained(&limited(own, "managed", ceiling), kind, path).allow
    };
    let kept = "[files]\ndelete.allow = ['/w/t']\n";
    assert!(of(kept, Kind::Write, "/w/x") && of(kept, Kind::Attributes, "/w/x"));
    assert!(of(kept, Kind::Delete, "/w/t/x") && !of(kept, Kind::Delete, "/w/x"));
    let both = "[files]\nwrite.allow = ['/w']\ndelete.allow = ['/c']\n";
    assert!(of(both, Kind::Delete, "/w/x") && of(both, Kind::Delete, "/c/x"));
    assert!(!of(both, Kind::Write, "/c/x") && !of(both, Kind::Attributes, "/c/x"));
}

#[test]
fn a_layer_above_is_named_and_nothing_is_promised() {
    let own =
        "[files]\nread.deny = ['/s/x']\nwrite.allow = ['/w']\n[network]\nallow = ['10.0.0.0/8']\n";
    let ceiling =
        "[files]\nread.deny = ['/s']\nwrite.allow = ['/w/a']\n[network]\nallow = ['10.1.0.0/16']\n";
    let policy = limited(own, "managed", ceiling);
    for path in ["/s", "/s/x", "/s/y"] {
        let answer = explained(&policy, Kind::Read, path);
        assert_eq!(answer.rule.unwrap().text, "/s");
        let Change::Above { rule, layer } = answer.change else { panic!("{path}") };
        assert_eq!((rule.unwrap().text.as_str(), layer), ("/s", "managed"));
    }
    for path in ["/w/b", "/v"] {
        let answer = explained(&policy, Kind::Write, path);
        assert!(!answer.allow && answer.rule.is_none());
        assert_eq!(answer.change, Change::Above { rule: None, layer: "managed" }, "{path}");
    }
    assert!(explained(&policy, Kind::Write, "/w/a/x").allow);
    assert_eq!(
        reached(&policy, "10.2.0.1", 80).change,
        Change::Above { rule: None, layer: "managed" }
    );
    assert!(reached(&policy, "10.1.0.1", 80).allow);
}

#[test]
fn an_address_is_explained() {
    let policy = policy("[network]\nallow = ['10.0.0.0/8:80/tcp']\n");
    let answer = reached(&policy, "10.1.2.3", 80);
    assert_eq!((answer.allow, answer.rule.unwrap().text.as_str()), (true, "10.0.0.0/8:80/tcp"));
    let Change::Remove { preset: None, .. } = answer.change else { panic!() };
    assert_eq!(reached(&policy, "10.1.2.3", 81).change, add("network.allow", "10.1.2.3:81/tcp"));
    assert_eq!(reached(&policy, "::1", 80).change, add("network.allow", "[::1]:80/tcp"));
}

#[test]
fn a_name_is_explained() {
    let policy =
        policy("[network]\nallow = ['*.example.com:443/tcp']\ndeny = ['bad.example.com']\n");
    let (context, table) = (context(), table(ONE));
    let asked = Asked::new(&policy, &context, &table).unwrap();
    let of = |name: &str, port| {
        asked.explain(&Object::Name(name.into(), port), Wish::Reach(Protocol::Tcp))
    };
    let rule = |answer: &Answer| answer.rule.clone().unwrap().text;
    let answer = of("api.example.com", 443);
    assert_eq!((answer.allow, rule(&answer).as_str()), (true, "*.example.com:443/tcp"));
    assert_eq!(answer.change, add("network.deny", "api.example.com:443/tcp"));
    let answer = of("bad.example.com", 443);
    assert_eq!((answer.allow, rule(&answer).as_str()), (false, "bad.example.com"));
    let Change::Remove { preset: None, .. } = answer.change else { panic!("{answer:?}") };
    assert_eq!(of("api.example.com", 80).change, add("network.allow", "api.example.com:80/tcp"));
    assert_eq!(of("example.org", 443).change, add("network.allow", "example.org:443/tcp"));
}

#[test]
fn a_command_is_explained() {
    let policy =
        limited("files.exec.ask = ['git push']\n", "managed", "files.exec.ask = ['npm publish']\n");
    let (context, table) = (context(), table(ONE));
    let asked = Asked::new(&policy, &context, &table).unwrap();
    let of = |text: &str| {
        let words = text.split(' ').map(str::to_owned).collect();
        let Answer { allow, rule, change, .. } = asked.explain(&Object::Command(words), Wish::Run);
        (allow, rule.map(|rule| rule.text), change)
    };
    let (allow, rule, change) = of("/usr/bin/git -C x push");
    assert_eq!((allow, rule.as_deref()), (false, Some("git push")));
    assert!(matches!(change, Change::Remove { preset: None, .. }), "{change:?}");
    let (allow, rule, change) = of("npm publish");
    assert_eq!((allow, rule.as_deref(), change), (false, Some("npm publish"), Change::None));
    let named = Change::Add { key: "files.exec.ask", text: "git status -s".to_owned() };
    assert_eq!(of("/usr/bin/git status -s"), (true, None, named));
    let odd = "a".repeat(40);
    assert_eq!(of(&odd), (true, None, Change::None));
}

#[test]
fn another_path_to_the_same_place_is_told() {
    let policy = policy("[files]\nwrite.allow = ['/w']\nread.deny = ['/keys']\n");
    let context = context();
    let table = table("1 0 1 / /\n2 1 1 /keys /w/mnt");
    let asked = Asked::new(&policy, &context, &table).unwrap();
    let answer = asked.explain(&Object::Path(at("/w/mnt/id")), Wish::File(Kind::Read));
    assert!(!answer.allow);
    assert_eq!(answer.by_path.as_deref(), Some(Path::new("/keys/id")));
}

/// Paths as a session meets them: in the home, the workspace, the system, and out of names that rules
/// speak of.
fn path() -> impl Strategy<Value = String> {
    const BEGIN: &[&str] = &["@/home", "@/w", "@/t", "/etc", "/dev/shm", "/root", "/home/x", ""];
    const NAMES: &[&str] = &[
        ".ssh",
        "id_ed25519",
        ".aws",
        ".config",
        "gh",
        "hosts.yml",
        ".env",
        ".env.local",
        ".git",
        "hooks",
        "config",
        ".claude",
        "settings.json",
        ".cargo",
        "registry",
        "x",
        "shadow",
        "ssl",
        "private",
        ".vscode",
        "tasks.json",
        ".gnupg",
        ".netrc",
        "a.kdbx",
        ".npm",
        "_cacache",
    ];
    let names = proptest::collection::vec(proptest::sample::select(NAMES), 0..5);
    (proptest::sample::select(BEGIN), names)
        .prop_map(|(begin, names)| format!("{begin}/{}", names.join("/")))
}

/// A thousand random paths: what is explained is what the reference says, and what is promised turns it.
#[test]
fn a_thousand_paths_agree_with_the_reference() {
    let policies = [
        load(None).unwrap(),
        load_preset("claude-code").unwrap().unwrap(),
        policy(
            "extends = ['default']\nnetwork.unix.allow = ['@/home/*/x', '/etc/**', '@/w/x']\n\
             network.unix.deny = ['/etc/ssl', '@/w/.git/**']\n",
        ),
        load_preset("strict").unwrap().unwrap(),
        limited(
            "extends = ['default']",
            "managed",
            "[files]\nread.deny = ['**/x']\nwrite.allow = ['@/w']\n",
        ),
    ];
    let (context, table) = (context(), table(ONE));
    let asked: Vec<Asked<'_>> =
        policies.iter().map(|policy| Asked::new(policy, &context, &table).unwrap()).collect();
    let mut runner = TestRunner::new(ProptestConfig::with_cases(1_000));
    let counts = Counts::default();
    runner
        .run(&path(), |path| {
            let place = at(&path.replace('@', BASE));
            for (asked, policy) in asked.iter().zip(&policies) {
                for kind in Kind::ALL {
                    let said = match kind {
                        Kind::Connect => decide::socket(&asked.placed, policy.defaults, &place),
                        _ => decide::path(&asked.placed, policy.defaults, kind, &place),
                    };
                    let found = asked.decide(&Object::Path(place.clone()), Wish::File(kind));
                    prop_assert_eq!(found.allow, said.allow, "{:?} of {}", kind, path);
                    // Of two layers that deny either may be told of.
                    let one = policy.ceilings.is_empty();
                    prop_assert!(!one || found == said, "{:?} of {}", kind, path);
                    counts.count(found.allow);
                }
            }
            Ok(())
        })
        .unwrap();
    counts.more_than(1_000);
}

/// How often was denied, and allowed.
#[derive(Debug, Default)]
struct Counts(RefCell<[u32; 2]>);

impl Counts {
    fn count(&self, allowed: bool) {
        self.0.borrow_mut()[usize::from(allowed)] += 1;
    }

    fn more_than(&self, least: u32) {
        assert!(self.0.borrow().iter().all(|count| *count > least), "{self:?}");
    }
}

/// The answer is that of the reference, and what it says would turn it does; it may say that nothing would.
fn holds(asked: &Asked<'_>, object: &Object, wish: Wish, said: bool) -> Result<(), TestCaseError> {
    let answer = asked.explain(object, wish);
    prop_assert_eq!(answer.allow, said, "{:?}: {:?}", object, answer);
    if let Change::Add { key, text } = &answer.change {
        let changed = asked.with(key, text);
        let (context, table) = (context(), table(ONE));
        let changed = changed.expect("an entry that is proposed can be read");
        let again = Asked::new(&changed, &context, &table).unwrap();
        prop_assert_ne!(again.decide(object, wish).allow, said, "{:?}: {:?}", object, answer);
    }
    Ok(())
}

fn of_two_layers(
    allow: &[String],
    deny: &[String],
    above: &[String],
    forbidden: &[String],
) -> Policy {
    let list = |allow: &[String], deny: &[String]| {
        format!("[network]\nallow = {allow:?}\ndeny = {deny:?}\n")
    };
    limited(&list(allow, deny), "managed", &list(above, forbidden))
}

/// A thousand hosts by address under random rules of two layers: explained is what the reference says and what the
/// kernel finds in its maps.
#[test]
fn a_thousand_addresses_agree_with_the_reference_and_the_maps() {
    let lists = || list(ports::tests::wide(), 1..10);
    let hosts = list((ports::tests::target(), 1_u16..60, any::<bool>()), 20);
    let counts = Counts::default();
    TestRunner::new(ProptestConfig::with_cases(60))
        .run(&(lists(), lists(), lists(), list(ports::tests::wide(), 0..2), hosts), |drawn| {
            let (allow, deny, above, forbidden, hosts) = drawn;
            let policy = of_two_layers(&allow, &deny[1..], &above, &forbidden);
            let (context, table) = (context(), table(ONE));
            let asked = Asked::new(&policy, &context, &table).unwrap();
            for (address, port, tcp) in hosts {
                let protocol = if tcp { Protocol::Tcp } else { Protocol::Udp };
                let said = decide::reach(&policy, protocol, address, port).allow;
                let found = ports::tests::lookup(&asked.compiled, protocol as u16, address, port);
                prop_assert_eq!(matches!(found, Reach::Rule { allow: true, .. }), said);
                holds(&asked, &Object::Address(address, port), Wish::Reach(protocol), said)?;
                counts.count(said);
            }
            Ok(())
        })
        .unwrap();
    counts.more_than(40);
}

/// The same of hosts by name, for which the session's resolver decides.
#[test]
fn a_thousand_names_agree_with_the_reference() {
    const NAMES: &[&str] =
        &["example.com", "a.example.com", "b.a.example.com", "x.y.a.example.com", "c.org", "org"];
    let lists = |least| list(names::tests::entry(), least..least + 4);
    let port = proptest::sample::select(&[79_u16, 80, 90, 91, 443][..]);
    let hosts = list((proptest::sample::select(NAMES), port, any::<bool>()), 20);
    let counts = Counts::default();
    TestRunner::new(ProptestConfig::with_cases(60))
        .run(&(lists(4), lists(0), lists(6), lists(0), hosts), |drawn| {
            let (allow, deny, above, forbidden, hosts) = drawn;
            let policy = of_two_layers(&allow, &deny, &above, &forbidden);
            let (context, table) = (context(), table(ONE));
            let asked = Asked::new(&policy, &context, &table).unwrap();
            for (name, port, tcp) in hosts {
                let protocol = if tcp { Protocol::Tcp } else { Protocol::Udp };
                let opens = |layer: &Policy| {
                    let said = decide::name(&layer.names, name, protocol, port);
                    match said {
                        Reach::Rule { allow, .. } => allow,
                        _ => !layer.closes(Direction::Out),
                    }
                };
                let listed = decide::name(&policy.names, name, protocol, port) != Reach::Default;
                let said = listed && opens(&policy) && policy.ceilings.iter().all(opens);
                let object = Object::Name(name.into(), port);
                holds(&asked, &object, Wish::Reach(protocol), said)?;
                counts.count(said);
            }
            Ok(())
        })
        .unwrap();
    counts.more_than(20);
}

/// The same of unix sockets by abstract name; those that have a path are among the thousand paths.
#[test]
fn a_thousand_abstract_names_agree_with_the_rules_and_the_map() {
    const NAMES: &[&str] = &["a", "b", "c", "a b", "a\0", "\u{fc}", "@a", "a\\", "\n"];
    let names = || list(proptest::sample::select(NAMES), 0..6);
    let counts = Counts::default();
    TestRunner::new(ProptestConfig::with_cases(120))
        .run(&(names(), names(), proptest::option::of(names()), names()), |drawn| {
            let (allow, deny, above, forbidden) = drawn;
            let written = |names: &[&str]| -> Vec<String> {
                names.iter().map(|name| check::unix::spelled_out(name.as_bytes())).collect()
            };
            let own = format!(
                "[network.unix]\nallow = {:?}\ndeny = {:?}\n",
                written(&allow),
                written(&deny)
            );
            let mut ceiling = format!("[network.unix]\ndeny = {:?}\n", written(&forbidden));
            if let Some(above) = &above {
                writeln!(ceiling, "allow = {:?}", written(above)).unwrap();
            }
            // As it is: `@` stands for nothing else here.
            let own = load_text("p.toml", format!("version = 1\n{own}")).unwrap();
            let ceiling = Source::new("c.toml", "managed", format!("version = 1\n{ceiling}"));
            let policy = parse::limit(own, ceiling).unwrap();
            let (context, table) = (context(), table(ONE));
            let asked = Asked::new(&policy, &context, &table).unwrap();
            for name in NAMES {
                let said = allow.contains(name)
                    && !deny.contains(name)
                    && !forbidden.contains(name)
                    && above.as_ref().is_none_or(|above| above.contains(name));
                let entry =
                    asked.compiled.abstracts.iter().find(|entry| entry.name == name.as_bytes());
                prop_assert_eq!(entry.is_some_and(|entry| entry.allow), said, "{:?}", name);
                let object = Object::Abstract(name.as_bytes().to_vec());
                holds(&asked, &object, Wish::File(Kind::Connect), said)?;
                counts.count(said);
            }
            Ok(())
        })
        .unwrap();
    counts.more_than(20);
}

#[test]
fn a_socket_where_may_be_written_is_reached() {
    let policy = policy("[files]\nwrite.allow = ['/w']\n[network]\nunix.deny = ['/w/s']\n");
    let answer = explained(&policy, Kind::Connect, "/w/s");
    assert!(answer.allow);
    assert_eq!(answer.rule.unwrap().key, "files.write.allow");
    assert!(!explained(&policy, Kind::Connect, "/v/s").allow);
}
