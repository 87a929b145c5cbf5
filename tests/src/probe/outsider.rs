//! What one process does to another.

use super::files::{checked, flags_of};
use super::{Failure, Outcome, Stage};
use rustix::fs::Mode;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ffi::c_void;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::time::{Duration, Instant};

/// To whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Whom {
    Pid(i32),
    /// A child of the caller, made for this.
    Child,
}

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Act {
    /// `kill`
    Signal(i32),
    /// `tgkill`
    ThreadSignal(i32),
    /// `rt_sigqueueinfo`
    Queue(i32),
    /// `pidfd_send_signal`
    PidfdSignal(i32),
    /// `F_SETOWN` and `F_SETSIG` of a pipe that is then written to; waits whether the process dies of it.
    DescriptorSignal(i32),
    /// `PTRACE_ATTACH`
    Attach,
    /// `PTRACE_SEIZE`
    Seize,
    /// `process_vm_readv`
    ReadMemory,
    /// `process_vm_writev`
    WriteMemory,
    /// `pidfd_getfd` of its standard input
    TakeDescriptor,
    /// `kcmp` of its descriptors with the caller's
    Compare,
    /// `get_robust_list`
    RobustList,
    /// `move_pages`, which tells where its memory is
    MovePages,
    /// `process_madvise(MADV_COLD)`
    Advise,
    /// `setns` to its network namespace, by a pidfd
    JoinNamespace,
    /// `setpriority`
    Nice,
    /// `ioprio_set`
    IoPriority,
    /// `sched_setaffinity`
    Affinity,
    /// `sched_setscheduler(SCHED_BATCH)`
    Scheduler,
    /// `sched_setattr`
    Attributes,
    /// `prlimit` of `RLIMIT_CORE`
    Limit,
    /// Opens a file of its directory in `/proc`.
    Open(String, i32),
    /// Reads a link there.
    Link(String),
}

/// `EFAULT` and its like: the kernel had agreed and only did not like the arguments.
fn agreed(result: libc::c_long, stage: &'static str) -> Result<i64, Failure> {
    match checked(result, stage) {
        Err(Failure { errno: Errno::FAULT | Errno::INVAL | Errno::NODEV, .. }) => Ok(0),
        other => other,
    }
}

/// A child that waits to be killed.
struct Child(i32);

impl Child {
    fn new() -> Result<Self, Failure> {
        // SAFETY: the caller runs no other thread; the child only waits.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            loop {
                // SAFETY: no arguments.
                unsafe { libc::pause() };
            }
        }
        checked(pid.into(), "fork")?;
        Ok(Self(pid))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let mut status = 0;
        // SAFETY: our own child, not waited for yet, and a place for its status.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, &raw mut status, libc::__WALL);
        }
    }
}

pub(super) fn act(whom: Whom, act: &Act) -> Outcome {
    match whom {
        Whom::Pid(pid) => done(pid, act),
        Whom::Child => {
            let child = Child::new()?;
            done(child.0, act)
        }
    }
}

fn pidfd(pid: i32) -> Result<OwnedFd, Failure> {
    // SAFETY: plain numbers; the result is a descriptor of ours.
    unsafe {
        let descriptor = checked(libc::syscall(libc::SYS_pidfd_open, pid, 0), "pidfd_open")?;
        Ok(OwnedFd::from_raw_fd(i32::try_from(descriptor).unwrap_or(-1)))
    }
}

/// One page of the other's address space, which need not exist: the kernel asks first.
const SOMEWHERE: *mut c_void = std::ptr::without_provenance_mut(0x1000);

