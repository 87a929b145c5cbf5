//! A number that tasks on several processors count with.
//!
//! A variable of the object, not a map: no lookup. `core`'s atomics have only loading and storing for this
//! target, for want of a compare-and-swap; the kernel has addition (`BPF_ATOMIC | BPF_ADD`, and its
//! predecessor `BPF_XADD` ever since).

use core::cell::UnsafeCell;
use core::intrinsics::{AtomicOrdering, atomic_xadd};
use core::ptr;

pub(crate) struct Counter(UnsafeCell<i64>);

// SAFETY: changed by atomic addition and read whole.
unsafe impl Sync for Counter {}

impl Counter {
    pub(crate) const fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    #[inline(always)]
    pub(crate) fn add(&self, amount: i64) {
        // SAFETY: a valid, aligned number. The result is not used: with it, this would be another instruction.
        unsafe { atomic_xadd::<i64, i64, { AtomicOrdering::Relaxed }>(self.0.get(), amount) };
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> i64 {
        // SAFETY: as above.
        unsafe { ptr::read_volatile(self.0.get()) }
    }
}

/// Adds to a number in a map's value.
///
/// # Safety
///
/// It is valid and aligned.
#[inline(always)]
pub(crate) unsafe fn add(number: *mut u64, amount: u64) {
    // SAFETY: by the caller. The result is not used, as above.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(number, amount) };
}
