//! Every way to write a policy wrongly, with the place that the message names.

use super::diagnostic::{Diagnostic, PolicyError};
use super::rule::{Kind, Policy};
use super::{Context, decide, expand, load, load_text};
use crate::kernel::mounts::to_components;
use proptest::prelude::*;
use sandbox_common::Access;
use std::path::Path;

fn read(text: &str) -> Result<Policy, PolicyError> {
    load_text("policy.toml", text.to_owned())
}

/// The one thing that is wrong with a text.
fn only(text: &str) -> Diagnostic {
    let error = read(text).expect_err(text);
    assert_eq!(error.diagnostics.len(), 1, "{error}");
    error.diagnostics.into_iter().next().unwrap()
}

/// Text; line, column and width of the mark; message; part of the help.
type Case = (&'static str, (u32, u32, u32), &'static str, &'static str);

const CASES: &[Case] = &[
    // The document.
    ("", (1, 1, 1), "`version` is missing", "write `version = 1`"),
    ("[files]\n", (1, 1, 1), "`version` is missing", "as the first line"),
    ("version = 2", (1, 11, 1), "version 2 is not supported", "reads version 1"),
    ("version = 0x1", (1, 11, 3), "version 0x1 is not supported", "reads version 1"),
    ("version = \"1\"", (1, 11, 3), "`version` is a string, not a number", "version = 1"),
    ("version = 1.0", (1, 11, 3), "`version` is a fraction, not a number", "version = 1"),
    ("version = 1\nversion = 1", (2, 1, 7), "duplicate key", "not TOML"),
    // Keys.
    ("version = 1\n[file]\n", (2, 2, 4), "unknown key `file`", "did you mean `files`?"),
    ("verison = 1\nversion = 1", (1, 1, 7), "unknown key `verison`", "did you mean `version`?"),
    (
        "version = 1\n[files]\nraed.deny = []",
        (3, 1, 4),
        "unknown key `raed`",
        "did you mean `read`?",
    ),
    (
        "version = 1\n[files]\nread.allowed = []",
        (3, 6, 7),
        "unknown key `allowed`",
        "did you mean `allow`?",
    ),
    (
        "version = 1\n[files.write]\ndefault = \"deny\"",
        (3, 1, 7),
        "unknown key `default`",
        "nothing may be written but what `files.write.allow` names",
    ),
    (
        "version = 1\n[files.exec]\ndefault = \"none\"",
        (3, 11, 6),
        "`files.exec.default` is `none`",
        "`\"allow\"` or `\"deny\"`",
    ),
    (
        "version = 1\nfiles.read.default = true",
        (2, 22, 4),
        "`files.read.default` is `a truth value`",
        "`\"allow\"` or `\"deny\"`",
    ),
    ("version = 1\nread.deny = []", (2, 1, 4), "unknown key `read`", "belongs in `[files]`"),
    (
        "version = 1\n[budgets]\n",
        (2, 2, 7),
        "unknown key `budgets`",
        "known keys here: `version`, `extends`, `except`, `mode`, `audit`, `files`, `network`, `environment`",
    ),
    (
        "version = 1\nnetwork = { dney = [] }",
        (2, 13, 4),
        "unknown key `dney`",
        "did you mean `deny`?",
    ),
    // Words.
    ("version = 1\nmode = 'audti'", (2, 8, 7), "`mode` is `audti`", "did you mean `\"audit\"`?"),
    ("version = 1\nmode = 1", (2, 8, 1), "`mode` is `a number`", "`\"enforce\"` or `\"audit\"`"),
    (
        "version = 1\nenvironment.secrets = 'keep'",
        (2, 23, 6),
        "`environment.secrets` is `keep`",
        "write `\"allow\"` or `\"deny\"`",
    ),
    // Variables.
    (
        "version = 1\nenvironment.deny = ['A=b']",
        (2, 21, 5),
        "`=` in the name of a variable",
        "write the name alone: `A`",
    ),
    (
        "version = 1\n[enviroment]\ndeny = []",
        (2, 2, 10),
        "unknown key `enviroment`",
        "did you mean `environment`?",
    ),
    // JSON.
    ("{", (1, 1, 1), "Unterminated object", "not JSON"),
    ("{\"version\": 1,}", (1, 14, 1), "Trailing commas are not allowed", "not JSON"),
    ("{}", (1, 1, 1), "`version` is missing", "write `version = 1`"),
    ("// a list\n[]", (1, 1, 9), "the document is no object", "\"version\": 1"),
    ("{\"version\": 1, \"version\": 1}", (1, 16, 9), "duplicate key `version`", "remove one"),
    ("{\"version\": null}", (1, 13, 4), "`null` says nothing", "remove the key"),
    ("{\"version\": 1e3}", (1, 13, 3), "`version` is a fraction, not a number", "version = 1"),
    (
        "{\"version\": 1,\n \"files\": {\"raed\": {}}}",
        (2, 12, 6),
        "unknown key `raed`",
        "did you mean `read`?",
    ),
    (
        "{\"version\": 1,\n \"files\": {\"read\": {\"deny\": [\"/a\", \"b\"]}}}",
        (2, 36, 3),
        "relative path",
        "absolute path",
    ),
    // Types.
    ("version = 1\nfiles = 3", (2, 9, 1), "`files` is a number, not a table", "write `[files]`"),
    (
        "version = 1\nfiles.read = []",
        (2, 14, 2),
        "`files.read` is a list, not a table",
        "write `[files.read]`",
    ),
    (
        "version = 1\nnetwork.allow = \"10.0.0.1\"",
        (2, 17, 10),
        "`network.allow` is a string, not a list",
        "write `[\"10.0.0.1\"]`",
    ),
    (
        "version = 1\nfiles.read.deny = true",
        (2, 19, 4),
        "`files.read.deny` is a truth value, not a list",
        "write `deny = [\"…\"]`",
    ),
    (
        "version = 1\n[files]\nread.deny = [\n  \"/a\",\n  7,\n]",
        (5, 3, 1),
        "an entry of `files.read.deny` is a number, not a string",
        "put it in quotes",
    ),
    // Presets.
    (
        "version = 1\nextends = [\"defualt\"]",
        (2, 12, 9),
        "unknown preset `defualt`",
        "did you mean `default`?",
    ),
    (
        "version = 1\nextends = [\"claude\"]",
        (2, 12, 8),
        "unknown preset `claude`",
        "known presets: `default`, `base`, `credentials`, `persistence`",
    ),
    (
        "version = 1\nextends = [\"default\", \"default\"]",
        (2, 23, 9),
        "preset `default` is named twice",
        "remove one",
    ),
    (
        "version = 1\nextends = \"default\"",
        (2, 11, 9),
        "`extends` is a string, not a list",
        "[\"default\"]",
    ),
    // Values. The grammars have their own tests; here is the place.
    (
        "version = 1\n[files]\nwrite.allow = [\"/a\", \"src\"]",
        (3, 22, 5),
        "relative path",
        "`${WORKSPACE}/src`",
    ),
    (
        "version = 1\n[files]\nread.deny = [\"*.pem\"]",
        (3, 14, 7),
        "relative path",
        "`**/` before it",
    ),
    (
        "version = 1\n[network]\nallow = [\"10.0.0.1/8:80\"]",
        (3, 10, 15),
        "the address has bits set beyond its prefix of 8 bits",
        "`10.0.0.0/8`",
    ),
    (
        "version = 1\n[network]\nallow = [\n  # ü\n  'ü:x', '127.0.0.1:70000']",
        (5, 3, 5),
        "`x` is no port",
        "from 1 to 65535",
    ),
];

#[test]
fn every_bad_input_is_named_with_its_place_and_a_remedy() {
    for (text, (line, column, width), message, help) in CASES {
        let error = read(text).expect_err(text);
        let first = &error.diagnostics[0];
        let position = first.position.as_ref().expect(text);
        assert_eq!(
            (position.line, position.column, position.width, first.message.as_str()),
            (*line, *column, *width, *message),
            "{text}\n{error}"
        );
        let found = first.help.as_deref().unwrap_or_default();
        assert!(found.contains(help), "{text}\n{error}");
        assert_eq!(first.file, "policy.toml");
    }
}

#[test]
fn everything_wrong_is_reported_at_once_in_the_order_of_the_text() {
    let text = "\
version = 3
extends = [\"none\"]
[files]
reed.deny = []
read.deny = [\"a\", \"/ok\", \"/b/../c\"]
[network]
allow = [\"10.0.0.0/8:0\", \"[::1\"]
";
    let error = read(text).expect_err("it is wrong");
    let found: Vec<_> = error
        .diagnostics
        .iter()
        .map(|diagnostic| {
            let position = diagnostic.position.as_ref().unwrap();
            (position.line, position.column, diagnostic.message.as_str())
        })
        .collect();
    assert_eq!(
        found,
        [
            (1, 11, "version 3 is not supported"),
            (2, 12, "unknown preset `none`"),
            (4, 1, "unknown key `reed`"),
            (5, 14, "relative path"),
            (5, 26, "`..` in a path"),
            (7, 10, "port 0"),
            (7, 26, "`[` without `]`"),
        ]
    );
}

#[test]
fn errors_are_rendered_with_a_caret() {
    let text = "version = 1\n\n[files]\nread.dney = [\"~/.ssh/**\"]\n";
    assert_eq!(
        read(text).expect_err("it is wrong").to_string(),
        "\
error: unknown key `dney`
 --> policy.toml:4:6
  |
4 | read.dney = [\"~/.ssh/**\"]
  |      ^^^^
  |
help: did you mean `deny`?"
    );
    let text = "version = 1\nnetwork.allow = [\"127.0.0.1:90-80\", \"10.1.2.3/16\"]\n";
    assert_eq!(
        read(text).expect_err("it is wrong").to_string(),
        "\
error: port range 90-80 is reversed
 --> policy.toml:2:18
  |
2 | network.allow = [\"127.0.0.1:90-80\", \"10.1.2.3/16\"]
  |                  ^^^^^^^^^^^^^^^^^
  |
help: write `:80-90`

error: the address has bits set beyond its prefix of 16 bits
 --> policy.toml:2:37
  |
2 | network.allow = [\"127.0.0.1:90-80\", \"10.1.2.3/16\"]
  |                                     ^^^^^^^^^^^^^
  |
help: write `10.1.0.0/16` for the network or `10.1.2.3` for the one address"
    );
}

#[test]
fn terminal_escapes_of_a_policy_do_not_reach_the_terminal() {
    let text = "version = 1\nfiles.read.deny = [\"\\u001B[31m\"] # \u{1b}[2J\n";
    let error = read(text).expect_err("it is wrong");
    assert!(!error.to_string().contains('\u{1b}'), "{error}");
}

#[test]
fn errors_are_json() {
    let diagnostic = only("version = 1\n[file]");
    assert_eq!(
        serde_json::to_value(&diagnostic).unwrap(),
        serde_json::json!({
            "severity": "error", "message": "unknown key `file`", "file": "policy.toml",
            "line": 2, "column": 2, "width": 4, "excerpt": "[file]",
            "help": "did you mean `files`?",
        })
    );
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let error = load(Some("/nonexistent/p.toml".as_ref())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "\
error: cannot read the policy: No such file or directory (os error 2)
--> /nonexistent/p.toml
 |
help: check the file's name"
    );
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("p.toml");
    std::fs::write(&file, b"version = 1\n# caf\xe9\n").unwrap();
    let error = load(Some(&file)).unwrap_err();
    let position = error.diagnostics[0].position.as_ref().unwrap();
    assert_eq!((position.line, position.column), (2, 6), "{error}");
}

#[test]
fn rules_are_numbered_in_the_order_of_the_text_presets_first() {
    let text = "\
version = 1
extends = ['default']
[network]
allow = ['10.0.0.0/8']
[files]
write.deny = ['/b']
read.allow = ['/a', '/c']
";
    let policy = read(text).unwrap();
    let preset = load(None).unwrap();
    let count = u32::try_from(preset.count()).unwrap();
    assert!(preset.network.is_empty());
    let own: Vec<_> = policy.files[preset.files.len()..]
        .iter()
        .map(|rule| &rule.origin)
        .chain(policy.network.iter().map(|rule| &rule.origin))
        .chain(policy.names.iter().map(|rule| &rule.origin))
        .map(|origin| (origin.id - count, origin.key, origin.text.as_str()))
        .collect();
    assert_eq!(
        own,
        [
            (2, "files.write.deny", "/b"),
            (3, "files.read.allow", "/a"),
            (4, "files.read.allow", "/c"),
            (1, "network.allow", "10.0.0.0/8"),
        ]
    );
    assert_eq!(policy.files[0].origin.place.source.name, "preset:base");
    assert_eq!(policy.files[0].origin.place.source.layer, "preset");
}

#[test]
fn two_hundred_thousand_rules_are_a_policy_and_one_more_is_not() {
    let policy = |count: usize| {
        let list = vec!["'/a'"; count].join(",\n");
        read(&format!("version = 1\nfiles.read.deny = [\n{list}]"))
    };
    assert_eq!(policy(200_000).unwrap().files.len(), 200_000);
    let error = policy(200_005).unwrap_err();
    assert_eq!(error.diagnostics.len(), 1);
    assert_eq!(error.diagnostics[0].message, "more than 200000 rules");
    assert_eq!(error.diagnostics[0].position.as_ref().unwrap().line, 200_003);
}

#[test]
fn the_default_preset_closes_secrets_and_opens_three_directories() {
    let policy = load(None).unwrap();
    let texts = |key: &str| -> Vec<&str> {
        let rules = policy.files.iter().filter(|rule| rule.origin.key == key);
        rules.map(|rule| rule.origin.text.as_str()).collect()
    };
    assert_eq!(texts("files.write.allow"), ["${WORKSPACE}/**", "${TMPDIR}/**", "/dev/shm/**"]);
    let denied = texts("files.read.deny");
    for secret in ["~/.ssh/**", "~/.aws/**", "~/.netrc", "/etc/shadow"] {
        assert!(denied.contains(&secret), "{secret}");
    }
    assert!(!denied.iter().any(|text| text.contains(".gitconfig") || text.contains(".claude")));
    let context = Context {
        home: "/h".into(),
        workspace: "/w".into(),
        tmpdir: "/t".into(),
        terminal: None,
        surroundings: crate::policy::services::Surroundings::default(),
    };
    let placed = expand::expand(&policy, &context).unwrap();
    let read = |path: &str| {
        let path = to_components(Path::new(path));
        decide::path(&placed, policy.defaults, Kind::Read, &path).allow
    };
    for secret in [
        "/w/.env",
        "/w/a/.env.local",
        "/w/.env.test.local",
        "/w/.env.production",
        "/home/x/.ssh/id_rsa",
        "/srv/a.kdbx",
        "/root/.netrc",
        "/w/.git-credentials",
    ] {
        assert!(!read(secret), "{secret}");
    }
    for needed in [
        "/w/.env.example",
        "/w/.env.sample",
        "/w/.env.template",
        "/w/.env.test",
        "/w/.envrc",
        "/w/.npmrc",
        "/etc/ssl/certs/ca-certificates.crt",
        "/etc/ssl/certs/x.pem",
        "/usr/lib/python3/dist-packages/certifi/cacert.pem",
        "/w/tests/id_ed25519",
        "/w/x/env",
    ] {
        assert!(read(needed), "{needed}");
    }
    let mut unique = denied.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(unique.len(), denied.len());
}

#[test]
fn presets_are_composed_and_left_out() {
    let names = |text: &str| -> Vec<String> {
        let policy = read(text).unwrap();
        let mut names: Vec<_> =
            policy.files.iter().map(|rule| rule.origin.place.source.name.clone()).collect();
        names.dedup();
        names
    };
    let of =
        |presets: &[&str]| presets.iter().map(|name| format!("preset:{name}")).collect::<Vec<_>>();
    let both = names("version = 1\nextends = ['toolchains', 'default']\n");
    assert_eq!(both, of(&["toolchains", "base", "persistence", "credentials"]));
    let one = names("version = 1\nextends = ['default', 'toolchains']\nexcept = ['toolchains']\n");
    assert_eq!(one, of(&["base", "persistence", "credentials"]));
    let single = names("version = 1\nextends = ['persistence', 'default']\n");
    assert_eq!(single, of(&["persistence", "base", "credentials"]));
    let without = names("version = 1\nextends = ['default']\nexcept = ['persistence']\n");
    assert_eq!(without, of(&["base", "credentials"]));
    // What one preset does without another one before it does not bring in.
    for extends in ["'agents', 'claude-code'", "'claude-code', 'agents'"] {
        let names = names(&format!("version = 1\nextends = [{extends}]\n"));
        assert!(!names.contains(&"preset:claude-code-credentials".to_owned()), "{names:?}");
        assert!(names.contains(&"preset:codex-credentials".to_owned()), "{names:?}");
    }
    let diagnostic = only("version = 1\nexcept = ['toolchain']\n");
    assert_eq!(diagnostic.help.as_deref(), Some("did you mean `toolchains`?"));
}

#[test]
fn the_caches_leave_programs_and_configuration_closed() {
    let policy = read("version = 1\nextends = ['toolchains']\n").unwrap();
    let texts: Vec<_> = policy.files.iter().map(|rule| rule.origin.text.as_str()).collect();
    for (place, open) in [
        ("~/.cargo/registry", true),
        ("~/.npm/_cacache", true),
        ("~/.cache/go-build", true),
        ("~/.cargo/bin", false),
        ("~/.cargo/config.toml", false),
        ("~/.cargo/credentials.toml", false),
        ("~/.npm/_npx", false),
        ("~/.npmrc", false),
        ("~/go/bin", false),
        ("~/.gradle/init.d", false),
        ("~/.m2/settings.xml", false),
        ("~/.cache", false),
    ] {
        let covered = texts.iter().any(|text| Path::new(place).starts_with(text));
        assert_eq!(covered, open, "{place}");
    }
    assert!(policy.files.iter().all(|rule| rule.allow && rule.access == Access::WRITES));
}

#[test]
fn json_says_the_same() {
    let toml = read(
        "version = 1\nextends = ['default']\nmode = 'audit'\n[files]\nread.default = 'deny'\n\
         read.allow = ['/a', '~/\\[b\\]']\n[network]\nallow = ['[::1]:80']\n[environment]\n\
         deny = ['A_*']\nsecrets = 'deny'\n",
    );
    let json = read(
        r#"{
        // Comments are welcome.
        "$schema": "https://example.org/policy.schema.json",
        "version": 1, "extends": ["default"], "mode": "audit",
        "files": {"read": {"default": "deny", "allow": ["/a", "~/\\[b\\]"]}},
        "network": {"allow": ["[::1]:80"]},
        "environment": {"deny": ["A_\u002a"], "secrets": "deny"}
        }"#,
    );
    let said = |policy: Policy| {
        let origins: Vec<_> =
            policy.origins().map(|origin| (origin.key, origin.text.clone())).collect();
        let kinds: Vec<_> = policy
            .files
            .iter()
            .map(|rule| (rule.access, rule.allow, rule.patterns.clone()))
            .collect();
        (origins, kinds, policy.defaults, policy.mode, policy.secrets)
    };
    assert_eq!(said(toml.unwrap()), said(json.unwrap()));
}

#[test]
fn what_is_deep_or_large_takes_neither_long_nor_the_stack() {
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep = open.repeat(100_000) + &close.repeat(100_000);
        for text in [format!("{{\"version\": {deep}}}"), format!("version = {deep}"), deep] {
            assert!(read(&text).is_err());
        }
    }
    let dotted = format!("version = 1\n{}b = 1", "a.".repeat(100_000));
    assert!(read(&dotted).is_err());
    let large = format!("version = 1\nfiles.read.deny = ['/{}']", "x/".repeat(5_000_000));
    assert!(read(&large).is_err());
    let long = format!("{{\"version\": 1, \"x\": \"{}\"}}", "\\n".repeat(5_000_000));
    assert!(read(&long).is_err());
}

#[test]
fn every_preset_is_a_policy_with_an_agents_context() {
    for name in super::preset::NAMES {
        let policy = super::load_preset(name).unwrap().unwrap_or_else(|error| panic!("{error}"));
        let context = super::compile_tests::context();
        let table = super::compile_tests::table("1 0 1 / /");
        let (compiled, _) = super::compile(&policy, &context, &table)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(compiled.rules.len(), policy.count(), "{name}");
    }
    let credentials = super::load_preset("credentials").unwrap().unwrap();
    assert!(credentials.files.len() >= 80, "{}", credentials.files.len());
}

/// Pieces of policies, of both formats and of neither.
fn piece() -> impl Strategy<Value = String> {
    const PIECES: &[&str] = &[
        "version",
        "=",
        "1",
        "\n",
        "[",
        "]",
        "[[",
        "{",
        "}",
        "\"",
        "'",
        ",",
        ":",
        "files",
        ".",
        "read",
        "write.allow",
        "deny",
        "extends",
        "except",
        "default",
        "network",
        "environment",
        "mode",
        "/a",
        "~/",
        "**",
        "*",
        "?",
        "[a-z]",
        "{a,b}",
        "\\",
        "${WORKSPACE}",
        "10.0.0.0/8:1-2/tcp",
        "[::]/0",
        "//",
        "/*",
        "null",
        "true",
        "1e9",
        "0x1",
        "\u{feff}",
        "\0",
        "é",
        " ",
    ];
    prop_oneof![
        9 => proptest::sample::select(PIECES).prop_map(str::to_owned),
        1 => any::<String>(),
    ]
}

proptest! {
    /// Whatever a file holds, it is a policy or an error with a place.
    #[test]
    fn no_text_stops_the_reader(
        pieces in proptest::collection::vec(piece(), 0..40), begin in 0..3_usize,
    ) {
        let begin = ["", "version = 1\n", "{\"version\": 1"][begin];
        let text = format!("{begin}{}", pieces.concat());
        if let Err(error) = read(&text) {
            prop_assert!(!error.diagnostics.is_empty());
            prop_assert!(!error.to_string().is_empty());
        }
    }
}
