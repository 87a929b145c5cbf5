//! When directories may have another place than before: the node cache starts anew.
//!
//! The beginning of a rename is told by an LSM hook, its end by the return of the function that every rename
//! goes through, whoever asks for it, so that nothing that was found before can be used after. New
//! superblocks may lie where one was that is gone: see `mounts::sb_kern_mount`.

use crate::kernel::task;
use crate::kernel::vfs::{Dentry, Renaming};
use crate::maps::MOVES;
use crate::path::cache;
use aya_ebpf::macros::{fexit, lsm};
use aya_ebpf::programs::{FExitContext, LsmContext};

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;

/// `int security_inode_rename(struct inode *old_dir, struct dentry *old_dentry, struct inode *new_dir,
/// struct dentry *new_dentry, unsigned int flags)`: in `vfs_rename`, which goes on unless another LSM refuses.
/// The hook of that name has no `flags` and comes twice for an exchange.
#[lsm(hook = "inode_rename")]
pub(crate) fn inode_rename(ctx: LsmContext) -> i32 {
    if moves(Dentry(ctx.arg(1)), Dentry(ctx.arg(3))) {
        // A task renames one thing at a time. Where there is no room for the note, the end is not known.
        let task = task::pid_tgid();
        // SAFETY: a number, read under RCU.
        let begun = unsafe { MOVES.get(task) }.is_some();
        if !begun {
            let _ = MOVES.insert(task, 0, 0);
            cache::begin();
        }
    }
    0
}

/// `int vfs_rename(struct renamedata *rd)`, fs/namei.c.
#[fexit(function = "vfs_rename")]
pub(crate) fn vfs_rename(ctx: FExitContext) -> i32 {
    let renaming = Renaming(ctx.arg(0));
    if moves(renaming.dentry(), renaming.other()) && MOVES.remove(task::pid_tgid()).is_ok() {
        cache::end();
    }
    0
}

/// Whether a directory moves. An exchange may move one the other way, so only the rename of a plain file
/// that replaces nothing but plain files leaves the cache alone.
#[inline(always)]
fn moves(old: Dentry, new: Dentry) -> bool {
    is_directory(old.inode().mode()) || is_directory(new.inode().mode())
}

#[inline(always)]
fn is_directory(mode: u32) -> bool {
    mode & S_IFMT == S_IFDIR
}
