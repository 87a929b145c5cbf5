//! What a running session is asked for: files in the directory of its state, which is root's alone.
//!
//! `sandbox grant` and its like put down `request-ID.json` and wait for `answer-ID.json`; the session's
//! supervisor watches the directory.

use super::SessionId;
use super::state::Registry;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to wait for an answer: a policy is compiled and entered.
const PATIENCE: Duration = Duration::from_mins(1);

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum Request {
    /// Allow something, perhaps for some time only.
    Grant {
        /// The list that it is a rule of.
        key: String,
        /// The rule.
        rule: String,
        /// Seconds, or until the session ends.
        seconds: Option<u64>,
    },
    /// Take grants back.
    Revoke {
        /// The list of the rule; all lists where there is none.
        key: Option<String>,
        /// The rule; all rules where there is none.
        rule: Option<String>,
    },
    /// Put another policy in the place of the present one.
    Set {
        /// A policy file, or the name of a preset.
        policy: PathBuf,
    },
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether it was done.
    pub done: bool,
    /// For people: what was done, or why it was not.
    pub text: String,
}

/// Asks a running session and waits for the answer.
pub fn ask(registry: &Registry, id: &SessionId, request: &Request) -> io::Result<Answer> {
    let directory = registry.directory(id);
    let token = SessionId::random()?;
    let answer = directory.join(format!("answer-{token}.json"));
    put(&directory, &format!("request-{token}.json"), request)?;
    let end = Instant::now() + PATIENCE;
    let mut pause = Duration::from_micros(200);
    loop {
        match fs::read(&answer) {
            Ok(text) => {
                // What is left of it goes with the session.
                let _ = fs::remove_file(&answer);
                return Ok(serde_json::from_slice(&text)?);
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) if Instant::now() > end || !directory.exists() => {
                let _ = fs::remove_file(directory.join(format!("request-{token}.json")));
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(_) => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(20));
            }
        }
    }
}

/// The requests that wait in a directory, by their tokens, each taken away.
pub(super) fn waiting(directory: &Path) -> io::Result<Vec<(String, io::Result<Request>)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let token = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_prefix("request-")?.strip_suffix(".json"));
        if let Some(token) = token {
            found.push((token.to_owned(), take(&path)));
        }
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(found)
}

/// Puts an answer down.
pub(super) fn answer(directory: &Path, token: &str, answer: &Answer) -> io::Result<()> {
    put(directory, &format!("answer-{token}.json"), answer)
}

fn take<T: DeserializeOwned>(path: &Path) -> io::Result<T> {
    let text = fs::read(path)?;
    fs::remove_file(path)?;
    Ok(serde_json::from_slice(&text)?)
}

/// Writes a file that appears as a whole.
fn put(directory: &Path, name: &str, value: &impl Serialize) -> io::Result<()> {
    let new = directory.join(format!(".{name}"));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec(value)?)?;
    fs::rename(&new, directory.join(name))
}
