//! How an operation went, and which system call failed.

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;

/// How an operation went.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Name of the operation.
    pub(crate) op: String,
    /// The process that performed it: what an event must name.
    pub(crate) pid: i32,
    /// 0, or the error of the system call that failed.
    pub(crate) errno: i32,
    /// The system call that failed; empty on success.
    #[serde(default)]
    pub(crate) stage: String,
    /// What the operation brought.
    #[serde(default)]
    pub(crate) data: Value,
}

impl Answer {
    pub(super) fn new(op: &str, outcome: Outcome) -> Self {
        let (errno, stage, data) = match outcome {
            Ok(data) => (0, "", data),
            Err(failure) => (failure.errno.raw_os_error(), failure.stage, Value::Null),
        };
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        Self { op: op.to_owned(), pid, errno, stage: stage.to_owned(), data }
    }

    /// The text that the operation read.
    pub(crate) fn text(&self) -> &str {
        self.data.as_str().unwrap_or_default()
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.errno == 0 {
            write!(f, "succeeded, data {}", self.data)
        } else {
            let error = std::io::Error::from_raw_os_error(self.errno);
            write!(f, "{} failed: {error}", self.stage)
        }
    }
}

/// A system call that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(super) errno: Errno,
    pub(super) stage: &'static str,
}

pub(super) type Outcome = Result<Value, Failure>;

/// Names the system call of an error.
pub(super) trait Stage<T> {
    fn stage(self, stage: &'static str) -> Result<T, Failure>;
}

impl<T> Stage<T> for Result<T, Errno> {
    fn stage(self, stage: &'static str) -> Result<T, Failure> {
        self.map_err(|errno| Failure { errno, stage })
    }
}

impl<T> Stage<T> for std::io::Result<T> {
    fn stage(self, stage: &'static str) -> Result<T, Failure> {
        self.map_err(|error| Failure {
            errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
            stage,
        })
    }
}
