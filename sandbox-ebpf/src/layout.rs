//! Offsets of kernel fields, written by the loader before the programs are loaded.

use sandbox_common::layout::{ABSENT, COUNT, KernelLayout};

/// A byte offset in `.rodata`. Loaded volatile: the compiler must not take the zero that stands in
/// the object for the value.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Offset(u32);

impl Offset {
    #[inline(always)]
    pub(crate) fn get(&'static self) -> usize {
        // SAFETY: a reference to a static.
        unsafe { core::ptr::read_volatile(&raw const self.0) as usize }
    }

    /// Whether the running kernel lacks the field. The verifier does not follow what is behind it then.
    #[inline(always)]
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "it is read where it lies")]
    pub(crate) fn is_absent(&'static self) -> bool {
        self.get() == ABSENT as usize
    }
}

#[unsafe(no_mangle)]
pub(crate) static LAYOUT: KernelLayout<Offset> = KernelLayout::from_array([Offset(0); COUNT]);

/// A number in `.rodata` that turns something off for comparison.
#[repr(transparent)]
pub(crate) struct Switch(u32);

impl Switch {
    #[inline(always)]
    pub(crate) fn on(&'static self) -> bool {
        // SAFETY: a reference to a static.
        unsafe { core::ptr::read_volatile(&raw const self.0) != 0 }
    }
}

/// Whether `path::cache` is used.
#[unsafe(no_mangle)]
pub(crate) static NODE_CACHE: Switch = Switch(1);
