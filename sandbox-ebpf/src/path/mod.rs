//! What: the place of an object in the policy.
//!
//! An object's place is its directory's, one component further. What a directory passes on comes from
//! the [`cache`], or else from a walk: [`climb`] up to the root of the superblock or to an ancestor
//! that the cache knows, [`descend`] from there, name by name with [`step`].

pub(crate) mod cache;
mod classify;
mod climb;
mod descend;
mod fold;
mod linked;
pub(crate) mod quick;
mod remote;
mod step;

pub(crate) use remote::place_at;

use crate::kernel::vfs::{self, Dentry, DentryAddress, SuperBlock};
use crate::maps::{CHAINS, DEATHS, ROOTS};
use crate::subject::Member;
use cache::Key;
use sandbox_common::Access;
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
    /// Where the cache keeps what is found.
    key: Key,
    /// 1 where it does.
    cached: u32,
    pad: u32,
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
///
/// By way of the task's own memory, which the verifier keeps no account of: places on the stack would
/// multiply the cases that it follows.
#[inline(always)]
pub(crate) fn place<'a>(state: &'a mut TaskState, member: &Member, dentry: Dentry) -> &'a Place {
    place_in(state, member, dentry, dentry.superblock())
}

/// The same where the superblock is at hand.
#[inline(always)]
pub(crate) fn place_in<'a>(
    state: &'a mut TaskState,
    member: &Member,
    dentry: Dentry,
    superblock: SuperBlock,
) -> &'a Place {
    let mut fault = u32::from(member.fault);
    if fault == 0 {
        let cached = Key::of(&mut state.directory);
        fault = locate(
            (&mut state.key, cached),
            member.subject,
            (dentry, superblock),
            &mut state.place,
        );
        if fault == 0 {
            linked::restrict(&mut state.place.own, member.subject.slot, dentry);
        }
        close(&mut state.place.own, superblock);
    }
    state.place.fault = fault;
    &state.place
}

/// Takes writing away where the kernel shows itself, however wide the rules are: there a member would
/// leave its cgroup, detach the programs, or have the kernel run something.
#[inline(always)]
fn close(own: &mut Rights, superblock: SuperBlock) {
    if own.allow & Access::WRITES.bits() != 0 && superblock.is_of_the_kernel() {
        own.allow &= !Access::WRITES.bits();
        // No rule says so.
        (own.rules[1], own.rules[4], own.rules[5]) = (0, 0, 0);
    }
}

/// Whether patterns guard what would lie beneath an object at a place.
#[inline(always)]
pub(crate) fn is_guarded(member: &Member, place: &Place) -> bool {
    step::guards(member.subject, &place.below)
}

/// Finds the places of two objects; they are then in `state.first` and `state.place`.
#[inline(always)]
pub(crate) fn places(state: &mut TaskState, member: &Member, first: Dentry, second: Dentry) {
    place(state, member, first);
    let from = core::ptr::from_ref(&state.place).cast::<u64>();
    let to = core::ptr::from_mut(&mut state.first).cast::<u64>();
    for word in 0..size_of::<Place>() / 8 {
        // SAFETY: both are as many words.
        unsafe { to.add(word).write_volatile(from.add(word).read_volatile()) };
    }
    place(state, member, second);
}

/// Fills `place`; returns 0 or the fault.
#[inline(always)]
fn locate(
    (key, cached): (&mut LongEdgeKey, &mut Key),
    subject: &Subject,
    (dentry, superblock): (Dentry, SuperBlock),
    place: &mut Place,
) -> u32 {
    let directory = dentry.parent();
    if directory.0 == dentry.0 {
        if dentry.address() != superblock.root() {
            return Reason::Disconnected as u32;
        }
        let Some(root) = root(subject.slot, superblock) else {
            return Reason::UnknownFilesystem as u32;
        };
        rights(&mut place.own, &raw const root.own);
        cache::copy(&mut place.below, &root.below);
        return 0;
    }
    let is_cached = cached.now(subject.slot, superblock);
    if !is_cached || !cache::get(cached, directory, &mut place.below) {
        let is_found = is_cached && from_parent(subject, directory, cached, place);
        if !is_found {
            let fault = walk(key, subject, directory, &mut place.below);
            if fault != 0 {
                return fault;
            }
        }
    }
    over(key, subject, place, dentry, directory)
}

/// Moves `place` from what `directory` passes on to an object in it; returns 0 or the fault.
#[inline(always)]
fn over(
    key: &mut LongEdgeKey,
    subject: &Subject,
    place: &mut Place,
    dentry: Dentry,
    directory: Dentry,
) -> u32 {
    if is_unspoken(subject, place, dentry, directory) {
        return match step::unmatched(subject, place) {
            Ok(_) => 0,
            Err(fault) => fault as u32,
        };
    }
    if place.below.depth >= WALK_DEPTH as u32 {
        return Reason::TooDeep as u32;
    }
    place.below.depth += 1;
    key.slot = fold::compare(directory);
    step::step(key, subject, place, dentry.name_address(), dentry.name_len())
}

