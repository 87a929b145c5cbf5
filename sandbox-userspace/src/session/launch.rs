//! The agent's process: a member before its first instruction.

use super::signals::Signals;
use super::terminal::Group;
use super::user::User;
use rustix::process::{Pid, Signal};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

/// The agent did not start.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A step between the birth of the process and its program.
    #[error("cannot start the agent: {step}: {source}")]
    Prepare {
        /// The step.
        step: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The kernel would not run the program.
    #[error("cannot run {program}: {source}")]
    Exec {
        /// The program.
        program: String,
        /// Why not.
        source: io::Error,
    },
}

/// What the agent's process is made from.
#[derive(Debug)]
pub struct Launch<'a> {
    /// The program's file.
    pub program: &'a Path,
    /// Its arguments; the first is its name as typed.
    pub command: &'a [OsString],
    /// Variables of this process that are taken away.
    pub removed: &'a [OsString],
    /// Variables set over those that are left; `None` takes one away.
    pub environment: Vec<(&'static str, Option<OsString>)>,
    /// Whom it runs as.
    pub user: &'a User,
    /// `cgroup.procs` of the session, open for writing.
    pub entrance: &'a File,
}

/// The agent's process.
#[derive(Debug)]
pub struct Agent {
    /// Its id, and of its process group where it leads one.
    pub pid: Pid,
    /// Its process group.
    pub group: Group,
}

impl Agent {
    /// Passes a signal on: to its whole process group where it leads one.
    pub fn signal(&self, signal: i32) {
        // SAFETY: plain system call. The process is our child and not yet waited for, so that the
        // number is still its own. Failure means that it is dead, which the caller sees by itself.
        unsafe {
            match &self.group {
                Group::Own(_) => libc::kill(-self.pid.as_raw_nonzero().get(), signal),
                Group::Shared => libc::kill(self.pid.as_raw_nonzero().get(), signal),
            };
        }
    }

    /// Continues it, in the foreground where we are in the foreground.
    pub fn resume(&mut self) -> io::Result<()> {
        let pid = self.pid;
        let given = self.group.terminal().map_or(Ok(()), |terminal| terminal.give(pid));
        self.signal(Signal::CONT.as_raw());
        given
    }
}

/// Steps of the child; the number of the one that failed goes through a pipe.
const STEPS: [&str; 12] = [
    "make a process group",
    "put it in the terminal's foreground",
    "make message queues and shared memory of its own",
    "join the session's cgroup",
    "give up capabilities",
    "set the groups",
    "set the group",
    "set the user",
    "make a keyring of its own",
    "set no_new_privs",
    "reset the signals",
    "mark inherited descriptors to be closed",
];

/// Values that the child needs, made before it is born.
struct Child {
    own_group: bool,
    tty: Option<RawFd>,
    entrance: RawFd,
    ids: Option<(u32, u32, Vec<u32>)>,
    ignored: Vec<i32>,
    report: RawFd,
}

/// Starts the agent. On an error nothing runs and the terminal is ours.
pub fn launch(
    from: &Launch<'_>,
    mut group: Group,
    signals: &Signals,
) -> Result<Agent, LaunchError> {
    let prepare = |step| move |source: io::Error| LaunchError::Prepare { step, source };
    let (report, child_report) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)
        .map_err(|error| prepare("make a pipe")(error.into()))?;
    let foreground = group.terminal().filter(|terminal| terminal.is_foreground());
    let tty = foreground.map(|terminal| terminal.raw());
    let child = Child {
        own_group: group.is_own(),
        tty,
        entrance: from.entrance.as_raw_fd(),
        ids: from.user.changed.then(|| (from.user.uid, from.user.gid, from.user.groups.clone())),
        ignored: signals.ignored.clone(),
        report: child_report.as_raw_fd(),
    };
    let mut command = Command::new(from.program);
    let (name, arguments) = from.command.split_first().unzip();
    command.args(arguments.unwrap_or_default());
    for name in from.removed {
        command.env_remove(name);
    }
    for (name, value) in &from.environment {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(name) = name {
        command.arg0(name);
    }
    // SAFETY: `become_agent` makes system calls only: it allocates nothing and takes no lock.
    unsafe { command.pre_exec(move || become_agent(&child)) };
    let spawned = command.spawn();
    drop(child_report);
    if tty.is_some()
        && let Some(terminal) = group.terminal()
    {
        terminal.was_given();
    }
    let source = match spawned {
        Ok(child) => {
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            let Some(pid) = pid else {
                return Err(prepare("make a process")(io::ErrorKind::InvalidData.into()));
            };
            return Ok(Agent { pid, group });
        }
        Err(source) => source,
    };
    if let Some(terminal) = group.terminal() {
        terminal.take_back().map_err(prepare("take the terminal back"))?;
    }
    let mut failed = [0_u8];
    let reported = File::from(report).read(&mut failed).unwrap_or(0);
    match STEPS.get(usize::from(failed[0])) {
        Some(step) if reported == 1 => Err(LaunchError::Prepare { step, source }),
        _ => Err(LaunchError::Exec { program: from.program.display().to_string(), source }),
    }
}

