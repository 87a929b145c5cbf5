//! What directories pass on, remembered.
//!
//! A directory has one place, whatever is done in it: per directory, not per file, is what keeps a first
//! scan cheap. An entry is found only in the epoch in which its place was looked up, and every event that
//! could give a directory another place raises the epoch *after* it took effect (`hooks::directories`).
//! So a place that is found is the one that the directory had when the epoch last changed, or, while a
//! rename is under way, the one before or after it: both are right at that moment.
//!
//! A directory is named by its superblock and its inode's number, on file systems that never give the same
//! to two live inodes, and by the generation that tells a later inode of that number from an earlier.
//!
//! The entries are written without a lock. What is read while another task writes is a mixture, which
//! the sum over its words gives away; it is then as if nothing had been found.

use crate::counter::Counter;
use crate::kernel::task;
use crate::kernel::vfs::{Dentry, DentryAddress, SuperBlock};
use crate::layout::NODE_CACHE;
use crate::maps::NODES;
use core::cell::UnsafeCell;
use core::ptr;
use sandbox_common::path::Inherited;

/// Number of entries; a power of two.
pub(crate) const ENTRIES: usize = 65_536;
/// Odd, its bits well mixed (the fraction of the golden ratio).
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// One directory, packed: a quick look reads the first seven words, who must name rules reads all.
///
/// | word | bits from the lowest |
/// |---|---|
/// | 0 | `inode.i_ino` |
/// | 1 | epoch, see [`Key`] |
/// | 2 | address of the `super_block` |
/// | 3 | 32 `inode.i_generation`, 32 policy slot |
/// | 4 | 16 allowed [`Access`](sandbox_common::Access), 16 the same of a plain name |
/// | 5 | 32 node, 0 without edges; 16 pattern; 15 depth; 1 `Inherited::unknown` |
/// | 6 | sum over those before |
/// | 7 | rules 0 and 1 |
/// | 8 | rules 2 and 3 |
/// | 9 | rules 4 and 5 |
/// | 10 | sum over 6 to 9 |
pub(crate) type Entry = [u64; 11];

/// A directory at a time.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Key {
    /// `inode.i_ino`.
    ino: u64,
    /// The epoch in which the place was found; entries never used have 0, which is none.
    epoch: u64,
    /// Address of the `super_block`.
    superblock: u64,
    /// `inode.i_generation`, and the policy slot above it.
    generation_slot: u64,
}

/// Raised whenever a directory may have another place than before. A variable, not a map: no lookup.
static EPOCH: Epoch = Epoch(UnsafeCell::new(0));

struct Epoch(UnsafeCell<u64>);

// SAFETY: read and written whole, by volatile accesses.
unsafe impl Sync for Epoch {}

/// From now on nothing found before is used.
///
/// The epoch is the time, for that is a number that it never had: a counter without atomic addition
/// could be set back by a task that was interrupted between reading and writing it.
#[inline(always)]
pub(crate) fn forget() {
    // SAFETY: as above.
    unsafe { ptr::write_volatile(EPOCH.0.get(), task::boot_time()) };
}

/// How many renames of directories have begun and are not known to have ended. The end is told by a program
/// that the kernel leaves out when it is interrupted in it and another task comes along (`prog->active`,
/// kernel/bpf/trampoline.c); the beginning never. While this is not 0 nothing is remembered: one that is never
/// told of costs time, not truth.
static MOVING: Counter = Counter::new();

/// A directory is about to move.
#[inline(always)]
pub(crate) fn begin() {
    MOVING.add(1);
}

/// It has another place, or the same after all.
#[inline(always)]
pub(crate) fn end() {
    forget();
    MOVING.add(-1);
}

impl Key {
    /// Names nothing.
    pub(super) const NONE: Self = Self { ino: 0, epoch: 0, superblock: 0, generation_slot: 0 };

    /// One in the task's own memory, of which the verifier keeps no account: there the superblock's address is a
    /// number to it, which may be added up.
    #[inline(always)]
    pub(super) const fn of(words: &mut [u64; 4]) -> &mut Self {
        // SAFETY: a key is so many words, and numbers all of it.
        unsafe { &mut *ptr::from_mut(words).cast() }
    }

