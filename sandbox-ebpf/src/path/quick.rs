//! The quick look: what most members do most of the time is allowed, and the cache alone says so.
//!
//! It says yes or nothing. Whoever hears nothing takes the long way, [`place`](super::place), which finds
//! the rules as well and says no.

use super::{cache, classify, fold, step};
use crate::kernel::vfs::{Dentry, Inode};
use crate::subject::Member;
use sandbox_common::Access;
use sandbox_common::path::WALK_DEPTH;

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFCHR: u32 = 0o020_000;
const S_IFBLK: u32 = 0o060_000;

/// Whether all of `wanted` is allowed of an object, whose inode may not exist yet.
#[inline(always)]
pub(crate) fn permits(member: &Member, dentry: Dentry, inode: Inode, wanted: Access) -> bool {
    if member.fault != 0 {
        return false;
    }
    let kind = inode.mode() & S_IFMT;
    // Devices go by their number, and what has more than one name may be protected by another.
    if kind == S_IFCHR || kind == S_IFBLK || kind != S_IFDIR && inode.links() > 1 {
        return false;
    }
    let directory = dentry.parent();
    if directory.0 == dentry.0 {
        return false;
    }
    let subject = member.subject;
    let Some(above) = cache::brief(subject.slot, dentry.superblock(), directory) else {
        return false;
    };
    if above.node != 0 || above.depth >= WALK_DEPTH as u32 {
        return false;
    }
    if above.pattern != 0 {
        if fold::compare(directory) != fold::EXACTLY {
            return false;
        }
        let len = dentry.name_len();
        let Some((first, last)) = dentry.ends(len) else { return false };
        let Some(patterns) = step::patterns(subject.patterns) else { return false };
        if !classify::matches_none(patterns, first, last, len) {
            return false;
        }
    }
    wanted.bits() & !above.plain == 0
}
