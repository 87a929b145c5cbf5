//! Mode, owner, times, flags, extended attributes and access lists.
//!
//! The `path_*` hooks are called at the system call's border only; the `inode_*` hooks also for what a
//! file system does for itself ([`nested`](crate::nested)).

use super::member;
use crate::finish;
use crate::kernel::vfs::{Attributes, Dentry, Path};
use crate::nested::is_nested;
use crate::notes;
use crate::path;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use sandbox_common::Access;
use sandbox_common::decide;
use sandbox_common::event::Hook;

/// Anonymous memory, pipes and sockets have attributes and no place: they are the task's own.
#[inline(always)]
pub(super) fn change(ctx: &LsmContext, previous: usize, hook: Hook, dentry: Dentry) -> i32 {
    member(ctx, previous, hook, |member, state| {
        if dentry.superblock().is_anonymous() {
            return 0;
        }
        let place = path::place(state, member, dentry);
        let decision = decide::access(place, Access::ATTRIBUTES);
        let is_noted = notes::wants(member, Access::ATTRIBUTES);
        if (!decision.allowed() || is_noted) && is_nested() {
            return 0;
        }
        finish::path(hook, member, decision, dentry)
    })
}

/// `int security_path_chmod(const struct path *path, umode_t mode)`
#[lsm(hook = "path_chmod")]
pub(crate) fn path_chmod(ctx: LsmContext) -> i32 {
    change(&ctx, 2, Hook::PathChmod, Path(ctx.arg(0)).dentry())
}

/// `int security_path_chown(const struct path *path, kuid_t uid, kgid_t gid)`
#[lsm(hook = "path_chown")]
pub(crate) fn path_chown(ctx: LsmContext) -> i32 {
    change(&ctx, 3, Hook::PathChown, Path(ctx.arg(0)).dentry())
}

/// `int security_inode_setattr(struct mnt_idmap *idmap, struct dentry *dentry, struct iattr *attr)`;
/// the first was a `struct user_namespace *` before 6.3.
#[lsm(hook = "inode_setattr")]
pub(crate) fn inode_setattr(ctx: LsmContext) -> i32 {
    times(&ctx, 3, Dentry(ctx.arg(1)), Attributes(ctx.arg(2)))
}

/// `int bpf_lsm_inode_setattr(struct dentry *dentry, struct iattr *attr)`: before 6.3 the LSMs did not
/// get the first argument of the function that asks them.
#[lsm(hook = "inode_setattr_of_two")]
pub(crate) fn inode_setattr_of_two(ctx: LsmContext) -> i32 {
    times(&ctx, 2, Dentry(ctx.arg(0)), Attributes(ctx.arg(1)))
}

/// utimes(2) and its kin have no `path_*` hook; mode, owner and size do.
#[inline(always)]
fn times(ctx: &LsmContext, previous: usize, dentry: Dentry, attributes: Attributes) -> i32 {
    if attributes.are_times() {
        change(ctx, previous, Hook::InodeSetattr, dentry)
    } else {
        ctx.arg(previous)
    }
}

/// `int security_inode_setxattr(struct mnt_idmap *idmap, struct dentry *dentry, const char *name,
/// const void *value, size_t size, int flags)`; before 6.2 access lists too.
#[lsm(hook = "inode_setxattr")]
pub(crate) fn inode_setxattr(ctx: LsmContext) -> i32 {
    change(&ctx, 6, Hook::InodeSetxattr, Dentry(ctx.arg(1)))
}

/// `int security_inode_removexattr(struct mnt_idmap *idmap, struct dentry *dentry, const char *name)`;
/// before 6.2 access lists too.
#[lsm(hook = "inode_removexattr")]
pub(crate) fn inode_removexattr(ctx: LsmContext) -> i32 {
    change(&ctx, 3, Hook::InodeRemovexattr, Dentry(ctx.arg(1)))
}

/// `int security_inode_set_acl(struct mnt_idmap *idmap, struct dentry *dentry, const char *acl_name,
/// struct posix_acl *kacl)`, 6.2 and later.
#[lsm(hook = "inode_set_acl")]
pub(crate) fn inode_set_acl(ctx: LsmContext) -> i32 {
    change(&ctx, 4, Hook::InodeSetAcl, Dentry(ctx.arg(1)))
}

/// `int security_inode_remove_acl(struct mnt_idmap *idmap, struct dentry *dentry,
/// const char *acl_name)`, 6.2 and later.
#[lsm(hook = "inode_remove_acl")]
pub(crate) fn inode_remove_acl(ctx: LsmContext) -> i32 {
    change(&ctx, 3, Hook::InodeRemoveAcl, Dentry(ctx.arg(1)))
}

/// `int security_inode_file_setattr(struct dentry *dentry, struct file_kattr *fa)`, 6.17 and later:
/// flags and project, by `file_setattr(2)` and by `ioctl`.
#[lsm(hook = "inode_file_setattr")]
pub(crate) fn inode_file_setattr(ctx: LsmContext) -> i32 {
    change(&ctx, 2, Hook::InodeFileSetattr, Dentry(ctx.arg(0)))
}
