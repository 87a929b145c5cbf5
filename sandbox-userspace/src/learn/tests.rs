use super::generalise::generalise;
use super::observe::{Observed, What, observe};
use super::propose::{Place, Proposal, propose, spell};
use super::write::write;
use crate::policy::expand::{Context, Placed, expand};
use crate::policy::rule::{Defaults, Kind};
use crate::policy::source::Source;
use crate::policy::{Policy, decide, load_text};
use proptest::prelude::*;
use std::collections::BTreeSet;

const BASE: &str = "/nonexistent-sandbox-test";

fn context() -> Context {
    Context {
        home: format!("{BASE}/home").into(),
        workspace: format!("{BASE}/home/w").into(),
        tmpdir: format!("{BASE}/t").into(),
        terminal: None,
        surroundings: crate::policy::services::Surroundings::default(),
    }
}

fn at(path: &str) -> String {
    path.replace('~', &format!("{BASE}/home")).replace('@', &format!("{BASE}/home/w"))
}

fn event(access: &str, path: &str, rule: &str) -> String {
    let path = at(path);
    let reason = if rule == "null" { "default" } else { "rule" };
    format!(
        r#"{{"type":"denial","session":"0123abcd","hook":"file_open","access":["{access}"],"reason":"{reason}","comm":"node","object":{{"kind":"path","path":"{path}","exists":true}},"rule":{rule}}}"#
    )
}

struct Made {
    proposal: Proposal,
    text: String,
    policy: Policy,
    placed: Vec<Placed>,
}

fn made(present: &str, observed: &Observed, include: &[&str]) -> Made {
    let policy = load_text("p.toml", present.to_owned()).unwrap();
    let include: Vec<String> = include.iter().map(|what| at(what)).collect();
    let except = BTreeSet::new();
    let context = context();
    let place = Place { policy: &policy, context: &context, include: &include, except: &except };
    let proposal = propose(observed, &place).unwrap();
    let source = Source::new("p.toml", "user", present.to_owned());
    let text = write(Some(&source), &proposal).unwrap();
    let policy =
        load_text("proposed.toml", text.clone()).unwrap_or_else(|error| panic!("{text}\n{error}"));
    let placed = expand(&policy, &context).unwrap();
    Made { proposal, text, policy, placed }
}

impl Made {
    fn allows(&self, kind: Kind, path: &str) -> bool {
        allows(&self.policy, &self.placed, kind, &at(path))
    }

    fn left(&self, path: &str) -> bool {
        self.proposal.left.iter().any(|left| left.what == at(path))
    }
}

fn allows(policy: &Policy, placed: &[Placed], kind: Kind, path: &str) -> bool {
    let path = crate::kernel::mounts::to_components(std::path::Path::new(path));
    decide::path(placed, policy.defaults, kind, &path).allow
}

const DEFAULT: &str = "version = 1\nextends = [\"default\"]\n";

#[test]
fn many_files_become_one_directory_and_few_stay_files() {
    let mut lines: Vec<String> = (0..4000)
        .map(|n| event("write", &format!("~/.cache/tool/v{}/f{n}", n % 70), "null"))
        .collect();
    lines.push(event("create", "~/notes/a.txt", "null"));
    lines.push(event("attributes", "/etc/hosts", "null"));
    lines
        .extend(["a", "b", "c", "d"].map(|name| event("write", &format!("/etc/x/{name}"), "null")));
    let made = made(DEFAULT, &observe(&lines.join("\n")), &[]);
    let rules: Vec<&str> = made.proposal.rules.iter().map(|rule| rule.rule.as_str()).collect();
    assert!(rules.contains(&"~/.cache/tool/**") && rules.contains(&"~/notes/a.txt"), "{rules:?}");
    // What belongs to the machine is named file by file.
    assert!(rules.contains(&"/etc/hosts") && rules.contains(&"/etc/x/d"), "{rules:?}");
    assert_eq!(rules.len(), 7, "{rules:?}");
    assert!(
        made.allows(Kind::Write, "~/.cache/tool/new") && !made.allows(Kind::Write, "~/.cache/x")
    );
    let evidence = "    # write, 4000 times, by node: 4000 paths, such as";
    assert!(made.text.contains(evidence), "{}", made.text);
}

