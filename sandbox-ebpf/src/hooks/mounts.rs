//! Mounts and user namespaces: refused, unless the policy permits them.
//!
//! The path rules do not look at mounts, so this is not what keeps them true; it keeps a member from
//! serving itself other files (an overlay over a protected directory) and from taking the pins away
//! with an unmount. Where namespaces are permitted, a member mounts only what cannot do that: binds, memory,
//! and what shows the kernel. Without privilege over the whole machine, which no agent has, it unmounts
//! only in its own namespace.

use crate::finish;
use crate::kernel::task;
use crate::kernel::vfs::{Mounting, SuperBlock};
use crate::maps::{OBJECTS, Object};
use crate::path::cache;
use crate::subject::{self, Member};
use aya_ebpf::helpers::generated::bpf_probe_read_kernel_str;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use core::ffi::c_void;
use sandbox_common::Access;
use sandbox_common::decide::Decision;
use sandbox_common::event::{Hook, Reason};

/// `MS_REMOUNT`, `MS_BIND`, `MS_MOVE`, `MS_UNBINDABLE`, `MS_PRIVATE`, `MS_SLAVE`, `MS_SHARED`,
/// include/uapi/linux/mount.h: with these nothing new is mounted.
const CHANGES: u64 = 1 << 5 | 1 << 12 | 1 << 13 | 1 << 17 | 1 << 18 | 1 << 19 | 1 << 20;

/// What a member may mount, see [`SuperBlock::mountable`].
const TYPES: [&[u8; 8]; 6] =
    [b"tmpfs\0\0\0", b"devpts\0\0", b"mqueue\0\0", b"proc\0\0\0\0", b"sysfs\0\0\0", b"cgroup2\0"];

/// What changes the directories that it is to be laid over before it is mounted.
const STACKED: [&[u8; 8]; 2] = [b"overlay\0", b"aufs\0\0\0\0"];

/// Whether the name of a type, at a kernel address, is one of these. Longer ones are compared by their
/// first seven characters, which none of the listed is the beginning of.
#[inline(always)]
fn is_one_of<const COUNT: usize>(types: [&[u8; 8]; COUNT], name: u64) -> bool {
    let mut text = [0u8; 8];
    // SAFETY: the helper writes at most as many bytes as there are.
    let read =
        unsafe { bpf_probe_read_kernel_str(text.as_mut_ptr().cast(), 8, name as *const c_void) };
    if read <= 1 {
        return false;
    }
    let text = u64::from_ne_bytes(text);
    let mut found = false;
    for name in types {
        found |= text == u64::from_ne_bytes(*name);
    }
    found
}

/// Whether the policy permits mounts, and the member can only make them in a namespace of its own.
#[inline(always)]
fn may_mount(member: &Member) -> bool {
    member.may_mount() && !task::is_privileged()
}

/// What is permitted whole or refused whole.
#[inline(always)]
fn permitted(ctx: &LsmContext, previous: usize, hook: Hook) -> i32 {
    judge(ctx, previous, hook, || true)
}

#[inline(always)]
fn judge(ctx: &LsmContext, previous: usize, hook: Hook, harmless: impl FnOnce() -> bool) -> i32 {
    let verdict: i32 = ctx.arg(previous);
    if verdict != 0 {
        return verdict;
    }
    let Some(member) = subject::current() else { return 0 };
    if may_mount(&member) && harmless() {
        return 0;
    }
    finish::task(hook, &member, Decision::deny(Reason::Never, Access::MOUNT))
}

/// `int security_sb_mount(const char *dev_name, const struct path *path, const char *type,
/// unsigned long flags, void *data)`
#[lsm(hook = "sb_mount")]
pub(crate) fn sb_mount(ctx: LsmContext) -> i32 {
    let (name, flags): (u64, u64) = (ctx.arg(2), ctx.arg(3));
    judge(&ctx, 5, Hook::SbMount, || flags & CHANGES != 0 || is_one_of(TYPES, name))
}

/// `int security_fs_context_parse_param(struct fs_context *fc, struct fs_parameter *param)`: before the
/// file system does anything. By the time it is mounted an overlay has made and removed directories.
#[lsm(hook = "fs_context_parse_param")]
pub(crate) fn fs_context_parse_param(ctx: LsmContext) -> i32 {
    // Passing it on is no answer, so nothing of an earlier verdict is seen here.
    let Some(member) = subject::current() else { return 0 };
    if !is_one_of(STACKED, Mounting(ctx.arg(0)).type_name()) {
        return 0;
    }
    let decision = Decision::deny(Reason::Never, Access::MOUNT);
    finish::task(Hook::FsContextParseParam, &member, decision)
}

/// `int security_sb_remount(struct super_block *sb, void *mnt_opts)`
#[lsm(hook = "sb_remount")]
pub(crate) fn sb_remount(ctx: LsmContext) -> i32 {
    permitted(&ctx, 2, Hook::SbRemount)
}

/// `int security_sb_kern_mount(struct super_block *sb)`: mount(2) of a file system, fsmount(2). The
/// superblock may have the device number of one that is gone.
#[lsm(hook = "sb_kern_mount")]
pub(crate) fn sb_kern_mount(ctx: LsmContext) -> i32 {
    cache::forget();
    let verdict: i32 = ctx.arg(1);
    if verdict != 0 {
        return verdict;
    }
    let Some(member) = subject::current() else { return 0 };
    let superblock = SuperBlock::at(ctx.arg(0));
    match superblock.mountable() {
        Some(own) if may_mount(&member) => {
            // Without an entry it is a file system that the policy does not know.
            let object = Object::Superblock.at(superblock.address());
            if own && OBJECTS.insert(object, member.cgroup, 0).is_err() {
                let decision = Decision::deny(Reason::NoMemory, Access::MOUNT);
                return finish::task(Hook::SbKernMount, &member, decision);
            }
            0
        }
        _ => {
            let decision = Decision::deny(Reason::Never, Access::MOUNT);
            finish::task(Hook::SbKernMount, &member, decision)
        }
    }
}

/// `int security_sb_umount(struct vfsmount *mnt, int flags)`
#[lsm(hook = "sb_umount")]
pub(crate) fn sb_umount(ctx: LsmContext) -> i32 {
    permitted(&ctx, 2, Hook::SbUmount)
}

/// `int security_sb_pivotroot(const struct path *old_path, const struct path *new_path)`
#[lsm(hook = "sb_pivotroot")]
pub(crate) fn sb_pivotroot(ctx: LsmContext) -> i32 {
    permitted(&ctx, 2, Hook::SbPivotroot)
}

/// `int security_move_mount(const struct path *from_path, const struct path *to_path)`
#[lsm(hook = "move_mount")]
pub(crate) fn move_mount(ctx: LsmContext) -> i32 {
    permitted(&ctx, 2, Hook::MoveMount)
}

/// `int security_create_user_ns(const struct cred *cred)`, 6.1 and later.
#[lsm(hook = "userns_create")]
pub(crate) fn userns_create(ctx: LsmContext) -> i32 {
    permitted(&ctx, 1, Hook::UsernsCreate)
}
