//! Signals as records of a descriptor, so that one `poll` waits for everything.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// Signals that are passed on to the agent.
const FORWARDED: [i32; 6] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];

/// The signals of this process, blocked and readable here until this is dropped. Whoever holds it
/// must run one thread only: another thread would take the signals.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
    before: libc::sigset_t,
    /// Those that were ignored when the process started (`nohup`): they stay so, here and in the
    /// agent.
    pub ignored: Vec<i32>,
}

/// One signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its number.
    pub signal: i32,
    /// The kernel sent it: it was typed at the terminal, or the terminal hung up.
    pub kernel: bool,
}

impl Signals {
    /// Blocks the signals that matter to a supervisor. With `stop` also the terminal's stop
    /// signal, which otherwise does what it does to every program.
    pub fn take(stop: bool) -> io::Result<Self> {
        let ignored: Vec<i32> = FORWARDED.into_iter().filter(|&s| is_ignored(s)).collect();
        let mut set = FORWARDED.to_vec();
        set.retain(|signal| !ignored.contains(signal));
        set.extend([libc::SIGCHLD, libc::SIGCONT]);
        if stop && !is_ignored(libc::SIGTSTP) {
            set.push(libc::SIGTSTP);
        }
        // SAFETY: both are dispositions without a handler. An inherited "ignore" of SIGCHLD would
        // throw the agent's exit status away; SIGTTOU would stop us when we write to the terminal
        // or take it back while the agent is in its foreground.
        unsafe {
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            libc::signal(libc::SIGTTOU, libc::SIG_IGN);
        }
        let set = signal_set(&set);
        let before = change_mask(libc::SIG_BLOCK, &set)?;
        // SAFETY: the set is initialised; the result is checked.
        let fd =
            unsafe { libc::signalfd(-1, &raw const set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just opened it for us alone.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) }, before, ignored })
    }

    /// The next signal that has arrived.
    pub fn next(&self) -> io::Result<Option<Arrived>> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is `size` bytes long.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if usize::try_from(got) != Ok(size) {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: it was zeroed, which is a value of this type, and then filled by the kernel.
        let info = unsafe { info.assume_init() };
        let signal = info.ssi_signo.cast_signed();
        Ok(Some(Arrived { signal, kernel: info.ssi_code == libc::SI_KERNEL }))
    }

    /// A signal that asks to end has arrived before there was an agent to pass it on to.
    pub fn asked_to_end(&self) -> io::Result<Option<i32>> {
        while let Some(Arrived { signal, .. }) = self.next()? {
            if matches!(signal, libc::SIGHUP | libc::SIGINT | libc::SIGQUIT | libc::SIGTERM) {
                return Ok(Some(signal));
            }
        }
        Ok(None)
    }

    /// Stops this process and its process group as the terminal's stop key would have done, and
    /// returns when it goes on. Returns at once where there is no shell to continue it: the kernel
    /// does not let an orphaned process group be stopped so.
    pub fn stop_here(&self) -> io::Result<()> {
        let stop = signal_set(&[libc::SIGTSTP]);
        // SAFETY: plain system call without pointers.
        unsafe { libc::kill(0, libc::SIGTSTP) };
        let before = change_mask(libc::SIG_UNBLOCK, &stop)?;
        change_mask(libc::SIG_SETMASK, &before)?;
        Ok(())
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // Without the mask of before, later code only misses signals; nothing can be done here.
        let _ = change_mask(libc::SIG_SETMASK, &self.before);
    }
}

fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only asks; a zeroed sigaction is a value of its type, also when the call fails.
    let action = unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == libc::SIG_IGN
}

fn signal_set(signals: &[i32]) -> libc::sigset_t {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set; numbers that are no signals are refused.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        let mut set = set.assume_init();
        for &signal in signals {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

/// Changes the calling thread's mask and returns the former one.
fn change_mask(how: i32, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    let mut before = signal_set(&[]);
    // SAFETY: both sets are initialised.
    match unsafe { libc::pthread_sigmask(how, set, &raw mut before) } {
        0 => Ok(before),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}
