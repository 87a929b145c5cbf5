//! Being someone else: children, threads, daemons, roots, namespaces, cgroups.

use super::files::checked;
use super::kinds::entry32;
use super::{Answer, Failure, Operation, Outcome, Place, Stage, perform};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, MountPropagationFlags, UnmountFlags,
    fsconfig_create, fsconfig_set_string, fsmount, fsopen, mount_bind, mount_change,
};
use rustix::process::{Pid, WaitOptions, getppid, waitpid};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::ffi::{CStr, CString, c_void};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::time::Duration;

/// Who a process is.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: i32,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) uid: u32,
    /// Numbers of its open descriptors.
    pub(crate) descriptors: Vec<i32>,
    /// Text of `/proc/self/status`.
    pub(crate) status: String,
    /// Text of `/proc/self/cgroup`.
    pub(crate) cgroup: String,
    pub(crate) home: Option<String>,
    pub(crate) tmpdir: Option<String>,
}

pub(super) fn identity() -> Outcome {
    let mut descriptors = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").stage("open of /proc/self/fd")? {
        let name = entry.stage("read of /proc/self/fd")?.file_name();
        descriptors.extend(name.to_str().and_then(|name| name.parse::<i32>().ok()));
    }
    // The directory itself was open while it was read.
    descriptors.retain(|number| std::fs::read_link(format!("/proc/self/fd/{number}")).is_ok());
    descriptors.sort_unstable();
    let identity = Identity {
        pid: rustix::process::getpid().as_raw_nonzero().get(),
        parent: getppid().map_or(0, |parent| parent.as_raw_nonzero().get()),
        group: rustix::process::getpgrp().as_raw_nonzero().get(),
        uid: rustix::process::getuid().as_raw(),
        descriptors,
        status: std::fs::read_to_string("/proc/self/status").stage("read of status")?,
        cgroup: std::fs::read_to_string("/proc/self/cgroup").stage("read of cgroup")?,
        home: std::env::var("HOME").ok(),
        tmpdir: std::env::var("TMPDIR").ok(),
    };
    Ok(json!(identity))
}

pub(super) fn fork() -> Result<Option<Pid>, Failure> {
    // SAFETY: callers run no other thread at this moment, so the child may do anything.
    let child = unsafe { libc::fork() };
    checked(child.into(), "fork")?;
    Ok(Pid::from_raw(child))
}

pub(super) fn exit_now(status: i32) -> ! {
    // SAFETY: ends this process without running what belongs to its parent.
    unsafe { libc::_exit(status) }
}

/// Runs `work` in a child and brings its answer back.
pub(super) fn in_child(name: &str, work: impl FnOnce() -> Answer) -> Answer {
    fetch(name, work).unwrap_or_else(|failure| Answer::new(name, Err(failure)))
}

fn fetch(name: &str, work: impl FnOnce() -> Answer) -> Result<Answer, Failure> {
    let (mut reader, mut writer) = std::io::pipe().stage("pipe")?;
    let Some(child) = fork()? else {
        drop(reader);
        let line = serde_json::to_vec(&work()).unwrap_or_default();
        exit_now(i32::from(writer.write_all(&line).is_err()));
    };
    drop(writer);
    let mut line = Vec::new();
    reader.read_to_end(&mut line).stage("read of answer")?;
    waitpid(Some(child), WaitOptions::empty()).stage("waitpid")?;
    Ok(serde_json::from_slice(&line).unwrap_or_else(|_| {
        Answer::new(name, Err(Failure { errno: Errno::CHILD, stage: "child gave no answer" }))
    }))
}

