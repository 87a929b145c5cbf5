use super::*;
use crate::policy::expand::{Context, expand};
use crate::policy::rule::Kind;
use crate::policy::{Policy, decide};

const BASE: &str = "/nonexistent-sandbox-test";

struct Imported {
    policy: Policy,
    context: Context,
    losses: Vec<Loss>,
}

fn imported(tool: Tool, text: &str) -> Imported {
    let import = read(tool, text).unwrap();
    let text = import.policy(&[]);
    let policy =
        load_text("imported.toml", text.clone()).unwrap_or_else(|error| panic!("{text}\n{error}"));
    let context = Context {
        home: format!("{BASE}/home").into(),
        workspace: format!("{BASE}/w").into(),
        tmpdir: format!("{BASE}/t").into(),
        terminal: None,
        surroundings: crate::policy::services::Surroundings::default(),
    };
    Imported { policy, context, losses: import.losses }
}

impl Imported {
    fn allows(&self, kind: Kind, path: &str) -> bool {
        let placed = expand(&self.policy, &self.context).unwrap();
        let path = path.replace('@', BASE);
        let path = crate::kernel::mounts::to_components(std::path::Path::new(&path));
        decide::path(&placed, self.policy.defaults, kind, &path).allow
    }

    fn lost(&self, key: &str) -> bool {
        self.losses.iter().any(|loss| loss.key == key)
    }
}

#[test]
fn sandbox_runtimes_settings_keep_their_meaning() {
    let imported = imported(
        Tool::Srt,
        r#"{
            // With comments.
            "network": {"allowedDomains": ["localhost", "*"], "allowUnixSockets": ["/run/x.sock"], "allowLocalBinding": true},
            "filesystem": {
                "denyRead": ["~/.ssh", "/srv/[x]"],
                "allowWrite": [".", "/tmp/out", "/data/a"],
                "denyWrite": [".env", "/data", "./secret/"]
            },
            "enableWeakerNestedSandbox": false,
        }"#,
    );
    for (kind, path, allow) in [
        (Kind::Read, "@/home/.ssh/id", false),
        (Kind::Read, "@/home/x", true),
        (Kind::Read, "/srv/[x]/y", false),
        (Kind::Read, "/srv/x/y", true),
        (Kind::Write, "@/w/a", true),
        (Kind::Write, "@/w/.env", false),
        (Kind::Write, "@/w/secret/x", false),
        (Kind::Write, "/tmp/out/x", true),
        // What is denied stays so however deep it is opened.
        (Kind::Write, "/data/a", false),
        (Kind::Write, "/etc/x", false),
        (Kind::Connect, "/run/x.sock", true),
        (Kind::Connect, "/run/y.sock", false),
    ] {
        assert_eq!(imported.allows(kind, path), allow, "{kind:?} {path}");
    }
    assert!(imported.policy.network.iter().any(|rule| rule.origin.text == "127.0.0.0/8"));
    for key in [
        "network.allowedDomains",
        "network.allowLocalBinding",
        "filesystem.allowWrite",
        "enableWeakerNestedSandbox",
    ] {
        assert!(imported.lost(key), "{key}: {:?}", imported.losses);
    }
    assert_eq!(imported.losses.len(), 4, "{:?}", imported.losses);
}

#[test]
fn claudes_settings_keep_their_meaning() {
    let imported = imported(
        Tool::Claude,
        r#"{
            "permissions": {
                "allow": ["Bash(npm run test:*)"],
                "deny": ["Read(./.env)", "Read(./secrets/**)", "Read(//etc/shadow)", "Edit(~/.bashrc)", "Read(*.pem)", "Bash(curl:*)", "WebFetch"]
            },
            "sandbox": {"enabled": true, "excludedCommands": ["docker"], "filesystem": {"allowWrite": ["~/.cache/x"], "denyRead": ["~/.aws"]}}
        }"#,
    );
    for (kind, path, allow) in [
        (Kind::Read, "@/w/.env", false),
        (Kind::Read, "@/w/sub/.env", true),
        (Kind::Read, "@/w/secrets/a/b", false),
        (Kind::Read, "/etc/shadow", false),
        (Kind::Read, "@/w/sub/x.pem", false),
        (Kind::Read, "/x/y.pem", true),
        (Kind::Read, "@/home/.aws/x", false),
        (Kind::Write, "@/home/.bashrc", false),
        (Kind::Write, "@/home/.cache/x/y", true),
        (Kind::Write, "@/w/x", true),
        (Kind::Write, "@/home/x", false),
    ] {
        assert_eq!(imported.allows(kind, path), allow, "{kind:?} {path}");
    }
    for key in ["permissions.allow", "permissions.deny", "sandbox.excludedCommands"] {
        assert!(imported.lost(key), "{key}");
    }
    assert_eq!(imported.losses.len(), 4, "{:?}", imported.losses);
}

#[test]
fn cursors_settings_keep_their_meaning() {
    let read_only = imported(
        Tool::Cursor,
        r#"{"type": "workspace_readonly", "disableTmpWrite": true, "additionalReadwritePaths": ["/data"]}"#,
    );
    assert!(!read_only.allows(Kind::Write, "@/w/x") && read_only.allows(Kind::Write, "/data/x"));
    assert!(!read_only.allows(Kind::Write, "@/t/x") && read_only.losses.is_empty());
    let open = imported(
        Tool::Cursor,
        r#"{"type": "insecure_none", "networkPolicy": {"default": "allow"}}"#,
    );
    assert!(!open.allows(Kind::Write, "@/w/x"));
    assert!(
        open.lost("type") && open.lost("networkPolicy.default") && open.lost("disableTmpWrite")
    );
    assert!(imported(Tool::Cursor, "{}").allows(Kind::Write, "@/w/x"));
}

#[test]
fn odd_settings_are_losses_or_errors_and_never_more() {
    for text in ["", "[]", "{", "1"] {
        assert!(read(Tool::Srt, text).is_err(), "{text}");
    }
    assert!(read(Tool::Claude, &"[".repeat(100_000)).is_err());
    let text = r#"{"filesystem": {"denyRead": "x", "allowWrite": [1, "", "a/../b", "x\u0000"]}, "network": 3}"#;
    let odd = read(Tool::Srt, text).unwrap();
    assert!(odd.losses.len() >= 4, "{:?}", odd.losses);
    let text = r#"{"filesystem": {"allowWrite": ["a\n] # \"x"]}}"#;
    let odd = imported(Tool::Srt, text);
    assert!(odd.allows(Kind::Write, "@/w/a\n] # \"x/y"));
}
