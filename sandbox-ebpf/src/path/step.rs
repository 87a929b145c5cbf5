//! One component further: what the directory passes on, the name, and what then holds.

use super::classify;
use crate::kernel::vfs::copy_name;
use crate::maps::{EDGES, LONG_EDGES, PATTERNS};
use core::ptr;
use sandbox_common::decide::Place;
use sandbox_common::event::Reason;
use sandbox_common::path::{EdgeKey, LONG_NAME, LongEdgeKey, SHORT_NAME};
use sandbox_common::pattern::{CELLS, OVERLAYS};
use sandbox_common::subject::Subject;

/// Whether names matter beneath a place.
#[inline(always)]
pub(super) fn speaks(place: &Place) -> bool {
    place.below.edges | place.below.pattern != 0
}

/// Moves `place` over a name: from what its directory passes on, in `place.below`, to the object's own
/// rights and what it passes on itself. Returns 0 or the fault.
///
/// `key` is working memory. A function of its own, for it is most of what a program is.
#[inline(never)]
pub(super) fn step(
    key: &mut LongEdgeKey,
    subject: &Subject,
    place: &mut Place,
    address: u64,
    len: u32,
) -> u32 {
    if len == 0 || len > LONG_NAME as u32 {
        return Reason::Unreadable as u32;
    }
    clear(key, len);
    // Masked where the verifier, which has forgotten the bound, sees it.
    let bounded = opaque(len) & 255;
    // SAFETY: at most 255 bytes.
    if !unsafe { copy_name((&raw mut key.name).cast(), bounded, address) } {
        return Reason::Unreadable as u32;
    }
    super::rights(&mut place.own, &place.below.rights);
    if place.below.pattern != 0 {
        let Some(patterns) = PATTERNS.get_value(subject.patterns, &0) else {
            return Reason::Unreadable as u32;
        };
        let class = classify::classify(patterns, &key.name, len);
        let next = patterns.cells[(place.below.pattern + class) as usize & (CELLS - 1)];
        place.below.pattern = u32::from(next);
        if next != 0 {
            let overlay = (u32::from(next) + patterns.names) as usize & (CELLS - 1);
            let overlay = usize::from(patterns.cells[overlay]) & (OVERLAYS - 1);
            if overlay != 0 {
                let overlay = &patterns.overlays[overlay];
                place.own.fold(&overlay.own);
                place.below.rights.fold(&overlay.below);
            }
        }
    }
    // At one depth what is spelled out beats a pattern, so it comes last.
    if place.below.edges != 0 {
        key.slot = subject.slot;
        key.node = place.below.node;
        place.below.edges = 0;
        let node = if len <= SHORT_NAME as u32 {
            // SAFETY: a long key begins like a short one, and its name is cleared so far.
            EDGES.get_ptr(unsafe { &*ptr::from_ref(key).cast::<EdgeKey>() })
        } else {
            LONG_EDGES.get_ptr(&*key)
        };
        if let Some(node) = node {
            // SAFETY: a map's value, read under RCU.
            let node = unsafe { &*node };
            place.own.fold(&node.own);
            place.below.rights.fold(&node.below);
            place.below.node = node.id;
            place.below.edges = node.edges;
        }
    }
    0
}

/// A number of which the compiler knows nothing.
#[inline(always)]
fn opaque(number: u32) -> u32 {
    // SAFETY: a reference to a local.
    unsafe { ptr::read_volatile(&raw const number) }
}

/// Zeroes what the name will not fill, as far as it is looked at.
#[inline(always)]
fn clear(key: &mut LongEdgeKey, len: u32) {
    let words = (&raw mut key.name).cast::<u64>();
    let count = if len <= SHORT_NAME as u32 { SHORT_NAME / 8 } else { (LONG_NAME + 1) / 8 };
    for word in 0..(LONG_NAME + 1) / 8 {
        if word >= count {
            break;
        }
        // SAFETY: within the name; word by word, for a byte-wise loop costs eight times that.
        unsafe { words.add(word).write_volatile(0) };
    }
}