/// Runs in the child between its birth and its program. From the fourth step on it is confined.
fn become_agent(child: &Child) -> io::Result<()> {
    steps(child).map_err(|(step, error)| {
        // SAFETY: one byte of a local variable; without the report the message only names less.
        unsafe { libc::write(child.report, (&raw const step).cast(), 1) };
        error
    })
}

fn steps(child: &Child) -> Result<(), (u8, io::Error)> {
    let check = |step: u8, result: libc::c_long| {
        if result < 0 { Err((step, io::Error::last_os_error())) } else { Ok(()) }
    };
    // SAFETY: system calls with numbers, and with pointers to data that outlives them. The raw
    // calls for groups and ids change this thread only, and there is no other.
    unsafe {
        if child.own_group {
            check(0, libc::setpgid(0, 0).into())?;
        }
        if let Some(tty) = child.tty {
            check(1, libc::tcsetpgrp(tty, libc::getpid()).into())?;
        }
        // System V IPC and POSIX message queues of outsiders: the kernel knows none but its own.
        check(2, libc::unshare(libc::CLONE_NEWIPC).into())?;
        check(3, libc::write(child.entrance, c"0".as_ptr().cast(), 1) as libc::c_long)?;
        super::privileges::shed().map_err(|error| (4, error.into()))?;
        if let Some((uid, gid, groups)) = &child.ids {
            check(5, libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
            check(6, libc::syscall(libc::SYS_setresgid, *gid, *gid, *gid))?;
            check(7, libc::syscall(libc::SYS_setresuid, *uid, *uid, *uid))?;
        }
        check(8, own_keyring())?;
        check(9, libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0).into())?;
        // All zero is the default action, whatever the kernel's struct looks like here. The raw
        // call, because the C library does not let its own signals be set. SIGKILL and SIGSTOP
        // cannot be set and need not be.
        let default = [0_u64; 8];
        for signal in (1..=64).filter(|signal| !child.ignored.contains(signal)) {
            let none = std::ptr::null::<u64>();
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), none, size_of::<u64>());
        }
        let mut none = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        let mask = libc::pthread_sigmask(libc::SIG_SETMASK, none.as_ptr(), std::ptr::null_mut());
        if mask != 0 {
            return Err((10, io::Error::from_raw_os_error(mask)));
        }
        check(11, libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC))
    }
}

/// A new session keyring, made as a member: keys of outsiders are closed to it, that of its parent too.
/// 0 where the kernel keeps no keys.
fn own_keyring() -> libc::c_long {
    /// include/uapi/linux/keyctl.h
    const JOIN_SESSION_KEYRING: libc::c_long = 1;
    let anonymous = std::ptr::null::<libc::c_char>();
    // SAFETY: a system call with a number and a null pointer.
    let made = unsafe { libc::syscall(libc::SYS_keyctl, JOIN_SESSION_KEYRING, anonymous) };
    let without = made < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS);
    if without { 0 } else { made }
}
