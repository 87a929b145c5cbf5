//! What: keys and values of the compiled path trie.
//!
//! One trie per slot and superblock. [`RootKey`] leads to the node of a superblock's root, an edge
//! key leads from a node over a name to the node beneath. Names are compared whole, byte for byte;
//! names of up to [`SHORT_NAME`] bytes live in their own map with a smaller key.
//!
//! What a node says is folded along the path: one that is deeper replaces what those above it said, kind
//! by kind. Patterns say things too, see [`pattern`](crate::pattern); at one depth a node beats them.

use crate::Access;

/// Longest name the short edge map holds, in bytes.
pub const SHORT_NAME: usize = 24;
/// Longest name at all, in bytes (`NAME_MAX`, linux/limits.h).
pub const LONG_NAME: usize = 255;
/// Most components a rule's path may have beneath its superblock's root.
pub const RULE_DEPTH: usize = 64;
/// Most components an object's path may have beneath its superblock's root; deeper is denied.
pub const WALK_DEPTH: usize = 512;
/// Most rules in a policy. Rule 0 means "no rule: the default", so ids start at 1.
pub const RULES: usize = 200_000;

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
    /// `super_block.s_dev` in the kernel's encoding, see [`kernel_dev`]; 0, which no superblock has, for
    /// all those that the policy does not know.
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

/// Number of kinds that are decided apart: read, write (and make), execute, connect, delete, attributes, in this
/// order. See [`KIND_ACCESS`].
pub const KINDS: usize = 6;
/// The access bits of each kind.
pub const KIND_ACCESS: [Access; KINDS] = [
    Access::READ,
    Access::WRITE.union(Access::CREATE),
    Access::EXECUTE,
    Access::CONNECT,
    Access::DELETE,
    Access::ATTRIBUTES,
];

/// What is allowed at one place, and which rules say so.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Rights {
    /// [`Access`] bits.
    pub allow: u32,
    /// The rule that decided each kind; 0 is the default.
    pub rules: [u32; KINDS],
}

impl Rights {
    /// Nothing is allowed.
    pub const NONE: Self = Self { allow: 0, rules: [0; KINDS] };

    /// The rights one place deeper: what is said there replaces what was said above, kind by kind.
    #[inline(always)]
    pub fn fold(&mut self, said: &Said) {
        self.allow = self.allow & !said.mask | said.allow;
        self.take(said, 0);
        self.take(said, 1);
        self.take(said, 2);
        self.take(said, 3);
        self.take(said, 4);
        self.take(said, 5);
    }

    /// Takes over the rule of one kind if it is spoken of; without a branch, for each would double what
    /// the verifier has to follow.
    #[inline(always)]
    fn take(&mut self, said: &Said, kind: usize) {
        self.rules[kind] = self.rules[kind] & !said.spoken[kind] | said.rules[kind];
    }

    /// Takes away what `other` does not allow, with the rules that say so. Making and removing names is
    /// about the name by which an object was reached, so that stays.
    #[inline(always)]
    pub fn restrict(&mut self, other: &Self) {
        const NAMES: u32 = Access::CREATE.union(Access::DELETE).bits();
        let lost = self.allow & !other.allow & !NAMES;
        self.allow &= !lost;
        self.lose(lost, other, 0);
        self.lose(lost, other, 1);
        self.lose(lost, other, 2);
        self.lose(lost, other, 3);
        self.lose(lost, other, 4);
        self.lose(lost, other, 5);
    }

    /// Takes over the rule of a kind of which something is lost; without a branch, as `take`.
    #[inline(always)]
    fn lose(&mut self, lost: u32, other: &Self, kind: usize) {
        let lost = lost & KIND_ACCESS[kind].bits();
        let spoken = ((lost | lost.wrapping_neg()) >> 31).wrapping_neg();
        self.rules[kind] = self.rules[kind] & !spoken | other.rules[kind] & spoken;
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

/// What the rules of one place say; kinds that none of them speaks of are inherited.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Said {
    /// [`Access`] bits spoken of: a union of [`KIND_ACCESS`].
    pub mask: u32,
    /// Those of them that are allowed.
    pub allow: u32,
    /// The rule of each kind in `mask`; 0 of others.
    pub rules: [u32; KINDS],
    /// For each kind in `mask` all bits, for others none: a walk has no time to make them of `mask`.
    pub spoken: [u32; KINDS],
}

impl Said {
    /// Adds what a rule says of a kind, of which nothing was said.
    pub const fn say(&mut self, kind: usize, allow: bool, rule: u32) {
        let bits = KIND_ACCESS[kind].bits();
        self.mask |= bits;
        self.allow |= if allow { bits } else { 0 };
        self.rules[kind] = rule;
        self.spoken[kind] = u32::MAX;
    }

