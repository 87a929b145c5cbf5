//! The quick look: what most members do most of the time is allowed, and the cache alone says so.
//!
//! It says yes or nothing. Whoever hears nothing takes the long way, [`place`](super::place), which finds
//! the rules as well and says no.

use super::{cache, fold};
use crate::kernel::vfs::{Dentry, Inode};
use crate::maps::ENDINGS;
use crate::seat::{self, Seat};
use crate::subject::Member;
use sandbox_common::Access;
use sandbox_common::path::WALK_DEPTH;

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFCHR: u32 = 0o020_000;
const S_IFBLK: u32 = 0o060_000;

/// Whether no glob of these patterns matches the name, as its ends already say. False says nothing.
#[inline(always)]
pub(super) fn is_plain(patterns: u32, dentry: Dentry) -> bool {
    let Some((first, last)) = dentry.ends() else { return false };
    let Some(endings) = ENDINGS.get(patterns) else { return false };
    !endings.may_match(first, last)
}

/// [`permits`] of a member that had no seat; from now on it has one.
#[inline(never)]
pub(crate) fn permits_now(member: &Member, dentry: Dentry, inode: Inode, wanted: Access) -> bool {
    match seat::take(member) {
        Some(seat) => permits(seat, dentry, inode, || wanted),
        None => false,
    }
}

/// Whether all of `wanted` is allowed of an object, whose inode may not exist yet.
#[inline(always)]
pub(crate) fn permits(
    seat: Seat,
    dentry: Dentry,
    inode: Inode,
    wanted: impl Fn() -> Access,
) -> bool {
    let kind = inode.mode() & S_IFMT;
    // Devices go by their number, and what has more than one name may be protected by another.
    if kind == S_IFCHR || kind == S_IFBLK || kind != S_IFDIR && inode.links() > 1 {
        return false;
    }
    let directory = dentry.parent();
    if directory.0 == dentry.0 {
        return false;
    }
    let Some(above) = cache::brief(seat.slot, dentry.superblock(), directory) else {
        return false;
    };
    if above.node != 0 || above.depth >= WALK_DEPTH as u32 {
        return false;
    }
    if above.pattern != 0
        && (fold::compare(directory) != fold::EXACTLY || !is_plain(seat.patterns, dentry))
    {
        return false;
    }
    wanted().bits() & !above.plain == 0
}
