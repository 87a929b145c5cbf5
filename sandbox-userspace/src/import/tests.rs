use super::*;
use crate::policy::expand::{Context, expand};
use crate::policy::rule::Kind;
use crate::policy::{Policy, decide, environment};

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

    fn removes(&self, name: &str) -> bool {
        let name = std::ffi::OsStr::new(name);
        !environment::removed(&self.policy, [(name, name)]).is_empty()
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
fn codexs_settings_keep_their_meaning() {
    let write = imported(
        Tool::Codex,
        r#"
            model = "gpt-5" # anything else is no matter of a wall
            approval_policy = "on-request"
            sandbox_mode = "workspace-write"
            [sandbox_workspace_write]
            writable_roots = ["/data", "~/.cache/pip"]
            network_access = true
            exclude_slash_tmp = true
            [shell_environment_policy]
            inherit = "core"
            exclude = ["AWS_*"]
            include_only = ["CI", "MY_*"]
        "#,
    );
    for (path, allow) in [
        ("@/w/a", true),
        ("@/w/.git/hooks/x", false),
        ("@/w/.codex/config.toml", false),
        ("@/w/sub/.git/x", true),
        ("/data/a/b", true),
        ("/data/.git/x", false),
        ("@/home/.cache/pip/x", true),
        ("@/home/x", false),
        ("@/t/x", true),
        ("/tmp/x", false),
    ] {
        assert_eq!(write.allows(Kind::Write, path), allow, "{path}");
    }
    assert!(write.allows(Kind::Read, "@/home/.ssh/id"), "it closes no reading");
    assert!(write.removes("AWS_REGION") && write.removes("MY_X") && write.removes("OTHER"));
    assert!(!write.removes("CI") && !write.removes("PATH"));
    for key in [
        "approval_policy",
        "sandbox_workspace_write.network_access",
        "shell_environment_policy",
        "shell_environment_policy.include_only",
    ] {
        assert!(write.lost(key), "{key}: {:?}", write.losses);
    }
    assert_eq!(write.losses.len(), 4, "{:?}", write.losses);

    // Without the key it writes nothing, and without a sandbox nothing is opened for it.
    for text in ["", "sandbox_mode = 'read-only'", "sandbox_mode = 'danger-full-access'"] {
        let none = imported(Tool::Codex, text);
        assert!(!none.allows(Kind::Write, "@/w/x") && none.allows(Kind::Read, "/etc/x"), "{text}");
        assert_eq!(none.lost("sandbox_mode"), text.contains("danger"));
    }
}

#[test]
fn codexs_profiles_keep_their_meaning() {
    let profile = imported(
        Tool::Codex,
        r#"
            default_permissions = "edit"
            [permissions.edit]
            extends = "base"
            [permissions.edit.filesystem]
            "~/notes" = "read"
            "~/notes/private" = "deny"
            glob_scan_max_depth = 3
            ":workspace_roots" = { "docs" = "read", "**/*.env" = "deny" }
            [permissions.base.workspace_roots]
            "/second" = true
            "/third" = false
            [permissions.base.filesystem]
            ":minimal" = "read"
            ":tmpdir" = "write"
            ":workspace_roots" = { "." = "write", ".git" = "read", "docs" = "write" }
            [permissions.base.network]
            enabled = true
            [permissions.base.network.domains]
            "api.example.com" = "allow"
            "**.example.org" = "allow"
            "bad.example.org" = "deny"
            "*" = "allow"
        "#,
    );
    for (kind, path, allow) in [
        (Kind::Read, "/usr/bin/env", true),
        (Kind::Read, "@/home/x", false),
        (Kind::Read, "@/home/notes/a", true),
        (Kind::Read, "@/home/notes/private/a", false),
        (Kind::Write, "@/home/notes/a", false),
        (Kind::Write, "@/w/a", true),
        (Kind::Write, "@/w/.git/config", false),
        (Kind::Read, "@/w/.git/config", true),
        (Kind::Write, "@/w/docs/a", false),
        (Kind::Read, "@/w/sub/x.env", false),
        (Kind::Write, "/second/a", true),
        (Kind::Write, "/third/a", false),
        (Kind::Write, "@/t/a", true),
    ] {
        assert_eq!(profile.allows(kind, path), allow, "{kind:?} {path}");
    }
    let hosts: Vec<&str> =
        profile.policy.names.iter().map(|rule| rule.origin.text.as_str()).collect();
    assert!(hosts.contains(&"api.example.com:443/tcp") && hosts.contains(&"*.example.org:443/tcp"));
    assert!(hosts.contains(&"example.org:443/tcp") && hosts.contains(&"bad.example.org:443/tcp"));
    assert!(profile.lost("permissions.edit.network.enabled"), "it has no proxy there");
    assert!(profile.lost("permissions.edit.network.domains"), "every host");
    assert_eq!(profile.losses.len(), 2, "{:?}", profile.losses);

    let built_in = imported(Tool::Codex, "default_permissions = ':workspace'");
    assert!(built_in.allows(Kind::Write, "@/w/x") && built_in.allows(Kind::Read, "@/home/x"));
    assert!(!built_in.allows(Kind::Write, "@/w/.agents/x") && built_in.losses.len() == 1);
    let circle =
        "default_permissions = 'a'\n[permissions.a]\nextends = 'b'\n[permissions.b]\nextends = 'a'";
    for text in [circle, "default_permissions = ':danger-full-access'", "default_permissions = 'x'"]
    {
        let none = imported(Tool::Codex, text);
        assert!(none.lost("default_permissions") && !none.allows(Kind::Write, "@/w/x"), "{text}");
    }
}

#[test]
fn geminis_settings_keep_their_meaning() {
    let on = imported(
        Tool::Gemini,
        r#"{
            "general": {"vimMode": true},
            "tools": {
                "sandbox": {"enabled": true, "command": "docker", "networkAccess": true, "allowedPaths": ["/data"]},
                "exclude": ["run_shell_command(rm -rf)"],
            },
            "context": {"includeDirectories": ["~/common"]},
            "security": {
                "toolSandboxing": true,
                "environmentVariableRedaction": {"enabled": true, "blocked": ["MY_SECRET"], "allowed": ["MY_TOKEN"]},
            },
        }"#,
    );
    for (kind, path, allow) in [
        (Kind::Write, "@/w/a", true),
        (Kind::Write, "/data/a", true),
        (Kind::Write, "@/home/common/a", true),
        (Kind::Write, "@/home/a", false),
        (Kind::Write, "@/w/.git/config", false),
        (Kind::Write, "@/w/.geminiignore", false),
        (Kind::Read, "@/w/a/.env", false),
        (Kind::Read, "@/w/.env.local", false),
        (Kind::Read, "@/home/.ssh/x", true),
    ] {
        assert_eq!(on.allows(kind, path), allow, "{kind:?} {path}");
    }
    assert!(on.removes("MY_SECRET") && !on.removes("MY_TOKEN") && !on.policy.secrets);
    let lost =
        ["tools.sandbox.networkAccess", "tools.exclude", "security.environmentVariableRedaction"];
    assert!(lost.iter().all(|key| on.lost(key)) && on.losses.len() == 3, "{:?}", on.losses);
    for text in ["{}", r#"{"tools": {"sandbox": false}}"#] {
        let off = imported(Tool::Gemini, text);
        assert!(off.lost("tools.sandbox") && off.allows(Kind::Write, "@/w/x"), "{text}");
    }
    assert!(imported(Tool::Gemini, r#"{"sandbox": true}"#).losses.is_empty());
}

#[test]
fn landruns_command_lines_keep_their_meaning() {
    let unit = "[Service]\nExecStart=/usr/bin/landrun \\\n    --best-effort --rox /usr/bin,/usr/lib \\\n    \
                --ro  /etc/nginx,/etc/ssl --log-level debug \\\n    --rwx=/var/log/nginx --rw data --bind-tcp 80,443 \\\n    \
                --connect-tcp 5432 --unix /run/db.sock --env HOME --env MODE=x \\\n    \
                /usr/bin/nginx --unrestricted-filesystem -g 'daemon off;'\nRestart=always\n";
    let imported = imported(Tool::Landrun, unit);
    for (kind, path, allow) in [
        (Kind::Read, "/usr/bin/nginx", true),
        (Kind::Execute, "/usr/bin/nginx", true),
        (Kind::Read, "/etc/nginx/x", true),
        (Kind::Execute, "/etc/nginx/x", false),
        (Kind::Write, "/etc/nginx/x", false),
        (Kind::Read, "/etc/passwd", false),
        (Kind::Write, "/var/log/nginx/x", true),
        (Kind::Execute, "/var/log/nginx/x", true),
        (Kind::Write, "@/w/data/x", true),
        (Kind::Execute, "@/w/data/x", false),
        (Kind::Write, "@/w/x", false),
        (Kind::Connect, "/run/db.sock", true),
        (Kind::Connect, "/run/x.sock", false),
    ] {
        assert_eq!(imported.allows(kind, path), allow, "{kind:?} {path}");
    }
    assert!(imported.removes("PATH") && !imported.removes("HOME") && !imported.removes("MODE"));
    let network: Vec<&str> =
        imported.policy.network.iter().map(|rule| rule.origin.text.as_str()).collect();
    for rule in ["0.0.0.0:80/tcp", "[::]:443/tcp", "0.0.0.0/0:5432/tcp", "[::]/0:5432/tcp"] {
        assert!(network.contains(&rule), "{rule}: {network:?}");
    }
    for key in ["--env", "--connect-tcp", "landrun"] {
        assert!(imported.lost(key), "{key}");
    }
    assert_eq!(imported.losses.len(), 3, "{:?}", imported.losses);

    let closed = self::imported(Tool::Landrun, "landrun ls");
    assert!(!closed.allows(Kind::Read, "/usr/bin/ls") && closed.losses.len() == 2);
    let open = self::imported(
        Tool::Landrun,
        "landrun --unrestricted-filesystem --unrestricted-network --ldd -- ls",
    );
    assert!(open.allows(Kind::Execute, "/usr/bin/ls") && !open.allows(Kind::Write, "/x"));
    assert_eq!(open.losses.len(), 3, "{:?}", open.losses);
    for text in ["ls", "landrun --nothing ls", "landrun 'x", "landrun ls\nlandrun ls"] {
        assert!(read(Tool::Landrun, text).is_err(), "{text}");
    }
}

#[test]
fn dev_containers_settings_keep_their_meaning() {
    let imported = imported(
        Tool::Devcontainer,
        r#"// As editors write it.
        {
            "name": "app",
            "image": "mcr.microsoft.com/devcontainers/base:ubuntu",
            "mounts": [
                "source=${localEnv:HOME}/.cargo/registry,target=/cache,type=bind",
                { "source": "/data", "target": "/data", "type": "bind", "readonly": true },
                "source=history,target=/h,type=volume",
                "source=/var/run/docker.sock,target=/var/run/docker.sock,type=bind"
            ],
            "runArgs": ["--cap-add=NET_ADMIN", "-v", "${localWorkspaceFolder}/../lib:/lib2:ro", "--network", "none"],
            "containerEnv": { "CI": "${localEnv:CI}", "MODE": "dev" },
            "appPort": [3000, "9000:9001"], /* published */
            "forwardPorts": [8080],
            "postCreateCommand": "npm ci",
            "remoteUser": "vscode",
        }"#,
    );
    for (kind, path, allow) in [
        (Kind::Read, "/usr/bin/env", true),
        (Kind::Read, "@/home/.ssh/id", false),
        (Kind::Read, "/srv/x", false),
        (Kind::Write, "@/w/x", true),
        (Kind::Read, "@/w", true),
        (Kind::Write, "@/t/x", true),
        (Kind::Write, "@/home/.cargo/registry/x", true),
        (Kind::Read, "/data/x", true),
        (Kind::Write, "/data/x", false),
        (Kind::Connect, "/var/run/docker.sock", false),
    ] {
        assert_eq!(imported.allows(kind, path), allow, "{kind:?} {path}");
    }
    assert!(
        imported.removes("AWS_PROFILE") && !imported.removes("CI") && !imported.removes("PATH")
    );
    assert!(imported.removes("MODE"));
    let ports: Vec<&str> =
        imported.policy.network.iter().map(|rule| rule.origin.text.as_str()).collect();
    assert_eq!(ports, ["0.0.0.0:3000/tcp", "[::]:3000/tcp", "0.0.0.0:9001/tcp", "[::]:9001/tcp"]);
    for key in
        ["image", "mounts", "runArgs", "containerEnv.MODE", "postCreateCommand", "remoteUser"]
    {
        assert!(imported.lost(key), "{key}: {:?}", imported.losses);
    }
    // Two mounts, and of the arguments a capability and a path with `..`.
    assert_eq!(imported.losses.len(), 8, "{:?}", imported.losses);
    let plain = self::imported(Tool::Devcontainer, "{}");
    assert!(plain.lost("network") && plain.losses.len() == 1);
}

/// What imports makes a policy that can be read, whatever the settings are.
fn holds(tool: Tool, text: &str) -> bool {
    let Ok(import) = read(tool, text) else { return false };
    let policy = import.policy(&[]);
    let known = load_text("imported.toml", policy.clone());
    assert!(known.is_ok(), "{tool:?} {text:?}\n{policy}");
    true
}

#[test]
fn no_importer_takes_deep_or_large_input_ill() {
    let deep = ["[", "{\"a\":", "a.", "[[a.", "[a.b.", "'", "\\"];
    for tool in Tool::ALL {
        for part in deep {
            for repeated in [part.repeat(20_000), format!("x={}", part.repeat(20_000))] {
                let _ = read(tool, &repeated);
            }
        }
    }
    // Ten megabytes, of what each of them reads most of; anything quadratic would take hours.
    let many = |make: &dyn Fn(usize) -> String| -> String {
        (0..40_000).map(|number| make(number) + ",").collect()
    };
    let long = "a".repeat(120);
    let paths = many(&|number| format!("\"/data/{number}/{long}/\\n\""));
    let both =
        format!(r#"{{"filesystem": {{"allowWrite": [{paths} "x"], "denyWrite": [{paths} "y"]}}}}"#);
    assert!(both.len() > 10 << 20);
    assert!(read(Tool::Srt, &both).is_ok());
    let lost = many(&|number| format!("\"Bash({number})\""));
    assert!(read(Tool::Claude, &format!(r#"{{"permissions": {{"deny": [{lost}]}}}}"#)).is_ok());
    let words = format!("landrun --ro {} ls", many(&|number| format!("/{number}")));
    assert!(read(Tool::Landrun, &words).is_ok());
}

proptest::proptest! {
    #[test]
    fn any_text_is_settings_or_an_error(text in ".{0,200}") {
        for tool in Tool::ALL {
            holds(tool, &text);
        }
    }

    #[test]
    fn any_values_at_known_keys_make_a_policy(
        value in proptest::string::string_regex("[ -~\u{0}\u{e9}\n]{0,24}").unwrap(),
        place in proptest::sample::select(vec![
            "~/", "./", "/", "../", "//", "${localEnv:HOME}/", "${WORKSPACE}/", "*.", "**/", "",
        ]),
    ) {
        let json = serde_json::to_string(&format!("{place}{value}")).unwrap();
        for (tool, text) in [
            (Tool::Claude, r#"{"permissions":{"deny":["Read(§)",§]},"sandbox":{"filesystem":{"allowWrite":[§]}}}"#),
            (Tool::Srt, r#"{"filesystem":{"denyRead":[§],"allowWrite":[§]},"network":{"allowedDomains":[§]}}"#),
            (Tool::Cursor, r#"{"additionalReadwritePaths":[§],"networkPolicy":{"deny":[§]}}"#),
            (Tool::Gemini, r#"{"tools":{"sandboxAllowedPaths":[§]},"context":{"includeDirectories":[§]},
                "security":{"environmentVariableRedaction":{"enabled":true,"blocked":[§]}}}"#),
            (Tool::Devcontainer, r#"{"mounts":[§,{"type":"bind","source":§}],"runArgs":["-v",§,"-e",§],"appPort":§}"#),
        ] {
            let inner = json.trim_matches('"');
            let text = text.replace("Read(§)", &format!("Read({inner})")).replace('§', &json);
            proptest::prop_assert!(holds(tool, &text), "{tool:?} {text}");
        }
        let key = toml::Value::from(format!("{place}{value}"));
        let codex = format!(
            "default_permissions = 'p'\n[permissions.p.filesystem]\n{json} = 'read'\n\
             ':workspace_roots' = {{ {json} = 'deny' }}\n[shell_environment_policy]\nexclude = [{key}]"
        );
        // A key of TOML is written a little differently from JSON; what is none is an error.
        holds(Tool::Codex, &codex);
    }
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
