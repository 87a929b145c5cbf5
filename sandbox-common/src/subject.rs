//! Who: what the kernel side knows of a session.

/// Most sessions that one engine holds at once.
pub const SESSIONS: u32 = 2048;

/// How many cgroup depths the sessions of one engine may lie at.
pub const LEVELS: usize = 4;

/// The one entry of map `CONTROL`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Control {
    /// Depths (0 is the root of the cgroup v2 hierarchy) at which session cgroups lie. The first
    /// zero ends the list: the root itself is never a session.
    pub levels: [u8; LEVELS],
}

/// Value of map `SUBJECTS`, keyed by cgroup id (`u64`, the inode number of the cgroup's directory
/// in cgroup2fs).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Subject {
    /// Number of the session: key of `RINGS` and `LOST`, never used again on its engine.
    pub session: u32,
    /// Policy slot: the first part of every policy map's key.
    pub slot: u32,
    /// A [`Mode`]. A number that is none of them is `Enforce`.
    pub mode: u32,
    /// [`Access`](crate::Access) bits allowed on a superblock that the policy does not know.
    pub unknown: u32,
}

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

/// The sticky mark of a member, in task storage (map `LABELS`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Label {
    /// Cgroup id of the session, key of `SUBJECTS`; 0 before the label is set.
    pub cgroup: u64,
}

#[cfg(feature = "user")]
crate::pod!(Control, Subject, Label);