#[test]
fn what_is_closed_knowingly_is_left_to_be_asked_for() {
    let rule = r#"{"key":"files.read.deny","text":"~/.ssh/**","file":"preset:credentials","line":22,"layer":"preset"}"#;
    let text = [
        event("read", "~/.ssh/id", rule),
        // A credential, also where the event names no rule that denies it.
        event("read", "~/.aws/credentials", "null"),
        event("write", "~/.bashrc", "null"),
        event("connect", "/run/docker.sock", "null"),
        event("write", "~/.tool/x", "null"),
    ]
    .join("\n");
    let closed = ["~/.ssh/id", "~/.aws/credentials", "~/.bashrc", "/run/docker.sock"];
    let nothing = made(DEFAULT, &observe(&text), &[]);
    assert!(closed.iter().all(|path| nothing.left(path)), "{:?}", nothing.proposal);
    assert!(!nothing.allows(Kind::Read, "~/.ssh/id") && nothing.allows(Kind::Write, "~/.tool/x"));
    assert!(!nothing.text.contains(".ssh") && !nothing.text.contains("docker"));
    let asked = made(DEFAULT, &observe(&text), &["~/.ssh/id", "/run/docker.sock"]);
    assert!(asked.allows(Kind::Read, "~/.ssh/id") && !asked.allows(Kind::Read, "~/.ssh/other"));
    assert!(asked.allows(Kind::Connect, "/run/docker.sock") && asked.left("~/.bashrc"));
    let managed =
        rule.replace("\"preset\"", "\"managed\"").replace("files.read.deny", "files.read.allow");
    let above = made(DEFAULT, &observe(&event("read", "~/x", &managed)), &["~/x"]);
    assert!(above.left("~/x"), "no rule of the user's opens it");
}

#[test]
fn addresses_have_the_names_that_the_resolver_knew() {
    let address = |address: &str, names: &str, access: &str| {
        format!(
            r#"{{"type":"denial","hook":"connect4","access":["{access}"],"reason":"default","comm":"curl","object":{{"kind":"address","address":"{address}","port":443,"protocol":"tcp","names":[{names}]}},"rule":null}}"#
        )
    };
    let name = |name: &str| {
        format!(
            r#"{{"type":"denial","hook":"resolver","access":["connect"],"reason":"default","comm":"","object":{{"kind":"name","name":"{name}","record":"A"}},"rule":null}}"#
        )
    };
    let text = [
        address("93.184.216.34", "\"api.example.com\"", "connect"),
        address("93.184.216.35", "\"api.example.com\"", "connect"),
        address("192.0.2.1", "", "connect"),
        address("10.0.0.1", "\"db.example.com\"", "connect"),
        address("169.254.169.254", "", "connect"),
        address("2001:db8::1", "", "listen"),
        name("api.example.com"),
        name("only.example.org"),
        r#"{"type":"denial","hook":"userns_create","access":["mount"],"reason":"never","object":{"kind":"task"},"rule":null}"#.to_owned(),
        "no event".to_owned(),
    ]
    .join("\n");
    let observed = observe(&text);
    assert_eq!(observed.other.get("userns_create (never)"), Some(&1));
    let made = made(DEFAULT, &observed, &[]);
    let rules: Vec<(&str, &str)> =
        made.proposal.rules.iter().map(|rule| (rule.key, rule.rule.as_str())).collect();
    assert_eq!(
        rules,
        [
            ("network.allow", "10.0.0.1:443/tcp"),
            ("network.allow", "192.0.2.1:443/tcp"),
            ("network.allow", "api.example.com:443/tcp"),
            ("network.allow", "db.example.com:443/tcp"),
            ("network.allow", "only.example.org:443/tcp"),
            ("network.listen", "[2001:db8::1]:443/tcp"),
        ]
    );
    assert!(made.left("169.254.169.254:443/tcp"), "{:?}", made.proposal.left);
}

