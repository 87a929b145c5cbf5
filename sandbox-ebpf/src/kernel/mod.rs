//! Typed views of kernel structures: the only pointer arithmetic.
//!
//! A view is a pointer that the verifier knows the type of, or one that it takes for a number. A
//! field of the first is loaded directly (`load`), of the second through the helper that survives a
//! bad address (`read`).

pub(crate) mod program;
pub(crate) mod skb;
pub(crate) mod socket;
pub(crate) mod task;
pub(crate) mod vfs;

use crate::layout::Offset;
use aya_ebpf::helpers::generated::bpf_probe_read_kernel;
use core::ffi::c_void;
use core::mem::MaybeUninit;

/// Loads a field through a pointer that the verifier knows the type of. A fault reads as zero.
#[inline(always)]
fn load<T: Copy>(object: *const c_void, offset: &'static Offset) -> T {
    // SAFETY: the verifier refuses the program unless a `T` at this offset lies within a field of
    // the structure; faults are caught by the kernel's exception table.
    unsafe { object.byte_add(offset.get()).cast::<T>().read() }
}

/// Address of a structure embedded in another.
#[inline(always)]
fn embedded(object: *const c_void, offset: &'static Offset) -> *const c_void {
    object.wrapping_byte_add(offset.get())
}

/// Reads a kernel value at an address that the verifier knows nothing of.
#[inline(always)]
pub(crate) fn read<T: Copy>(address: u64) -> Option<T> {
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the helper writes the whole value or fails.
    unsafe {
        let status = bpf_probe_read_kernel(
            value.as_mut_ptr().cast(),
            size_of::<T>() as u32,
            address as *const c_void,
        );
        if status == 0 { Some(value.assume_init()) } else { None }
    }
}
