//! What was found lately, in tables that every program reads without a helper.
//!
//! Each place of a table holds one thing; what comes later takes it. Whoever finds nothing, or another's
//! thing, looks up what it needs. Nobody writes where somebody else does (`WRITERS`): of those who are there at
//! once, only the first can have counted one. What is read while somebody writes (`TURN` is odd, or changes) is
//! as if nothing had been found. So, other than in `path::cache` and `seat`, no sum must tell a mixture, whose
//! words members could choose here. That rests on a processor that stores and loads in order, as x86-64 does.

use crate::counter;
use core::cell::UnsafeCell;
use core::ptr;

/// How many want to write or do.
const WRITERS: usize = 0;
/// Raised before and after each change.
const TURN: usize = 1;
/// Where the words begin.
const FIRST: usize = 2;
/// Words of a place.
const WORDS: usize = 8;
/// Odd, its bits well mixed (the fraction of the golden ratio).
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// `PLACES` is a power of two, 65,536 at the most.
pub(crate) struct Shelf<const PLACES: usize>(UnsafeCell<[[u64; WORDS]; PLACES]>);

// SAFETY: read and written word by word, by volatile accesses, and by atomic addition.
unsafe impl<const PLACES: usize> Sync for Shelf<PLACES> {}

/// A thing's words, up to six.
#[derive(Clone, Copy)]
pub(crate) struct Words(*mut u64);

impl Words {
    #[inline(always)]
    pub(crate) fn get(self, at: usize) -> u64 {
        // SAFETY: within the place.
        unsafe { ptr::read_volatile(self.0.add(FIRST + at)) }
    }

    #[inline(always)]
    pub(crate) fn set(self, at: usize, word: u64) {
        // SAFETY: as above.
        unsafe { ptr::write_volatile(self.0.add(FIRST + at), word) };
    }

    #[inline(always)]
    fn turn(self) -> u64 {
        // SAFETY: as above.
        unsafe { ptr::read_volatile(self.0.add(TURN)) }
    }

    #[inline(always)]
    fn raise(self, turn: u64) {
        // SAFETY: as above.
        unsafe { ptr::write_volatile(self.0.add(TURN), turn.wrapping_add(1)) };
    }

    /// Comes, or goes (`u64::MAX`). A full barrier on x86-64.
    #[inline(always)]
    fn count(self, more: u64) {
        // SAFETY: a valid, aligned number, within the place.
        unsafe { counter::add(self.0.add(WRITERS), more) };
    }

    #[inline(always)]
    fn is_alone(self) -> bool {
        // SAFETY: as above.
        unsafe { ptr::read_volatile(self.0.add(WRITERS)) == 1 }
    }
}

impl<const PLACES: usize> Shelf<PLACES> {
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new([[0; WORDS]; PLACES]))
    }

    /// What `read` makes of the words at the place for `key`, unless they are changing or it finds a
    /// difference (another number than 0) between them and what is looked for. Nothing in generation 0, in which
    /// there are no sessions: places that were never used seem to be of that.
    #[inline(always)]
    pub(crate) fn look<T>(
        &self,
        key: u64,
        generation: u64,
        read: impl FnOnce(Words) -> (u64, T),
    ) -> Option<T> {
        let words = self.place(key);
        let turn = words.turn();
        let (differs, found) = read(words);
        // One branch, for the verifier follows each; and not for the compiler to split again.
        let differs = differs | turn & 1 | words.turn() ^ turn | u64::from(generation == 0);
        if crate::path::opaque(differs) != 0 { None } else { Some(found) }
    }

    /// Has `write` set the words at the place for `key`, unless somebody else does.
    #[inline(always)]
    pub(crate) fn put(&self, key: u64, write: impl FnOnce(Words)) {
        let words = self.place(key);
        words.count(1);
        if words.is_alone() {
            let turn = words.turn();
            words.raise(turn);
            write(words);
            words.raise(turn.wrapping_add(1));
        }
        words.count(u64::MAX);
    }

    #[inline(always)]
    fn place(&self, key: u64) -> Words {
        let index = (key.wrapping_mul(FACTOR) >> 48) as usize & (PLACES - 1);
        Words(self.0.get().cast::<[u64; WORDS]>().wrapping_add(index).cast())
    }
}
