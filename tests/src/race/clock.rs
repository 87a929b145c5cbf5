//! What both sides of the race see: a page of memory shared through a file in the workspace.

use crate::harness::PATIENCE;
use anyhow::Context as _;
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::thread::futex;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Instant;

/// Where the box is, or from where to where it is just being moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// Even where the box is in place; odd while it moves.
    pub(super) number: u32,
    pub(super) from: u8,
    pub(super) to: u8,
}

/// The shared page.
#[repr(C)]
pub(super) struct Clock {
    state: AtomicU64,
    /// Moves that were completed.
    moved: AtomicU32,
    /// Moves that the checker has judged.
    judged: AtomicU32,
    over: AtomicU32,
}

impl Clock {
    /// Maps it; the mapping stays until the process ends.
    pub(super) fn of(file: impl AsFd) -> anyhow::Result<&'static Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, wherever the kernel puts it.
        let page = unsafe { mmap(std::ptr::null_mut(), 4096, access, MapFlags::SHARED, file, 0) };
        let page = page.context("mapping the clock")?;
        // SAFETY: the file has a page, which is aligned, never unmapped, and only atomics are in it;
        // zeros are valid.
        Ok(unsafe { &*page.cast::<Self>() })
    }

    pub(super) fn state(&self) -> State {
        let state = self.state.load(SeqCst).to_le_bytes();
        let number = u32::from_le_bytes([state[0], state[1], state[2], state[3]]);
        State { number, from: state[4], to: state[5] }
    }

    pub(super) fn set(&self, state: State) {
        let [a, b, c, d] = state.number.to_le_bytes();
        let bytes = [a, b, c, d, state.from, state.to, 0, 0];
        self.state.store(u64::from_le_bytes(bytes), SeqCst);
    }

    /// Tells the checker of a completed move and waits until it has judged it; false where that
    /// does not happen.
    pub(super) fn hand_over(&self) -> bool {
        let moved = self.moved.fetch_add(1, SeqCst) + 1;
        wake(&self.moved);
        let since = Instant::now();
        let judged = || self.judged.load(SeqCst) >= moved;
        wait(&self.judged, |_| judged() || since.elapsed() > PATIENCE);
        judged()
    }

    /// Waits for the next completed move; false where there will be none.
    pub(super) fn next(&self) -> bool {
        let judged = self.judged.load(SeqCst);
        wait(&self.moved, |moved| moved > judged || self.is_over());
        !self.is_over()
    }

    pub(super) fn was_judged(&self) {
        self.judged.fetch_add(1, SeqCst);
        wake(&self.judged);
    }

    pub(super) fn end(&self) {
        self.over.store(1, SeqCst);
        wake(&self.moved);
        wake(&self.judged);
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(SeqCst) != 0
    }
}

/// Sleeps until the word is as wanted. Wakes now and then by itself: the end is another word.
fn wait(word: &AtomicU32, wanted: impl Fn(u32) -> bool) {
    let patience = futex::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    loop {
        let value = word.load(SeqCst);
        if wanted(value) {
            return;
        }
        // Whatever woke it, the word tells.
        let _ = futex::wait(word, futex::Flags::empty(), value, Some(&patience));
    }
}

fn wake(word: &AtomicU32) {
    // Nobody may be waiting.
    let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
}
