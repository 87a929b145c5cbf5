//! What is told of something that the policy does not allow.

use crate::policy::compiled::Rule;
use crate::session::SessionId;
use sandbox_common::event::Reason;
use serde::Serialize;
use std::net::IpAddr;

/// Something that the policy does not allow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Denial {
    /// When, RFC 3339.
    pub time: String,
    /// The session.
    pub session: SessionId,
    /// Where the kernel asked: a [`Hook`](sandbox_common::event::Hook)'s name, or its number where it has none here.
    pub hook: String,
    /// What was not allowed: names of [`Access`](sandbox_common::Access) bits; bits without a name as one number.
    pub access: Vec<String>,
    /// A [`Reason`](sandbox_common::event::Reason)'s name, or its number.
    pub reason: String,
    /// What came of it.
    pub verdict: Verdict,
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Real user id.
    pub uid: u32,
    /// The thread's name.
    pub comm: String,
    /// On what.
    pub object: Target,
    /// The rule that decided; null where it was none.
    pub rule: Option<RuleRef>,
    /// All of it as a line for people.
    pub message: String,
    /// What would allow it, where that can be said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<Hint>,
}

impl Denial {
    /// What a person enters to let a program run that the policy asks about.
    pub fn grant(&self) -> Option<String> {
        match &self.rule {
            Some(RuleRef::Known(rule)) if self.reason == Reason::Asked.name() => {
                Some(grant_of(&self.session.to_string(), &rule.text))
            }
            _ => None,
        }
    }
}

/// What a person enters to let a session run what a rule asks about; no rule has quotes.
pub fn grant_of(session: &str, rule: &str) -> String {
    format!("sandbox grant --session {session} run '{rule}'")
}

/// Something that was allowed, of a kind that the policy has noted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Audit {
    /// When, RFC 3339.
    pub time: String,
    /// The session.
    pub session: SessionId,
    /// The word of the policy for what it is: `exec`, `connect` or `write`.
    pub class: &'static str,
    /// Where the kernel asked, as in a [`Denial`].
    pub hook: String,
    /// What was done, as in a [`Denial`].
    pub access: Vec<String>,
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Real user id.
    pub uid: u32,
    /// The thread's name.
    pub comm: String,
    /// On what.
    pub object: Target,
    /// All of it as a line for people.
    pub message: String,
}

/// A member was moved to another cgroup. It is a member still, and confined as before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// When, RFC 3339.
    pub time: String,
    /// The session.
    pub session: SessionId,
    /// The member's process id.
    pub pid: u32,
    /// Its main thread's name.
    pub comm: String,
    /// The session's cgroup, by its id.
    pub from: u64,
    /// The path of the cgroup where it is now, from its hierarchy's root; perhaps cut.
    pub to: String,
    /// Process id of who moved it.
    pub by: u32,
    /// Name of who moved it.
    pub by_comm: String,
    /// All of it as a line for people.
    pub message: String,
}

/// What came of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It failed.
    Denied,
    /// It went on: the session only reports.
    Audited,
}

/// The object of an operation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Target {
    /// A file or directory.
    Path {
        /// Its path as the session's mounts show it.
        path: String,
        /// It existed.
        exists: bool,
    },
    /// A device node.
    Device {
        /// Its path.
        path: String,
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// An address.
    Address {
        /// Without the port.
        address: String,
        /// The port.
        port: u16,
        /// `tcp`, `udp`, or the number.
        protocol: String,
        /// The names for which the session was given this address, the one asked for last the first.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        names: Vec<String>,
        /// The name that TLS asked for there, where that was checked and could be read.
        #[serde(skip_serializing_if = "Option::is_none")]
        server_name: Option<String>,
    },
    /// A unix socket with an abstract name.
    Abstract {
        /// The name, without the leading zero.
        name: String,
    },
    /// A name of a host.
    Name {
        /// The name.
        name: String,
        /// The type of records that was asked for.
        record: String,
        /// Addresses that it stands for and must not.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        addresses: Vec<IpAddr>,
    },
    /// Another process.
    Process {
        /// Its process id.
        pid: u32,
        /// Its main thread's name.
        comm: String,
        /// The signal's number, or the kernel's `PTRACE_MODE_*` bits.
        request: u32,
    },
    /// The task itself.
    Task,
}

/// The rule that decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum RuleRef {
    /// It is in the session's table.
    Known(Rule),
    /// It is not.
    Unknown {
        /// Its number.
        id: u32,
    },
}

/// A change of the policy that would allow something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hint {
    /// The list: `files.write.allow`.
    pub key: String,
    /// What to add to it.
    pub add: String,
}
