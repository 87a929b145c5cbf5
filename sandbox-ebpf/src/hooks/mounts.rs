//! Mounts and user namespaces: refused for every member.
//!
//! The path rules do not look at mounts, so this is not what keeps them true; it keeps a member from
//! serving itself other files (an overlay over a protected directory) and from taking the pins away
//! with an unmount.

use super::{directories, never};
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use sandbox_common::Access;
use sandbox_common::event::Hook;

/// `int security_sb_mount(const char *dev_name, const struct path *path, const char *type,
/// unsigned long flags, void *data)`
#[lsm(hook = "sb_mount")]
pub(crate) fn sb_mount(_ctx: LsmContext) -> i32 {
    never(Hook::SbMount, Access::MOUNT)
}

/// `int security_sb_remount(struct super_block *sb, void *mnt_opts)`
#[lsm(hook = "sb_remount")]
pub(crate) fn sb_remount(_ctx: LsmContext) -> i32 {
    never(Hook::SbRemount, Access::MOUNT)
}

/// `int security_sb_kern_mount(struct super_block *sb)`: mount(2) of a file system, fsmount(2). The
/// superblock may have the device number of one that is gone.
#[lsm(hook = "sb_kern_mount")]
pub(crate) fn sb_kern_mount(_ctx: LsmContext) -> i32 {
    directories::raise();
    never(Hook::SbKernMount, Access::MOUNT)
}

/// `int security_sb_umount(struct vfsmount *mnt, int flags)`
#[lsm(hook = "sb_umount")]
pub(crate) fn sb_umount(_ctx: LsmContext) -> i32 {
    never(Hook::SbUmount, Access::MOUNT)
}

/// `int security_sb_pivotroot(const struct path *old_path, const struct path *new_path)`
#[lsm(hook = "sb_pivotroot")]
pub(crate) fn sb_pivotroot(_ctx: LsmContext) -> i32 {
    never(Hook::SbPivotroot, Access::MOUNT)
}

/// `int security_move_mount(const struct path *from_path, const struct path *to_path)`
#[lsm(hook = "move_mount")]
pub(crate) fn move_mount(_ctx: LsmContext) -> i32 {
    never(Hook::MoveMount, Access::MOUNT)
}

/// `int security_create_user_ns(const struct cred *cred)`, 6.1 and later.
#[lsm(hook = "userns_create")]
pub(crate) fn userns_create(_ctx: LsmContext) -> i32 {
    never(Hook::UsernsCreate, Access::MOUNT)
}
