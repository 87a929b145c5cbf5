//! Cursor: kinds of workspaces, further places, and a policy of the network.

use super::{EVERY_HOST, Import, domain, srt, strings};
use serde_json::Value;

const KNOWN: &[&str] = &[
    "type",
    "additionalReadwritePaths",
    "additionalReadonlyPaths",
    "disableTmpWrite",
    "networkPolicy",
];

pub(super) fn read(settings: &Value, import: &mut Import) {
    import.unknown("", settings, KNOWN);
    let kind = settings.get("type").and_then(Value::as_str).unwrap_or("workspace_readwrite");
    match kind {
        "workspace_readwrite" => {
            import.rule("files.write.allow", "${WORKSPACE}/**", "type", kind);
        }
        "workspace_readonly" => {}
        _ => import.lose("type", kind, "without a sandbox: nothing is opened for it"),
    }
    if settings.get("disableTmpWrite") != Some(&Value::Bool(true)) {
        import.rule("files.write.allow", "${TMPDIR}/**", "disableTmpWrite", "false");
        import.lose(
            "disableTmpWrite",
            "false",
            "stricter: a directory of the session's own, not /tmp",
        );
    }
    for value in strings(settings, "additionalReadwritePaths", import) {
        import.rule("files.write.allow", &srt::path(&value), "additionalReadwritePaths", &value);
    }
    for value in strings(settings, "additionalReadonlyPaths", import) {
        import.rule("files.read.allow", &srt::path(&value), "additionalReadonlyPaths", &value);
    }
    let network = settings.get("networkPolicy").unwrap_or(&Value::Null).clone();
    import.unknown("networkPolicy", &network, &["default", "allow", "deny"]);
    if network.get("default").and_then(Value::as_str) == Some("allow") {
        import.lose("networkPolicy.default", "allow", EVERY_HOST);
    }
    for (key, list) in
        [("networkPolicy.allow", "network.allow"), ("networkPolicy.deny", "network.deny")]
    {
        for value in strings(settings, key, import) {
            domain(list, key, &value, import);
        }
    }
}
