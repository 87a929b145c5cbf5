//! What: the place of an object in the policy.
//!
//! An object's place is its directory's, one component further. What a directory passes on comes from
//! the [`cache`], or else from a walk: [`climb`] up to the root of the superblock or to an ancestor
//! that the cache knows, [`descend`] from there, name by name with [`step`].

pub(crate) mod cache;
mod classify;
mod climb;
mod descend;
mod step;

use crate::kernel::vfs::{Dentry, DentryAddress, SuperBlock};
use crate::maps::{CHAINS, ROOTS};
use crate::subject::Member;
use cache::Key;
use sandbox_common::decide::Place;
use sandbox_common::event::{PathEvent, Reason};
use sandbox_common::path::{Inherited, LongEdgeKey, Rights, Root, RootKey, WALK_DEPTH};
use sandbox_common::subject::{Subject, TaskState};

/// Working memory of a walk, and of an event, in task storage: per-CPU memory would be shared with a
/// task that preempts this one. Only taken where the cache has no answer, and for denials.
///
/// It must stay under 8 KiB: from 6.18 on the kernel allocates task storage with `kmalloc_nolock`,
/// which offers no more.
#[repr(C)]
pub(crate) struct Chain {
    /// A dentry and its ancestors without the last one, innermost first.
    pub(crate) dentries: [DentryAddress; WALK_DEPTH],
    /// How many of them are in use.
    pub(crate) depth: u32,
    /// How many of them the descent has not yet reached.
    left: u32,
    /// 0, or the `Reason` for which the walk failed.
    fault: u32,
    /// How the climb ended: one of [`ended`].
    pub(crate) ended: u32,
    /// Where the climb is.
    top: DentryAddress,
    /// Where the descent is.
    place: Place,
    /// The event being built.
    pub(crate) event: PathEvent,
}

const _: () = assert!(size_of::<Chain>() < 8000);

/// How a climb ended.
pub(crate) mod ended {
    /// Nowhere: too deep, or unreadable.
    pub(crate) const NO: u32 = 0;
    /// `top` is its own parent.
    pub(crate) const AT_ROOT: u32 = 1;
    /// The cache knows what `top` passes on.
    pub(crate) const KNOWN: u32 = 2;
}

/// Finds the place of `dentry` in the member's policy.
#[inline(always)]
pub(crate) fn place(state: &mut TaskState, member: &Member, dentry: Dentry) -> Place {
    let mut place =
        Place { own: Rights::NONE, below: Inherited::default(), fault: u32::from(member.fault) };
    if member.fault == 0 {
        place.fault = locate(&mut state.key, &member.subject, dentry, &mut place);
    }
    place
}

/// Fills `place`; returns 0 or the fault.
#[inline(always)]
fn locate(key: &mut LongEdgeKey, subject: &Subject, dentry: Dentry, place: &mut Place) -> u32 {
    let superblock = dentry.superblock();
    let directory = dentry.parent();
    if directory.0 == dentry.0 {
        if dentry.address() != superblock.root() {
            return Reason::Disconnected as u32;
        }
        let Some(root) = root(subject.slot, superblock) else {
            return Reason::UnknownFilesystem as u32;
        };
        rights(&mut place.own, &root.own);
        cache::copy(&mut place.below, &root.below);
        return 0;
    }
    let mut cached = Key::now(subject.slot, superblock);
    let found = match &mut cached {
        Some(cached) => cache::get(cached, directory, &mut place.below),
        None => false,
    };
    if !found {
        let fault = walk(key, subject, directory, &mut place.below);
        if fault != 0 {
            return fault;
        }
    }
    if place.below.depth >= WALK_DEPTH as u32 {
        return Reason::TooDeep as u32;
    }
    place.below.depth += 1;
    if !step::speaks(place) {
        let inherited = place.below.rights;
        rights(&mut place.own, &inherited);
        return 0;
    }
    step::step(key, subject, place, dentry.name_address(), dentry.name_len())
}

/// Finds what a directory passes on by way of its ancestors, and enters it in the cache. Returns 0 or
/// the fault.
#[inline(never)]
fn walk(key: &mut LongEdgeKey, subject: &Subject, directory: Dentry, below: &mut Inherited) -> u32 {
    let chain = CHAINS.of_current(true);
    if chain.is_null() {
        return Reason::NoMemory as u32;
    }
    // SAFETY: not null, and nobody else has this task's storage at hand.
    let chain = unsafe { &mut *chain };
    let superblock = directory.superblock();
    let mut cached = Key::now(subject.slot, superblock);
    climb::climb(chain, directory, cached.as_mut());
    if chain.fault != 0 {
        return chain.fault;
    }
    if chain.ended == ended::NO {
        return Reason::TooDeep as u32;
    }
    if chain.ended == ended::AT_ROOT {
        if chain.top != superblock.root() {
            return Reason::Disconnected as u32;
        }
        let Some(root) = root(subject.slot, superblock) else {
            return Reason::UnknownFilesystem as u32;
        };
        cache::copy(&mut chain.place.below, &root.below);
    }
    descend::descend(chain, subject, key, cached.as_mut());
    if chain.fault != 0 {
        return chain.fault;
    }
    if let Some(cached) = &mut cached {
        cache::put(cached, directory.address(), &chain.place.below);
    }
    cache::copy(below, &chain.place.below);
    0
}

/// Copies rights, word by word: left to the compiler it becomes a loop over bytes.
#[inline(always)]
fn rights(to: &mut Rights, from: &Rights) {
    let (to, from) =
        (core::ptr::from_mut(to).cast::<u32>(), core::ptr::from_ref(from).cast::<u32>());
    for word in 0..size_of::<Rights>() / 4 {
        // SAFETY: both are as many words.
        unsafe { to.add(word).write_volatile(from.add(word).read_volatile()) };
    }
}

/// What the policy says of a superblock's root.
#[inline(always)]
fn root(slot: u32, superblock: SuperBlock) -> Option<&'static Root> {
    let key = RootKey { slot, dev: superblock.dev() };
    // SAFETY: entries are only added and removed whole, and a reader is under RCU.
    if let Some(root) = unsafe { ROOTS.get(key) } {
        return Some(root);
    }
    // SAFETY: as above.
    unsafe { ROOTS.get(RootKey { slot, dev: 0 }) }
}

/// The names of `dentry` and its ancestors, for an event; null where there is no memory for them.
#[inline(always)]
pub(crate) fn names(dentry: Dentry) -> *mut Chain {
    let chain = CHAINS.of_current(true);
    if !chain.is_null() {
        // SAFETY: not null, and nobody else has this task's storage at hand.
        climb::climb(unsafe { &mut *chain }, dentry, None);
    }
    chain
}
