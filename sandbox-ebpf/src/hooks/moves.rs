//! Members that are moved to another cgroup. Nothing can refuse that (there is no hook), and nothing need:
//! what a member may do goes by its label. But somebody should hear of it.

use crate::event;
use crate::kernel::task::Task;
use crate::subject;
use aya_ebpf::macros::btf_tracepoint;
use aya_ebpf::programs::BtfTracePointContext;

/// `cgroup_attach_task(struct cgroup *dst_cgrp, const char *path, struct task_struct *task, bool
/// threadgroup)`, include/trace/events/cgroup.h: the move is done, in the context of whoever asked for it.
#[btf_tracepoint(function = "cgroup_attach_task")]
pub(crate) fn cgroup_attach_task(ctx: BtfTracePointContext) -> i32 {
    let task = Task(ctx.arg(2));
    let Some(member) = subject::of(task) else { return 0 };
    event::moved(&member, task, ctx.arg(1));
    0
}