    /// For the directories of a superblock, from now on. False where they are not cached.
    ///
    /// Taken before the walk whose result is entered under it: what changes meanwhile raises the epoch.
    #[inline(always)]
    pub(super) fn now(&mut self, slot: u32, superblock: SuperBlock) -> bool {
        if !NODE_CACHE.on() || MOVING.get() != 0 || !superblock.numbers_are_unique() {
            return false;
        }
        self.begin(slot, superblock);
        true
    }

    #[inline(always)]
    fn begin(&mut self, slot: u32, superblock: SuperBlock) {
        // SAFETY: others raise it meanwhile. One more, so that none is 0.
        self.epoch = unsafe { ptr::read_volatile(EPOCH.0.get()) } + 1;
        self.superblock = superblock.0 as u64;
        self.generation_slot = u64::from(slot) << 32;
    }

    #[inline(always)]
    pub(super) fn name(&mut self, ino: u64, generation: u32) {
        self.ino = ino;
        self.generation_slot = self.generation_slot >> 32 << 32 | u64::from(generation);
    }

    #[inline(always)]
    fn mixed(&self) -> u64 {
        self.ino.wrapping_add(self.generation_slot).wrapping_mul(FACTOR)
    }

    /// Where the entry lies if there is one.
    #[inline(always)]
    fn entry(&self) -> Option<*mut u64> {
        let index = (self.mixed() >> 48) as u32 & (ENTRIES as u32 - 1);
        NODES.get_ptr_mut(index).map(<*mut Entry>::cast)
    }

    /// Over the first words of an entry. No secret: the words are compared besides, and nobody chooses what
    /// two tasks that write at once leave behind.
    #[inline(always)]
    fn sum(&self, superblock: u64, rights: u64, place: u64) -> u64 {
        let sum = (self.mixed() ^ self.epoch).wrapping_mul(FACTOR);
        let sum = (sum ^ superblock).wrapping_mul(FACTOR);
        let sum = (sum ^ rights).wrapping_mul(FACTOR);
        (sum ^ place).wrapping_mul(FACTOR)
    }

    /// Words 4 to 6 of the entry, where it is this directory's.
    #[inline(always)]
    fn look(&self, entry: *const u64) -> Option<(u64, u64, u64)> {
        // SAFETY: within the entry. Another task may write meanwhile, which the sum tells.
        let word = |at: usize| unsafe { ptr::read_volatile(entry.add(at)) };
        // Compared alone, and read again for the sum: the key's may be a pointer, with which the verifier
        // allows no arithmetic.
        if word(2) != self.superblock {
            return None;
        }
        let (superblock, rights, place, sum) = (word(2), word(4), word(5), word(6));
        // One branch, for the verifier follows each; and not for the compiler to split again.
        let differs = word(0) ^ self.ino
            | word(1) ^ self.epoch
            | word(3) ^ self.generation_slot
            | sum ^ self.sum(superblock, rights, place);
        if super::opaque(differs) != 0 { None } else { Some((rights, place, sum)) }
    }
}

/// Of an [`Entry`]: what decides, without the rules that it is due to.
pub(super) struct Brief {
    /// Allowed of an object in the directory whose name no glob matches.
    pub(super) plain: u32,
    /// The directory's node; 0 where no edges lead on.
    pub(super) node: u32,
    /// State of the pattern automaton.
    pub(super) pattern: u32,
    /// Components beneath the superblock's root.
    pub(super) depth: u32,
}

/// What the cache knows of a directory; nothing of those that are not cached, for they were never entered.
#[inline(always)]
pub(super) fn brief(slot: u32, superblock: SuperBlock, directory: Dentry) -> Option<Brief> {
    let mut key = Key::NONE;
    key.begin(slot, superblock);
    // After the epoch: a move that ended before is not missed.
    if MOVING.get() != 0 {
        return None;
    }
    let inode = directory.inode();
    key.name(inode.number(), inode.generation());
    let (rights, place, _) = key.look(key.entry()?)?;
    Some(Brief {
        plain: (rights >> 16) as u32,
        node: place as u32,
        pattern: (place >> 32) as u32 & 0xffff,
        depth: (place >> 48) as u32 & 0x7fff,
    })
}

