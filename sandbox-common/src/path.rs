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
    /// How many superblocks of that number have ended (map `DEATHS`) when the policy was entered. Numbers
    /// are used again at once; a later superblock is not the one that the policy speaks of.
    pub era: u32,
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

impl Rights {
    /// Takes away what `other` does not allow, with the rules that say so. Making and removing names is
    /// about the name by which an object was reached, so that stays.
    #[inline(always)]
    #[must_use]
    pub const fn restrict(self, other: &Self) -> Self {
        use crate::Access;
        const NAMES: u32 = Access::CREATE.union(Access::REMOVE).bits();
        const READS: u32 = Access::READ.union(Access::EXECUTE).bits();
        let lost = self.allow & !other.allow & !NAMES;
        let mut rights = self;
        rights.allow &= !lost;
        if lost & READS != 0 {
            rights.read_rule = other.read_rule;
        }
        if lost & Access::WRITES.bits() != 0 {
            rights.write_rule = other.write_rule;
        }
        if lost & Access::CONNECT.bits() != 0 {
            rights.connect_rule = other.connect_rule;
        }
        rights
    }
}

/// Key of map `LINKED`: a file that has more than one name, one of them in a protected place. The value
/// is a [`Linked`].
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct LinkedKey {
    /// `inode.i_ino`.
    pub ino: u64,
    /// Policy slot.
    pub slot: u32,
    /// `super_block.s_dev`, kernel encoding.
    pub dev: u32,
}

/// Value of map `LINKED`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Linked {
    /// Rights of the protected name: the file has no more than these by any other.
    pub rights: Rights,
    /// `inode.i_generation`: inode numbers are used again, for other files.
    pub generation: u32,
    /// 1 where the file system does not tell user space the generation: every file of this number is
    /// meant.
    pub any_generation: u32,
}

impl Linked {
    /// Whether a file of the key's number is the one that was found.
    #[inline(always)]
    pub const fn is(&self, generation: u32) -> bool {
        self.any_generation != 0 || self.generation == generation
    }
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
crate::pod!(RootKey, EdgeKey, LongEdgeKey, Rights, Linked, LinkedKey, Node, DeviceKey, PtyKey);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Access;

    #[test]
    fn restricting_takes_what_the_other_lacks_and_names_its_rules() {
        let all = Access::READ | Access::EXECUTE | Access::WRITES;
        let own =
            Rights { allow: all.bits(), read_rule: 1, write_rule: 2, connect_rule: 3, pad: 0 };
        let hidden = Rights {
            allow: Access::WRITES.bits(),
            read_rule: 7,
            write_rule: 8,
            connect_rule: 9,
            pad: 0,
        };
        let both = own.restrict(&hidden);
        assert_eq!(both.allow, Access::WRITES.bits());
        assert_eq!((both.read_rule, both.write_rule, both.connect_rule), (7, 2, 3));
        assert_eq!(own.restrict(&own), own);
        let fixed = Rights { allow: (Access::READ | Access::EXECUTE).bits(), ..hidden };
        let both = own.restrict(&fixed);
        let names = Access::CREATE | Access::REMOVE;
        assert_eq!(both.allow, fixed.allow | names.bits());
        assert_eq!((both.read_rule, both.write_rule), (1, 8));
    }

    #[test]
    fn another_file_of_the_same_number_is_not_meant() {
        let linked = Linked { rights: Rights::default(), generation: 5, any_generation: 0 };
        assert!(linked.is(5) && !linked.is(6));
        assert!(Linked { any_generation: 1, ..linked }.is(6));
    }
}