fn ignore(signal: i32) {
    // SAFETY: ignoring a signal runs no handler.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

pub(super) fn daemon(name: &str, then: &Operation) -> Answer {
    in_child(name, || {
        let parent = std::process::id();
        match fork() {
            Err(failure) => return Answer::new(name, Err(failure)),
            // Goes at once; the grandchild holds the pipe and answers.
            Ok(Some(_)) => exit_now(0),
            Ok(None) => {}
        }
        if let Err(errno) = rustix::process::setsid() {
            return Answer::new(name, Err(Failure { errno, stage: "setsid" }));
        }
        ignore(libc::SIGHUP);
        while getppid().is_some_and(|p| p.as_raw_nonzero().get().cast_unsigned() == parent) {
            std::thread::sleep(Duration::from_millis(5));
        }
        perform(then)
    })
}

pub(super) fn thread(name: &str, then: &Operation) -> Answer {
    std::thread::scope(|scope| scope.spawn(|| perform(then)).join()).unwrap_or_else(|_| {
        Answer::new(name, Err(Failure { errno: Errno::CHILD, stage: "thread panicked" }))
    })
}

/// What a vforked child shares with its parent.
struct Shared<'a> {
    path: &'a CStr,
    result: i64,
}

extern "C" fn vforked(argument: *mut c_void) -> i32 {
    let shared = argument.cast::<Shared<'_>>();
    // SAFETY: the parent passed a valid `Shared` and is suspended until this child exits.
    unsafe {
        let path = (*shared).path.as_ptr();
        let descriptor = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, libc::O_RDONLY);
        (*shared).result =
            if descriptor < 0 { -i64::from(*libc::__errno_location()) } else { descriptor };
    }
    0
}

pub(super) fn vfork_open(name: &str, path: &Place) -> Answer {
    let invalid = Failure { errno: Errno::INVAL, stage: "path" };
    let Ok(path) = CString::new(path.bytes()) else { return Answer::new(name, Err(invalid)) };
    let mut shared = Shared { path: &path, result: -i64::from(libc::EIO) };
    let mut stack = vec![0u128; 4096];
    let top = stack.as_mut_ptr_range().end.cast::<c_void>();
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is large enough, aligned, and outlives the child, for which this thread
    // waits; `vforked` touches only what it is given.
    let child = unsafe { libc::clone(vforked, top, flags, (&raw mut shared).cast()) };
    let outcome = match checked(child.into(), "clone(CLONE_VFORK)") {
        Err(failure) => Err(failure),
        Ok(_) if shared.result < 0 => {
            let errno = i32::try_from(-shared.result).unwrap_or(libc::EIO);
            Err(Failure { errno: Errno::from_raw_os_error(errno), stage: "openat" })
        }
        Ok(_) => Ok(Value::Null),
    };
    if let Some(child) = Pid::from_raw(child) {
        // Its status says nothing more; waiting only removes the zombie.
        let _ = waitpid(Some(child), WaitOptions::empty());
    }
    Answer { pid: child, ..Answer::new(name, outcome) }
}

pub(super) fn into_cgroup(cgroup: &Place) -> Outcome {
    /// `CLONE_INTO_CGROUP`, linux/sched.h.
    const INTO_CGROUP: u64 = 0x2_0000_0000;
    /// Fields of `struct clone_args` up to and with `cgroup`.
    const FIELDS: usize = 11;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let directory =
        rustix::fs::open(cgroup.path(), flags, Mode::empty()).stage("open of cgroup")?;
    let mut arguments = [0u64; FIELDS];
    arguments[0] = INTO_CGROUP;
    arguments[4] = u64::from(libc::SIGCHLD.cast_unsigned());
    arguments[10] = u64::from(directory.as_raw_fd().cast_unsigned());
    // SAFETY: without CLONE_VM this is a fork; the child leaves at once.
    let child =
        unsafe { libc::syscall(libc::SYS_clone3, arguments.as_ptr(), size_of_val(&arguments)) };
    if checked(child, "clone3(CLONE_INTO_CGROUP)")? == 0 {
        exit_now(0);
    }
    if let Some(child) = i32::try_from(child).ok().and_then(Pid::from_raw) {
        waitpid(Some(child), WaitOptions::empty()).stage("waitpid")?;
    }
    Ok(child.into())
}

/// The probe in memory, with the operation to perform.
pub(super) fn execute_memory(name: &str, then: &Operation) -> Answer {
    in_memory(then).unwrap_or_else(|failure| Answer::new(name, Err(failure)))
}

