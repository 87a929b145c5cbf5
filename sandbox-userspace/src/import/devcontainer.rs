//! Dev containers: `devcontainer.json`. A container shows nothing of its host but the workspace and what is
//! mounted, has no variables of it, and reaches every host.

use super::{EVERY_HOST, Import, srt};
use serde_json::Value;

/// Nothing about walls.
const SILENT: [&str; 12] = [
    "$schema",
    "name",
    "customizations",
    "forwardPorts",
    "portsAttributes",
    "otherPortsAttributes",
    "shutdownAction",
    "overrideCommand",
    "waitFor",
    "init",
    "userEnvProbe",
    "updateRemoteUserUID",
];
/// Where the programs come from.
const PROGRAMS: [&str; 9] = [
    "image",
    "build",
    "dockerFile",
    "context",
    "dockerComposeFile",
    "service",
    "runServices",
    "features",
    "overrideFeatureInstallOrder",
];
/// What is run when the container is made or started.
const COMMANDS: [&str; 6] = [
    "initializeCommand",
    "onCreateCommand",
    "updateContentCommand",
    "postCreateCommand",
    "postStartCommand",
    "postAttachCommand",
];
/// What takes walls away there.
const WIDER: [&str; 3] = ["privileged", "capAdd", "securityOpt"];

pub(super) fn read(settings: &Value, import: &mut Import) {
    const READ: [&str; 8] = [
        "mounts",
        "workspaceMount",
        "workspaceFolder",
        "appPort",
        "containerEnv",
        "remoteEnv",
        "runArgs",
        "secrets",
    ];
    import.only_listed("always", "a container shows nothing else of the host");
    for list in ["files.read.allow", "files.write.allow"] {
        import.rule(list, "${WORKSPACE}", "workspaceFolder", "the project");
    }
    import.rule("files.write.allow", "${TMPDIR}/**", "always", "the session's own");
    import.only_basic_variables("always", "a container has no variables of the host");
    for (key, value) in settings.as_object().into_iter().flatten() {
        let (name, shown) = (key.as_str(), value.to_string());
        let why = match name {
            _ if SILENT.contains(&name) || READ.contains(&name) => continue,
            _ if WIDER.contains(&name) => {
                if matches!(shown.as_str(), "false" | "[]") {
                    continue;
                }
                "stricter: an agent gets no capability and keeps every wall"
            }
            _ if PROGRAMS.contains(&name) => {
                "the programs of an image are not here, only what this machine has"
            }
            _ if COMMANDS.contains(&name) => "nothing is run beforehand: run it yourself",
            "remoteUser" | "containerUser" => "stricter: the user is named with `run --user`",
            _ => "this program has nothing like it",
        };
        import.lose(name, &shown, why);
    }
    let list = |key: &str| -> Vec<Value> {
        match settings.get(key) {
            Some(Value::Array(list)) => list.clone(),
            Some(one) => vec![one.clone()],
            None => Vec::new(),
        }
    };
    for value in list("mounts") {
        mount("mounts", &value, import);
    }
    for port in list("appPort") {
        published("appPort", &port, import);
    }
    for key in ["containerEnv", "remoteEnv"] {
        for (name, value) in settings.get(key).and_then(Value::as_object).into_iter().flatten() {
            variable(key, name, value, import);
        }
    }
    for name in settings.get("secrets").and_then(Value::as_object).into_iter().flatten() {
        import.rule("environment.allow", name.0, "secrets", name.0);
    }
    if !run_args(&list("runArgs"), import) {
        import.lose("network", "", EVERY_HOST);
    }
}