#[expect(clippy::too_many_lines, reason = "a table of system calls")]
fn done(pid: i32, act: &Act) -> Outcome {
    let null = std::ptr::null_mut::<c_void>();
    let mut buffer = [0u8; 16];
    let own = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let other = libc::iovec { iov_base: SOMEWHERE, iov_len: buffer.len() };
    // SAFETY: plain numbers, and pointers to locals that outlive the calls.
    unsafe {
        match act {
            Act::Signal(signal) => checked(libc::kill(pid, *signal).into(), "kill")?,
            Act::ThreadSignal(signal) => {
                checked(libc::syscall(libc::SYS_tgkill, pid, pid, *signal), "tgkill")?
            }
            Act::Queue(signal) => {
                let mut info: libc::siginfo_t = std::mem::zeroed();
                info.si_signo = *signal;
                info.si_code = libc::SI_QUEUE;
                let call = libc::SYS_rt_sigqueueinfo;
                checked(libc::syscall(call, pid, *signal, &raw const info), "rt_sigqueueinfo")?
            }
            Act::PidfdSignal(signal) => {
                let process = pidfd(pid)?;
                let call = libc::SYS_pidfd_send_signal;
                let result = libc::syscall(call, process.as_raw_fd(), *signal, null, 0);
                checked(result, "pidfd_send_signal")?
            }
            Act::DescriptorSignal(signal) => return descriptor_signal(pid, *signal),
            Act::Attach => {
                checked(libc::ptrace(libc::PTRACE_ATTACH, pid, null, null), "PTRACE_ATTACH")?
            }
            Act::Seize => {
                checked(libc::ptrace(libc::PTRACE_SEIZE, pid, null, null), "PTRACE_SEIZE")?
            }
            Act::ReadMemory => {
                let read = libc::process_vm_readv(pid, &raw const own, 1, &raw const other, 1, 0);
                agreed(read as libc::c_long, "process_vm_readv")?
            }
            Act::WriteMemory => {
                let wrote = libc::process_vm_writev(pid, &raw const own, 1, &raw const other, 1, 0);
                agreed(wrote as libc::c_long, "process_vm_writev")?
            }
            Act::TakeDescriptor => {
                let process = pidfd(pid)?;
                let call = libc::SYS_pidfd_getfd;
                checked(libc::syscall(call, process.as_raw_fd(), 0, 0), "pidfd_getfd")?
            }
            Act::Compare => {
                let call = libc::SYS_kcmp;
                checked(libc::syscall(call, pid, std::process::id(), 0, 0, 0), "kcmp")?
            }
            Act::RobustList => {
                let (mut head, mut length) = (null, 0usize);
                let call = libc::SYS_get_robust_list;
                let result = libc::syscall(call, pid, &raw mut head, &raw mut length);
                checked(result, "get_robust_list")?
            }
            Act::MovePages => {
                let (pages, mut status) = ([SOMEWHERE], [0i32]);
                let call = libc::SYS_move_pages;
                let nodes = std::ptr::null::<i32>();
                let result =
                    libc::syscall(call, pid, 1, pages.as_ptr(), nodes, status.as_mut_ptr(), 0);
                agreed(result, "move_pages")?
            }
            Act::Advise => {
                let process = pidfd(pid)?;
                let call = libc::SYS_process_madvise;
                let descriptor = process.as_raw_fd();
                let result =
                    libc::syscall(call, descriptor, &raw const other, 1, libc::MADV_COLD, 0);
                match agreed(result, "process_madvise") {
                    Err(Failure { errno: Errno::NOMEM, .. }) => 0,
                    other => other?,
                }
            }
            Act::JoinNamespace => {
                let process = pidfd(pid)?;
                checked(libc::setns(process.as_raw_fd(), libc::CLONE_NEWNET).into(), "setns")?
            }
            Act::Nice => {
                let who = pid.cast_unsigned();
                checked(libc::setpriority(libc::PRIO_PROCESS, who, 5).into(), "setpriority")?
            }
            // `IOPRIO_WHO_PROCESS`, and `IOPRIO_CLASS_BE` at level 7.
            Act::IoPriority => {
                checked(libc::syscall(libc::SYS_ioprio_set, 1, pid, (2 << 13) | 7), "ioprio_set")?
            }
            Act::Affinity => {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(0, &mut set);
                let size = size_of::<libc::cpu_set_t>();
                checked(
                    libc::sched_setaffinity(pid, size, &raw const set).into(),
                    "sched_setaffinity",
                )?
            }
            Act::Scheduler => {
                let parameters: libc::sched_param = std::mem::zeroed();
                let result =
                    libc::sched_setscheduler(pid, libc::SCHED_BATCH, &raw const parameters);
                checked(result.into(), "sched_setscheduler")?
            }
            Act::Attributes => {
                // `struct sched_attr` of version 0: size, policy, and zeros.
                let mut attributes = [0u32; 12];
                attributes[0] = 48;
                attributes[1] = libc::SCHED_BATCH.cast_unsigned();
                let call = libc::SYS_sched_setattr;
                checked(libc::syscall(call, pid, attributes.as_ptr(), 0), "sched_setattr")?
            }
            Act::Limit => {
                let mut limit: libc::rlimit = std::mem::zeroed();
                let result =
                    libc::prlimit(pid, libc::RLIMIT_CORE, std::ptr::null(), &raw mut limit);
                checked(result.into(), "prlimit")?;
                let result =
                    libc::prlimit(pid, libc::RLIMIT_CORE, &raw const limit, std::ptr::null_mut());
                checked(result.into(), "prlimit")?
            }
            Act::Open(name, flags) => {
                let path = format!("/proc/{pid}/{name}");
                rustix::fs::open(path, flags_of(*flags), Mode::empty()).stage("openat")?;
                0
            }
            Act::Link(name) => {
                rustix::fs::readlink(format!("/proc/{pid}/{name}"), Vec::new())
                    .stage("readlink")?;
                0
            }
        };
    }
    Ok(Value::Null)
}

/// Whether a process has ended, also where nobody has waited for it yet.
fn is_dead(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z')))
}

/// The kernel tells nobody whether the signal was sent: whether the process died does.
fn descriptor_signal(pid: i32, signal: i32) -> Outcome {
    let (reader, writer) = rustix::pipe::pipe().stage("pipe")?;
    let number = reader.as_raw_fd();
    // SAFETY: plain numbers, on a descriptor of ours.
    unsafe {
        checked(libc::fcntl(number, libc::F_SETOWN, pid).into(), "F_SETOWN")?;
        // `F_SETSIG`, include/uapi/asm-generic/fcntl.h
        checked(libc::fcntl(number, 10, signal).into(), "F_SETSIG")?;
        checked(libc::fcntl(number, libc::F_SETFL, libc::O_ASYNC).into(), "O_ASYNC")?;
    }
    rustix::io::write(&writer, b"x").stage("write to pipe")?;
    let deadline = Instant::now() + Duration::from_secs(1);
    while Instant::now() < deadline {
        if is_dead(pid) {
            return Ok(Value::Null);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(Failure { errno: Errno::PERM, stage: "signal for a descriptor" })
}
