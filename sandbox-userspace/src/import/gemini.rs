//! Gemini CLI: `settings.json`, the grouped keys and the older ones without groups.

use super::{EVERY_HOST, Import, srt, strings};
use serde_json::Value;

/// What its own sandbox closes to writing in the workspace, and what it hides there.
const KEPT: [&str; 3] = [".git", ".gitignore", ".geminiignore"];

/// What its tools may be asked.
const LISTS: [&str; 6] =
    ["tools.core", "tools.allowed", "tools.exclude", "coreTools", "allowedTools", "excludeTools"];

pub(super) fn read(settings: &Value, import: &mut Import) {
    let at = |key: &str| key.split('.').try_fold(settings, |value, part| value.get(part));
    import.rule("files.write.allow", "${WORKSPACE}/**", "always", "the project");
    import.rule("files.write.allow", "${TMPDIR}/**", "always", "the session's own");
    let sandbox = at("tools.sandbox").or_else(|| at("sandbox")).unwrap_or(&Value::Null).clone();
    let tools = at("security.toolSandboxing") == Some(&Value::Bool(true));
    let on = match &sandbox {
        Value::Bool(on) => *on,
        Value::String(kind) => {
            let why = "which program makes its sandbox makes no difference here";
            import.lose("tools.sandbox", kind, why);
            true
        }
        Value::Object(object) => {
            let known = ["enabled", "command", "image", "allowedPaths", "networkAccess"];
            import.unknown("tools.sandbox", &sandbox, &known);
            if let Some(image) = object.get("image") {
                let why = "the programs of an image are not here, only what this machine has";
                import.lose("tools.sandbox.image", &image.to_string(), why);
            }
            object.get("enabled") != Some(&Value::Bool(false))
        }
        _ => false,
    };
    if !on && !tools {
        let why = "without a sandbox: nothing is opened for it but the project";
        import.lose("tools.sandbox", &sandbox.to_string(), why);
    }
    if tools {
        for name in KEPT {
            let rule = format!("${{WORKSPACE}}/{name}");
            import.rule("files.write.deny", &rule, "security.toolSandboxing", "true");
        }
        let rule = "${WORKSPACE}/**/.env{,.*}";
        import.rule("files.read.deny", rule, "security.toolSandboxing", "true");
        import.rule("files.write.deny", rule, "security.toolSandboxing", "true");
    }
    for key in ["tools.sandboxAllowedPaths", "tools.sandbox.allowedPaths"] {
        for value in strings(settings, key, import) {
            import.rule("files.write.allow", &srt::path(&value), key, &value);
        }
    }
    for key in ["context.includeDirectories", "includeDirectories"] {
        for value in strings(settings, key, import) {
            import.rule("files.write.allow", &srt::path(&value), key, &value);
        }
    }
    for key in ["tools.sandboxNetworkAccess", "tools.sandbox.networkAccess"] {
        if at(key) == Some(&Value::Bool(true)) {
            import.lose(key, "true", EVERY_HOST);
        }
    }
    variables(settings, import);
    for key in LISTS {
        for value in strings(settings, key, import) {
            import.lose(key, &value, "it is about what a tool is told, not about a path or a host");
        }
    }
}

/// `security.environmentVariableRedaction`.
fn variables(settings: &Value, import: &mut Import) {
    const AT: &str = "security.environmentVariableRedaction";
    let object = AT.split('.').try_fold(settings, |value, part| value.get(part));
    let Some(object) = object else { return };
    import.unknown(AT, object, &["enabled", "allowed", "blocked"]);
    if object.get("enabled") != Some(&Value::Bool(true)) {
        return;
    }
    let why = "stricter: it holds for Gemini CLI itself too, not for its commands alone";
    import.lose(AT, "true", why);
    import.word("environment.secrets", "deny", AT, "enabled");
    for (name, list) in [("blocked", "environment.deny"), ("allowed", "environment.allow")] {
        let key = format!("{AT}.{name}");
        for value in strings(settings, &key, import) {
            import.rule(list, &value, &key, &value);
        }
    }
}
