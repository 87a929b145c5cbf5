//! What: the compiled patterns of a policy, `**/.env` and the like.
//!
//! An automaton over path components. A component's name is first *classified*: two automata over its
//! bytes, one forwards and one backwards (so that most names end both after a byte or two), say which
//! of the policy's globs it matches; names that match the same globs are one class. Then one step
//! leads from the state of the directory over the class to the state of the component.
//!
//! All tables lie in [`Patterns::cells`]. A state of any of the automata is the index of its row there;
//! 0 is the dead state, which no byte and no class leaves.
//!
//! - Row of a byte automaton: for each byte class the next state; then one cell more, the number of the
//!   set of globs that a name ending here matches (0: none).
//! - `pairs`: for set `f` of the forward and set `b` of the backward automaton the class, at
//!   `pairs + f * backward_sets + b`.
//! - Row of the component automaton: for each class the next state; then one cell more, the number of the
//!   [`Overlay`] of the state, 0 where its patterns say nothing.

use crate::path::Said;

/// Cells of one policy's tables.
pub const CELLS: usize = 65_536;
/// Overlays of one policy; number 0 says nothing.
pub const OVERLAYS: usize = 256;

/// What the patterns say of an object that they match.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Overlay {
    /// Of the object itself.
    pub own: Said,
    /// Of everything beneath that nothing deeper speaks of.
    pub below: Said,
    /// Not 0: a pattern closes for writing something that may lie beneath, because of this object's name or of one
    /// above it. See [`leading`](crate::decide::leading).
    pub guards: u32,
}

/// Where the automata over names begin.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Starts {
    /// Start state of the forward automaton; 0 where there is none.
    pub forward: u32,
    /// Start state of the backward automaton, which reads the last byte first; 0 where there is none.
    pub backward: u32,
}

/// The only element of each inner map of `PATTERNS`.
#[repr(C)]
#[derive(Clone, Copy)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Patterns {
    /// Number of byte classes: cell of a byte row that holds the set.
    pub bytes: u32,
    /// Number of sets of the backward automaton.
    pub backward_sets: u32,
    /// Where the table of pairs begins.
    pub pairs: u32,
    /// Number of classes: cell of a component row that holds the overlay.
    pub names: u32,
    /// For directories that tell upper from lower case.
    pub exact: Starts,
    /// For those that do not; the name is folded to lower case (ASCII) before.
    pub folded: Starts,
    /// Not 0 where a glob speaks of bytes beyond ASCII: then no name in a directory of the latter kind can be
    /// told from what it means.
    pub inexact: u32,
    /// Zero.
    pub pad: u32,
    /// Class of each byte.
    pub classes: [u8; 256],
    /// By number; the first says nothing.
    pub overlays: [Overlay; OVERLAYS],
    /// The tables.
    pub cells: [u16; CELLS],
}

/// Words of each half of [`Endings`].
const ENDING_WORDS: usize = 8;
/// Bits of each half.
const ENDING_BITS: u32 = 512;
const _: () = assert!(ENDING_WORDS * 64 == ENDING_BITS as usize);

/// Value of map `ENDINGS`: what the automata come to after two bytes, without regard to which. A bit for some
/// pairs of bytes each: those that a name may begin with, and end with, which a glob matches.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Endings {
    first: [u64; ENDING_WORDS],
    last: [u64; ENDING_WORDS],
}

/// The bit for two bytes, the earlier one lower.
#[inline(always)]
const fn bit(pair: u16) -> u32 {
    // Odd, its bits well mixed (the fraction of the golden ratio); the upper 9 of 16.
    ((pair as u32 * 0x9e37) >> 7) & (ENDING_BITS - 1)
}

impl Endings {
    /// Whether a name of at least two bytes may match a glob, by its first two and its last two. For directories
    /// that tell upper from lower case.
    #[inline(always)]
    pub fn may_match(&self, first: u16, last: u16) -> bool {
        let (first, last) = (bit(first), bit(last));
        let (begins, ends) = (self.first[first as usize / 64], self.last[last as usize / 64]);
        (begins >> (first % 64) | ends >> (last % 64)) & 1 != 0
    }

    /// Of these patterns.
    #[cfg(feature = "user")]
    pub fn of(patterns: &Patterns) -> Self {
        let mut endings = Self { first: [0; ENDING_WORDS], last: [0; ENDING_WORDS] };
        for pair in 0..=u16::MAX {
            let [earlier, later] = pair.to_le_bytes();
            let bit = bit(pair) as usize;
            let after = |start, bytes: [u8; 2]| u64::from(patterns.after(start, &bytes) != 0);
            let forward = after(patterns.exact.forward, [earlier, later]);
            let backward = after(patterns.exact.backward, [later, earlier]);
            endings.first[bit / 64] |= forward << (bit % 64);
            endings.last[bit / 64] |= backward << (bit % 64);
        }
        endings
    }
}

impl Patterns {
    /// The class of a name.
    pub fn classify(&self, name: &[u8], folded: bool) -> usize {
        let starts = if folded { self.folded } else { self.exact };
        let forward = self.run(starts.forward, name.iter());
        let backward = self.run(starts.backward, name.iter().rev());
        let pair = self.pairs as usize + forward * self.backward_sets as usize + backward;
        usize::from(self.cells[pair % CELLS])
    }

    /// The state of an automaton over bytes after some.
    fn after<'a>(&self, start: u32, bytes: impl IntoIterator<Item = &'a u8>) -> usize {
        let mut state = start as usize;
        for byte in bytes {
            if state == 0 {
                return 0;
            }
            let class = usize::from(self.classes[usize::from(*byte)]);
            state = usize::from(self.cells[(state + class) % CELLS]);
        }
        state
    }

    /// The set that an automaton over bytes ends with.
    fn run<'a>(&self, start: u32, bytes: impl Iterator<Item = &'a u8>) -> usize {
        let state = self.after(start, bytes);
        if state == 0 { 0 } else { usize::from(self.cells[(state + self.bytes as usize) % CELLS]) }
    }

    /// The state one component further, and what its patterns say.
    pub fn step(&self, state: u32, class: usize) -> (u32, &Overlay) {
        if state == 0 {
            return (0, &self.overlays[0]);
        }
        let next = u32::from(self.cells[(state as usize + class) % CELLS]);
        if next == 0 {
            return (0, &self.overlays[0]);
        }
        let overlay = self.cells[(next as usize + self.names as usize) % CELLS];
        (next, &self.overlays[usize::from(overlay) % OVERLAYS])
    }
}

#[cfg(feature = "user")]
crate::pod!(Overlay, Starts, Patterns, Endings);