/// Writes to `below` what a directory passes on. False where that is not known.
#[inline(always)]
pub(super) fn get(key: &mut Key, directory: Dentry, below: &mut Inherited) -> bool {
    let inode = directory.inode();
    key.name(inode.number(), inode.generation());
    let Some(entry) = key.entry() else { return false };
    let Some((rights, place, sum)) = key.look(entry) else { return false };
    // SAFETY: as in `look`.
    let word = |at: usize| unsafe { ptr::read_volatile(entry.add(at)) };
    let (first, second, third) = (word(7), word(8), word(9));
    if super::opaque(word(10) ^ rules_sum(sum, first, second, third)) != 0 {
        return false;
    }
    let node = place & LOW;
    let edges = u64::from(node != 0);
    let (pattern, depth, unknown) = (place >> 32 & 0xffff, place >> 48 & 0x7fff, place >> 63);
    let allow = rights & 0xffff;
    let words = (
        node | edges << 32,
        pattern | depth << 32,
        allow | first << 32,
        first >> 32 | second << 32,
        second >> 32 | third << 32,
        third >> 32 | unknown << 32,
    );
    write(ptr::from_mut(below).cast(), words);
    true
}

/// Word 10 of an entry.
#[inline(always)]
fn rules_sum(sum: u64, first: u64, second: u64, third: u64) -> u64 {
    let sum = ((sum ^ first).wrapping_mul(FACTOR) ^ second).wrapping_mul(FACTOR);
    (sum ^ third).wrapping_mul(FACTOR)
}

/// The lower half of a word.
const LOW: u64 = 0xffff_ffff;

/// Enters what a directory passes on that only its address is known of.
#[inline(always)]
pub(super) fn put_at(key: &mut Key, directory: DentryAddress, below: &Inherited, plain: u32) {
    if let Some(inode) = directory.inode()
        && let (Some(ino), Some(generation), Some(links)) =
            (inode.number(), inode.generation(), inode.links())
    {
        key.name(ino, generation);
        put(key, links, below, plain);
    }
}

/// Enters what a directory passes on, and what it allows of a plain name. Not that of a removed one: its
/// number may be given to another.
#[inline(never)]
pub(super) fn put(key: &Key, links: u32, below: &Inherited, plain: u32) {
    if links == 0 {
        return;
    }
    let Some(entry) = key.entry() else { return };
    let words = read(ptr::from_ref(below).cast());
    // Without edges the node means nothing.
    let node = if words.0 >> 32 == 0 { 0 } else { words.0 & LOW };
    let place = node | words.1 << 32 & 0xffff << 32 | words.1 >> 32 << 48 | words.5 >> 32 << 63;
    let rights = words.2 & 0xffff | u64::from(plain) << 16;
    let (first, second) = (words.2 >> 32 | words.3 << 32, words.3 >> 32 | words.4 << 32);
    let third = words.4 >> 32 | words.5 << 32;
    let sum = key.sum(key.superblock, rights, place);
    // SAFETY: within the entry.
    let set = |at: usize, word: u64| unsafe { ptr::write_volatile(entry.add(at), word) };
    set(0, key.ino);
    set(1, key.epoch);
    set(2, key.superblock);
    set(3, key.generation_slot);
    set(4, rights);
    set(5, place);
    set(6, sum);
    set(7, first);
    set(8, second);
    set(9, third);
    set(10, rules_sum(sum, first, second, third));
}

/// The words of an [`Inherited`]. Spelled out everywhere: an array would be put on the stack, of which
/// a program and all it calls have 512 bytes.
type Words = (u64, u64, u64, u64, u64, u64);

/// Copies what a directory passes on, word by word: left to the compiler it becomes a loop over bytes.
#[inline(always)]
pub(super) fn copy(to: &mut Inherited, from: &Inherited) {
    write(ptr::from_mut(to).cast(), read(ptr::from_ref(from).cast()));
}

#[inline(always)]
fn read(from: *const u64) -> Words {
    // SAFETY: the callers pass an `Inherited`.
    let word = |at: usize| unsafe { ptr::read_volatile(from.add(at)) };
    (word(0), word(1), word(2), word(3), word(4), word(5))
}

#[inline(always)]
fn write(to: *mut u64, words: Words) {
    // SAFETY: the callers pass an `Inherited`.
    let set = |at: usize, word: u64| unsafe { ptr::write_volatile(to.add(at), word) };
    set(0, words.0);
    set(1, words.1);
    set(2, words.2);
    set(3, words.3);
    set(4, words.4);
    set(5, words.5);
}