fn in_memory(then: &Operation) -> Result<Answer, Failure> {
    let mut program = std::fs::File::open("/proc/self/exe").stage("open of the program")?;
    let memory =
        rustix::fs::memfd_create("probe", rustix::fs::MemfdFlags::empty()).stage("memfd_create")?;
    let mut memory = std::fs::File::from(memory);
    std::io::copy(&mut program, &mut memory).stage("copy to memory")?;
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let operation = serde_json::to_string(then)
        .map_err(|_| Failure { errno: Errno::INVAL, stage: "the operation" })?;
    let output = std::process::Command::new(path)
        .args(["probe", "one", &operation])
        .output()
        .stage("execve of memory")?;
    serde_json::from_slice(&output.stdout)
        .map_err(|_| Failure { errno: Errno::CHILD, stage: "the program in memory" })
}

/// A child that dumps core; an error where it could not.
pub(super) fn crash(name: &str) -> Answer {
    match crashed() {
        Ok((child, outcome)) => Answer { pid: child, ..Answer::new(name, outcome) },
        Err(failure) => Answer::new(name, Err(failure)),
    }
}

fn crashed() -> Result<(i32, Outcome), Failure> {
    let Some(child) = fork()? else {
        let all = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: plain numbers and a valid structure; the signal is for this process.
        unsafe {
            libc::setrlimit(libc::RLIMIT_CORE, &raw const all);
            libc::signal(libc::SIGABRT, libc::SIG_DFL);
            libc::raise(libc::SIGABRT);
        }
        exit_now(1);
    };
    let pid = child.as_raw_nonzero().get();
    let mut status = 0;
    // SAFETY: our own child, and a valid place for its status.
    let result = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    checked(result.into(), "waitpid")?;
    let dumped = libc::WIFSIGNALED(status) && libc::WCOREDUMP(status);
    let failure = Failure { errno: Errno::ACCESS, stage: "core dump" };
    Ok((pid, if dumped { Ok(Value::Null) } else { Err(failure) }))
}

/// An ordinary user that can still be looked at by its like, as one that logged in.
pub(super) fn ordinary(uid: u32) -> Result<(), Failure> {
    // SAFETY: plain numbers, and no groups.
    unsafe {
        checked(libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>()), "setgroups")?;
        checked(libc::syscall(libc::SYS_setresgid, uid, uid, uid), "setresgid")?;
        checked(libc::syscall(libc::SYS_setresuid, uid, uid, uid), "setresuid")?;
        checked(libc::prctl(libc::PR_SET_DUMPABLE, 1).into(), "PR_SET_DUMPABLE")?;
    }
    Ok(())
}

pub(super) fn named(name: &str) -> Result<(), Failure> {
    let name =
        CString::new(name).map_err(|_| Failure { errno: Errno::INVAL, stage: "the name" })?;
    // SAFETY: a string that lives until the call returns.
    checked(unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) }.into(), "PR_SET_NAME")?;
    Ok(())
}

/// `open(2)` of 32-bit programs, which this one is not.
pub(super) fn old_open(path: &Place, flags: i32) -> Outcome {
    /// `__NR_open`, `arch/x86/entry/syscalls/syscall_32.tbl`
    const OPEN: i32 = 5;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_32BIT;
    #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "below 2 GiB")]
    // SAFETY: a new mapping below 2 GiB, into which a path and its end are copied.
    let low = unsafe {
        let at = libc::mmap(std::ptr::null_mut(), 8192, protection, kind, -1, 0);
        if at == libc::MAP_FAILED || path.bytes().len() > 4095 {
            return Err(Failure { errno: Errno::NOMEM, stage: "mmap" });
        }
        at.cast::<u8>().copy_from_nonoverlapping(path.bytes().as_ptr(), path.bytes().len());
        at as usize as i32
    };
    let result = entry32(OPEN, low, flags, 0);
    if result < 0 {
        return Err(Failure { errno: Errno::from_raw_os_error(-result), stage: "int 0x80" });
    }
    super::files::content(super::files::owned(result.into())?, flags)
}

/// A kind of file system or its options, as the kernel takes them.
fn text(of: &str) -> Result<CString, Failure> {
    CString::new(of).map_err(|_| Failure { errno: Errno::INVAL, stage: "text" })
}

pub(super) fn mounted(kind: &str, at: &Place, options: &str) -> Result<(), Failure> {
    let options = text(options)?;
    rustix::mount::mount("none", at.path(), kind, MountFlags::empty(), options.as_c_str())
        .stage("mount")
}

