//! What: keys and values of the compiled path trie.
//!
//! One trie per slot and superblock. [`RootKey`] leads to the node of a superblock's root, an edge
//! key leads from a node over a name to the node beneath. Names are compared whole, byte for byte;
//! names of up to [`SHORT_NAME`] bytes live in their own map with a smaller key.

/// Longest name the short edge map holds, in bytes.
pub const SHORT_NAME: usize = 24;
/// Longest name at all, in bytes (`NAME_MAX`, linux/limits.h).
pub const LONG_NAME: usize = 255;
/// Most components a rule's path may have beneath its superblock's root.
pub const RULE_DEPTH: usize = 64;
/// Most components an object's path may have beneath its superblock's root; deeper is denied.
pub const WALK_DEPTH: usize = 512;
/// Most rules in a policy. Rule 0 means "no rule: the default", so ids start at 1.
pub const RULES: usize = 10_000;

/// Key of map `ROOTS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct RootKey {
    /// Policy slot.
    pub slot: u32,
    /// `super_block.s_dev` in the kernel's encoding, see [`kernel_dev`].
    pub dev: u32,
}

/// Key of map `EDGES`: the name is padded with zeros, which no name can contain.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct EdgeKey {
    /// Policy slot.
    pub slot: u32,
    /// Id of the node above.
    pub node: u32,
    /// The name, 1 to [`SHORT_NAME`] bytes.
    pub name: [u8; SHORT_NAME],
}

/// Key of map `LONG_EDGES`: as [`EdgeKey`] for names of [`SHORT_NAME`]` + 1` to [`LONG_NAME`] bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct LongEdgeKey {
    /// Policy slot.
    pub slot: u32,
    /// Id of the node above.
    pub node: u32,
    /// The name.
    pub name: [u8; LONG_NAME + 1],
}

/// What is allowed at one place, and which rules say so.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Rights {
    /// [`Access`](crate::Access) bits.
    pub allow: u32,
    /// The rule that decided [`Access::READ`](crate::Access::READ) and `EXECUTE`; 0 is the default.
    pub read_rule: u16,
    /// The rule that decided [`Access::WRITES`](crate::Access::WRITES); 0 is the default.
    pub write_rule: u16,
    /// The rule that decided [`Access::CONNECT`](crate::Access::CONNECT), for unix sockets; 0 is the
    /// default.
    pub connect_rule: u16,
    /// Zero.
    pub pad: u16,
}

/// A node of the trie.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Node {
    /// Unique within the slot; never 0.
    pub id: u32,
    /// Number of edges to nodes beneath; 0 ends the walk.
    pub edges: u32,
    /// For the place itself.
    pub own: Rights,
    /// For everything beneath that has no deeper node.
    pub below: Rights,
}

/// Key of map `DEVICES`: which device nodes may be opened.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct DeviceKey {
    /// Policy slot.
    pub slot: u32,
    /// File type: `S_IFCHR` or `S_IFBLK`.
    pub kind: u32,
    /// `inode.i_rdev` in the kernel's encoding, see [`kernel_dev`].
    pub dev: u32,
}

/// Key of map `PTYS`: a pseudo-terminal.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct PtyKey {
    /// `super_block.s_dev` of its devpts, kernel encoding.
    pub devpts: u32,
    /// `inode.i_rdev`, kernel encoding.
    pub dev: u32,
}

/// The kernel's own encoding of a device number (`MKDEV`, `linux/kdev_t.h`): 12 bits major, 20 minor.
/// `stat` returns another one.
pub const fn kernel_dev(major: u32, minor: u32) -> u32 {
    major << 20 | minor & 0xf_ffff
}

#[cfg(feature = "user")]
crate::pod!(RootKey, EdgeKey, LongEdgeKey, Rights, Node, DeviceKey, PtyKey);