/// A mount: `source=…,target=…,type=bind`, or the same as an object.
fn mount(key: &str, value: &Value, import: &mut Import) {
    let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let part = |names: &[&str]| match value {
        Value::String(text) => text.split(',').find_map(|part| {
            let (name, value) = part.split_once('=').unwrap_or((part, "true"));
            names.contains(&name.trim()).then(|| value.trim().to_owned())
        }),
        other => names.iter().find_map(|name| match other.get(name)? {
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }),
    };
    let kind = part(&["type"]).unwrap_or_else(|| "volume".to_owned());
    if kind != "bind" {
        let why = "it is the container's own: here the session has ${TMPDIR}";
        return import.lose(key, &shown, why);
    }
    let Some(source) = part(&["source", "src"]) else {
        return import.lose(key, &shown, "it has no source");
    };
    let only_read = part(&["readonly", "ro"]).is_some_and(|value| value != "false");
    bind(key, &shown, &source, only_read, import);
}

fn bind(key: &str, shown: &str, source: &str, only_read: bool, import: &mut Import) {
    if source.rsplit('.').next() == Some("sock") {
        let why = "whoever reaches it acts outside the session: name it in network.unix.allow if that is meant";
        return import.lose(key, shown, why);
    }
    let home = source.replace("${localEnv:HOME}", "~").replace("${localWorkspaceFolder}", ".");
    if home.contains("${") {
        return import.lose(key, shown, "its variable is not known here: name the path");
    }
    let rule = srt::path(&home);
    import.rule("files.read.allow", &rule, key, shown);
    let write = if only_read { "files.write.deny" } else { "files.write.allow" };
    import.rule(write, &rule, key, shown);
}

/// A port that is published at every address of the host: `3000`, `"3000:3000"`.
fn published(key: &str, port: &Value, import: &mut Import) {
    let text = port.as_str().map_or_else(|| port.to_string(), str::to_owned);
    let inner = text.rsplit(':').next().unwrap_or_default();
    for any in ["0.0.0.0", "[::]"] {
        import.rule("network.listen", &format!("{any}:{inner}/tcp"), key, &text);
    }
}

/// A variable: the host's own, or one with a value.
fn variable(key: &str, name: &str, value: &Value, import: &mut Import) {
    let host = value.as_str().and_then(|text| text.strip_prefix("${localEnv:"));
    match host.and_then(|text| text.strip_suffix('}')) {
        Some(host) if host == name => import.rule("environment.allow", name, key, name),
        _ => {
            let why = "a policy gives variables no value: set it where the session is started";
            import.lose(&format!("{key}.{name}"), "", why);
        }
    }
}

/// Arguments of `docker run`; `true` where they close the network.
fn run_args(args: &[Value], import: &mut Import) -> bool {
    let mut words = args.iter().filter_map(Value::as_str).peekable();
    let mut closed = false;
    while let Some(word) = words.next() {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, words.next_if(|next| !next.starts_with('-'))),
        };
        let value = value.unwrap_or_default();
        match name {
            "--network" | "--net" if value == "none" => closed = true,
            "--network" | "--net" => import.lose("runArgs", word, EVERY_HOST),
            "--cap-drop" | "--init" | "--rm" | "--name" | "--hostname" | "-h" => {}
            "--mount" => mount("runArgs", &Value::from(value), import),
            "-v" | "--volume" => {
                let mut parts = value.split(':');
                let (source, _) = (parts.next().unwrap_or_default(), parts.next());
                let only_read = parts.next().is_some_and(|rest| rest.split(',').any(|o| o == "ro"));
                if source.starts_with(['/', '~', '$', '.']) {
                    bind("runArgs", value, source, only_read, import);
                } else {
                    let why = "it is the container's own: here the session has ${TMPDIR}";
                    import.lose("runArgs", value, why);
                }
            }
            "-p" | "--publish" => published("runArgs", &Value::from(value), import),
            "-e" | "--env" => match value.split_once('=') {
                None => import.rule("environment.allow", value, "runArgs", value),
                Some((name, _)) => variable("runArgs", name, &Value::Null, import),
            },
            "--cap-add" | "--security-opt" | "--privileged" | "--device" | "--pid" | "--ipc" => {
                import.lose(
                    "runArgs",
                    word,
                    "stricter: an agent gets no capability and keeps every wall",
                );
            }
            _ => import.lose("runArgs", word, "this program has nothing like it"),
        }
    }
    closed
}
