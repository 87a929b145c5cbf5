//! Who: what the kernel side knows of a session.

use crate::ask::Following;
use crate::decide::{Decision, Place};
use crate::path::LongEdgeKey;

/// Most sessions that one engine holds at once.
pub const SESSIONS: u32 = 2048;

/// How many parents the cgroups of the sessions of one engine may have.
pub const PARENTS: usize = 4;

/// A cgroup directly beneath which session cgroups lie.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Parent {
    /// Its id: the inode number of its directory in cgroup2fs. 0 ends the list.
    pub cgroup: u64,
    /// Its depth; 0 is the root of the cgroup v2 hierarchy.
    pub level: u32,
    /// Zero.
    pub pad: u32,
}

/// The one entry of map `CONTROL`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Control {
    /// Raised with every change of `SUBJECTS`: tasks keep a copy of their subject.
    pub generation: u64,
    /// The first without a cgroup ends the list.
    pub parents: [Parent; PARENTS],
}

/// Value of map `SUBJECTS`, keyed by cgroup id (`u64`, the inode number of the cgroup's directory
/// in cgroup2fs).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Subject {
    /// Number of the session: key of `RINGS` and `LOST`, never used again on its engine. The next one is the key
    /// of the same for notes.
    pub session: u32,
    /// Policy slot: the first part of every policy map's key.
    pub slot: u32,
    /// A [`Mode`]. A number that is none of them is `Enforce`.
    pub mode: u32,
    /// Where the policy's patterns are: index in map `PATTERNS`; [`NO_PATTERNS`] where it has none.
    pub patterns: u32,
    /// What the policy permits beside its rules, and what some of these do: a sum of [`NAMESPACES`],
    /// [`COUNTS`], [`ASKS`], [`SERVER_NAMES`] and the `NOTES_…`.
    pub permits: u32,
    /// Zero.
    pub pad: u32,
}

/// Members may make user namespaces and mount in them.
pub const NAMESPACES: u32 = 1;

/// Some rules count the bytes that they let pass.
pub const COUNTS: u32 = 2;

/// Of some programs a person is asked before they run.
pub const ASKS: u32 = 4;

/// Some rules check server names.
pub const SERVER_NAMES: u32 = 16;

/// Programs that run are noted.
pub const NOTES_EXECS: u32 = 1 << 8;

/// Connections that begin, and whom sockets send to, are noted.
pub const NOTES_CONNECTIONS: u32 = 1 << 9;

/// Changes of files and of names are noted.
pub const NOTES_WRITES: u32 = 1 << 10;

/// Something is noted.
pub const NOTES: u32 = NOTES_EXECS | NOTES_CONNECTIONS | NOTES_WRITES;

/// Most policies with patterns on one engine at once: a session changes from one to the next.
pub const PATTERN_SETS: u32 = SESSIONS * 2;

/// A policy without patterns.
pub const NO_PATTERNS: u32 = u32::MAX;

/// What a denial does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// The operation fails.
    Enforce = 1,
    /// The operation passes and the denial is reported.
    Audit = 2,
}

impl Mode {
    /// The mode of a [`Subject`]; whatever is not known enforces.
    pub const fn of(number: u32) -> Self {
        if number == Self::Audit as u32 { Self::Audit } else { Self::Enforce }
    }
}

/// Value of map `LABELS`, task storage: what the kernel side keeps of a member.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct TaskState {
    /// Whose member it is.
    pub label: Label,
    /// The kernel side's working memory: the name that is being looked up.
    pub key: LongEdgeKey,
    /// And the place that is being found.
    pub place: Place,
    /// And the one found before, of the first of two objects.
    pub first: Place,
    /// And by what the cache knows the directory.
    pub directory: [u64; 4],
    /// And the decision that is being reported.
    pub decision: Decision,
    /// And the address of the dentry that it is about.
    pub object: u64,
    /// And the program that is to run, with its arguments.
    pub following: Following,
}

/// The sticky mark of a member.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Label {
    /// Cgroup id of the session, key of `SUBJECTS`; 0 before the label is set.
    pub cgroup: u64,
    /// [`Control::generation`] at which `subject` was copied; 0: not yet.
    pub generation: u64,
    /// What the session is.
    pub subject: Subject,
}

#[cfg(feature = "user")]
crate::pod!(Control, Parent, Subject, Label, TaskState);
