//! One component further: what the directory passes on, the name, and what then holds.

use super::{classify, fold};
use crate::kernel::vfs::copy_name;
use crate::maps::{EDGES, LONG_EDGES, PATTERNS};
use core::ptr;
use sandbox_common::Access;
use sandbox_common::decide::Place;
use sandbox_common::event::Reason;
use sandbox_common::fold::{FOLDED, INEXACT, NO_NODE};
use sandbox_common::path::{EdgeKey, Inherited, LONG_NAME, LongEdgeKey, SHORT_NAME};
use sandbox_common::pattern::{CELLS, OVERLAYS, Overlay, Patterns};
use sandbox_common::subject::{NOTES_WRITES, Subject};

/// Whether names matter beneath a place.
#[inline(always)]
pub(super) fn speaks(place: &Place) -> bool {
    place.below.edges | place.below.pattern != 0
}

/// Moves `place` over a name: from what its directory passes on, in `place.below`, to the object's own
/// rights and what it passes on itself. Returns 0 or the fault.
///
/// `key` is working memory; its `slot` says how the directory compares names, see [`fold`]. A function of
/// its own, for it is most of what a program is.
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
    let fault = name(key, subject.slot, &place.below, address, len);
    if fault != 0 {
        return fault;
    }
    let folded = key.node & FOLDED != 0;
    super::rights(&mut place.own, &raw const place.below.rights);
    if place.below.pattern != 0 {
        let Some(patterns) = patterns(subject.patterns) else {
            return Reason::Unreadable as u32;
        };
        if folded && patterns.inexact != 0 {
            return Reason::CaseInsensitive as u32;
        }
        let starts = if folded { &patterns.folded } else { &patterns.exact };
        let class = classify::classify(patterns, starts, &key.name, len);
        let next = patterns.cells[(place.below.pattern + class) as usize & (CELLS - 1)];
        place.below.pattern = u32::from(next);
        if next != 0 {
            let overlay = overlay(patterns, next);
            place.own.fold(&overlay.own);
            place.below.rights.fold(&overlay.below);
        }
    }
    // At one depth what is spelled out beats a pattern, so it comes last.
    if place.below.edges != 0 {
        place.below.edges = 0;
        let node = if len <= SHORT_NAME as u32 {
            EDGES.get_ptr(short(key))
        } else {
            let key: &LongEdgeKey = key;
            LONG_EDGES.get_ptr(key)
        };
        if let Some(node) = node {
            // SAFETY: a map's value, read under RCU.
            let node = unsafe { &*node };
            if node.id == NO_NODE {
                return Reason::CaseInsensitive as u32;
            }
            place.own.fold(&node.own);
            place.below.rights.fold(&node.below);
            place.below.node = node.id;
            place.below.edges = node.edges;
        }
    }
    0
}

/// [`step`] over a name that no glob matches, from a directory from which no edges lead. The policy's patterns,
/// where they still matter; an error where they could not be read.
#[inline(always)]
pub(super) fn unmatched(
    subject: &Subject,
    place: &mut Place,
) -> Result<Option<&'static Patterns>, Reason> {
    super::rights(&mut place.own, &raw const place.below.rights);
    place.below.depth += 1;
    if place.below.pattern == 0 {
        return Ok(None);
    }
    let patterns = patterns(subject.patterns).ok_or(Reason::Unreadable)?;
    let next = after_unmatched(patterns, &place.below);
    place.below.pattern = u32::from(next);
    if next != 0 {
        let overlay = overlay(patterns, next);
        place.own.fold(&overlay.own);
        place.below.rights.fold(&overlay.below);
    }
    Ok(Some(patterns))
}

/// The state behind a name that no glob matches.
#[inline(always)]
fn after_unmatched(patterns: &Patterns, below: &Inherited) -> u16 {
    let class = patterns.cells[patterns.pairs as usize & (CELLS - 1)];
    patterns.cells[(below.pattern + u32::from(class)) as usize & (CELLS - 1)]
}

/// What is allowed of an object whose name no glob matches, in a directory from which no edges lead.
#[inline(never)]
pub(super) fn plain(subject: &Subject, below: &Inherited) -> u32 {
    if below.pattern == 0 {
        return quick(subject, below.rights.allow);
    }
    let Some(patterns) = patterns(subject.patterns) else { return 0 };
    plain_by(subject, Some(patterns), below)
}

