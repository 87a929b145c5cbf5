//! What is measured, and how it is told.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Depths at which a file is opened: components beneath the workspace, the file's own included.
pub const DEPTHS: [u32; 5] = [2, 5, 10, 20, 40];
/// Depths at which policies are compared with each other.
pub const ENDS: [u32; 2] = [2, 40];
/// Networks in policies that are compared with each other.
pub const FEW_NETWORKS: u32 = 10;
/// And in the other.
pub const MANY_NETWORKS: u32 = 64_000;
/// Files of the tree that is visited file by file.
pub const TREE_FILES: u32 = 2000;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Opening an existing file for reading, and closing it.
    Open {
        /// Components beneath the workspace.
        depth: u32,
    },
    /// Open and close of each of [`TREE_FILES`] files that no member has visited.
    FirstPass,
    /// The same once more.
    SecondPass,
    /// Creating and unlinking a file.
    CreateUnlink,
    /// Renaming a file within its directory.
    Rename,
    /// Making and removing a directory.
    MkdirRmdir,
    /// Status of a file by its path.
    Stat,
    /// Reading a byte of an open file.
    Read,
    /// Writing a byte of an open file.
    Write,
    /// The cheapest of all system calls.
    Getppid,
    /// A process that starts a program of two instructions, and waiting for its end.
    ForkExec,
    /// Connecting to a port of the loopback where nobody listens.
    TcpConnect,
    /// Connecting a datagram socket.
    UdpConnect,
    /// The same, each time to an address of which nobody knows what the rules said lately.
    UdpConnectNew,
    /// Making and closing a datagram socket.
    Socket,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Open { depth } => return f.pad(&format!("open+close d{depth}")),
            Self::FirstPass => "2000 files, first pass",
            Self::SecondPass => "2000 files, second pass",
            Self::CreateUnlink => "create+unlink",
            Self::Rename => "rename",
            Self::MkdirRmdir => "mkdir+rmdir",
            Self::Stat => "stat",
            Self::Read => "read",
            Self::Write => "write",
            Self::Getppid => "getppid",
            Self::ForkExec => "fork+exec+wait",
            Self::TcpConnect => "tcp connect",
            Self::UdpConnect => "udp connect",
            Self::UdpConnectNew => "udp connect, new address",
            Self::Socket => "socket+close",
        })
    }
}

/// The policy of the session that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// The preset `default`.
    Default,
    /// So many rules, all spelled out.
    Rules(u32),
    /// The preset and patterns for names at any depth.
    Patterns,
    /// The preset and so many networks.
    Prefixes(u32),
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.pad("default policy"),
            Self::Rules(count) => f.pad(&format!("{count} rules")),
            Self::Patterns => f.pad("patterns"),
            Self::Prefixes(count) => f.pad(&format!("{count} networks")),
        }
    }
}

/// Who does it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// Any process, while there is no session and nothing is attached.
    None,
    /// A member of the session.
    Member,
    /// A member of a session whose engine was told to do without its cache.
    Uncached,
    /// A process outside, while the session stands still.
    Bystander,
    /// A process confined by one layer of Landlock with one rule, and no session.
    Landlock,
}

impl Who {
    /// All that are compared with [`Who::None`], in the order of the columns.
    pub const COMPARED: [Self; 4] = [Self::Member, Self::Uncached, Self::Bystander, Self::Landlock];
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Member => "member",
            Self::Uncached => "no cache",
            Self::Bystander => "bystander",
            Self::Landlock => "landlock",
        })
    }
}

/// A line of the table: an operation, while a session with this policy is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Row {
    /// What is done.
    pub operation: Operation,
    /// Under which policy.
    pub policy: Policy,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.policy {
            Policy::Default => self.operation.fmt(f),
            policy => f.pad(&format!("{}, {policy}", self.operation)),
        }
    }
}

/// Every row, in the order of the table.
pub fn rows() -> Vec<Row> {
    let opens = |depths: &[u32], policy| {
        let row = |&depth: &u32| Row { operation: Operation::Open { depth }, policy };
        depths.iter().map(row).collect::<Vec<_>>()
    };
    let mut rows = opens(&DEPTHS, Policy::Default);
    for policy in [Policy::Rules(10), Policy::Rules(10_000), Policy::Patterns] {
        rows.extend(opens(&ENDS, policy));
    }
    rows.push(Row { operation: Operation::FirstPass, policy: Policy::Rules(10) });
    let others = [
        Operation::FirstPass,
        Operation::SecondPass,
        Operation::CreateUnlink,
        Operation::Rename,
        Operation::MkdirRmdir,
        Operation::Stat,
        Operation::Read,
        Operation::Write,
        Operation::Getppid,
        Operation::ForkExec,
        Operation::TcpConnect,
        Operation::UdpConnect,
        Operation::Socket,
    ];
    rows.extend(others.map(|operation| Row { operation, policy: Policy::Default }));
    for operation in [Operation::TcpConnect, Operation::UdpConnectNew] {
        let policies = [FEW_NETWORKS, MANY_NETWORKS].map(Policy::Prefixes);
        rows.extend(policies.map(|policy| Row { operation, policy }));
    }
    rows
}

/// One number.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// What was done.
    pub operation: Operation,
    /// The policy of the session that was there, if one was.
    pub policy: Option<Policy>,
    /// By whom.
    pub who: Who,
    /// Instructions of one operation: the least of all batches.
    pub instructions: f64,
    /// How much more the second least took.
    pub spread: f64,
}

/// What `bench machine` prints, one JSON object a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// What is going on, for people.
    Progress(String),
    /// A number.
    Measured(Measurement),
    /// Rows of a policy that could not be measured, and why.
    Unmeasured {
        /// The policy.
        policy: Policy,
        /// Why not.
        why: String,
    },
    /// Instructions that the verifier followed, by program.
    Verified(BTreeMap<String, u32>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_row_has_a_name_of_its_own() {
        let rows = rows();
        let names: BTreeSet<_> = rows.iter().map(ToString::to_string).collect();
        assert_eq!(names.len(), rows.len());
    }

    #[test]
    fn what_is_printed_can_be_read_back() {
        for row in rows() {
            let measurement = Measurement {
                operation: row.operation,
                policy: Some(row.policy),
                who: Who::Member,
                instructions: 7174.5,
                spread: 0.1,
            };
            let line = Line::Measured(measurement);
            let text = serde_json::to_string(&line).expect("plain data");
            assert_eq!(serde_json::from_str::<Line>(&text).expect("the same"), line);
        }
    }
}
