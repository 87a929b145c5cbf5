//! The kernel itself, and what would undo the sandbox: refused for every member, root or not.

use super::attributes::change;
use super::never;
use crate::kernel::vfs::File;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use sandbox_common::Access;
use sandbox_common::event::Hook;

/// `int security_bpf(int cmd, union bpf_attr *attr, unsigned int size)`: every command. With only a
/// link's descriptor `BPF_LINK_DETACH` takes a cgroup program away.
#[lsm(hook = "bpf")]
pub(crate) fn bpf(_ctx: LsmContext) -> i32 {
    never(Hook::Bpf, Access::KERNEL)
}

/// `int security_perf_event_open(...)`: the prototype changed, no argument is read.
#[lsm(hook = "perf_event_open")]
pub(crate) fn perf_event_open(_ctx: LsmContext) -> i32 {
    never(Hook::PerfEventOpen, Access::KERNEL)
}

/// `int security_kernel_module_request(char *kmod_name)`: a module loaded on demand.
#[lsm(hook = "kernel_module_request")]
pub(crate) fn kernel_module_request(_ctx: LsmContext) -> i32 {
    never(Hook::KernelModuleRequest, Access::KERNEL)
}

/// `LOADING_MODULE`, `LOADING_KEXEC_IMAGE` and `LOADING_KEXEC_INITRAMFS`, which are the
/// `READING_*` of the same names, `include/linux/kernel_read_file.h`
const MODULE: i32 = 2;
const KEXEC_INITRAMFS: i32 = 4;

/// `int security_kernel_load_data(enum kernel_load_data_id id, bool contents)`: `init_module`,
/// `kexec_load`.
#[lsm(hook = "kernel_load_data")]
pub(crate) fn kernel_load_data(ctx: LsmContext) -> i32 {
    match ctx.arg::<i32>(0) {
        MODULE..=KEXEC_INITRAMFS => never(Hook::KernelLoadData, Access::KERNEL),
        _ => 0,
    }
}

/// `int security_kernel_read_file(struct file *file, enum kernel_read_file_id id, bool contents)`:
/// `finit_module`, `kexec_file_load`.
#[lsm(hook = "kernel_read_file")]
pub(crate) fn kernel_read_file(ctx: LsmContext) -> i32 {
    match ctx.arg::<i32>(1) {
        MODULE..=KEXEC_INITRAMFS => never(Hook::KernelReadFile, Access::KERNEL),
        _ => 0,
    }
}

/// `int security_uring_override_creds(const struct cred *new)`: a request under a personality, which
/// may have been registered by somebody else.
#[lsm(hook = "uring_override_creds")]
pub(crate) fn uring_override_creds(_ctx: LsmContext) -> i32 {
    never(Hook::UringOverrideCreds, Access::KERNEL)
}

/// `int security_syslog(int type)`: the kernel's log.
#[lsm(hook = "syslog")]
pub(crate) fn syslog(_ctx: LsmContext) -> i32 {
    never(Hook::Syslog, Access::KERNEL)
}

/// `int security_settime64(const struct timespec64 *ts, const struct timezone *tz)`
#[lsm(hook = "settime")]
pub(crate) fn settime(_ctx: LsmContext) -> i32 {
    never(Hook::Settime, Access::KERNEL)
}

/// `int security_quotactl(int cmds, int type, int id, ...)`: no argument is read.
#[lsm(hook = "quotactl")]
pub(crate) fn quotactl(_ctx: LsmContext) -> i32 {
    never(Hook::Quotactl, Access::KERNEL)
}

/// include/uapi/asm-generic/ioctls.h: types into the terminal; pastes a selection into the console.
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;
/// include/uapi/linux/fs.h: `chattr`; the second is what a 32-bit program calls.
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC32_SETFLAGS: u32 = 0x4004_6602;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;
const FS_IOC_SETVERSION: u32 = 0x4008_7602;
const FS_IOC32_SETVERSION: u32 = 0x4004_7602;
/// include/uapi/linux/fsverity.h: makes a file unchangeable, through a descriptor for reading.
const FS_IOC_ENABLE_VERITY: u32 = 0x4080_6685;
/// include/uapi/linux/fscrypt.h
const FS_IOC_SET_ENCRYPTION_POLICY: u32 = 0x800c_6613;
/// `include/uapi/linux/msdos_fs.h`
const FAT_IOCTL_SET_ATTRIBUTES: u32 = 0x4004_7211;
/// include/uapi/linux/btrfs.h: btrfs makes, copies and removes whole trees of names by `ioctl` of a
/// directory that is open for reading.
const BTRFS_IOCTL_MAGIC: u32 = 0x94;
/// include/uapi/asm-generic/ioctl.h: what only tells something.
const IOC_READ: u32 = 2;
/// The numbers of that kind that every file system has, include/uapi/linux/fs.h: they write to a
/// descriptor that is open for writing.
const FICLONE: u32 = 0x4004_9409;
const FICLONERANGE: u32 = 0x4020_940d;
const FIDEDUPERANGE: u32 = 0xc018_9436;

/// `int security_file_ioctl(struct file *file, unsigned int cmd, unsigned long arg)`
#[lsm(hook = "file_ioctl")]
pub(crate) fn file_ioctl(ctx: LsmContext) -> i32 {
    ioctl(&ctx, Hook::FileIoctl)
}

/// `int security_file_ioctl_compat(struct file *file, unsigned int cmd, unsigned long arg)`, 6.8 and
/// later; before that the kernel asks `file_ioctl` for 32-bit programs too.
#[lsm(hook = "file_ioctl_compat")]
pub(crate) fn file_ioctl_compat(ctx: LsmContext) -> i32 {
    ioctl(&ctx, Hook::FileIoctlCompat)
}

#[inline(always)]
fn ioctl(ctx: &LsmContext, hook: Hook) -> i32 {
    match ctx.arg::<u32>(1) {
        TIOCSTI | TIOCLINUX => never(hook, Access::TYPE),
        FS_IOC_SETFLAGS
        | FS_IOC32_SETFLAGS
        | FS_IOC_FSSETXATTR
        | FS_IOC_SETVERSION
        | FS_IOC32_SETVERSION
        | FS_IOC_ENABLE_VERITY
        | FS_IOC_SET_ENCRYPTION_POLICY
        | FAT_IOCTL_SET_ATTRIBUTES => change(ctx, 3, hook, File(ctx.arg(0)).dentry()),
        FICLONE | FICLONERANGE | FIDEDUPERANGE => 0,
        number if number >> 8 & 0xff == BTRFS_IOCTL_MAGIC && number >> 30 != IOC_READ => {
            never(hook, Access::WRITES)
        }
        _ => 0,
    }
}
