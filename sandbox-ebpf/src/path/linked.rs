//! Files that had more than one name before the session: a name in an open place does not open what
//! another, in a protected one, closes.

use crate::kernel::vfs::{Dentry, DentryAddress};
use crate::maps::LINKED;
use sandbox_common::event::Reason;
use sandbox_common::path::{LinkedKey, Rights};

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;

/// Leaves an object, whose rights are `own`, no more of them than its protected name has.
///
/// A file with one name is not looked up: whatever it is, this is all there is of it. Links of a directory
/// are no names of it.
#[inline(never)]
pub(super) fn restrict(own: &mut Rights, slot: u32, dentry: Dentry) {
    let inode = dentry.inode();
    if inode.links() < 2 || inode.mode() & S_IFMT == S_IFDIR {
        return;
    }
    let key = LinkedKey { ino: inode.number(), slot, dev: dentry.superblock().dev() };
    by_key(own, &key, inode.generation());
}

/// The same where only the address is known. Returns 0 or the fault.
#[inline(never)]
pub(super) fn restrict_at(own: &mut Rights, slot: u32, dentry: DentryAddress) -> u32 {
    let (Some(inode), Some(superblock)) = (dentry.inode(), dentry.superblock()) else {
        return Reason::Unreadable as u32;
    };
    let (Some(links), Some(mode), Some(ino), Some(generation), Some(dev)) =
        (inode.links(), inode.mode(), inode.number(), inode.generation(), superblock.dev())
    else {
        return Reason::Unreadable as u32;
    };
    if links > 1 && mode & S_IFMT != S_IFDIR {
        by_key(own, &LinkedKey { ino, slot, dev }, generation);
    }
    0
}

#[inline(always)]
fn by_key(own: &mut Rights, key: &LinkedKey, generation: u32) {
    // SAFETY: entries are only added and removed whole, and a reader is under RCU.
    if let Some(linked) = unsafe { LINKED.get(key) }
        && linked.is(generation)
    {
        own.restrict(&linked.rights);
    }
}
