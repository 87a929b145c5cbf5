//! Opening and truncating files.

use super::{member, memory, object};
use crate::finish;
use crate::kernel::vfs::{Dentry, File, Path};
use crate::maps::{DEVICES, PTYS};
use crate::nested::is_nested;
use crate::notes;
use crate::path;
use crate::seat;
use crate::subject::{self, Member};
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use sandbox_common::Access;
use sandbox_common::decide::{self, Decision};
use sandbox_common::event::{Hook, Reason};
use sandbox_common::path::DeviceKey;
use sandbox_common::subject::TaskState;

const S_IFMT: u32 = 0o170_000;
pub(super) const S_IFCHR: u32 = 0o020_000;
pub(super) const S_IFBLK: u32 = 0o060_000;
/// include/uapi/asm-generic/fcntl.h
const O_ACCMODE: u32 = 3;
/// `__FMODE_EXEC`, include/linux/fs.h: to be run, or read by the program that runs it.
const FMODE_EXEC: u32 = 1 << 5;
/// `__O_TMPFILE`, include/uapi/asm-generic/fcntl.h
const O_TMPFILE: u32 = 0o20_000_000;

/// `int security_file_open(struct file *file)`: open, openat2, `open_by_handle_at`, exec, `io_uring`,
/// and the reopening of an `O_PATH` descriptor. Runs after a new file was made.
#[lsm(hook = "file_open")]
pub(crate) fn file_open(ctx: LsmContext) -> i32 {
    let file = File(ctx.arg(0));
    judge(&ctx, 1, Hook::FileOpen, file, || {
        // Without a branch for each, which would double what the verifier follows.
        let flags = file.flags();
        let creates = (flags & O_TMPFILE) / O_TMPFILE * Access::CREATE.bits();
        let executes = (flags & FMODE_EXEC) / FMODE_EXEC * Access::EXECUTE.bits();
        opened_with(flags).union(Access::from_bits_retain(creates | executes))
    })
}

/// May the current task use this file so?
#[inline(always)]
pub(super) fn judge(
    ctx: &LsmContext,
    previous: usize,
    hook: Hook,
    file: File,
    wanted: impl Fn() -> Access,
) -> i32 {
    let verdict: i32 = ctx.arg(previous);
    if verdict != 0 {
        return verdict;
    }
    let seat = seat::current();
    if let Some(seat) = seat
        && path::quick::permits(seat, file.dentry(), file.inode(), &wanted)
    {
        return 0;
    }
    // In this function, not in one to be called: of the stack there is none left to spare.
    let Some(member) = subject::current() else { return 0 };
    if seat.is_none() && path::quick::permits_now(&member, file.dentry(), file.inode(), wanted()) {
        return 0;
    }
    match memory(hook, &member) {
        Ok(state) => open(state, hook, &member, file, wanted()),
        Err(verdict) => verdict,
    }
}

/// What a descriptor is good for.
#[inline(always)]
pub(super) fn opened_for(file: File) -> Access {
    opened_with(file.flags())
}

/// `OPEN_FMODE`, include/linux/fs.h: one more than the access mode is READ and WRITE. Access mode 3 gives
/// neither, only `ioctl`: it must be allowed both.
#[inline(always)]
fn opened_with(flags: u32) -> Access {
    // 0 to 2 become 1 to 3, and 3 stays.
    let mode = flags & O_ACCMODE;
    Access::from_bits_retain(mode + 1 - (mode & mode >> 1))
}

/// May the member use this file so?
#[inline(always)]
pub(super) fn open(
    state: &mut TaskState,
    hook: Hook,
    member: &Member,
    file: File,
    wanted: Access,
) -> i32 {
    let dentry = file.dentry();
    let superblock = dentry.superblock();
    if superblock.is_anonymous() {
        return 0;
    }
    let place = path::place_in(state, member, dentry, superblock);
    let decision = match device(member, dentry, wanted) {
        Some(decision) => decision,
        None => decide::access(place, wanted),
    };
    // A file of an overlay's layer, opened or copied for a member that may open it in the overlay.
    let is_noted = notes::wants(member, notes::opened(hook, wanted));
    if (!decision.allowed() || is_noted) && is_nested() {
        return 0;
    }
    finish::opened(hook, member, decision, wanted, dentry)
}

/// Devices go by their number, wherever their node lies. What is executed from one is read from it.
#[inline(always)]
fn device(member: &Member, dentry: Dentry, wanted: Access) -> Option<Decision> {
    let inode = dentry.inode();
    let kind = inode.mode() & S_IFMT;
    if kind != S_IFCHR && kind != S_IFBLK {
        return None;
    }
    let reads = wanted.intersects(Access::EXECUTE.union(Access::READ));
    let wanted = wanted.difference(Access::EXECUTE).union(if reads {
        Access::READ
    } else {
        Access::empty()
    });
    if member.fault != 0 {
        return Some(Decision { denied: wanted.bits() as u16, rule: 0, reason: member.fault });
    }
    let key = DeviceKey { slot: member.subject.slot, kind, dev: inode.rdev() };
    // SAFETY: entries are only added and removed whole, and a reader is under RCU.
    let allowed = match unsafe { DEVICES.get(key) } {
        Some(allowed) => *allowed,
        None if is_own_pty(member, dentry) => wanted.bits(),
        None => 0,
    };
    let denied = wanted.bits() & !allowed;
    Some(if denied == 0 {
        Decision::ALLOW
    } else {
        Decision::deny(Reason::Device, Access::from_bits_retain(denied))
    })
}

/// Whether a member of the same session made this pseudo-terminal.
#[inline(always)]
fn is_own_pty(member: &Member, dentry: Dentry) -> bool {
    let Some(key) = dentry.pty() else { return false };
    // SAFETY: as above.
    unsafe { PTYS.get(key) }.copied() == Some(member.cgroup)
}

/// `int security_path_truncate(const struct path *path)`: truncate(2); before 6.2 also `O_TRUNC`
/// and ftruncate(2).
#[lsm(hook = "path_truncate")]
pub(crate) fn path_truncate(ctx: LsmContext) -> i32 {
    let path = Path(ctx.arg(0));
    object(&ctx, 1, Hook::PathTruncate, path.dentry(), Access::WRITE)
}

/// `int security_file_truncate(struct file *file)`, 6.2 and later: `O_TRUNC` and ftruncate(2).
#[lsm(hook = "file_truncate")]
pub(crate) fn file_truncate(ctx: LsmContext) -> i32 {
    let file = File(ctx.arg(0));
    member(&ctx, 1, Hook::FileTruncate, |member, state| {
        let dentry = file.dentry();
        if dentry.superblock().is_anonymous() {
            return 0;
        }
        let place = path::place(state, member, dentry);
        let decision = decide::access(place, Access::WRITE);
        finish::path(Hook::FileTruncate, member, decision, dentry)
    })
}
