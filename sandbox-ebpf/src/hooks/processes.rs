//! What a member does to another process: its own session is free, outsiders are out of reach.

use crate::finish;
use crate::kernel::task::Task;
use crate::subject;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use sandbox_common::Access;
use sandbox_common::decide::Decision;
use sandbox_common::event::{Hook, Reason};

const EPERM: i32 = 1;
/// include/linux/ptrace.h: the kernel only asks, nobody is to be told.
const PTRACE_MODE_NOAUDIT: u32 = 4;

/// The target is the hook's argument `target`, the earlier verdict its argument `previous`.
#[inline(always)]
fn judge(
    ctx: &LsmContext,
    target: usize,
    previous: usize,
    hook: Hook,
    access: Access,
    request: u32,
) -> i32 {
    let verdict: i32 = ctx.arg(previous);
    if verdict != 0 {
        return verdict;
    }
    let Some(member) = subject::current() else { return 0 };
    let task = Task(ctx.arg(target));
    if member.fault == 0 && subject::is_fellow(task, &member) {
        return 0;
    }
    let quiet = matches!(hook, Hook::PtraceAccessCheck) && request & PTRACE_MODE_NOAUDIT != 0;
    if quiet {
        return -EPERM;
    }
    finish::process(hook, &member, Decision::deny(Reason::Outsider, access), task, request)
}

/// `int security_ptrace_access_check(struct task_struct *child, unsigned int mode)`: ptrace,
/// `process_vm_*`, `pidfd_getfd`, and `/proc/<pid>/{environ,mem,maps,root,cwd,fd}`.
#[lsm(hook = "ptrace_access_check")]
pub(crate) fn ptrace_access_check(ctx: LsmContext) -> i32 {
    let mode: u32 = ctx.arg(1);
    judge(&ctx, 0, 2, Hook::PtraceAccessCheck, Access::TRACE, mode)
}

/// `int security_ptrace_traceme(struct task_struct *parent)`
#[lsm(hook = "ptrace_traceme")]
pub(crate) fn ptrace_traceme(ctx: LsmContext) -> i32 {
    judge(&ctx, 0, 1, Hook::PtraceTraceme, Access::TRACE, 0)
}

/// `int security_task_kill(struct task_struct *p, struct kernel_siginfo *info, int sig,
/// const struct cred *cred)`: kill(2) and its kin, signal 0 too.
#[lsm(hook = "task_kill")]
pub(crate) fn task_kill(ctx: LsmContext) -> i32 {
    let signal: u32 = ctx.arg(2);
    judge(&ctx, 0, 4, Hook::TaskKill, Access::SIGNAL, signal)
}

/// `int security_task_setnice(struct task_struct *p, int nice)`
#[lsm(hook = "task_setnice")]
pub(crate) fn task_setnice(ctx: LsmContext) -> i32 {
    judge(&ctx, 0, 2, Hook::TaskSetnice, Access::CONTROL, 0)
}

/// `int security_task_setioprio(struct task_struct *p, int ioprio)`
#[lsm(hook = "task_setioprio")]
pub(crate) fn task_setioprio(ctx: LsmContext) -> i32 {
    judge(&ctx, 0, 2, Hook::TaskSetioprio, Access::CONTROL, 0)
}

/// `int security_task_setscheduler(struct task_struct *p)`: policy, priority and affinity.
#[lsm(hook = "task_setscheduler")]
pub(crate) fn task_setscheduler(ctx: LsmContext) -> i32 {
    judge(&ctx, 0, 1, Hook::TaskSetscheduler, Access::CONTROL, 0)
}

/// `int security_task_setrlimit(struct task_struct *p, unsigned int resource,
/// struct rlimit *new_rlim)`: setrlimit(2) and prlimit(2).
#[lsm(hook = "task_setrlimit")]
pub(crate) fn task_setrlimit(ctx: LsmContext) -> i32 {
    judge(&ctx, 0, 3, Hook::TaskSetrlimit, Access::CONTROL, 0)
}

/// `int security_task_movememory(struct task_struct *p)`: `move_pages`, `migrate_pages`.
#[lsm(hook = "task_movememory")]
pub(crate) fn task_movememory(ctx: LsmContext) -> i32 {
    judge(&ctx, 0, 1, Hook::TaskMovememory, Access::CONTROL, 0)
}

/// `int security_task_setpgid(struct task_struct *p, pid_t pgid)`
#[lsm(hook = "task_setpgid")]
pub(crate) fn task_setpgid(ctx: LsmContext) -> i32 {
    judge(&ctx, 0, 2, Hook::TaskSetpgid, Access::CONTROL, 0)
}
