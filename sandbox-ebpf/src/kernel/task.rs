//! Tasks: the current one and others.

use super::{load, read};
use crate::layout::LAYOUT;
use aya_ebpf::helpers::bpf_get_current_comm;
use aya_ebpf::helpers::generated::{
    bpf_get_current_ancestor_cgroup_id, bpf_get_current_pid_tgid, bpf_get_current_uid_gid,
    bpf_ktime_get_boot_ns,
};
use core::ffi::c_void;

/// `struct task_struct *` of another task.
#[derive(Clone, Copy)]
pub(crate) struct Task(pub(crate) *mut c_void);

impl Task {
    /// Process id (the kernel's tgid) in the initial pid namespace.
    #[inline(always)]
    pub(crate) fn pid(self) -> u32 {
        load(self.0, &LAYOUT.task_tgid)
    }

    /// The name, zero-terminated; zeros where it cannot be read.
    #[inline(always)]
    pub(crate) fn comm(self) -> [u8; 16] {
        read(self.0 as u64 + LAYOUT.task_comm.get() as u64).unwrap_or([0; 16])
    }
}

/// Process and thread id in the initial pid namespace.
#[inline(always)]
pub(crate) fn ids() -> (u32, u32) {
    // SAFETY: a helper without arguments.
    let both = unsafe { bpf_get_current_pid_tgid() };
    ((both >> 32) as u32, both as u32)
}

/// Real user id in the initial user namespace.
#[inline(always)]
pub(crate) fn uid() -> u32 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_get_current_uid_gid() as u32 }
}

/// The thread's name; zeros where it cannot be had.
#[inline(always)]
pub(crate) fn comm() -> [u8; 16] {
    bpf_get_current_comm().unwrap_or([0; 16])
}

/// `CLOCK_BOOTTIME`, nanoseconds.
#[inline(always)]
pub(crate) fn boot_time() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_boot_ns() }
}

/// Id of the ancestor of the task's cgroup (v2) at a depth; 0 where the cgroup is not that deep.
#[inline(always)]
pub(crate) fn ancestor_cgroup(level: u32) -> u64 {
    // SAFETY: a helper that takes a number.
    unsafe { bpf_get_current_ancestor_cgroup_id(level as i32) }
}
