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

use crate::kernel::vfs::{Dentry, DentryAddress, SuperBlock};
use crate::layout::NODE_CACHE;
use crate::maps::{EPOCH, NODES};
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

impl Key {
    /// For the directories of a superblock, from now on. `None` where they are not cached.
    ///
    /// Taken before the walk whose result is entered under it: what changes meanwhile raises the epoch.
    #[inline(always)]
    pub(super) fn now(slot: u32, superblock: SuperBlock) -> Option<Self> {
        if !NODE_CACHE.on() || !superblock.numbers_are_unique() {
            return None;
        }
        let epoch = EPOCH.get_ptr(0)?;
        // SAFETY: a map's value; others raise it meanwhile. One more, so that none is 0.
        let epoch = unsafe { ptr::read_volatile(epoch) } + 1;
        Some(Self {
            ino: 0,
            epoch,
            generation_slot: u64::from(slot) << 32,
            dev: u64::from(superblock.dev()),
        })
    }

    #[inline(always)]
    fn name(&mut self, ino: u64, generation: u32) {
        self.ino = ino;
        self.generation_slot = self.generation_slot >> 32 << 32 | u64::from(generation);
    }

    #[inline(always)]
    fn words(&self) -> [u64; KEY] {
        [self.ino, self.epoch, self.generation_slot, self.dev]
    }

    /// Where the entry lies if there is one.
    #[inline(always)]
    fn entry(&self) -> Option<*mut u64> {
        let mixed = (self.ino ^ self.generation_slot.rotate_left(20)).wrapping_mul(FACTOR);
        NODES.get_ptr_mut((mixed >> 48) as u32 & (ENTRIES as u32 - 1)).map(|entry| entry.cast())
    }

    #[inline(always)]
    fn sum(&self, below: [u64; BELOW]) -> u64 {
        let mut sum = 0;
        for word in self.words() {
            sum = (sum ^ word).wrapping_mul(FACTOR);
        }
        for word in below {
            sum = (sum ^ word).wrapping_mul(FACTOR);
        }
        sum
    }
}

/// Copies to `below` what a directory passes on. False where that is not known.
#[inline(always)]
pub(super) fn get(key: &mut Key, directory: Dentry, below: &mut Inherited) -> bool {
    let inode = directory.inode();
    key.name(inode.number(), inode.generation());
    let Some(entry) = key.entry() else { return false };
    // SAFETY: within the entry. Another task may write meanwhile, which the sum tells.
    let word = |at: usize| unsafe { ptr::read_volatile(entry.add(at)) };
    for (at, expected) in key.words().into_iter().enumerate() {
        if word(at) != expected {
            return false;
        }
    }
    let words = [word(KEY), word(KEY + 1), word(KEY + 2), word(KEY + 3), word(KEY + 4)];
    if word(KEY + BELOW) != key.sum(words) {
        return false;
    }
    write(ptr::from_mut(below).cast(), words);
    true
}

/// Enters what a directory passes on. Not that of a removed one: its number may be given to another.
#[inline(always)]
pub(super) fn put(key: &mut Key, directory: DentryAddress, below: &Inherited) {
    let Some(inode) = directory.inode() else { return };
    let (Some(ino), Some(generation), Some(links)) =
        (inode.number(), inode.generation(), inode.links())
    else {
        return;
    };
    if links == 0 {
        return;
    }
    key.name(ino, generation);
    let Some(entry) = key.entry() else { return };
    let words = read(ptr::from_ref(below).cast());
    write(entry, key.words());
    // SAFETY: within the entry.
    unsafe {
        write(entry.add(KEY), words);
        ptr::write_volatile(entry.add(KEY + BELOW), key.sum(words));
    }
}

/// Copies what a directory passes on, word by word: left to the compiler it becomes a loop over bytes.
#[inline(always)]
pub(super) fn copy(to: &mut Inherited, from: &Inherited) {
    write(ptr::from_mut(to).cast(), read(ptr::from_ref(from).cast()));
}

#[inline(always)]
fn read(from: *const u64) -> [u64; BELOW] {
    // SAFETY: the callers pass an `Inherited`.
    let word = |at: usize| unsafe { ptr::read_volatile(from.add(at)) };
    [word(0), word(1), word(2), word(3), word(4)]
}

#[inline(always)]
fn write<const COUNT: usize>(to: *mut u64, words: [u64; COUNT]) {
    for (at, word) in words.into_iter().enumerate() {
        // SAFETY: the callers pass room for them.
        unsafe { ptr::write_volatile(to.add(at), word) };
    }
}
