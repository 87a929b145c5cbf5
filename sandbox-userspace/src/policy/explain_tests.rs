use super::super::compile_tests::{BASE, at, context, table};
use super::super::{load, load_preset, load_text, parse};
use super::*;
use proptest::prelude::*;

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
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(1_000));
    let (mut allowed, mut denied) = (0, 0);
    let counts = std::cell::RefCell::new((&mut allowed, &mut denied));
    runner
        .run(&path(), |path| {
            let place = at(&path.replace('@', BASE));
            for (asked, policy) in asked.iter().zip(&policies) {
                for kind in Kind::ALL {
                    let said = decide::path(&asked.placed, policy.defaults, kind, &place);
                    let found = asked.decide(&Object::Path(place.clone()), Wish::File(kind));
                    prop_assert_eq!(found.allow, said.allow, "{:?} of {}", kind, path);
                    // Of two layers that deny either may be told of.
                    let one = policy.ceilings.is_empty();
                    prop_assert!(!one || found == said, "{:?} of {}", kind, path);
                    let mut counts = counts.borrow_mut();
                    *(if found.allow { &mut *counts.0 } else { &mut *counts.1 }) += 1;
                }
            }
            Ok(())
        })
        .unwrap();
    assert!(allowed > 1_000 && denied > 1_000, "{allowed} {denied}");
}
