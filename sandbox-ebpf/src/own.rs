//! What is the member's own, where its policy knows no place.
//!
//! Asked only when something would be denied, so that what is allowed pays nothing.

use crate::kernel::task;
use crate::kernel::vfs::Dentry;
use crate::maps::{OBJECTS, Object};
use sandbox_common::Access;
use sandbox_common::event::Reason;
use sandbox_common::subject::TaskState;

/// Whether the decision in `state`, a denial for want of a rule, is about something that nobody but the session has.
///
/// - A memory file system that a member mounted: it began empty, so all in it is the session's. Programs
///   are run there only where everything may be run.
/// - What the kernel lets a task write about itself, `/proc/self/uid_map` and the like.
///
/// A function of its own, so that the verifier goes on from here in one way, not in one for each answer.
#[inline(never)]
pub(crate) fn is_own(cgroup: u64, state: &TaskState, dentry: Dentry) -> bool {
    let decision = state.decision;
    let denied = u32::from(decision.denied);
    let unknown = decision.reason == Reason::UnknownFilesystem as u16;
    if !unknown && decision.reason != Reason::Default as u16 {
        return false;
    }
    let superblock = dentry.superblock();
    if superblock.is_proc() {
        // Opened with `O_CREAT`, a file that is there is asked about before it is looked for.
        let inode = dentry.inode();
        let inode = if inode.exists() { inode } else { dentry.parent().inode() };
        let writes = Access::WRITE.union(Access::CREATE).bits();
        return denied & !writes == 0 && task::is_current(inode.process());
    }
    if !unknown || denied & Access::EXECUTE.bits() != 0 {
        return false;
    }
    // SAFETY: a number, read under RCU.
    unsafe { OBJECTS.get(Object::Superblock.at(superblock.address())) }.copied() == Some(cgroup)
}
