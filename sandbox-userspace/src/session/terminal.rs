//! The terminal that the agent shares with its supervisor.

use super::process::Stat;
use rustix::fs::{Mode, OFlags};
use rustix::process::Pid;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};
use sandbox_common::path::kernel_dev;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};

/// In which process group the agent runs.
#[derive(Debug)]
pub enum Group {
    /// In its own. With a terminal it becomes the foreground group whenever ours would be.
    Own(Option<Terminal>),
    /// In ours, because `sandbox` is only a part of what the shell started (`… | less`): another
    /// foreground group would shut the rest of the pipeline out. What is typed reaches the agent
    /// without our help.
    Shared,
}

impl Group {
    /// What fits how this process was started.
    pub fn choose() -> io::Result<Self> {
        let Ok(tty) = rustix::fs::open("/dev/tty", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        else {
            return Ok(Self::Own(None));
        };
        // Asking for its session succeeds for the controlling terminal only.
        let is_ours = |fd: &dyn std::os::fd::AsFd| rustix::termios::tcgetsid(fd.as_fd()).is_ok();
        if !is_ours(&io::stdin()) || !is_ours(&io::stdout()) {
            return Ok(Self::Shared);
        }
        let modes = tcgetattr(&tty)?;
        Ok(Self::Own(Some(Terminal { tty, ours: modes, theirs: None, given: false })))
    }

    /// Whether the agent leads a process group.
    pub const fn is_own(&self) -> bool {
        matches!(self, Self::Own(_))
    }

    /// The terminal, where the agent gets it.
    pub const fn terminal(&mut self) -> Option<&mut Terminal> {
        match self {
            Self::Own(terminal) => terminal.as_mut(),
            Self::Shared => None,
        }
    }
}

/// The controlling terminal, handed to and fro. SIGTTOU must be ignored.
#[derive(Debug)]
pub struct Terminal {
    tty: OwnedFd,
    ours: Termios,
    theirs: Option<Termios>,
    given: bool,
}

impl Terminal {
    /// Our process group is in the foreground.
    pub fn is_foreground(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|group| group == rustix::process::getpgrp())
    }

    /// The descriptor, for a process that makes its own group the foreground one.
    pub fn raw(&self) -> RawFd {
        self.tty.as_raw_fd()
    }

    /// The agent's process has made its group the foreground one.
    pub const fn was_given(&mut self) {
        self.given = true;
    }

    /// Makes `group` the foreground one, with the modes it last had, if ours is now.
    pub fn give(&mut self, group: Pid) -> io::Result<()> {
        if !self.is_foreground() {
            return Ok(());
        }
        if let Some(theirs) = &self.theirs {
            tcsetattr(&self.tty, OptionalActions::Now, theirs)?;
        }
        tcsetpgrp(&self.tty, group)?;
        self.given = true;
        Ok(())
    }

    /// Makes our group the foreground one again, with the modes of before, if it was given away.
    pub fn take_back(&mut self) -> io::Result<()> {
        if !self.given {
            return Ok(());
        }
        self.given = false;
        self.theirs = tcgetattr(&self.tty).ok();
        match tcsetpgrp(&self.tty, rustix::process::getpgrp()) {
            Ok(()) => Ok(tcsetattr(&self.tty, OptionalActions::Drain, &self.ours)?),
            // It has hung up.
            Err(rustix::io::Errno::IO | rustix::io::Errno::NOTTY) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The device of the session's terminal in the kernel's encoding: the controlling terminal, else
/// what stdin, stdout or stderr is if that is a terminal.
pub fn device() -> Option<u32> {
    let controlling = Stat::of("self").map_or(0, |stat| stat.terminal);
    if controlling != 0 {
        return Some(kernel_encoding(controlling));
    }
    let (stdin, stdout, stderr) = (io::stdin(), io::stdout(), io::stderr());
    [stdin.as_fd(), stdout.as_fd(), stderr.as_fd()]
        .into_iter()
        .filter(|fd| rustix::termios::isatty(fd))
        .find_map(|fd| Some(kernel_encoding(rustix::fs::fstat(fd).ok()?.st_rdev)))
}

/// From the encoding that `stat` uses.
fn kernel_encoding(dev: u64) -> u32 {
    kernel_dev(rustix::fs::major(dev), rustix::fs::minor(dev))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_reencoded() {
        assert_eq!(kernel_encoding(34816), kernel_dev(136, 0));
        assert_eq!(kernel_encoding(rustix::fs::makedev(136, 300)), kernel_dev(136, 300));
    }
}
