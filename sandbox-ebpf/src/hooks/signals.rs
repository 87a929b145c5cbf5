//! Signals that the kernel sends for a descriptor.
//!
//! `F_SETOWN` and `F_SETSIG` name a process and any signal, which the kernel sends when there is something
//! to read, in the context of whoever made that so, and asks nobody about kill(2). So who named the process
//! is noted, and asked about when the signal is due.

use crate::finish;
use crate::kernel::task::Task;
use crate::kernel::vfs::{File, Owner};
use crate::maps::{OBJECTS, Object, SUBJECTS};
use crate::subject::{self, Member};
use aya_ebpf::helpers::generated::bpf_send_signal;
use aya_ebpf::macros::{fexit, lsm};
use aya_ebpf::programs::{FExitContext, LsmContext};
use sandbox_common::Access;
use sandbox_common::decide::Decision;
use sandbox_common::event::{Hook, Reason};

const EPERM: i32 = 1;
const SIGKILL: u32 = 9;

/// `void security_file_set_fowner(struct file *file)`: the caller is about to name a process.
///
/// It cannot be refused here. Where it cannot be noted either, the member does not live to use it.
#[lsm(hook = "file_set_fowner")]
pub(crate) fn file_set_fowner(ctx: LsmContext) -> i32 {
    named(Object::File.at(File(ctx.arg(0)).address()))
}

/// The same where `bpf` is not an active LSM: a function without a value has no `fmod_ret` program.
#[fexit(function = "security_file_set_fowner")]
pub(crate) fn file_set_fowner_returned(ctx: FExitContext) -> i32 {
    named(Object::File.at(File(ctx.arg(0)).address()))
}

#[inline(always)]
fn named(file: u64) -> i32 {
    match subject::current() {
        None => {
            // Nothing to remove is the common case.
            let _ = OBJECTS.remove(file);
        }
        Some(member) if OBJECTS.insert(file, member.cgroup, 0).is_err() => {
            // SAFETY: a helper that takes a number.
            unsafe { bpf_send_signal(SIGKILL) };
        }
        Some(_) => {}
    }
    0
}

/// `int security_file_send_sigiotask(struct task_struct *tsk, struct fown_struct *fown, int sig)`
#[lsm(hook = "file_send_sigiotask")]
pub(crate) fn file_send_sigiotask(ctx: LsmContext) -> i32 {
    let verdict: i32 = ctx.arg(3);
    if verdict != 0 {
        return verdict;
    }
    let file = Object::File.at(Owner(ctx.arg(1)).file());
    // SAFETY: entries are only added and removed whole, and a reader is under RCU.
    let Some(cgroup) = (unsafe { OBJECTS.get(file) }).copied() else { return 0 };
    let task = Task(ctx.arg(0));
    // SAFETY: as above.
    let Some(subject) = (unsafe { SUBJECTS.get(cgroup) }) else {
        // The session has ended; its descriptors signal nobody any more.
        return -EPERM;
    };
    let member = Member::of(cgroup, subject);
    if subject::is_fellow(task, &member) {
        return 0;
    }
    let decision = Decision::deny(Reason::Outsider, Access::SIGNAL);
    finish::process(Hook::FileSendSigiotask, &member, decision, task, ctx.arg(2))
}
