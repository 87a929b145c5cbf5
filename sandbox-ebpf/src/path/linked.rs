//! Files that had more than one name before the session: a name in an open place does not open what
//! another, in a protected one, closes.

use crate::kernel::vfs::Dentry;
use crate::maps::LINKED;
use crate::subject::Member;
use sandbox_common::decide::Place;
use sandbox_common::path::LinkedKey;

/// Leaves `place` no more rights than the file's protected name has.
///
/// A file with one name is not looked up: whatever it is, this is all there is of it.
#[inline(always)]
pub(super) fn restrict(place: &mut Place, member: &Member, dentry: Dentry) {
    let inode = dentry.inode();
    if inode.links() < 2 {
        return;
    }
    let (slot, dev) = (member.subject.slot, dentry.superblock().dev());
    let key = LinkedKey { ino: inode.number(), slot, dev };
    // SAFETY: entries are only added and removed whole, and a reader is under RCU.
    if let Some(linked) = unsafe { LINKED.get(key) }
        && linked.is(inode.generation())
    {
        place.own = place.own.restrict(&linked.rights);
    }
}
