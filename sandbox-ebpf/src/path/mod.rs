//! What: the place of an object in the trie.

mod climb;
mod descend;
mod fold;
mod linked;

use crate::kernel::vfs::{Dentry, DentryAddress};
use crate::maps::{DEATHS, ROOTS, SCRATCH};
use crate::subject::Member;
use sandbox_common::decide::Place;
use sandbox_common::event::{PathEvent, Reason};
use sandbox_common::path::{EdgeKey, LongEdgeKey, Node, Rights, RootKey, WALK_DEPTH};

/// Working memory of a walk and of the event that may follow, in task storage: per-CPU memory would
/// be shared with a task that preempts this one.
///
/// It must stay under 8 KiB: from 6.18 on the kernel allocates task storage with `kmalloc_nolock`,
/// which offers no more.
#[repr(C)]
pub(crate) struct Scratch {
    /// The object and its ancestors without the root, innermost first.
    pub(crate) chain: [DentryAddress; WALK_DEPTH],
    /// How many of `chain` are in use.
    pub(crate) depth: u32,
    /// How many of them the descent has not yet matched.
    pub(crate) left: u32,
    /// 0, or the `Reason` for which the walk failed.
    pub(crate) fault: u32,
    /// 1 when `top` is its own parent.
    pub(crate) ended: u32,
    /// Where the climb is.
    pub(crate) top: DentryAddress,
    /// Where the descent is.
    pub(crate) node: Node,
    /// Key of the descent. What follows gives the verifier room: it knows a length's bound only as
    /// a mask.
    pub(crate) short: EdgeKey,
    pub(crate) slack: [u8; 8],
    /// Key of the descent, for long names.
    pub(crate) long: LongEdgeKey,
    /// The event being built.
    pub(crate) event: PathEvent,
}

const _: () = assert!(size_of::<Scratch>() < 8000);

/// The current task's working memory; null where there is none to be had.
#[inline(always)]
pub(crate) fn scratch() -> *mut Scratch {
    SCRATCH.of_current(true)
}

/// Finds the place of `dentry` in the member's policy. `scratch.chain` then holds its ancestors.
#[inline(always)]
pub(crate) fn place(scratch: &mut Scratch, member: &Member, dentry: Dentry) -> Place {
    let mut place = by_name(scratch, member, dentry);
    linked::restrict(&mut place, member, dentry);
    place
}

#[inline(always)]
fn by_name(scratch: &mut Scratch, member: &Member, dentry: Dentry) -> Place {
    let superblock = dentry.superblock();
    climb::climb(scratch, dentry);
    if scratch.fault != 0 {
        return Place::fault(reason(scratch.fault));
    }
    if scratch.ended == 0 {
        return Place::fault(Reason::TooDeep);
    }
    if scratch.top != superblock.root() {
        return Place::fault(Reason::Disconnected);
    }
    if member.fault != 0 {
        return Place::fault(reason(u32::from(member.fault)));
    }
    let dev = superblock.dev();
    // SAFETY: as below.
    let era = unsafe { DEATHS.get(dev) }.copied().unwrap_or(0);
    let key = RootKey { slot: member.subject.slot, dev, era };
    // SAFETY: entries are only added and removed whole, and a reader is under RCU.
    let Some(root) = (unsafe { ROOTS.get(key) }) else {
        let allow = member.subject.unknown;
        let rights = Rights { allow, read_rule: 0, write_rule: 0, connect_rule: 0, pad: 0 };
        return Place { own: rights, below: rights, edges: 0, fault: 0, unknown: 1 };
    };
    scratch.node = *root;
    descend::descend(scratch, member.subject.slot);
    if scratch.fault != 0 {
        return Place::fault(reason(scratch.fault));
    }
    let node = &scratch.node;
    if scratch.left == 0 {
        Place { own: node.own, below: node.below, edges: node.edges, fault: 0, unknown: 0 }
    } else {
        Place { own: node.below, below: node.below, edges: 0, fault: 0, unknown: 0 }
    }
}

/// The reasons that a walk can fail for.
#[inline(always)]
fn reason(number: u32) -> Reason {
    const NO_MEMORY: u32 = Reason::NoMemory as u32;
    const SESSION_ENDED: u32 = Reason::SessionEnded as u32;
    const CASE_INSENSITIVE: u32 = Reason::CaseInsensitive as u32;
    match number {
        NO_MEMORY => Reason::NoMemory,
        SESSION_ENDED => Reason::SessionEnded,
        CASE_INSENSITIVE => Reason::CaseInsensitive,
        _ => Reason::Unreadable,
    }
}
