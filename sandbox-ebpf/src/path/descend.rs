//! From the root of the trie down to the deepest node on the object's path.

use super::Scratch;
use super::fold::{self, Compare};
use crate::maps::{EDGES, LONG_EDGES};
use aya_ebpf::helpers::generated::bpf_loop;
use core::ffi::{c_long, c_void};
use sandbox_common::event::Reason;
use sandbox_common::fold::{FOLDED, INEXACT, NO_NODE};
use sandbox_common::path::{
    EdgeKey, LONG_NAME, LongEdgeKey, Node, RULE_DEPTH, SHORT_NAME, WALK_DEPTH,
};

/// Moves `node` from the root as deep as it goes; `left` says how many components lie beneath.
#[inline(always)]
pub(super) fn descend(scratch: &mut Scratch, slot: u32) {
    scratch.left = scratch.depth;
    let mut context = Context { scratch, slot };
    // SAFETY: the context outlives the call, and the verifier follows `step`.
    unsafe { bpf_loop(RULE_DEPTH as u32, step as *mut c_void, (&raw mut context).cast(), 0) };
}

struct Context {
    scratch: *mut Scratch,
    slot: u32,
}

/// One component. Returns 1 to stop.
unsafe extern "C" fn step(_index: u32, context: *mut Context) -> c_long {
    // SAFETY: `descend` passes its own context, and the verifier follows the pointers.
    let (scratch, slot) = unsafe { (&mut *(*context).scratch, (*context).slot) };
    // Names are read only where the node above has edges: each costs some 400 instructions.
    if scratch.node.edges == 0 || scratch.left == 0 {
        return 1;
    }
    let index = scratch.left - 1;
    match find(scratch, slot, index) {
        Ok(Some(node)) => {
            // SAFETY: a map's value, read under RCU.
            scratch.node = unsafe { *node };
            scratch.left = index;
            0
        }
        Ok(None) => 1,
        Err(reason) => {
            scratch.fault = reason as u32;
            1
        }
    }
}

/// The edge over the name of `chain[index]`.
#[inline(always)]
fn find(scratch: &mut Scratch, slot: u32, index: u32) -> Result<Option<*const Node>, Reason> {
    let dentry = scratch.chain[index as usize & (WALK_DEPTH - 1)];
    let above = if index + 1 < scratch.depth {
        scratch.chain[(index + 1) as usize & (WALK_DEPTH - 1)]
    } else {
        scratch.top
    };
    let how = fold::compare(above).ok_or(Reason::Unreadable)?;
    let len = dentry.name_len().ok_or(Reason::Unreadable)?;
    if len == 0 || len > LONG_NAME as u32 {
        return Err(Reason::Unreadable);
    }
    let folded = how != Compare::Exactly;
    let node = if folded { scratch.node.id | FOLDED } else { scratch.node.id };
    if folded {
        // Names that are not ASCII beneath this node: nothing can be told from them.
        scratch.short = EdgeKey { slot, node, name: [0; SHORT_NAME] };
        scratch.short.name[0] = INEXACT;
        if EDGES.get_ptr(scratch.short).is_some() {
            return Err(Reason::CaseInsensitive);
        }
    }
    let found = if len <= SHORT_NAME as u32 {
        scratch.short = EdgeKey { slot, node, name: [0; SHORT_NAME] };
        let name = (&raw mut scratch.short.name).cast::<u8>();
        // SAFETY: masked, the length is at most 31; `slack` follows the name.
        if !unsafe { dentry.copy_name(name, len & 31) } {
            return Err(Reason::Unreadable);
        }
        if folded {
            // SAFETY: the last byte of what was copied, and the words of the name.
            let exact = unsafe {
                let last = name.add((len - 1) as usize & 31).read();
                fold::fold(name.cast(), SHORT_NAME / 8, last, how)
            };
            if !exact {
                return Err(Reason::CaseInsensitive);
            }
        }
        EDGES.get_ptr(scratch.short)
    } else {
        let words = (&raw mut scratch.long.name).cast::<u64>();
        for word in 0..(LONG_NAME + 1) / 8 {
            // SAFETY: within the name; word by word, for a byte-wise loop costs eight times that.
            unsafe { words.add(word).write_volatile(0) };
        }
        scratch.long.slot = slot;
        scratch.long.node = node;
        // SAFETY: masked, the length is at most 255.
        if !unsafe { dentry.copy_name(words.cast(), len & 255) } {
            return Err(Reason::Unreadable);
        }
        if folded {
            // SAFETY: the last byte of what was copied, and the words of the name.
            let exact = unsafe {
                let last = words.cast::<u8>().add((len - 1) as usize & 255).read();
                fold::fold(words, (LONG_NAME + 1) / 8, last, how)
            };
            if !exact {
                return Err(Reason::CaseInsensitive);
            }
        }
        let key: &LongEdgeKey = &scratch.long;
        LONG_EDGES.get_ptr(key)
    };
    match found {
        // SAFETY: a map's value, read under RCU.
        Some(to) if unsafe { (*to).id } == NO_NODE => Err(Reason::CaseInsensitive),
        found => Ok(found),
    }
}
