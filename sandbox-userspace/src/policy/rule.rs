//! The rules of a policy, as written: typed, checked, not yet tied to a machine.

use super::source::Place;
use ipnet::IpNet;
use sandbox_common::Access;
use sandbox_common::path::{KIND_ACCESS, KINDS};
use std::ops::RangeInclusive;

/// A policy: what its layers say, in the order of the layers and of their texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Rules about paths: of `[files]` and `[network.unix]`.
    pub files: Vec<FileRule>,
    /// Rules of `[network]`.
    pub network: Vec<NetRule>,
}

/// Which accesses a rule about paths speaks of: in the order of [`KIND_ACCESS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub enum Kind {
    /// `read`: reading a file, listing a directory.
    Read,
    /// `write`: every way to change a file or a name.
    Write,
    /// Running a file as a program, for which it must be readable too.
    Execute,
    /// `network.unix`: connecting to a unix socket, and sending to one.
    Connect,
}

impl Kind {
    /// Number of kinds.
    pub const COUNT: usize = KINDS;
    /// All of them.
    pub const ALL: [Self; Self::COUNT] = [Self::Read, Self::Write, Self::Execute, Self::Connect];

    /// Whether it is allowed where no rule speaks.
    pub const fn default_allow(self) -> bool {
        matches!(self, Self::Read | Self::Execute)
    }

    /// Its bits in the kernel.
    pub const fn access(self) -> Access {
        KIND_ACCESS[self as usize]
    }

    /// The word for it in a message.
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Execute => "run",
            Self::Connect => "connect to",
        }
    }
}

/// What every rule has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its number in events, from 1, unique in the policy.
    pub id: u32,
    /// The key it stands under.
    pub key: &'static str,
    /// The rule as written.
    pub text: String,
    /// Where.
    pub place: Place,
}

/// One entry of the `allow` and `deny` lists of `files.read`, `files.write` and `network.unix`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRule {
    /// Where it comes from.
    pub origin: Origin,
    /// The accesses it speaks of.
    pub kind: Kind,
    /// Its verdict.
    pub allow: bool,
    /// The place it speaks of.
    pub pattern: Pattern,
}

/// A path as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// What the path starts from.
    pub base: Base,
    /// The components beneath it, none of them `.`, `..` or empty.
    pub components: Vec<Vec<u8>>,
    /// Whether the place itself is meant too.
    pub scope: Scope,
}

/// What a path starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// `/`.
    Root,
    /// `~`: the agent user's home.
    Home,
    /// `${WORKSPACE}`.
    Workspace,
    /// `${TMPDIR}`.
    Tmpdir,
}

/// How much a rule covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// `PATH`: the object and everything beneath.
    Tree,
    /// `PATH/**`: everything beneath, not the object itself.
    Beneath,
}

/// One entry of `network.allow`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetRule {
    /// Where it comes from.
    pub origin: Origin,
    /// Where to.
    pub target: Target,
}

/// Addresses, ports and protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The addresses; an IPv4-mapped prefix is IPv4 here.
    pub net: IpNet,
    /// The ports, from 1; none named is every port, 0 too.
    pub ports: RangeInclusive<u16>,
    /// The protocols, at least one.
    pub protocols: &'static [Protocol],
}

/// A transport protocol that rules know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Protocol {
    /// `IPPROTO_TCP`.
    Tcp = 6,
    /// `IPPROTO_UDP`.
    Udp = 17,
}
