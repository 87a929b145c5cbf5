//! What an event about a denial must say.

use super::policy::Rule;
use super::who::is_root;
use crate::probe::Place;
use serde_json::Value;
use std::net::SocketAddr;
use std::path::Path;

/// The expected event, and the errors with which the operation may fail.
#[derive(Clone, Debug)]
pub(crate) struct Denial {
    hooks: Vec<&'static str>,
    access: Option<&'static str>,
    object: Object,
    why: Why,
    pub(crate) errors: Vec<i32>,
    /// An event must tell. A member that lacks a capability is refused before anybody is asked.
    pub(crate) told: bool,
}

/// The object that the event must name.
#[derive(Clone, Debug)]
enum Object {
    /// One of these paths: where one object has two names that are both right.
    Path(Vec<String>),
    /// Some path that starts so.
    Beneath(String),
    Device {
        path: String,
        major: u64,
        minor: u64,
    },
    Address {
        address: String,
        port: u64,
        protocol: &'static str,
    },
    Abstract(String),
    Task,
    Any,
}

/// What the event must give as the cause.
#[derive(Clone, Debug)]
pub(crate) enum Why {
    /// No rule allows it.
    Default,
    /// This rule of the test's own policy: key and text.
    Rule(&'static str, String),
    /// A rule of the preset: key and the beginning of its text.
    Preset(&'static str, &'static str),
    /// A rule of a layer above the test's own policy: layer, key and text.
    Above(&'static str, &'static str, String),
    /// A rule made for the workspace: key and text.
    Workspace(&'static str, String),
    /// As many bytes have passed as this rule of the test's own policy lets pass: key and text.
    Spent(&'static str, String),
    /// A rule asks about the program: layer and text.
    Asked(&'static str, String),
    /// One of these reasons, whatever the rule.
    Reason(&'static [&'static str]),
}

fn text(path: impl Into<Place>) -> String {
    path.into().to_string()
}

impl Denial {
    /// A denial by one of the hooks, of whatever object, for want of a rule.
    pub(crate) fn by(hooks: &[&'static str]) -> Self {
        Self {
            hooks: hooks.to_vec(),
            access: None,
            object: Object::Any,
            why: Why::Default,
            errors: vec![libc::EACCES, libc::EPERM],
            told: true,
        }
    }

    /// An open for reading, refused with `EACCES`.
    pub(crate) fn read(path: impl Into<Place>) -> Self {
        Self::by(&["file_open"]).access("read").path(path).error(libc::EACCES)
    }

    /// An open for writing, refused with `EACCES`.
    pub(crate) fn write(path: impl Into<Place>) -> Self {
        Self::by(&["file_open"]).access("write").path(path).error(libc::EACCES)
    }

    pub(crate) fn access(self, access: &'static str) -> Self {
        Self { access: Some(access), ..self }
    }

    pub(crate) fn path(self, path: impl Into<Place>) -> Self {
        Self { object: Object::Path(vec![text(path)]), ..self }
    }

    pub(crate) fn paths(self, one: impl Into<Place>, other: impl Into<Place>) -> Self {
        Self { object: Object::Path(vec![text(one), text(other)]), ..self }
    }

    pub(crate) fn beneath(self, path: impl Into<Place>) -> Self {
        Self { object: Object::Beneath(text(path)), ..self }
    }

    pub(crate) fn any_object(self) -> Self {
        Self { object: Object::Any, ..self }
    }

    pub(crate) fn device(self, path: impl Into<Place>, major: u64, minor: u64) -> Self {
        Self { object: Object::Device { path: text(path), major, minor }, ..self }
    }

    pub(crate) fn address(self, to: SocketAddr, protocol: &'static str) -> Self {
        let (address, port) = (to.ip().to_string(), to.port().into());
        Self { object: Object::Address { address, port, protocol }, ..self }
    }

    /// A unix socket with an abstract name.
    pub(crate) fn abstract_name(self, name: &str) -> Self {
        Self { object: Object::Abstract(name.to_owned()), ..self }
    }

    pub(crate) fn task(self) -> Self {
        Self { object: Object::Task, ..self }
    }

    pub(crate) fn because(self, why: Why) -> Self {
        Self { why, ..self }
    }

    pub(crate) fn rule(self, key: &'static str, text: impl Into<String>) -> Self {
        self.because(Why::Rule(key, text.into()))
    }

    /// A read that the preset's rule about `~/.ssh` refuses.
    pub(crate) fn of_key(self) -> Self {
        self.because(Why::Preset("files.read.deny", "~/.ssh"))
    }

    /// The kernel itself may refuse, which no event tells.
    pub(crate) fn perhaps_untold(self) -> Self {
        Self { told: false, ..self }
    }

    /// Where the test is about an ordinary user, the kernel asks nobody: the file's mode or owner refuses.
    pub(crate) fn told_to_root(self) -> Self {
        Self { told: self.told && is_root(), ..self }
    }

    pub(crate) fn error(self, errno: i32) -> Self {
        Self { errors: vec![errno], ..self }
    }

    pub(crate) fn or_error(mut self, errno: i32) -> Self {
        self.errors.push(errno);
        self
    }

    /// What is wrong with the event; empty where it is right.
    pub(crate) fn faults(&self, event: &Value, policy: &Path, rules: &[Rule]) -> Vec<String> {
        let mut faults = Vec::new();
        let mut expect = |name: &str, right: bool, wanted: String| {
            if !right {
                faults.push(format!("{name} should be {wanted}"));
            }
        };
        let hook = event["hook"].as_str().unwrap_or_default();
        expect("hook", self.hooks.contains(&hook), format!("{:?}", self.hooks));
        if let Some(access) = self.access {
            let given = event["access"].as_array().map(Vec::as_slice).unwrap_or_default();
            expect("access", given.iter().any(|word| word == access), format!("[{access:?}]"));
        }
        expect("verdict", event["verdict"] == "denied", "\"denied\"".to_owned());
        for name in ["time", "comm", "message", "session"] {
            let given = event[name].as_str().unwrap_or_default();
            // A packet is nobody's in particular.
            let nobody = name == "comm" && event["pid"] == 0;
            expect(name, nobody || !given.is_empty(), "a text".to_owned());
        }
        for name in ["tid", "uid"] {
            expect(name, event[name].is_u64(), "a number".to_owned());
        }
        faults.extend(self.object_faults(&event["object"]));
        faults.extend(self.cause_faults(event, policy, rules));
        faults
    }

    fn object_faults(&self, object: &Value) -> Option<String> {
        let path = object["path"].as_str().unwrap_or_default();
        let right = match &self.object {
            Object::Any => true,
            Object::Task => object["kind"] == "task",
            Object::Abstract(name) => {
                object["kind"] == "abstract" && object["name"] == name.as_str()
            }
            Object::Path(paths) => object["kind"] == "path" && paths.iter().any(|p| p == path),
            Object::Beneath(start) => object["kind"] == "path" && path.starts_with(start.as_str()),
            Object::Device { path: wanted, major, minor } => {
                object["kind"] == "device"
                    && path == wanted
                    && object["major"] == *major
                    && object["minor"] == *minor
            }
            Object::Address { address, port, protocol } => {
                object["kind"] == "address"
                    && object["address"] == address.as_str()
                    && object["port"] == *port
                    && object["protocol"] == *protocol
            }
        };
        (!right).then(|| format!("object should be {:?}", self.object))
    }

    fn cause_faults(&self, event: &Value, policy: &Path, rules: &[Rule]) -> Option<String> {
        let rule = &event["rule"];
        let reason = event["reason"].as_str().unwrap_or_default();
        let message = event["message"].as_str().unwrap_or_default();
        let right = match &self.why {
            Why::Reason(reasons) => reasons.contains(&reason),
            Why::Spent(key, text) => {
                reason == "spent"
                    && rule["key"] == *key
                    && rule["text"] == text.as_str()
                    && message.contains(text.as_str())
            }
            Why::Asked(layer, text) => {
                reason == "asked"
                    && rule["layer"] == *layer
                    && rule["key"] == "files.exec.ask"
                    && rule["text"] == text.as_str()
                    && message.contains(text.as_str())
            }
            Why::Default => reason == "default" && rule.is_null(),
            Why::Preset(key, start) => {
                reason == "rule"
                    && rule["key"] == *key
                    && rule["text"].as_str().is_some_and(|text| text.starts_with(start))
                    && rule["layer"] == "preset"
                    && rule["file"].as_str().is_some_and(|file| {
                        file.starts_with("preset:") && message.contains(&format!("{file}:"))
                    })
                    && rule["line"].as_u64().is_some_and(|line| line > 0)
            }
            Why::Above(layer, key, text) => {
                reason == "rule"
                    && rule["layer"] == *layer
                    && rule["key"] == *key
                    && rule["text"] == text.as_str()
                    && message.contains(text.as_str())
            }
            Why::Workspace(key, text) => {
                reason == "rule"
                    && rule["key"] == *key
                    && rule["text"] == text.as_str()
                    && rule["layer"] == "workspace"
                    && rule["file"] == "workspace:git"
                    && message.contains("workspace:git:")
            }
            Why::Rule(key, text) => {
                let Some(at) = rules.iter().find(|rule| rule.key == *key && rule.text == *text)
                else {
                    return Some(format!("the test's policy has no rule {key} {text:?}"));
                };
                let file = policy.to_string_lossy();
                let column = rule["column"].as_u64().unwrap_or_default();
                let right = reason == "rule"
                    && rule["key"] == *key
                    && rule["text"] == text.as_str()
                    && rule["file"] == *file
                    && rule["line"] == at.line
                    // The quote, or the text behind it.
                    && (column == at.column || column == at.column + 1)
                    && message.contains(&format!("{file}:{}", at.line));
                return (!right).then(|| {
                    let Rule { line, column, .. } = at;
                    format!("rule should be {key} {text:?} at {file}:{line}:{column}")
                });
            }
        };
        (!right).then(|| format!("reason and rule should be {:?}", self.why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::policy::Policy;
    use serde_json::json;

    const RULE: &str = "/data/secret/**";
    const KEY: &str = "files.read.deny";

    /// An event as the command line promises it, about a read that `RULE` denies.
    fn event() -> Value {
        json!({
            "type": "denial", "time": "2026-11-29T12:00:00Z", "session": "s1", "hook": "file_open",
            "access": ["read"], "reason": "rule", "verdict": "denied", "pid": 1, "tid": 1, "uid": 0,
            "comm": "cat", "object": {"kind": "path", "path": "/data/secret/key", "exists": true},
            "rule": {
                "id": 3, "key": KEY, "text": RULE, "layer": "user", "file": "/p.toml", "line": 6,
                "column": 5,
            },
            "message": "denied read of /data/secret/key by cat[1]: … (/p.toml:6)",
        })
    }

    fn faults(event: &Value) -> Vec<String> {
        let written = Policy::preset().read_deny(RULE).write();
        let denial = Denial::read("/data/secret/key").rule(KEY, RULE);
        denial.faults(event, Path::new("/p.toml"), &written.rules)
    }

    #[test]
    fn right_event_has_no_faults() {
        assert_eq!(faults(&event()), Vec::<String>::new());
    }

    #[test]
    fn every_wrong_field_is_a_fault() {
        for (pointer, wrong) in [
            ("/hook", json!("path_mknod")),
            ("/access", json!(["write"])),
            ("/verdict", json!("allowed")),
            ("/reason", json!("default")),
            ("/object/path", json!("/data/secret/other")),
            ("/object/kind", json!("task")),
            ("/rule", Value::Null),
            ("/rule/key", json!("files.write.deny")),
            ("/rule/text", json!("/data/**")),
            ("/rule/file", json!("/q.toml")),
            ("/rule/line", json!(5)),
            ("/rule/column", json!(1)),
            ("/message", json!("denied")),
            ("/comm", json!("")),
            ("/uid", Value::Null),
        ] {
            let mut event = event();
            *event.pointer_mut(pointer).expect("the event has this field") = wrong;
            assert_ne!(faults(&event), Vec::<String>::new(), "{pointer} was not looked at");
        }
    }

    #[test]
    fn a_default_denial_names_no_rule() {
        let denial = Denial::read("/data/secret/key");
        let mut event = event();
        assert!(!denial.faults(&event, Path::new("/p.toml"), &[]).is_empty());
        event["reason"] = json!("default");
        event["rule"] = Value::Null;
        assert!(denial.faults(&event, Path::new("/p.toml"), &[]).is_empty());
    }
}