/// Whether no rule speaks of the name of an object in `directory`, as can be told at once. False says nothing.
#[inline(always)]
fn is_unspoken(subject: &Subject, place: &Place, dentry: Dentry, directory: Dentry) -> bool {
    place.below.depth < WALK_DEPTH as u32
        && place.below.edges == 0
        && (place.below.pattern == 0
            || fold::compare(directory) == fold::EXACTLY
                && quick::is_plain(subject.patterns, dentry))
}

/// What a directory passes on, by way of its parent, where the cache knows that and no rule speaks of its name:
/// most new ones lie in one that was seen before. Enters it, in the epoch of `cached`; true where it is found.
/// No [`step`] from here, for which there is no stack left.
#[inline(never)]
fn from_parent(subject: &Subject, directory: Dentry, cached: &mut Key, place: &mut Place) -> bool {
    let parent = directory.parent();
    if parent.0 == directory.0
        || !cache::get(cached, parent, &mut place.below)
        || !is_unspoken(subject, place, directory, parent)
    {
        return false;
    }
    let Ok(patterns) = step::unmatched(subject, place) else { return false };
    let inode = directory.inode();
    cached.name(inode.number(), inode.generation());
    cache::put(
        cached,
        inode.links(),
        &place.below,
        step::plain_by(subject, patterns, &place.below),
    );
    true
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
    chain.cached = u32::from(chain.key.now(subject.slot, superblock));
    climb::climb(chain, directory);
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
    descend::descend(chain, subject, key);
    if chain.fault != 0 {
        return chain.fault;
    }
    if chain.cached != 0 {
        let inode = directory.inode();
        chain.key.name(inode.number(), inode.generation());
        let plain = step::plain(subject, &chain.place.below);
        cache::put(&chain.key, inode.links(), &chain.place.below, plain);
    }
    cache::copy(below, &chain.place.below);
    0
}

/// Copies rights, word by word: left to the compiler it becomes a loop over bytes. Both lie at a multiple
/// of eight.
#[inline(always)]
fn rights(to: &mut Rights, from: *const Rights) {
    let (to, from) = (core::ptr::from_mut(to).cast::<u64>(), from.cast::<u64>());
    // SAFETY: three words and a half of each.
    unsafe {
        to.write_volatile(from.read_volatile());
        to.add(1).write_volatile(from.add(1).read_volatile());
        to.add(2).write_volatile(from.add(2).read_volatile());
        to.add(3).cast::<u32>().write_volatile(from.add(3).cast::<u32>().read_volatile());
    }
}

const _: () = assert!(
    core::mem::offset_of!(Place, own) % 8 == 0
        && core::mem::offset_of!(Place, below) % 8 == 0
        && core::mem::offset_of!(Inherited, rights) % 8 == 0
        && core::mem::offset_of!(Root, own) % 8 == 0
);

/// A number of which the compiler knows nothing.
#[inline(always)]
pub(crate) fn opaque<T: Copy>(number: T) -> T {
    // SAFETY: a reference to a local.
    unsafe { core::ptr::read_volatile(&raw const number) }
}

/// What the policy says of a superblock's root. A function of its own, for its keys take much of the stack.
#[inline(never)]
fn root(slot: u32, superblock: SuperBlock) -> Option<&'static Root> {
    root_of(slot, superblock.dev(), superblock.magic())
}

/// The same by its number and its `s_magic`.
#[inline(always)]
fn root_of(slot: u32, dev: u32, magic: u64) -> Option<&'static Root> {
    // SAFETY: a map's value, read under RCU.
    let era = unsafe { DEATHS.get(dev) }.copied().unwrap_or(0);
    // SAFETY: entries are only added and removed whole, and a reader is under RCU.
    if let Some(root) = unsafe { ROOTS.get(RootKey { slot, dev, era }) } {
        return Some(root);
    }
    // What an unknown overlay shows may be anything that is protected where it lies.
    if vfs::shows_others(magic) {
        return None;
    }
    // SAFETY: as above.
    unsafe { ROOTS.get(RootKey { slot, dev: 0, era: 0 }) }
}

/// The names of `dentry` and its ancestors, for an event; null where there is no memory for them.
#[inline(always)]
pub(crate) fn names(dentry: DentryAddress) -> *mut Chain {
    let chain = CHAINS.of_current(true);
    if !chain.is_null() {
        // SAFETY: not null, and nobody else has this task's storage at hand.
        climb::all(unsafe { &mut *chain }, dentry);
    }
    chain
}
