//! Codex: `config.toml`. Either the older `sandbox_mode`, or a profile of permissions: a table of places and
//! what may be done there, in which the more specific entry counts.

use super::{EVERY_HOST, Import, domain, srt, strings};
use crate::policy::check::path::spelled_out;
use serde_json::{Map, Value, json};

/// Places of every writable root that stay closed to writing.
const PROTECTED: [&str; 3] = [".git", ".codex", ".agents"];
/// Most profiles that extend one another; more is a circle.
const PROFILES: usize = 16;
const OPEN: &str = "without a sandbox: nothing is opened for it";
const OWN_TMP: &str = "stricter: a directory of the session's own, not /tmp";

pub(super) fn read(settings: &Value, import: &mut Import) {
    let mode = settings.get("sandbox_mode").and_then(Value::as_str);
    let profile = settings.get("default_permissions").and_then(Value::as_str);
    match (mode, profile) {
        (Some(mode), _) => older(mode, settings, import),
        (None, Some(name)) => permissions(name, settings, import),
        (None, None) => older("read-only", settings, import),
    }
    variables(settings, import);
    for key in ["approval_policy", "approvals_reviewer"] {
        if let Some(value) = settings.get(key) {
            let why = "it is about asking, and opens or closes nothing here";
            import.lose(key, &value.to_string(), why);
        }
    }
    for name in settings.get("profiles").and_then(Value::as_object).into_iter().flat_map(Map::keys)
    {
        let why =
            "only what holds without `--profile` is read: import its keys from a file of their own";
        import.lose("profiles", name, why);
    }
}

/// `sandbox_mode` and `[sandbox_workspace_write]`.
fn older(mode: &str, settings: &Value, import: &mut Import) {
    const TABLE: &str = "sandbox_workspace_write";
    const KNOWN: &[&str] =
        &["writable_roots", "network_access", "exclude_tmpdir_env_var", "exclude_slash_tmp"];
    let table = settings.get(TABLE).unwrap_or(&Value::Null).clone();
    match mode {
        // Said, so that it holds where a preset opens the workspace.
        "read-only" => import.rule("files.write.deny", "${WORKSPACE}/**", "sandbox_mode", mode),
        "workspace-write" => {
            import.unknown(TABLE, &table, KNOWN);
            let said = |key: &str| table.get(key).and_then(Value::as_bool) == Some(true);
            let mut roots =
                vec![("${WORKSPACE}".to_owned(), "sandbox_mode".to_owned(), mode.to_owned())];
            let key = format!("{TABLE}.writable_roots");
            for value in strings(settings, &key, import) {
                roots.push((srt::path(&value), key.clone(), value));
            }
            for (root, key, value) in &roots {
                import.rule("files.write.allow", &format!("{root}/**"), key, value);
                for name in PROTECTED {
                    import.rule("files.write.deny", &format!("{root}/{name}"), key, value);
                }
            }
            if !said("exclude_tmpdir_env_var") {
                import.rule("files.write.allow", "${TMPDIR}/**", "sandbox_mode", mode);
            }
            if !said("exclude_slash_tmp") {
                import.lose(&format!("{TABLE}.exclude_slash_tmp"), "false", OWN_TMP);
            }
            if said("network_access") {
                import.lose(&format!("{TABLE}.network_access"), "true", EVERY_HOST);
            }
        }
        _ => import.lose("sandbox_mode", mode, OPEN),
    }
}

