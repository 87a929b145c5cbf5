//! System calls for which rustix has no function, or which need care.

use rustix::fs::{self, Mode, OFlags};
use rustix::io::{Errno, Result};
use rustix::process::{self, Pid};
use std::ffi::CString;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// `truncate(2)`, by path: rustix has only the one by descriptor.
pub(crate) fn truncate(path: &Path) -> Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
    // SAFETY: `path` is a string that ends in a zero and lives through the call.
    match unsafe { libc::truncate(path.as_ptr(), 0) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Starts a process in another cgroup, which ends at once.
pub(crate) fn clone_into(cgroup: &Path) -> Result<()> {
    /// `linux/sched.h`
    const CLONE_INTO_CGROUP: u64 = 1 << 33;
    let cgroup = fs::open(cgroup, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty())?;
    // SAFETY: `clone_args` is integers only, for all of which zero is valid.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    args.flags = CLONE_INTO_CGROUP;
    args.exit_signal = u64::from(libc::SIGCHLD.unsigned_abs());
    args.cgroup = u64::from(cgroup.as_raw_fd().unsigned_abs());
    // SAFETY: `args` lives through the call and its size is given. Without a stack and without
    // CLONE_VM the call behaves like fork, and the child does nothing but end.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of_val(&args)) };
    match pid {
        // SAFETY: ends this process without running anything of the parent's.
        0 => unsafe { libc::_exit(0) },
        1.. => {
            let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
            process::waitpid(pid, process::WaitOptions::empty()).map(drop)
        }
        _ => Err(last_errno()),
    }
}

/// Traces a process without stopping it, until this thread ends.
pub(crate) fn seize(pid: Pid) -> Result<()> {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: a request that takes numbers only.
    match unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid.as_raw_nonzero().get(), none, none) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Asks for the id of the first map.
pub(crate) fn bpf() -> Result<()> {
    /// `BPF_MAP_GET_NEXT_ID`, include/uapi/linux/bpf.h
    const MAP_GET_NEXT_ID: libc::c_long = 12;
    // `start_id`, `next_id`, `open_flags` of `union bpf_attr`.
    let mut attr = [0_u32; 3];
    let size = size_of_val(&attr);
    // SAFETY: `attr` is as long as said and lives through the call.
    match unsafe { libc::syscall(libc::SYS_bpf, MAP_GET_NEXT_ID, &raw mut attr, size) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

/// Maps the beginning of a file to be run, and does not run it.
pub(crate) fn map_program(file: BorrowedFd<'_>) -> Result<()> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE);
    // SAFETY: a new mapping at an address that the kernel chooses.
    let mapped = unsafe { libc::mmap(std::ptr::null_mut(), 1, prot, flags, file.as_raw_fd(), 0) };
    if mapped == libc::MAP_FAILED {
        return Err(last_errno());
    }
    // SAFETY: the mapping that was just made, in which nobody looks.
    unsafe { libc::munmap(mapped, 1) };
    Ok(())
}

/// Asks for the size of the kernel's log.
pub(crate) fn log() -> Result<()> {
    /// `SYSLOG_ACTION_SIZE_BUFFER`, syslog(2)
    const SIZE_BUFFER: libc::c_int = 10;
    // SAFETY: this action uses no buffer.
    match unsafe { libc::klogctl(SIZE_BUFFER, std::ptr::null_mut(), 0) } {
        0.. => Ok(()),
        _ => Err(last_errno()),
    }
}

pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
