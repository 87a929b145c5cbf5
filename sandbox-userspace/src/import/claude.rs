//! Claude Code: its sandbox is sandbox-runtime's; permissions say what its own tools may read and edit,
//! which here holds for every program that it starts.

use super::{Import, srt, strings};
use serde_json::Value;

pub(super) fn read(settings: &Value, import: &mut Import) {
    import.rule("files.write.allow", "${WORKSPACE}/**", "always", "the project");
    import.rule("files.write.allow", "${TMPDIR}/**", "always", "the session's own");
    let sandbox = settings.get("sandbox").unwrap_or(&Value::Null).clone();
    import.unknown("sandbox", &sandbox, &["enabled", "filesystem", "network"]);
    srt::files(settings, "sandbox.filesystem", import);
    srt::network(settings, "sandbox.network", import);
    let permissions = settings.get("permissions").unwrap_or(&Value::Null).clone();
    import.unknown("permissions", &permissions, &["deny", "allow", "ask"]);
    for value in strings(settings, "permissions.deny", import) {
        deny(&value, import);
    }
    // What its tools need not ask for is nothing that a wall has to say; what they ask for is asked there.
    for list in ["permissions.allow", "permissions.ask"] {
        for value in strings(settings, list, import) {
            let why = "it is about asking, and opens or closes nothing here";
            import.lose(list, &value, why);
        }
    }
}

/// `Read(PATH)`, `Edit(PATH)` and `Write(PATH)` in gitignore's grammar.
fn deny(value: &str, import: &mut Import) {
    const KEY: &str = "permissions.deny";
    let call = value.strip_suffix(')').and_then(|call| call.split_once('('));
    let Some((tool, path)) = call else {
        return import.lose(KEY, value, "it is about a whole tool, not about a path");
    };
    let lists: &[&'static str] = match tool {
        "Read" => &["files.read.deny"],
        "Edit" | "Write" | "MultiEdit" => &["files.write.deny"],
        _ => return import.lose(KEY, value, "it is about what a tool is told, not about a path"),
    };
    let rule = if let Some(absolute) = path.strip_prefix("//") {
        format!("/{absolute}")
    } else if path.starts_with("~/") {
        path.to_owned()
    } else if let Some(rest) = path.strip_prefix("./").or_else(|| path.strip_prefix('/')) {
        format!("${{WORKSPACE}}/{rest}")
    } else if path.contains('/') {
        format!("${{WORKSPACE}}/{path}")
    } else {
        format!("${{WORKSPACE}}/**/{path}")
    };
    for list in lists {
        import.rule(list, &rule, KEY, value);
    }
}
