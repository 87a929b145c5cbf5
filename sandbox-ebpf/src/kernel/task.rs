//! Tasks: the current one and others.

use super::{load, read};
use crate::layout::LAYOUT;
use aya_ebpf::helpers::generated::{
    bpf_get_current_ancestor_cgroup_id, bpf_get_current_cgroup_id, bpf_get_current_comm,
    bpf_get_current_pid_tgid, bpf_get_current_task, bpf_get_current_task_btf,
    bpf_get_current_uid_gid, bpf_ktime_get_boot_ns,
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

/// include/uapi/linux/capability.h
pub(crate) const CAP_SYS_ADMIN: u32 = 1 << 21;

/// The first 32 effective capabilities in the current task's own credentials.
#[inline(always)]
pub(crate) fn own_capabilities() -> u32 {
    effective(load(current(), &LAYOUT.task_real_cred))
}

/// The first 32 effective capabilities that count now: the kernel may lend a task credentials for as
/// long as it does something in its place.
#[inline(always)]
pub(crate) fn used_capabilities() -> u32 {
    effective(load(current(), &LAYOUT.task_cred))
}

/// Whether what the current task maps for reading becomes executable, as programs without a
/// `PT_GNU_STACK` header have it. `READ_IMPLIES_EXEC`, include/uapi/linux/personality.h
#[inline(always)]
pub(crate) fn reading_implies_executing() -> bool {
    const READ_IMPLIES_EXEC: u32 = 0x0040_0000;
    load::<u32>(current(), &LAYOUT.task_personality) & READ_IMPLIES_EXEC != 0
}

/// Whether the credentials that count now are of the initial user namespace.
#[inline(always)]
pub(crate) fn uses_initial_namespace() -> bool {
    let credentials: *const c_void = load(current(), &LAYOUT.task_cred);
    let namespace: u64 = load(credentials, &LAYOUT.cred_namespace);
    read::<i32>(namespace + LAYOUT.namespace_level.get() as u64) == Some(0)
}

/// Whether the current task has `CAP_SYS_ADMIN` over the whole machine.
#[inline(always)]
pub(crate) fn is_privileged() -> bool {
    used_capabilities() & CAP_SYS_ADMIN != 0 && uses_initial_namespace()
}

/// Whether a `struct pid *` is that of the current task or of its process.
#[inline(always)]
pub(crate) fn is_current(pid: u64) -> bool {
    let own: u64 = load(current(), &LAYOUT.task_pid);
    if pid == own {
        return pid != 0;
    }
    let leader: u64 = load(current(), &LAYOUT.task_leader);
    pid != 0 && read(leader + LAYOUT.task_pid.get() as u64) == Some(pid)
}

/// Of a `struct cred *`.
#[inline(always)]
fn effective(cred: *const c_void) -> u32 {
    load(cred, &LAYOUT.cred_effective)
}

/// The current task, where it is asked for more than one thing.
#[derive(Clone, Copy)]
pub(crate) struct Current(*const c_void);

impl Current {
    #[inline(always)]
    pub(crate) fn task() -> Self {
        Self(current())
    }

    /// Whether anything hangs on it by `BPF_MAP_TYPE_TASK_STORAGE`, its label or something of others. Nothing
    /// does on most bystanders, and the helper that looks takes ten times as long (`bpf_task_storage_get`, which
    /// begins with the same question).
    #[inline(always)]
    pub(crate) fn has_storage(self) -> bool {
        load::<u64>(self.0, &LAYOUT.task_storage) != 0
    }

    /// `start_boottime`, nanoseconds.
    #[inline(always)]
    pub(crate) fn born(self) -> u64 {
        load(self.0, &LAYOUT.task_born)
    }

    /// Its address, a number to the verifier too.
    #[inline(always)]
    #[expect(clippy::unused_self, reason = "the address of this task")]
    pub(crate) fn address(self) -> u64 {
        // SAFETY: a helper without arguments.
        unsafe { bpf_get_current_task() }
    }
}

/// The current task.
#[inline(always)]
fn current() -> *const c_void {
    // SAFETY: a helper without arguments.
    unsafe { bpf_get_current_task_btf() }.cast_const().cast()
}

/// Process id, above the thread id, in the initial pid namespace.
#[inline(always)]
pub(crate) fn pid_tgid() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_get_current_pid_tgid() }
}

/// The current task's `struct cgroup *` in the hierarchy of version 2.
#[inline(always)]
pub(crate) fn own_cgroup() -> *const c_void {
    let set: *const c_void = load(current(), &LAYOUT.task_cgroups);
    load(set, &LAYOUT.css_set_cgroup)
}

/// Its id, as [`cgroup`] gives it, by way of the pointer.
#[inline(always)]
pub(crate) fn own_cgroup_id() -> u64 {
    let node: *const c_void = load(own_cgroup(), &LAYOUT.cgroup_node);
    load(node, &LAYOUT.kernfs_id)
}

/// Process and thread id in the initial pid namespace.
#[inline(always)]
pub(crate) fn ids() -> (u32, u32) {
    let both = pid_tgid();
    ((both >> 32) as u32, both as u32)
}

/// Real user id in the initial user namespace.
#[inline(always)]
pub(crate) fn uid() -> u32 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_get_current_uid_gid() as u32 }
}

/// Writes the thread's name; zeros where it cannot be had (the helper clears the buffer then).
#[inline(always)]
pub(crate) fn write_comm(to: &mut [u8; 16]) {
    // SAFETY: the buffer has as many bytes.
    unsafe { bpf_get_current_comm(to.as_mut_ptr().cast(), to.len() as u32) };
}

/// `CLOCK_BOOTTIME`, nanoseconds.
#[inline(always)]
pub(crate) fn boot_time() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_boot_ns() }
}

/// Id of the task's cgroup (v2).
#[inline(always)]
pub(crate) fn cgroup() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_get_current_cgroup_id() }
}

/// Id of the ancestor of the task's cgroup (v2) at a depth; 0 where the cgroup is not that deep.
#[inline(always)]
pub(crate) fn ancestor_cgroup(level: u32) -> u64 {
    // SAFETY: a helper that takes a number.
    unsafe { bpf_get_current_ancestor_cgroup_id(level as i32) }
}
