//! Files in memory: stores through a shared mapping, and code.
//!
//! Every program start maps some twenty files, so what asks for neither returns at once.

use super::{files, member};
use crate::kernel::task;
use crate::kernel::vfs::{DentryAddress, File, Mapped};
use crate::subject::Member;
use crate::{finish, path};
use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::generated::bpf_get_func_arg;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use sandbox_common::Access;
use sandbox_common::decide;
use sandbox_common::event::Hook;
use sandbox_common::subject::TaskState;

/// `PROT_*`, include/uapi/asm-generic/mman-common.h
const READ: u64 = 1;
const WRITE: u64 = 2;
const EXEC: u64 = 4;
/// `MAP_SHARED`, and in `MAP_SHARED_VALIDATE`; include/uapi/linux/mman.h
const SHARED: u64 = 1;

/// What a mapping does to the file behind it. Without a branch, for each would double what the verifier follows.
#[inline(always)]
fn wanted(prot: u64, shared: bool) -> Access {
    const READS: u32 = Access::READ.union(Access::EXECUTE).bits();
    let writes = ((prot & WRITE) / WRITE) as u32 & u32::from(shared);
    let executes = ((prot & EXEC) / EXEC) as u32;
    Access::from_bits_retain((writes * Access::WRITE.bits()) | (executes * READS))
}

/// `int bpf_lsm_mmap_file(struct file *file, unsigned long reqprot, unsigned long prot,
/// unsigned long flags)`
#[lsm(hook = "mmap_file")]
pub(crate) fn mmap_file(ctx: LsmContext) -> i32 {
    let wanted = wanted(ctx.arg(2), ctx.arg::<u64>(3) & SHARED != 0);
    mapped(&ctx, 4, wanted)
}

/// `int security_mmap_file(struct file *file, unsigned long prot, unsigned long flags)`: what asks
/// the LSMs gets what the caller asked for.
#[lsm(hook = "mmap_file_of_three")]
pub(crate) fn mmap_file_of_three(ctx: LsmContext) -> i32 {
    let mut prot: u64 = ctx.arg(1);
    // The kernel adds it only then.
    if prot & READ != 0 && task::reading_implies_executing() {
        prot |= EXEC;
    }
    mapped(&ctx, 3, wanted(prot, ctx.arg::<u64>(2) & SHARED != 0))
}

#[inline(always)]
fn mapped(ctx: &LsmContext, previous: usize, wanted: Access) -> i32 {
    if wanted.is_empty() || is_anonymous(ctx) {
        return ctx.arg(previous);
    }
    let file = File(ctx.arg(0));
    // From 7.0 on the verifier knows that it can be null, and wants it to be looked at.
    if file.0.is_null() {
        return ctx.arg(previous);
    }
    judge(ctx, previous, Hook::MmapFile, file, wanted)
}

/// Whether there is no file. Asked of the number: before 7.0 the verifier takes the pointer for one
/// that is never null, removes the question and loads without a net.
#[inline(always)]
fn is_anonymous(ctx: &LsmContext) -> bool {
    let mut file = 0u64;
    // SAFETY: writes the argument to `file`.
    unsafe { bpf_get_func_arg(ctx.as_ptr(), 0, &raw mut file) };
    file == 0
}

/// `int security_file_mprotect(struct vm_area_struct *vma, unsigned long reqprot, unsigned long prot)`
#[lsm(hook = "file_mprotect")]
pub(crate) fn file_mprotect(ctx: LsmContext) -> i32 {
    let prot: u64 = ctx.arg(2);
    if prot & (WRITE | EXEC) == 0 {
        return ctx.arg(3);
    }
    let mapping = Mapped(ctx.arg(0));
    let wanted = wanted(prot, mapping.is_shared());
    if wanted.is_empty() {
        return ctx.arg(3);
    }
    let Some(file) = mapping.file() else { return ctx.arg(3) };
    let Some(shown) = file.shown_as() else {
        return judge(&ctx, 3, Hook::FileMprotect, file, wanted);
    };
    // What is mapped is the file of an overlay's layer; what was opened, and is judged, is the overlay's.
    member(&ctx, 3, Hook::FileMprotect, |member, state| shown_open(state, member, shown, wanted))
}

/// A function of its own, for the stack.
#[inline(never)]
fn shown_open(state: &mut TaskState, member: &Member, shown: DentryAddress, wanted: Access) -> i32 {
    let decision = decide::access(path::place_at(state, member, shown), wanted);
    finish::path_at(Hook::FileMprotect, member, decision, shown)
}

#[inline(always)]
fn judge(ctx: &LsmContext, previous: usize, hook: Hook, file: File, wanted: Access) -> i32 {
    files::judge(ctx, previous, hook, file, || wanted)
}
