//! Down again, name by name, as far as rules speak.

use super::{Chain, cache, fold, step};
use aya_ebpf::helpers::generated::bpf_loop;
use core::ffi::{c_long, c_void};
use sandbox_common::event::Reason;
use sandbox_common::path::{LongEdgeKey, WALK_DEPTH};
use sandbox_common::subject::Subject;

/// Moves `place.below` from `top` down to the innermost dentry of the chain. Returns whether rules may speak
/// of that one by itself: then `place.own` is what they say.
#[inline(always)]
pub(super) fn descend(chain: &mut Chain, subject: &Subject, name: &mut LongEdgeKey) -> bool {
    chain.left = chain.depth;
    let mut context = Context { chain, subject, name };
    // SAFETY: the context outlives the call, and the verifier follows `one`.
    unsafe { bpf_loop(WALK_DEPTH as u32, one as *mut c_void, (&raw mut context).cast(), 0) };
    // Nothing deeper is spoken of: what holds so far holds for the rest.
    chain.place.below.depth += chain.left;
    let reached = chain.left == 0;
    chain.left = 0;
    reached
}

struct Context {
    chain: *mut Chain,
    subject: *const Subject,
    name: *mut LongEdgeKey,
}

/// One component. Returns 1 to stop.
unsafe extern "C" fn one(_index: u32, context: *mut Context) -> c_long {
    // SAFETY: `descend` passes its own context, and the verifier follows the pointers.
    let context = unsafe { &mut *context };
    // SAFETY: as above.
    let chain = unsafe { &mut *context.chain };
    if chain.left == 0 || !step::speaks(&chain.place) {
        return 1;
    }
    let left = chain.left - 1;
    let dentry = chain.dentries[left as usize & (WALK_DEPTH - 1)];
    let directory = if chain.left < chain.depth {
        chain.dentries[chain.left as usize & (WALK_DEPTH - 1)]
    } else {
        chain.top
    };
    let compare = fold::compare_at(directory);
    let (Some(address), Some(len)) = (dentry.name_address(), dentry.name_len()) else {
        chain.fault = Reason::Unreadable as u32;
        return 1;
    };
    if compare == fold::UNREADABLE {
        chain.fault = Reason::Unreadable as u32;
        return 1;
    }
    chain.place.below.depth += 1;
    // SAFETY: as above.
    let (name, subject) = unsafe { (&mut *context.name, &*context.subject) };
    name.slot = compare;
    let fault = step::step(name, subject, &mut chain.place, address, len);
    if fault != 0 {
        chain.fault = fault;
        return 1;
    }
    chain.left = left;
    // The innermost is entered by the caller, who has it at hand.
    if left != 0 && chain.cached != 0 {
        let plain = step::plain(subject, &chain.place.below);
        cache::put_at(&mut chain.key, dentry, &chain.place.below, plain);
    }
    0
}
