//! sandbox-runtime: reads are closed by a list, writes opened by a list of which another one takes away,
//! the network opened by a list. On Linux its paths have no wildcards.

use super::{Import, domain, strings};
use crate::policy::check::path::spelled_out;
use serde_json::Value;
use std::collections::HashMap;

const NETWORK: &[&str] =
    &["allowedDomains", "deniedDomains", "allowUnixSockets", "allowAllUnixSockets"];
const FILES: &[&str] = &["denyRead", "allowRead", "allowWrite", "denyWrite"];

pub(super) fn read(settings: &Value, import: &mut Import) {
    import.unknown("", settings, &["network", "filesystem"]);
    files(settings, "filesystem", import);
    network(settings, "network", import);
    import.rule("files.write.allow", "${TMPDIR}/**", "always", "the session's own");
}

/// What [`claude`](super::claude) has too, at another place.
pub(super) fn files(settings: &Value, at: &str, import: &mut Import) {
    let object = at.split('.').try_fold(settings, |value, key| value.get(key));
    import.unknown(at, object.unwrap_or(&Value::Null), FILES);
    let list = |name: &str, import: &mut Import| strings(settings, &format!("{at}.{name}"), import);
    let key = |name: &str| format!("{at}.{name}");
    for (name, rules) in [("denyRead", "files.read.deny"), ("allowRead", "files.read.allow")] {
        for value in list(name, import) {
            import.rule(rules, &path(&value), &key(name), &value);
        }
    }
    let denied = list("denyWrite", import);
    let places: HashMap<String, &String> =
        denied.iter().map(|value| (path(value).trim_end_matches('/').to_owned(), value)).collect();
    for value in list("allowWrite", import) {
        let opened = path(&value);
        // There what is denied stays so however deep it is opened; here the deeper rule would win.
        let above = ancestors(&opened).find_map(|place| places.get(place));
        match above {
            Some(above) => {
                let why = format!("denyWrite has `{above}`, which counts more: left out");
                import.lose(&key("allowWrite"), &value, &why);
            }
            None => import.rule("files.write.allow", &opened, &key("allowWrite"), &value),
        }
    }
    for value in denied {
        import.rule("files.write.deny", &path(&value), &key("denyWrite"), &value);
    }
}

pub(super) fn network(settings: &Value, at: &str, import: &mut Import) {
    let object = at.split('.').try_fold(settings, |value, key| value.get(key));
    let object = object.unwrap_or(&Value::Null).clone();
    import.unknown(at, &object, NETWORK);
    let key = |name: &str| format!("{at}.{name}");
    for (name, list) in [("allowedDomains", "network.allow"), ("deniedDomains", "network.deny")] {
        for value in strings(settings, &key(name), import) {
            domain(list, &key(name), &value, import);
        }
    }
    for value in strings(settings, &key("allowUnixSockets"), import) {
        import.rule("network.unix.allow", &path(&value), &key("allowUnixSockets"), &value);
    }
    if object.get("allowAllUnixSockets") == Some(&Value::Bool(true)) {
        let why = "every service of the machine: name the sockets that are meant";
        import.lose(&key("allowAllUnixSockets"), "true", why);
    }
}

/// A path of theirs as one of ours: `~` is the home, and what is relative lies in the workspace.
pub(super) fn path(text: &str) -> String {
    let text = text.trim_end_matches("/**");
    if text.starts_with('/') || text == "~" || text.starts_with("~/") {
        return spelled_out(text);
    }
    let rest = text.strip_prefix("./").unwrap_or(text);
    if matches!(rest, "" | ".") {
        "${WORKSPACE}".to_owned()
    } else {
        format!("${{WORKSPACE}}/{}", spelled_out(rest))
    }
}

/// A path and all above it, the deepest first, each without a slash at its end.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let whole = path.trim_end_matches('/');
    std::iter::successors(Some(whole), |path| path.rsplit_once('/').map(|(above, _)| above))
}
