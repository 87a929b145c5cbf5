//! Mode and owner.

use super::object;
use crate::kernel::vfs::Path;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use sandbox_common::Access;
use sandbox_common::event::Hook;

/// `int security_path_chmod(const struct path *path, umode_t mode)`
#[lsm(hook = "path_chmod")]
pub(crate) fn path_chmod(ctx: LsmContext) -> i32 {
    object(&ctx, 2, Hook::PathChmod, Path(ctx.arg(0)).dentry(), Access::ATTRIBUTES)
}

/// `int security_path_chown(const struct path *path, kuid_t uid, kgid_t gid)`
#[lsm(hook = "path_chown")]
pub(crate) fn path_chown(ctx: LsmContext) -> i32 {
    object(&ctx, 3, Hook::PathChown, Path(ctx.arg(0)).dentry(), Access::ATTRIBUTES)
}
