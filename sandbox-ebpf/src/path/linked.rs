//! Files that had more than one name before the session: a name in an open place does not open what
//! another, in a protected one, closes.

use crate::kernel::vfs::Dentry;
use crate::maps::LINKED;
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
    // SAFETY: entries are only added and removed whole, and a reader is under RCU.
    if let Some(linked) = unsafe { LINKED.get(key) }
        && linked.is(inode.generation())
    {
        own.restrict(&linked.rights);
    }
}
