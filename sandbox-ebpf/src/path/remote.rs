//! The place of an object of which only the address is known: for what is rare, for it goes all the way each
//! time.

use super::{Chain, cache, climb, descend, ended, linked, rights, root_of};
use crate::kernel::vfs::DentryAddress;
use crate::maps::CHAINS;
use crate::subject::Member;
use sandbox_common::decide::Place;
use sandbox_common::event::Reason;
use sandbox_common::path::LongEdgeKey;
use sandbox_common::subject::{Subject, TaskState};

/// Finds the place of `dentry` in the member's policy.
#[inline(always)]
pub(crate) fn place_at<'a>(
    state: &'a mut TaskState,
    member: &Member,
    dentry: DentryAddress,
) -> &'a Place {
    let mut fault = u32::from(member.fault);
    if fault == 0 {
        fault = locate_at(&mut state.key, member.subject, dentry, &mut state.place);
    }
    if fault == 0 {
        fault = linked::restrict_at(&mut state.place.own, member.subject.slot, dentry);
    }
    state.place.fault = fault;
    &state.place
}

/// Fills `place`; returns 0 or the fault.
#[inline(never)]
fn locate_at(
    key: &mut LongEdgeKey,
    subject: &Subject,
    dentry: DentryAddress,
    place: &mut Place,
) -> u32 {
    let chain = CHAINS.of_current(true);
    if chain.is_null() {
        return Reason::NoMemory as u32;
    }
    // SAFETY: not null, and nobody else has this task's storage at hand.
    let chain = unsafe { &mut *chain };
    chain.cached = 0;
    climb::all(chain, dentry);
    if chain.fault != 0 {
        return chain.fault;
    }
    if chain.ended == ended::NO {
        return Reason::TooDeep as u32;
    }
    chain.fault = begin(chain, subject.slot, dentry);
    if chain.fault != 0 {
        return chain.fault;
    }
    let own = if descend::descend(chain, subject, key) {
        &raw const chain.place.own
    } else {
        // Nothing speaks of the object itself.
        &raw const chain.place.below.rights
    };
    rights(&mut place.own, own);
    cache::copy(&mut place.below, &chain.place.below);
    chain.fault
}

/// Where the descent to a dentry begins, whose chain was climbed: at the root of its superblock. Returns 0
/// or the fault. A function of its own, for the stack.
#[inline(never)]
fn begin(chain: &mut Chain, slot: u32, dentry: DentryAddress) -> u32 {
    let Some(superblock) = dentry.superblock() else { return Reason::Unreadable as u32 };
    let (Some(dev), Some(magic), Some(top)) =
        (superblock.dev(), superblock.magic(), superblock.root())
    else {
        return Reason::Unreadable as u32;
    };
    if chain.top != top {
        return Reason::Disconnected as u32;
    }
    let Some(root) = root_of(slot, dev, magic) else {
        return Reason::UnknownFilesystem as u32;
    };
    cache::copy(&mut chain.place.below, &root.below);
    rights(&mut chain.place.own, &raw const root.own);
    0
}
