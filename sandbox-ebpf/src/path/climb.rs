//! From an object up to the root of its superblock.

use super::Scratch;
use crate::kernel::vfs::Dentry;
use aya_ebpf::helpers::generated::bpf_loop;
use core::ffi::{c_long, c_void};
use sandbox_common::event::Reason;
use sandbox_common::path::WALK_DEPTH;

/// Levels climbed through pointers that the verifier knows the type of (some 41 instructions each);
/// what lies deeper goes through `bpf_probe_read_kernel` (some 276).
const TYPED: usize = 64;

/// Fills `chain` and `depth`. Then `ended` tells whether `top` is an end.
#[inline(always)]
pub(super) fn climb(scratch: &mut Scratch, dentry: Dentry) {
    let mut current = dentry;
    let mut depth = 0;
    let mut ended = 0;
    for _ in 0..TYPED {
        let parent = current.parent();
        if parent.0 == current.0 {
            ended = 1;
            break;
        }
        scratch.chain[depth & (WALK_DEPTH - 1)] = current.address();
        depth += 1;
        current = parent;
    }
    // Through memory, so that the verifier forgets the numbers and follows one path from here on.
    scratch.top = current.address();
    scratch.fault = 0;
    // SAFETY: plain fields of valid memory.
    unsafe {
        core::ptr::write_volatile(&raw mut scratch.depth, depth as u32);
        core::ptr::write_volatile(&raw mut scratch.ended, ended);
        if core::ptr::read_volatile(&raw const scratch.ended) == 0 {
            let mut context = Context { scratch };
            let steps = (WALK_DEPTH - TYPED + 1) as u32;
            bpf_loop(steps, step as *mut c_void, (&raw mut context).cast(), 0);
        }
    }
}

struct Context {
    scratch: *mut Scratch,
}

/// One level. Returns 1 to stop.
unsafe extern "C" fn step(_index: u32, context: *mut Context) -> c_long {
    // SAFETY: `climb` passes its own context, and the verifier follows the pointers.
    let scratch = unsafe { &mut *(*context).scratch };
    let Some(parent) = scratch.top.parent() else {
        scratch.fault = Reason::Unreadable as u32;
        return 1;
    };
    if parent == scratch.top {
        scratch.ended = 1;
        return 1;
    }
    let depth = scratch.depth as usize;
    if depth >= WALK_DEPTH {
        return 1;
    }
    scratch.chain[depth & (WALK_DEPTH - 1)] = scratch.top;
    scratch.depth = depth as u32 + 1;
    scratch.top = parent;
    0
}
