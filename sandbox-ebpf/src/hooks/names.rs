//! Making, moving and removing names.

use super::files::{S_IFBLK, S_IFCHR};
use super::{member, object};
use crate::finish;
use crate::kernel::vfs::{Dentry, InodeAddress};
use crate::path;
use crate::subject::Member;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use sandbox_common::Access;
use sandbox_common::decide::{self, Decision, Moved, Place};
use sandbox_common::event::{Hook, Reason};

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFLNK: u32 = 0o120_000;
/// include/uapi/linux/fs.h
const RENAME_EXCHANGE: u32 = 1 << 1;

/// `int security_path_mknod(const struct path *dir, struct dentry *dentry, umode_t mode,
/// unsigned int dev)`: `O_CREAT`, mknod(2) and the bind of a unix socket, before the file exists.
#[lsm(hook = "path_mknod")]
pub(crate) fn path_mknod(ctx: LsmContext) -> i32 {
    let dentry = Dentry(ctx.arg(1));
    let mode: u32 = ctx.arg(2);
    member(&ctx, 4, Hook::PathMknod, |member, state| {
        let place = path::place(state, member, dentry);
        let decision = if matches!(mode & S_IFMT, S_IFCHR | S_IFBLK) {
            Decision::deny(Reason::Device, Access::CREATE)
        } else {
            decide::access(place, Access::CREATE)
        };
        finish::path(Hook::PathMknod, member, decision, dentry)
    })
}

/// `int security_path_mkdir(const struct path *dir, struct dentry *dentry, umode_t mode)`
#[lsm(hook = "path_mkdir")]
pub(crate) fn path_mkdir(ctx: LsmContext) -> i32 {
    object(&ctx, 3, Hook::PathMkdir, Dentry(ctx.arg(1)), Access::CREATE)
}

/// `int security_path_symlink(const struct path *dir, struct dentry *dentry,
/// const char *old_name)`
#[lsm(hook = "path_symlink")]
pub(crate) fn path_symlink(ctx: LsmContext) -> i32 {
    let dentry = Dentry(ctx.arg(1));
    member(&ctx, 3, Hook::PathSymlink, |member, state| {
        let place = path::place(state, member, dentry);
        let decision = decide::symlink(place, path::is_guarded(member, place));
        finish::path(Hook::PathSymlink, member, decision, dentry)
    })
}

/// `int security_path_unlink(const struct path *dir, struct dentry *dentry)`
#[lsm(hook = "path_unlink")]
pub(crate) fn path_unlink(ctx: LsmContext) -> i32 {
    object(&ctx, 2, Hook::PathUnlink, Dentry(ctx.arg(1)), Access::DELETE)
}

/// `int security_path_rmdir(const struct path *dir, struct dentry *dentry)`
#[lsm(hook = "path_rmdir")]
pub(crate) fn path_rmdir(ctx: LsmContext) -> i32 {
    object(&ctx, 2, Hook::PathRmdir, Dentry(ctx.arg(1)), Access::DELETE)
}

/// `int security_path_link(struct dentry *old_dentry, const struct path *new_dir,
/// struct dentry *new_dentry)`: also `linkat` of an `O_TMPFILE` descriptor.
#[lsm(hook = "path_link")]
pub(crate) fn path_link(ctx: LsmContext) -> i32 {
    let old = Dentry(ctx.arg(0));
    let new = Dentry(ctx.arg(2));
    member(&ctx, 3, Hook::PathLink, |member, state| {
        path::places(state, member, old, new);
        let named = moved(member, old, &state.place);
        let (decision, is_new) = decide::linking(&state.first, &state.place, named);
        let told = if is_new || decision.allowed() { new } else { old };
        finish::path(Hook::PathLink, member, decision, told)
    })
}

/// `int security_path_rename(const struct path *old_dir, struct dentry *old_dentry,
/// const struct path *new_dir, struct dentry *new_dentry, unsigned int flags)`: runs once, for
/// `RENAME_EXCHANGE` too.
#[lsm(hook = "path_rename")]
pub(crate) fn path_rename(ctx: LsmContext) -> i32 {
    let old = Dentry(ctx.arg(1));
    let new = Dentry(ctx.arg(3));
    let flags: u32 = ctx.arg(4);
    member(&ctx, 5, Hook::PathRename, |member, state| {
        path::places(state, member, old, new);
        // The verifier takes it for granted that an argument has an inode, and drops the question (6.4 to 6.18,
        // see `Inode`): so it is asked of the address.
        let replaces = new.address().inode().is_none_or(InodeAddress::exists);
        let decided = decide::renaming(
            &state.first,
            &state.place,
            (moved(member, old, &state.place), moved(member, new, &state.first)),
            flags & RENAME_EXCHANGE != 0,
            replaces,
        );
        finish::renamed(member, decided, old, new)
    })
}

/// What an object is, that is to be at a place.
#[inline(always)]
fn moved(member: &Member, dentry: Dentry, to: &Place) -> Moved {
    match dentry.inode().mode() & S_IFMT {
        S_IFDIR => Moved::Directory,
        S_IFLNK => Moved::Link(path::is_guarded(member, to)),
        _ => Moved::Other,
    }
}