#[test]
fn the_present_policys_own_lines_stay() {
    let present = "# Mine.\nversion = 1\nextends = [\"default\"]\n\n[files]\nwrite.allow = [\n    # kept\n    \"/data/**\",\n]\n";
    let text = [event("write", "~/.tool/x", "null"), event("read", "~/y", "null")].join("\n");
    let one = made(present, &observe(&text), &[]);
    for part in [
        "# Mine.",
        "    # kept\n    \"/data/**\",",
        "    # write, once, by node\n    \"~/.tool/x\"",
    ] {
        assert!(one.text.contains(part), "{part}: {}", one.text);
    }
    assert_eq!(one.policy.files.iter().filter(|rule| rule.origin.text == "/data/**").count(), 1);
    let json = r#"{"$schema": "x", "version": 1, "extends": ["default"], "files": {"read": {"deny": ["/d"]}}}"#;
    let other = made(json, &observe(&text), &[]);
    assert!(other.allows(Kind::Write, "~/.tool/x") && !other.allows(Kind::Read, "/d/x"));
    let codex = Source::new("preset:codex", "preset", String::new());
    let new = write(Some(&codex), &Proposal::default()).unwrap();
    assert_eq!(new, "version = 1\nextends = [\"codex\"]\n");
}

#[test]
fn directories_are_raised_only_where_that_is_permitted() {
    let paths =
        ["/a/b/1", "/a/b/2", "/a/b/3", "/a/c/1", "/a/c/2", "/a/c/3", "/a/d/1", "/a/d/2", "/a/d/3"];
    let all = generalise(paths, &|_| true);
    assert_eq!(all.len(), 1);
    assert_eq!((all[0].0.as_str(), all[0].1, all[0].2.len()), ("/a", true, 9));
    let some = generalise(paths, &|directory| directory != "/a");
    let names: Vec<&str> = some.iter().map(|(path, ..)| path.as_str()).collect();
    assert_eq!(names, ["/a/b", "/a/c", "/a/d"]);
    assert_eq!(generalise(["/a/b", "/a/bc", "/a/b/c"], &|_| false).len(), 3);
    assert_eq!(spell(&at("@/[x]/${y}"), &context()), "${WORKSPACE}/\\[x\\]/\\$\\{y\\}");
}