pub(super) fn fs_mounted(kind: &str, options: &[(String, String)]) -> Outcome {
    let context = fsopen(kind, FsOpenFlags::empty()).stage("fsopen")?;
    for (key, value) in options {
        fsconfig_set_string(&context, key.as_str(), value.as_str()).stage("fsconfig")?;
    }
    fsconfig_create(&context).stage("FSCONFIG_CMD_CREATE")?;
    fsmount(&context, FsMountFlags::empty(), MountAttrFlags::empty()).stage("fsmount")?;
    Ok(Value::Null)
}

pub(super) fn unmount(path: &Place, lazy: bool) -> Outcome {
    let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    rustix::mount::unmount(path.path(), flags).stage("umount2")?;
    Ok(Value::Null)
}

/// A program that ends by itself.
pub(super) fn run(words: &[String]) -> Outcome {
    let [program, arguments @ ..] = words else {
        return Err(Failure { errno: Errno::INVAL, stage: "words" });
    };
    let output = std::process::Command::new(program).args(arguments).output().stage("execve")?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into());
    }
    Err(Failure { errno: Errno::PERM, stage: "the program" })
}

pub(super) fn chroot(root: &Place) -> Result<(), Failure> {
    rustix::process::chroot(root.path()).stage("chroot")?;
    rustix::process::chdir("/").stage("chdir")
}

pub(super) fn namespace(user: bool, binds: &[(Place, Place)]) -> Result<(), Failure> {
    let mut flags = UnshareFlags::NEWNS;
    flags.set(UnshareFlags::NEWUSER, user);
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    // SAFETY: no descriptor table or address space is unshared; this process has one thread.
    unsafe { unshare_unsafe(flags) }.stage("unshare")?;
    if user {
        // Who it was outside, as bubblewrap does.
        let (uid, gid) = (uid.as_raw(), gid.as_raw());
        std::fs::write("/proc/self/setgroups", "deny").stage("write of setgroups")?;
        std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).stage("write of uid_map")?;
        std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1")).stage("write of gid_map")?;
    }
    if !binds.is_empty() {
        let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
        mount_change("/", private).stage("mount(MS_PRIVATE)")?;
    }
    for (from, to) in binds {
        mount_bind(from.path(), to.path()).stage("mount(MS_BIND)")?;
    }
    Ok(())
}

/// A process that only a kill ends, in a session of its own, with nothing of ours open.
/// Leaves a process behind that does nothing but keep a descriptor open, until its session ends.
pub(super) fn keep_open(descriptor: impl Into<OwnedFd>) -> Result<(), Failure> {
    let descriptor = descriptor.into();
    if let Some(child) = fork()? {
        waitpid(Some(child), WaitOptions::empty()).stage("waitpid")?;
        return Ok(());
    }
    if !matches!(fork(), Ok(None)) {
        exit_now(0);
    }
    // SAFETY: nothing in this process uses a descriptor any more, and it never returns.
    unsafe {
        libc::syscall(libc::SYS_dup2, descriptor.as_raw_fd(), 0);
        libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0);
    }
    loop {
        std::thread::sleep(Duration::from_hours(1));
    }
}

pub(super) fn leftover() -> Outcome {
    let (mut reader, mut writer) = std::io::pipe().stage("pipe")?;
    if let Some(child) = fork()? {
        drop(writer);
        let mut pid = String::new();
        reader.read_to_string(&mut pid).stage("read of pid")?;
        waitpid(Some(child), WaitOptions::empty()).stage("waitpid")?;
        return Ok(pid.parse::<i32>().map_or(Value::Null, Value::from));
    }
    if !matches!(fork(), Ok(None)) {
        exit_now(0);
    }
    for signal in [libc::SIGHUP, libc::SIGTERM, libc::SIGINT] {
        ignore(signal);
    }
    if rustix::process::setsid().is_err() || write!(writer, "{}", std::process::id()).is_err() {
        exit_now(1);
    }
    // Also the pipe of the probe that waits for an answer.
    // SAFETY: nothing in this process uses a descriptor any more; `writer` is never dropped.
    unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) };
    loop {
        std::thread::sleep(Duration::from_hours(1));
    }
}
