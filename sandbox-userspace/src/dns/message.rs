//! What the resolver and `sandbox run` tell each other, as lines of JSON.

use crate::policy::names::NameLayer;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// What the resolver is to do.
#[derive(Debug, Serialize, Deserialize)]
pub struct Task {
    /// The session's number on its engine.
    pub session: u32,
    /// Where the engine is pinned.
    pub pins: PathBuf,
    /// What the layers of the policy say of names.
    pub names: Vec<NameLayer>,
    /// Networks of this site that the policy opens.
    pub within: Vec<IpNet>,
    /// Servers to ask; none: those of the host's configuration.
    pub servers: Vec<SocketAddr>,
    /// Names that are not allowed are told of, and asked for all the same: their addresses are not opened, but
    /// it is known whose they are.
    pub audit: bool,
    /// Seconds for which addresses stay open after their answer has expired, where it is not as usual.
    pub stay: Option<u64>,
    /// Descriptors of its sockets: UDP and TCP over IPv4, then over IPv6 where there is that.
    pub sockets: Vec<i32>,
}

/// Other rules, for a resolver at work.
#[derive(Debug, Serialize, Deserialize)]
pub struct Change {
    /// What the layers of the policy say of names.
    pub names: Vec<NameLayer>,
    /// Networks of this site that the policy opens.
    pub within: Vec<IpNet>,
}

/// What the resolver has to say.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// It answers from now on.
    Ready,
    /// It answers by the rules that it was given, and what they do not open is closed.
    Changed,
    /// It cannot do its work, and ends.
    Failed(String),
    /// A name was refused.
    Refused {
        /// The name, printable.
        name: String,
        /// The type of records.
        kind: String,
        /// The rule that denies it; 0 where none speaks of it.
        rule: u32,
        /// How often since it was last told of.
        count: u64,
    },
    /// A name led to addresses that it may not lead to.
    Withheld {
        /// The name.
        name: String,
        /// The addresses.
        addresses: Vec<IpAddr>,
    },
    /// An address stands for a name.
    Known {
        /// The name.
        name: String,
        /// The address.
        address: IpAddr,
    },
    /// Something the user should know.
    Warning(String),
}
