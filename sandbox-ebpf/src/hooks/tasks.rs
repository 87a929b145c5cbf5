//! Birth of tasks.

use crate::finish;
use crate::subject;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use core::ffi::c_void;
use sandbox_common::Access;
use sandbox_common::decide::Decision;
use sandbox_common::event::{Hook, Reason};

/// include/uapi/linux/sched.h
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// `int security_task_alloc(struct task_struct *task, unsigned long clone_flags)`: the child
/// exists but does not run yet.
///
/// The label is inherited. A birth in another cgroup is refused: a descriptor open for reading is
/// enough to ask for it, so guarding writes to `cgroup.procs` would not do.
#[lsm(hook = "task_alloc")]
pub(crate) fn task_alloc(ctx: LsmContext) -> i32 {
    let verdict: i32 = ctx.arg(2);
    if verdict != 0 {
        return verdict;
    }
    let Some(member) = subject::current() else { return 0 };
    let child: *mut c_void = ctx.arg(0);
    let flags: u64 = ctx.arg(1);
    let decision = if flags & CLONE_INTO_CGROUP != 0 {
        Decision::deny(Reason::IntoCgroup, Access::empty())
    } else if !subject::label(child, &member) {
        Decision::deny(Reason::NoMemory, Access::empty())
    } else {
        Decision::ALLOW
    };
    finish::task(Hook::TaskAlloc, &member, decision)
}