/// Paths that programs want, with places among them that are closed knowingly.
fn path() -> impl Strategy<Value = String> {
    let top = prop::sample::select(vec![
        "~",
        "@",
        "/etc",
        "/usr/share/x",
        "/data",
        "~/.cache",
        "~/.config",
        "~/.ssh",
        "~/.aws",
        "@/.git",
        "@/.git/hooks",
        "/run",
        "~/.codex",
        "/var/lib/x",
        "~/.config/autostart",
        "/tmp",
    ]);
    let names = prop::sample::select(vec![
        "a",
        "b",
        "c",
        "d",
        ".env",
        "config",
        "x y",
        "[z]",
        "hosts.yml",
        "hooks",
        "auth.json",
        ".git",
    ]);
    (top, prop::collection::vec(names, 1..4))
        .prop_map(|(top, names)| format!("{top}/{}", names.join("/")))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn all_that_was_wanted_is_allowed_and_nothing_protected_is_opened(
        wanted in prop::collection::vec((prop::sample::select(vec!["read", "write", "execute"]), path()), 0..60),
        present in prop::sample::select(vec![
            DEFAULT,
            "version = 1\n",
            "version = 1\nextends = ['strict']\n",
            "version = 1\n[files]\nread.default = 'deny'\nexec.default = 'deny'\n",
            "version = 1\nextends = ['default']\n[files]\nread.deny = ['/data/a/**', '**/b']\nwrite.deny = ['~/.cache/c']\n",
        ]),
    ) {
        let context = context();
        let policy = load_text("p.toml", present.to_owned()).unwrap();
        let placed = expand(&policy, &context).unwrap();
        let kind = |access: &str| match access {
            "read" => Kind::Read,
            "write" => Kind::Write,
            _ => Kind::Execute,
        };
        // Events come of what the present policy does not allow, and name the rule.
        let wanted = wanted.into_iter().flat_map(|(access, path)| {
            // What is run is read.
            let read = (access == "execute").then(|| ("read", path.clone()));
            [Some((access, path)), read].into_iter().flatten()
        });
        let lines: Vec<String> = wanted.filter_map(|(access, path)| {
            let names = crate::kernel::mounts::to_components(std::path::Path::new(&at(&path)));
            let decision = decide::path(&placed, policy.defaults, kind(access), &names);
            if decision.allow {
                return None;
            }
            let rule = policy.origin(decision.rule).map_or("null".to_owned(), |origin| {
                serde_json::json!({
                    "key": origin.key, "text": origin.text, "file": "f", "line": 1, "layer": "user",
                }).to_string()
            });
            Some(event(access, &path, &rule))
        }).collect();
        let observed = observe(&lines.join("\n"));
        let made = made(present, &observed, &[]);
        for (key, what) in observed.wanted.keys() {
            let What::Path(path) = what else { continue };
            let kind = match *key {
                "files.read.allow" => Kind::Read,
                "files.write.allow" => Kind::Write,
                _ => Kind::Execute,
            };
            let left = made.proposal.left.iter().any(|left| left.what == *path && left.key == *key);
            // What is run must be readable, too.
            let readable = kind != Kind::Execute || allows(&made.policy, &made.placed, Kind::Read, path);
            prop_assert!(
                left || (readable && allows(&made.policy, &made.placed, kind, path)),
                "{} {}\n{}", key, path, made.text
            );
        }
        // What any of the rules closes stays closed: at its place, beneath, and where its pattern matches.
        let guard = load_text("g", "version = 1\nextends = ['credentials', 'persistence', 'agents']\n".to_owned());
        let guard = expand(&guard.unwrap(), &context).unwrap();
        let spelled = guard.iter().filter(|rule| rule.tail.is_empty());
        let spelled = spelled.flat_map(|rule| {
            let place = crate::kernel::mounts::to_path(&rule.path).display().to_string();
            let kinds = Kind::of(rule.access).collect::<Vec<_>>().into_iter();
            kinds.flat_map(move |kind| [(kind, format!("{place}/x")), (kind, place.clone())])
        });
        let patterns = ["/data/.env", "@/a/.env", "~/.cache/a/.env", "/usr/share/x/b/.env.local"]
            .map(|path| (Kind::Read, at(path))).into_iter()
            .chain(["@/.git/hooks/x", "@/.git/config", "@/a/.git/config"].map(|path| (Kind::Write, at(path))));
        let denied = |kind, path: &str| {
            let path = crate::kernel::mounts::to_components(std::path::Path::new(path));
            !decide::path(&guard, Defaults::OPEN, kind, &path).allow
        };
        let left = made.proposal.left.iter().filter_map(|left| {
            let kind = if left.key == "files.write.allow" { Kind::Write } else { Kind::Read };
            denied(kind, &left.what).then(|| (kind, left.what.clone()))
        });
        for (kind, path) in spelled.chain(patterns).chain(left) {
            let before = allows(&policy, &placed, kind, &path);
            let after = allows(&made.policy, &made.placed, kind, &path);
            prop_assert!(before || !after, "{:?} {} was opened\n{}", kind, path, made.text);
        }
    }
}
