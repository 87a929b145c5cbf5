//! From an object up to the root of its superblock, or to an ancestor that the cache knows.

use super::{Chain, cache, ended};
use crate::kernel::vfs::{Dentry, DentryAddress};
use aya_ebpf::helpers::generated::bpf_loop;
use core::ffi::{c_long, c_void};
use core::ptr;
use sandbox_common::event::Reason;
use sandbox_common::path::WALK_DEPTH;

/// Levels climbed through pointers that the verifier knows the type of (some 41 instructions each);
/// what lies deeper goes through `bpf_probe_read_kernel` (some 276).
const TYPED: usize = 64;
/// Levels at which the cache is asked. Whoever found nothing so near walks once and finds the next time;
/// at every level it would be most of what the verifier follows.
const ASKED: usize = 8;

/// Fills `dentries`, `depth`, `top`, `ended` and `fault`. With `cached` it ends at the first *ancestor* of
/// `dentry` that the cache knows, and has then filled `place.below`.
#[inline(never)]
pub(super) fn climb(chain: &mut Chain, dentry: Dentry) {
    let mut current = dentry;
    let mut depth = 0;
    let mut end = ended::NO;
    for level in 0..TYPED {
        let parent = current.parent();
        if parent.0 == current.0 {
            end = ended::AT_ROOT;
            break;
        }
        chain.dentries[depth & (WALK_DEPTH - 1)] = current.address();
        depth += 1;
        current = parent;
        if level < ASKED
            && chain.cached != 0
            && cache::get(&mut chain.key, current, &mut chain.place.below)
        {
            end = ended::KNOWN;
            break;
        }
    }
    // Through memory, so that the verifier forgets the numbers and follows one path from here on.
    chain.top = current.address();
    chain.fault = 0;
    // SAFETY: plain fields of valid memory.
    unsafe {
        ptr::write_volatile(&raw mut chain.depth, depth as u32);
        ptr::write_volatile(&raw mut chain.ended, end);
        if ptr::read_volatile(&raw const chain.ended) == ended::NO {
            on(chain);
        }
    }
}

/// All the way, for an event or where only the address is known. Slower, but with little for the verifier to
/// follow.
#[inline(always)]
pub(super) fn all(chain: &mut Chain, dentry: DentryAddress) {
    chain.top = dentry;
    chain.fault = 0;
    chain.depth = 0;
    chain.ended = ended::NO;
    on(chain);
}

/// From `top` on.
#[inline(always)]
fn on(chain: &mut Chain) {
    let mut context = Context { chain };
    // SAFETY: the context outlives the call, and the verifier follows `step`.
    unsafe {
        bpf_loop(WALK_DEPTH as u32 + 1, step as *mut c_void, (&raw mut context).cast(), 0);
    }
}

struct Context {
    chain: *mut Chain,
}

/// One level. Returns 1 to stop.
unsafe extern "C" fn step(_index: u32, context: *mut Context) -> c_long {
    // SAFETY: `on` passes its own context, and the verifier follows the pointers.
    let chain = unsafe { &mut *(*context).chain };
    let Some(parent) = chain.top.parent() else {
        chain.fault = Reason::Unreadable as u32;
        return 1;
    };
    if parent == chain.top {
        chain.ended = ended::AT_ROOT;
        return 1;
    }
    let depth = chain.depth as usize;
    if depth >= WALK_DEPTH {
        return 1;
    }
    chain.dentries[depth & (WALK_DEPTH - 1)] = chain.top;
    chain.depth = depth as u32 + 1;
    chain.top = parent;
    0
}
