//! `sandbox selftest`: the known ways out and around, tried from inside a session on this machine, under
//! the policy that a session here would have.
//!
//! Outside, `decoys` makes what is attacked and `plan` lists the attempts, asking the policy which of
//! them it permits. A session like any other then runs this program as its agent (`member`): it tries
//! each attempt in a process of its own and says how it ended. `report` puts that together with what the
//! session's events tell. What is attacked are decoys wherever an attempt that succeeded could do harm.

pub mod act;
pub mod decoys;
pub mod member;
pub mod plan;
pub mod report;

pub use act::Act;

use serde::{Deserialize, Serialize};

/// The hidden verb of the member.
pub const MEMBER: &str = "selftest-member";
/// The hidden verb of the outsider.
pub const DECOY: &str = "selftest-decoy";

/// What an attempt is about; a heading of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    /// Reading what is closed.
    Reading,
    /// Changing what is closed.
    Changing,
    /// Running what is closed.
    Running,
    /// Leaving the session, or having somebody outside act.
    Leaving,
    /// Other processes.
    Processes,
    /// The kernel and what guards it.
    Kernel,
    /// The network.
    Network,
}

impl Group {
    /// As a heading.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Reading => "Reading what the policy closes",
            Self::Changing => "Changing what the policy closes",
            Self::Running => "Running what the policy closes",
            Self::Leaving => "Leaving, and having others act",
            Self::Processes => "Other processes",
            Self::Kernel => "The kernel and its guards",
            Self::Network => "The network",
        }
    }
}

/// How an attempt has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expected {
    /// It has to be refused.
    Refused,
    /// The policy permits it.
    Permitted,
    /// The harmless twin of attempts: that it works shows that their way does.
    Works,
}

/// One attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// What it is about.
    pub group: Group,
    /// The technique's number in docs/coverage.md.
    pub row: String,
    /// For people.
    pub name: String,
    /// How it has to end.
    pub expected: Expected,
    /// What is done.
    pub act: Act,
}

/// What the parent tells the member: one JSON object on its standard input.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Orders {
    /// What to try, in this order.
    pub attempts: Vec<Attempt>,
}

/// How one attempt ended: the member's line of JSON for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The process that tried, in the member's pid namespace, which is the parent's.
    pub pid: u32,
    /// Error number; 0: it got through.
    pub errno: i32,
}
