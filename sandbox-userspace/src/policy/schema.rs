//! The schema of the language, for editors and for who makes policies by program.
//!
//! The types say what a document may hold; [`parse`](super::parse) reads it by itself, for the sake of its
//! messages. A test holds one to the other, key by key.

use schemars::JsonSchema;

/// The schema as JSON.
pub fn schema() -> serde_json::Value {
    let mut schema = schemars::schema_for!(Document).to_value();
    if let Some(names) = schema.pointer_mut("/$defs/Preset") {
        names["enum"] = super::preset::NAMES.into();
    }
    schema
}

/// A policy of `sandbox`, version 1: what an agent may do. The same in TOML and in JSON.
#[derive(JsonSchema)]
#[schemars(title = "sandbox policy", deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape counts")]
struct Document {
    /// The version of the language.
    #[schemars(range(min = 1, max = 1))]
    version: u32,
    /// Presets whose rules come first, in this order: `sandbox policy show PRESET` prints one.
    #[schemars(default)]
    extends: Vec<Preset>,
    /// Presets that are left out, also where another preset extends them.
    #[schemars(default)]
    except: Vec<Preset>,
    /// Whether what is denied fails, or is only reported. `enforce` where not said.
    mode: Option<Mode>,
    /// What is noted though it is allowed, as an event.
    #[schemars(default)]
    audit: Vec<AuditClass>,
    files: Option<Files>,
    network: Option<Network>,
    environment: Option<Environment>,
    processes: Option<Processes>,
    limits: Option<Limits>,
}

/// The name of a policy that ships inside the program.
#[derive(JsonSchema)]
#[schemars(transparent)]
#[expect(dead_code, reason = "only its shape counts")]
struct Preset(String);

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its shape counts")]
enum Mode {
    /// The operation fails.
    Enforce,
    /// The operation is done and reported.
    Audit,
}

/// What can be noted.
#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its shape counts")]
enum AuditClass {
    /// Each program that runs.
    Exec,
    /// Each connection that begins, and whom a socket sends to.
    Connect,
    /// Each change of a file or a name.
    Write,
}

#[derive(JsonSchema)]
#[schemars(rename_all = "lowercase")]
#[expect(dead_code, reason = "only its shape counts")]
enum Verdict {
    Allow,
    Deny,
}