/// `default_permissions` and `[permissions.NAME]`.
fn permissions(name: &str, settings: &Value, import: &mut Import) {
    let Some(profile) = resolve(name, settings, import, 0) else { return };
    let at = format!("permissions.{name}");
    let known = ["extends", "description", "workspace_roots", "filesystem", "network"];
    import.unknown(&at, &profile, &known);
    let mut roots = vec!["${WORKSPACE}".to_owned()];
    for (root, on) in entries(profile.get("workspace_roots")) {
        if on == &Value::Bool(true) {
            roots.push(srt::path(root));
        }
    }
    let files = profile.get("filesystem");
    let everything = files.and_then(|files| files.get(":root")).and_then(Value::as_str);
    if !matches!(everything, Some("read" | "write")) {
        import.word("files.read.default", "deny", &at, "what it does not list");
    }
    for (place, access) in entries(files) {
        entry(&format!("{at}.filesystem"), place, access, &roots, import);
    }
    network(&at, profile.get("network"), settings, import);
}

/// A profile with what it extends; what it says itself counts.
fn resolve(name: &str, settings: &Value, import: &mut Import, depth: usize) -> Option<Value> {
    let workspace = json!({".": "write", ".git": "read", ".codex": "read", ".agents": "read"});
    match name {
        ":read-only" => return Some(json!({"filesystem": {":root": "read"}})),
        ":workspace" => {
            return Some(json!({"filesystem": {
                ":root": "read", ":workspace_roots": workspace, ":tmpdir": "write", ":slash_tmp": "write",
            }}));
        }
        _ => {}
    }
    let own = settings.get("permissions").and_then(|all| all.get(name));
    let Some(own) = own.filter(|own| own.is_object() && depth < PROFILES) else {
        let why = if name == ":danger-full-access" { OPEN } else { "there is no such profile" };
        import.lose("default_permissions", name, why);
        return None;
    };
    match own.get("extends").and_then(Value::as_str) {
        None => Some(own.clone()),
        Some(parent) => {
            let mut merged = resolve(parent, settings, import, depth + 1)?;
            merge(&mut merged, own);
            Some(merged)
        }
    }
}

