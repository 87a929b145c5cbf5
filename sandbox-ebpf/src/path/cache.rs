//! What directories pass on, remembered.
//!
//! A directory has one place, whatever is done in it: per directory, not per file, is what keeps a first
//! scan cheap. An entry is found only in the epoch in which its place was looked up, and every event that
//! could give a directory another place raises the epoch *after* it took effect (`hooks::directories`).
//! So a place that is found is the one that the directory had when the epoch last changed, or, while a
//! rename is under way, the one before or after it: both are right at that moment.
//!
//! A directory is named by its inode's number and generation, on file systems that never give the same
//! to two live inodes. A removed one's number is given again, but not within one epoch.
//!
//! The entries are written without a lock. What is read while another task writes is a mixture, which
//! the sum over its words gives away; it is then as if nothing had been found.

use crate::kernel::task;
use crate::kernel::vfs::{Dentry, DentryAddress, SuperBlock};
use crate::layout::NODE_CACHE;
use crate::maps::NODES;
use core::cell::UnsafeCell;
use core::ptr;
use sandbox_common::path::Inherited;

/// Number of entries; a power of two.
pub(crate) const ENTRIES: usize = 65_536;
/// 64-bit words of a [`Key`], and of an [`Inherited`].
const KEY: usize = 4;
const BELOW: usize = 5;
/// Odd, its bits well mixed (the fraction of the golden ratio).
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// One directory: a [`Key`], an [`Inherited`], and the sum over all words before.
pub(crate) type Entry = [u64; KEY + BELOW + 1];

const _: () = assert!(size_of::<Inherited>() == 8 * BELOW && size_of::<Key>() == 8 * KEY);

/// A directory at a time.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Key {
    /// `inode.i_ino`.
    ino: u64,
    /// The epoch in which the place was found; entries never used have 0, which is none.
    epoch: u64,
    /// `inode.i_generation`, and the policy slot above it.
    generation_slot: u64,
    /// `super_block.s_dev`, kernel encoding.
    dev: u64,
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

impl Key {
    /// Names nothing.
    pub(super) const NONE: Self = Self { ino: 0, epoch: 0, generation_slot: 0, dev: 0 };

    /// For the directories of a superblock, from now on. False where they are not cached.
    ///
    /// Taken before the walk whose result is entered under it: what changes meanwhile raises the epoch.
    #[inline(always)]
    pub(super) fn now(&mut self, slot: u32, superblock: SuperBlock) -> bool {
        if !NODE_CACHE.on() || !superblock.numbers_are_unique() {
            return false;
        }
        // SAFETY: others raise it meanwhile. One more, so that none is 0.
        self.epoch = unsafe { ptr::read_volatile(EPOCH.0.get()) } + 1;
        self.generation_slot = u64::from(slot) << 32;
        self.dev = u64::from(superblock.dev());
        true
    }

    #[inline(always)]
    pub(super) fn name(&mut self, ino: u64, generation: u32) {
        self.ino = ino;
        self.generation_slot = self.generation_slot >> 32 << 32 | u64::from(generation);
    }

    #[inline(always)]
    fn mixed(&self) -> u64 {
        (self.ino.wrapping_add(self.generation_slot) ^ self.dev << 40).wrapping_mul(FACTOR)
    }

    /// Where the entry lies if there is one.
    #[inline(always)]
    fn entry(&self) -> Option<*mut u64> {
        let index = (self.mixed() >> 48) as u32 & (ENTRIES as u32 - 1);
        NODES.get_ptr_mut(index).map(<*mut Entry>::cast)
    }

    /// Over all that an entry holds. No secret: its words are compared besides, and nobody chooses what
    /// two tasks that write at once leave behind.
    #[inline(always)]
    fn sum(&self, below: Words) -> u64 {
        let mut sum = (self.mixed() ^ self.epoch).wrapping_mul(FACTOR);
        sum = (sum ^ below.0).wrapping_mul(FACTOR);
        sum = (sum ^ below.1).wrapping_mul(FACTOR);
        sum = (sum ^ below.2).wrapping_mul(FACTOR);
        sum = (sum ^ below.3).wrapping_mul(FACTOR);
        (sum ^ below.4).wrapping_mul(FACTOR)
    }
}

/// The words of an [`Inherited`]. Spelled out everywhere: an array would be put on the stack, of which
/// a program and all it calls have 512 bytes.
type Words = (u64, u64, u64, u64, u64);

/// Copies to `below` what a directory passes on. False where that is not known.
#[inline(always)]
pub(super) fn get(key: &mut Key, directory: Dentry, below: &mut Inherited) -> bool {
    let (ino, generation) = directory.inode().identity();
    key.name(ino, generation);
    let Some(entry) = key.entry() else { return false };
    // SAFETY: within the entry. Another task may write meanwhile, which the sum tells.
    let word = |at: usize| unsafe { ptr::read_volatile(entry.add(at)) };
    let words = read(word_at(entry, KEY));
    // One branch, for the verifier follows each; and not for the compiler to split again.
    let differs = word(0) ^ key.ino
        | word(1) ^ key.epoch
        | word(2) ^ key.generation_slot
        | word(3) ^ key.dev
        | word(KEY + BELOW) ^ key.sum(words);
    if super::opaque(differs) != 0 {
        return false;
    }
    write(ptr::from_mut(below).cast(), words);
    true
}

/// Enters what a directory passes on that only its address is known of.
#[inline(always)]
pub(super) fn put_at(key: &mut Key, directory: DentryAddress, below: &Inherited) {
    if let Some(inode) = directory.inode()
        && let (Some(ino), Some(generation), Some(links)) =
            (inode.number(), inode.generation(), inode.links())
    {
        key.name(ino, generation);
        put(key, links, below);
    }
}

/// Enters what a directory passes on. Not that of a removed one: its number may be given to another.
#[inline(never)]
pub(super) fn put(key: &Key, links: u32, below: &Inherited) {
    if links == 0 {
        return;
    }
    let Some(entry) = key.entry() else { return };
    let words = read(ptr::from_ref(below).cast());
    // SAFETY: within the entry.
    let set = |at: usize, word: u64| unsafe { ptr::write_volatile(entry.add(at), word) };
    set(0, key.ino);
    set(1, key.epoch);
    set(2, key.generation_slot);
    set(3, key.dev);
    write(word_at(entry, KEY).cast_mut(), words);
    set(KEY + BELOW, key.sum(words));
}

/// Copies what a directory passes on, word by word: left to the compiler it becomes a loop over bytes.
#[inline(always)]
pub(super) fn copy(to: &mut Inherited, from: &Inherited) {
    write(ptr::from_mut(to).cast(), read(ptr::from_ref(from).cast()));
}

#[inline(always)]
fn word_at(entry: *mut u64, at: usize) -> *const u64 {
    // SAFETY: the callers stay within the entry.
    unsafe { entry.add(at) }
}

#[inline(always)]
fn read(from: *const u64) -> Words {
    // SAFETY: the callers pass an `Inherited`.
    let word = |at: usize| unsafe { ptr::read_volatile(from.add(at)) };
    (word(0), word(1), word(2), word(3), word(4))
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
}