/// Rules about files and directories. The rule at the deepest place decides; at the same place a path that
/// is spelled out beats a pattern, then `deny` wins.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape counts")]
struct Files {
    /// Reading a file, listing a directory.
    read: Option<Closable>,
    /// Every way to change a file or a name. Only what is allowed can be written.
    write: Option<Lists>,
    /// Of that, taking a name away alone: deleting, renaming, replacing by renaming.
    delete: Option<Lists>,
    /// Of that, changing mode, owner, times and extended attributes alone.
    attributes: Option<Lists>,
    /// Running a file as a program; it must be readable too.
    exec: Option<Programs>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape counts")]
struct Closable {
    /// What holds where no rule speaks: `allow` where not said.
    default: Option<Verdict>,
    #[schemars(default)]
    allow: Vec<Path>,
    #[schemars(default)]
    deny: Vec<Path>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape counts")]
struct Programs {
    /// What holds where no rule speaks: `allow` where not said.
    default: Option<Verdict>,
    #[schemars(default)]
    allow: Vec<Path>,
    #[schemars(default)]
    deny: Vec<Path>,
    /// Commands that a person is asked about first: a program's name and the words behind it, `git push`.
    #[schemars(default)]
    ask: Vec<String>,
}

#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape counts")]
struct Lists {
    #[schemars(default)]
    allow: Vec<Path>,
    #[schemars(default)]
    deny: Vec<Path>,
}

/// An absolute path, or one from `~`, `${WORKSPACE}`, `${TMPDIR}` or `**`; with `*`, `?`, `[a-z]`, `{a,b}`
/// and `**` between slashes. `PATH` is the object and all beneath, `PATH/**` only what lies beneath.
#[derive(JsonSchema)]
#[schemars(transparent)]
#[expect(dead_code, reason = "only its shape counts")]
struct Path(#[schemars(length(min = 1))] String);

/// Rules about the network. What no rule allows is denied.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape counts")]
struct Network {
    /// Connecting and sending: `ADDRESS[/BITS][:PORT[-PORT]][/tcp|/udp]`, an IPv6 address in brackets; or a
    /// name in its place, `api.example.com` or `*.example.com`.
    #[schemars(default)]
    allow: Vec<String>,
    /// The same, closed within what is allowed.
    #[schemars(default)]
    deny: Vec<String>,
    /// Listening elsewhere than at loopback: addresses of this machine, as in `allow`.
    #[schemars(default)]
    listen: Vec<String>,
    /// Name servers to ask instead of the host's: `ADDRESS[:PORT]`.
    #[schemars(default)]
    resolvers: Vec<String>,
    /// Unix sockets by their path, by `@` and their abstract name, or by the word of a service: `ssh-agent`.
    unix: Option<Lists>,
}

/// Which variables of its caller the agent gets. A name that is spelled out beats one with wildcards, then
/// `deny` wins.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape counts")]
struct Environment {
    /// Names that stay.
    #[schemars(default)]
    allow: Vec<String>,
    /// Names that are taken away.
    #[schemars(default)]
    deny: Vec<String>,
    /// Whether variables stay whose values look like secrets: `allow` where not said.
    secrets: Option<Verdict>,
}

/// How much of the machine the session may have, all its processes together.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape counts")]
struct Limits {
    /// Memory: `8GiB`. What is beyond is ended by the kernel.
    memory: Option<String>,
    /// Processes and threads.
    pids: Option<u32>,
    /// Time of processors, in percent of one: `200%`.
    cpu: Option<String>,
}

/// What processes may do beside.
#[derive(JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "only its shape counts")]
struct Processes {
    /// Whether user namespaces may be made, and mounts in them: `false` where not said.
    namespaces: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::super::parse::{KEYS, LIST_KEYS, WORDS};
    use super::*;
    use serde_json::Value;

    /// The schema behind a reference or an `anyOf` with null.
    fn behind<'a>(root: &'a Value, mut at: &'a Value) -> &'a Value {
        loop {
            let choices = at.get("anyOf").and_then(Value::as_array);
            let some = |choice: &&Value| choice.get("type") != Some(&"null".into());
            if let Some(choice) = choices.and_then(|choices| choices.iter().find(some)) {
                at = choice;
            } else if let Some(name) = at.get("$ref").and_then(Value::as_str) {
                at = root.pointer(name.trim_start_matches('#')).unwrap();
            } else {
                return at;
            }
        }
    }

    fn of<'a>(root: &'a Value, key: &str) -> &'a Value {
        let parts = key.split('.').filter(|part| !part.is_empty());
        parts.fold(root, |at, part| {
            let properties = &behind(root, at)["properties"];
            properties.get(part).unwrap_or_else(|| panic!("the schema lacks `{key}`"))
        })
    }

    #[test]
    fn the_schema_has_the_keys_that_are_read() {
        let schema = schema();
        for (table, keys) in KEYS {
            let object = behind(&schema, of(&schema, table));
            let properties = object["properties"].as_object().unwrap();
            let mut known: Vec<&str> = properties.keys().map(String::as_str).collect();
            let mut expected = keys.to_vec();
            known.sort_unstable();
            expected.sort_unstable();
            assert_eq!(known, expected, "`{table}`");
            assert_eq!(object["additionalProperties"], false, "`{table}`");
        }
        for key in LIST_KEYS {
            assert_eq!(of(&schema, key)["type"], "array", "{key}");
        }
        for (key, words) in WORDS {
            let value = behind(&schema, of(&schema, key));
            let consts = value["oneOf"].as_array().into_iter().flatten();
            let mut known: Vec<&str> =
                consts.filter_map(|choice| choice["const"].as_str()).collect();
            known.extend(value["enum"].as_array().into_iter().flatten().filter_map(Value::as_str));
            assert_eq!(known, words, "{key}");
        }
        assert_eq!(schema["required"], serde_json::json!(["version"]));
        assert_eq!(
            schema["$defs"]["Preset"]["enum"].as_array().unwrap().len(),
            super::super::preset::NAMES.len()
        );
    }

    /// `docs/policy.schema.json` is what editors are pointed to.
    #[test]
    fn the_schema_in_the_docs_is_this_one() {
        let text = serde_json::to_string_pretty(&schema()).unwrap() + "\n";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/policy.schema.json");
        if std::env::var_os("SANDBOX_WRITE_SCHEMA").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        assert_eq!(
            std::fs::read_to_string(path).unwrap(),
            text,
            "write it anew: SANDBOX_WRITE_SCHEMA=1"
        );
    }
}