/// What the quick look may allow: nothing that is to be noted.
#[inline(always)]
fn quick(subject: &Subject, allow: u32) -> u32 {
    if subject.permits & NOTES_WRITES != 0 { allow & !Access::WRITES.bits() } else { allow }
}

/// The same where the patterns are at hand; none where they do not matter.
#[inline(always)]
pub(super) fn plain_by(subject: &Subject, patterns: Option<&Patterns>, below: &Inherited) -> u32 {
    let mut allow = below.rights.allow;
    // The dead state is 0, and its row is empty.
    if let Some(patterns) = patterns
        && let next @ 1.. = after_unmatched(patterns, below)
    {
        let own = &overlay(patterns, next).own;
        allow = allow & !own.mask | own.allow;
    }
    quick(subject, allow)
}

/// Whether patterns guard what would lie beneath an object: see [`Overlay::guards`]. Where they cannot be read,
/// they do.
#[inline(always)]
pub(super) fn guards(subject: &Subject, below: &Inherited) -> bool {
    if below.pattern == 0 {
        return false;
    }
    let Some(patterns) = patterns(subject.patterns) else { return true };
    overlay(patterns, below.pattern as u16).guards != 0
}

/// What the patterns say in a state that is not the dead one.
#[inline(always)]
fn overlay(patterns: &Patterns, state: u16) -> &Overlay {
    let cell = (u32::from(state) + patterns.names) as usize & (CELLS - 1);
    &patterns.overlays[usize::from(patterns.cells[cell]) & (OVERLAYS - 1)]
}

/// The tables of a policy.
#[inline(always)]
fn patterns(at: u32) -> Option<&'static Patterns> {
    let words = PATTERNS.get_value(at, &0)?;
    // SAFETY: that is what these words are, and numbers all of it.
    Some(unsafe { &*ptr::from_ref(words).cast::<Patterns>() })
}

/// Makes `key` that of the edge over the name; `slot` of it says how the directory compares names, and
/// the name is folded accordingly. Returns 0 or the fault.
///
/// A function of its own, so that what it needs is not on the stack when [`classify`] runs.
#[inline(never)]
fn name(key: &mut LongEdgeKey, slot: u32, from: &Inherited, address: u64, len: u32) -> u32 {
    let how = key.slot;
    key.slot = slot;
    key.node = from.node;
    if how != fold::EXACTLY {
        key.node |= FOLDED;
        if from.edges != 0 {
            // Names that are not ASCII beneath this node: nothing can be told from them.
            clear(key, 1);
            key.name[0] = INEXACT;
            if EDGES.get_ptr(short(key)).is_some() {
                return Reason::CaseInsensitive as u32;
            }
        }
    }
    clear(key, len);
    // Masked where the verifier, which has forgotten the bound, sees it.
    let bounded = super::opaque(len) & 255;
    // SAFETY: at most 255 bytes.
    if !unsafe { copy_name((&raw mut key.name).cast(), bounded, address) } {
        return Reason::Unreadable as u32;
    }
    if how != fold::EXACTLY && !fold::fold(key, len, words(len), how) {
        return Reason::CaseInsensitive as u32;
    }
    0
}

/// The same key in the map of short names.
#[inline(always)]
fn short(key: &LongEdgeKey) -> &EdgeKey {
    // SAFETY: a long key begins like a short one, and its name is cleared so far.
    unsafe { &*ptr::from_ref(key).cast() }
}

/// How many words of a key are looked at for a name.
#[inline(always)]
fn words(len: u32) -> u32 {
    let words = if len <= SHORT_NAME as u32 { SHORT_NAME / 8 } else { (LONG_NAME + 1) / 8 };
    words as u32
}

/// Zeroes what the name will not fill, as far as it is looked at.
#[inline(always)]
fn clear(key: &mut LongEdgeKey, len: u32) {
    let name = (&raw mut key.name).cast::<u64>();
    let count = words(len);
    for word in 0..(LONG_NAME + 1) / 8 {
        if word as u32 >= count {
            break;
        }
        // SAFETY: within the name; word by word, for a byte-wise loop costs eight times that.
        unsafe { name.add(word).write_volatile(0) };
    }
}