/// Enters what `child` says; tables are joined.
fn merge(parent: &mut Value, child: &Value) {
    match (parent, child) {
        (Value::Object(parent), Value::Object(child)) => {
            for (key, value) in child {
                merge(parent.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (parent, child) => *parent = child.clone(),
    }
}

fn entries(table: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    table.and_then(Value::as_object).into_iter().flatten()
}

/// One entry of `filesystem`; a table has places beneath its own.
fn entry(at: &str, place: &str, access: &Value, roots: &[String], import: &mut Import) {
    if place == "glob_scan_max_depth" {
        // Here patterns hold at any depth.
        return;
    }
    let key = format!("{at}.\"{place}\"");
    let places: Vec<String> = match place {
        ":workspace_roots" | ":project_roots" => roots.to_vec(),
        ":tmpdir" => vec!["${TMPDIR}".to_owned()],
        ":slash_tmp" => return import.lose(&key, &access.to_string(), OWN_TMP),
        ":root" => vec!["/".to_owned()],
        ":minimal" => {
            if access.as_str().is_some_and(|access| access != "deny") {
                import.only_listed(&key, "read");
            }
            return;
        }
        special if special.starts_with(':') => {
            return import.lose(&key, &access.to_string(), "this program has nothing like it");
        }
        path => vec![written(path, access)],
    };
    if let Value::Object(beneath) = access {
        for (rest, access) in beneath {
            let key = format!("{key}.\"{rest}\"");
            for place in &places {
                let rest = written(rest, access);
                let rest = rest.strip_prefix("${WORKSPACE}").unwrap_or(&rest);
                let place = format!("{}{rest}", place.trim_end_matches('/'));
                allow(&key, &place, access, import);
            }
        }
    } else {
        for place in &places {
            allow(&key, place, access, import);
        }
    }
}

/// A path as ours. Only what is denied may have wildcards there.
fn written(path: &str, access: &Value) -> String {
    let denies = matches!(access.as_str(), Some("deny" | "none"));
    if !denies || !path.contains(['*', '?', '[']) {
        return srt::path(path);
    }
    match path.strip_prefix("./").unwrap_or(path) {
        whole if whole.starts_with(['/', '~']) => whole.to_owned(),
        rest => format!("${{WORKSPACE}}/{rest}"),
    }
}

fn allow(key: &str, place: &str, access: &Value, import: &mut Import) {
    let access = access.as_str().unwrap_or_default();
    let lists: [&'static str; 2] = match access {
        "read" => ["files.read.allow", "files.write.deny"],
        "write" if place == "/" => {
            import.rule("files.read.allow", place, key, access);
            return import.lose(key, access, "every file: name the places that are meant");
        }
        "write" => ["files.read.allow", "files.write.allow"],
        "deny" | "none" => ["files.read.deny", "files.write.deny"],
        other => return import.lose(key, other, "it is not `read`, `write` or `deny`"),
    };
    for list in lists {
        import.rule(list, place, key, access);
    }
}

fn network(at: &str, network: Option<&Value>, settings: &Value, import: &mut Import) {
    let Some(network) = network else { return };
    if network.get("enabled") != Some(&Value::Bool(true)) {
        return;
    }
    let at = format!("{at}.network");
    import.unknown(
        &at,
        network,
        &["enabled", "domains", "unix_sockets", "allow_local_binding", "mode"],
    );
    let proxy = settings.get("features").and_then(|features| features.get("network_proxy"));
    if proxy != Some(&Value::Bool(true)) {
        let why = "stricter: without its proxy every host is open there, here those of `domains`";
        import.lose(&format!("{at}.enabled"), "true", why);
    }
    for (name, said) in entries(network.get("domains")) {
        let key = format!("{at}.domains");
        let list = match said.as_str() {
            Some("allow") => "network.allow",
            Some("deny") => "network.deny",
            _ => {
                import.lose(&key, name, "it is neither `allow` nor `deny`");
                continue;
            }
        };
        match name.strip_prefix("**.") {
            Some(apex) => {
                domain(list, &key, apex, import);
                domain(list, &key, &format!("*.{apex}"), import);
            }
            None => domain(list, &key, name, import),
        }
    }
    for (socket, said) in entries(network.get("unix_sockets")) {
        if said.as_str() == Some("allow") {
            let key = format!("{at}.unix_sockets");
            import.rule("network.unix.allow", &spelled_out(socket), &key, "allow");
        }
    }
}

/// `[shell_environment_policy]`.
fn variables(settings: &Value, import: &mut Import) {
    const TABLE: &str = "shell_environment_policy";
    let Some(table) = settings.get(TABLE) else { return };
    let known = [
        "inherit",
        "ignore_default_excludes",
        "exclude",
        "include_only",
        "experimental_use_profile",
    ];
    import.unknown(TABLE, table, &known);
    let key = |name: &str| format!("{TABLE}.{name}");
    let mut spoken = false;
    if let Some(inherit @ ("core" | "none")) = table.get("inherit").and_then(Value::as_str) {
        spoken = true;
        import.only_basic_variables(&key("inherit"), inherit);
    }
    if table.get("ignore_default_excludes") == Some(&Value::Bool(false)) {
        for name in ["*KEY*", "*SECRET*", "*TOKEN*"] {
            spoken = true;
            import.rule("environment.deny", name, &key("ignore_default_excludes"), "false");
        }
    }
    for name in strings(settings, &key("exclude"), import) {
        spoken = true;
        import.rule("environment.deny", &name, &key("exclude"), &name);
    }
    let only = strings(settings, &key("include_only"), import);
    if !only.is_empty() {
        spoken = true;
        import.rule("environment.deny", "*", &key("include_only"), "what it does not list");
    }
    for name in only {
        if name.contains(['*', '?', '[']) {
            let why = "stricter: of what only a pattern names nothing is left, for `*` denies it";
            import.lose(&key("include_only"), &name, why);
        } else {
            import.rule("environment.allow", &name, &key("include_only"), &name);
        }
    }
    if spoken {
        import.lose(
            TABLE,
            "",
            "stricter: it holds for Codex itself too, not for its commands alone",
        );
    }
}