    /// What rules say that allow or deny these accesses, a union of [`KIND_ACCESS`].
    #[must_use]
    pub const fn of(access: Access, allow: bool, rule: u32) -> Self {
        let none = [0; KINDS];
        let mut said = Self { mask: 0, allow: 0, rules: none, spoken: none };
        let mut kind = 0;
        while kind < KINDS {
            if access.intersects(KIND_ACCESS[kind]) {
                said.say(kind, allow, rule);
            }
            kind += 1;
        }
        said
    }
}

/// A node of the trie, value of maps `EDGES` and `LONG_EDGES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Node {
    /// Unique within the slot; never 0.
    pub id: u32,
    /// Number of edges to nodes beneath; 0 ends the descent in the trie.
    pub edges: u32,
    /// Of the place itself.
    pub own: Said,
    /// Of everything beneath that nothing deeper speaks of.
    pub below: Said,
}

/// Where a walk is: what a directory passes on to what lies in it.
///
/// Copied as 64-bit words, hence the alignment.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Inherited {
    /// Id of the directory's node; meaningless where `edges` is 0.
    pub node: u32,
    /// Number of edges beneath that node; 0 also where the directory has no node.
    pub edges: u32,
    /// State of the pattern automaton, see [`Patterns`](crate::pattern::Patterns); 0 where no pattern
    /// can match any more.
    pub pattern: u32,
    /// Number of components beneath the superblock's root, at most [`WALK_DEPTH`].
    pub depth: u32,
    /// Rights of everything in it that nothing deeper speaks of.
    pub rights: Rights,
    /// 1 where the superblock is none that the policy knows.
    pub unknown: u32,
}

/// Value of map `ROOTS`: the root of a superblock.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Root {
    /// Rights of the root directory itself.
    pub own: Rights,
    /// Zero.
    pub pad: u32,
    /// What it passes on.
    pub below: Inherited,
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
crate::pod!(RootKey, EdgeKey, LongEdgeKey, Rights, Said, Node, Inherited, Root, DeviceKey, PtyKey);
#[cfg(feature = "user")]
crate::pod!(LinkedKey, Linked);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_deeper_replaces_kind_by_kind() {
        let mut rights = Rights { allow: Access::READ.bits(), rules: [1, 2, 3, 4, 5, 6] };
        rights.fold(&Said::default());
        assert_eq!(rights, Rights { allow: Access::READ.bits(), rules: [1, 2, 3, 4, 5, 6] });
        let writes = Access::WRITES.bits();
        rights.fold(&Said::of(Access::WRITES, true, 8));
        let allow = Access::READ.bits() | writes;
        assert_eq!(rights, Rights { allow, rules: [1, 8, 3, 4, 8, 8] });
        let mut both = Said::of(Access::READ, false, 5);
        both.say(3, true, 6);
        rights.fold(&both);
        let allow = Access::CONNECT.bits() | writes;
        assert_eq!(rights, Rights { allow, rules: [5, 8, 3, 6, 8, 8] });
        rights.fold(&Said::of(Access::DELETE, false, 2));
        let allow = allow & !Access::DELETE.bits();
        assert_eq!(rights, Rights { allow, rules: [5, 8, 3, 6, 2, 8] });
    }

    #[test]
    fn kinds_share_no_access() {
        for (index, access) in KIND_ACCESS.iter().enumerate() {
            for other in &KIND_ACCESS[index + 1..] {
                assert!(!access.intersects(*other));
            }
        }
    }

    #[test]
    fn restricting_takes_what_the_other_lacks_and_names_its_rules() {
        let all = Access::READ | Access::EXECUTE | Access::WRITES;
        let own = Rights { allow: all.bits(), rules: [1, 2, 3, 4, 5, 6] };
        let restricted = |by: &Rights| {
            let mut both = own;
            both.restrict(by);
            both
        };
        let hidden = Rights { allow: Access::WRITES.bits(), rules: [7, 8, 9, 10, 11, 12] };
        let both = restricted(&hidden);
        assert_eq!(both, Rights { allow: Access::WRITES.bits(), rules: [7, 2, 9, 4, 5, 6] });
        assert_eq!(restricted(&own), own);
        let fixed = Rights { allow: (Access::READ | Access::EXECUTE).bits(), ..hidden };
        let names = Access::CREATE | Access::DELETE;
        let allow = fixed.allow | names.bits();
        assert_eq!(restricted(&fixed), Rights { allow, rules: [1, 8, 3, 4, 5, 12] });
    }

    #[test]
    fn another_file_of_the_same_number_is_not_meant() {
        let linked = Linked { rights: Rights::default(), generation: 5, any_generation: 0 };
        assert!(linked.is(5) && !linked.is(6));
        assert!(Linked { any_generation: 1, ..linked }.is(6));
    }
}
