//! When directories may have another place than before: the node cache starts anew.
//!
//! On return of the functions that every rename and removal goes through, whoever asks for it, so that
//! nothing that was found before can be used after. New superblocks may have the device number of one
//! that is gone: see `mounts::sb_kern_mount`.

use crate::kernel::task;
use crate::kernel::vfs::Renaming;
use crate::maps::EPOCH;
use aya_ebpf::macros::fexit;
use aya_ebpf::programs::FExitContext;
use core::ptr;

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;

/// `int vfs_rename(struct renamedata *rd)`, fs/namei.c. An exchange may move a directory the other way,
/// so only the rename of a plain file that replaces nothing but plain files leaves the epoch alone.
#[fexit(function = "vfs_rename")]
pub(crate) fn vfs_rename(ctx: FExitContext) -> i32 {
    let renaming = Renaming(ctx.arg(0));
    if is_directory(renaming.dentry().inode().mode())
        || is_directory(renaming.other().inode().mode())
    {
        raise();
    }
    0
}

/// `int vfs_rmdir(…)`, fs/namei.c.
#[fexit(function = "vfs_rmdir")]
pub(crate) fn vfs_rmdir(_ctx: FExitContext) -> i32 {
    raise();
    0
}

#[inline(always)]
fn is_directory(mode: u32) -> bool {
    mode & S_IFMT == S_IFDIR
}

/// From now on nothing found before is used.
///
/// The epoch is the time, for that is a number that it never had: a counter without atomic addition
/// could be set back by a task that was interrupted between reading and writing it.
#[inline(always)]
pub(super) fn raise() {
    if let Some(epoch) = EPOCH.get_ptr_mut(0) {
        // SAFETY: a map's value, aligned.
        unsafe { ptr::write_volatile(epoch, task::boot_time()) };
    }
}
