//! The events that a session wrote to its `--events` file.

use super::eventually;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Clone, Debug)]
pub(crate) struct Events {
    file: PathBuf,
}

impl Events {
    pub(crate) fn new(file: &Path) -> Self {
        Self { file: file.to_owned() }
    }

    /// Empties the file; no session may be writing to it.
    pub(crate) fn forget(&self) -> std::io::Result<()> {
        std::fs::write(&self.file, "")
    }

    /// Every event so far. A line that is no JSON object becomes an object that says so; the last
    /// line counts only when it is complete.
    pub(crate) fn all(&self) -> Vec<Value> {
        self.that_say("")
    }

    /// Every event so far whose line contains the text: what is not asked for need not be parsed.
    pub(crate) fn that_say(&self, text: &str) -> Vec<Value> {
        let written = std::fs::read(&self.file).unwrap_or_default();
        let written = String::from_utf8_lossy(&written);
        let lines = written.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        lines
            .filter(|line| line.contains(text))
            .map(|line| {
                serde_json::from_str(line).unwrap_or_else(
                    |error| serde_json::json!({"broken": line, "error": error.to_string()}),
                )
            })
            .collect()
    }

    pub(crate) fn denials_of(&self, pid: i32) -> Vec<Value> {
        let mut events = self.that_say(&format!("\"pid\":{pid},"));
        events.retain(|event| event["type"] == "denial" && event["pid"] == pid);
        events
    }

    /// What a process did that was allowed and noted.
    pub(crate) fn audits_of(&self, pid: i32) -> Vec<Value> {
        let mut events = self.that_say(&format!("\"pid\":{pid},"));
        events.retain(|event| event["type"] == "audit" && event["pid"] == pid);
        events
    }

    /// Denials that bear another session's id.
    pub(crate) fn denials_of_sessions_but(&self, id: &str) -> Vec<Value> {
        let mut events = self.all();
        events.retain(|event| event["type"] == "denial" && event["session"] != id);
        events
    }

    /// The first event with this type and state.
    pub(crate) fn state(&self, state: &str, patience: Duration) -> Option<Value> {
        eventually(patience, || {
            let mut events = self.all().into_iter();
            events.find(|event| event["type"] == "session" && event["state"] == state)
        })
    }

    /// That a process was moved to another cgroup.
    pub(crate) fn moved(&self, pid: i32, patience: Duration) -> Option<Value> {
        eventually(patience, || {
            let mut events = self.all().into_iter();
            events.find(|event| event["type"] == "moved" && event["pid"] == pid)
        })
    }

    /// Notices whose message contains the text.
    pub(crate) fn notices(&self, text: &str) -> Vec<Value> {
        let mut events = self.all();
        events.retain(|event| {
            let message = event["message"].as_str().unwrap_or_default();
            event["type"] == "notice" && message.contains(text)
        });
        events
    }

    /// The last events as lines, for messages.
    pub(crate) fn tail(&self, count: usize) -> String {
        let events = self.all();
        let start = events.len().saturating_sub(count);
        list(events.get(start..).unwrap_or_default())
    }
}

/// One event a line, for messages.
pub(crate) fn list(events: &[Value]) -> String {
    events
        .iter()
        .flat_map(|event| ["      ".to_owned(), event.to_string(), "\n".to_owned()])
        .collect()
}
