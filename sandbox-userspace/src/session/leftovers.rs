//! Ends what a session's command left running, wherever it is.

use super::cgroup::{Cgroup, CgroupError};
use super::guard::Guard;
use super::process::{self, Stat};
use crate::engine::EngineError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

/// How long what is dying already may take, before anything is said about it.
const MOMENT: Duration = Duration::from_millis(100);
/// How long members may take to end by themselves.
pub const GRACE: Duration = Duration::from_secs(3);
/// How long the kernel may take to end what was killed.
const DEATH: Duration = Duration::from_secs(5);
/// Searches for labelled processes: each may have made others while it was searched for.
const ROUNDS: usize = 20;

/// Members live on, so the session must stay in force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeftoverError {
    /// About the cgroup.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// Killed and still there.
    #[error("{0} processes do not end although they were killed")]
    Alive(usize),
    /// The processes could not be searched.
    #[error("cannot search the processes: {0}")]
    Search(#[from] io::Error),
    /// The label of a process could not be read.
    #[error("cannot read the label of process {pid}: {source}")]
    Label {
        /// The process.
        pid: i32,
        /// Why not.
        source: EngineError,
    },
}

/// Ends the members of a cgroup: asks, waits for [`GRACE`], kills. Returns how many there were.
pub fn end_members(
    cgroup: &Cgroup,
    starting: &mut dyn FnMut(usize),
) -> Result<usize, LeftoverError> {
    if cgroup.wait_empty(MOMENT)? {
        return Ok(0);
    }
    let count = cgroup.members()?.len();
    if count > 0 {
        starting(count);
    }
    cgroup.signal(Signal::TERM)?;
    // A stopped process gets its signal when it goes on.
    cgroup.signal(Signal::CONT)?;
    if !cgroup.wait_empty(GRACE)? {
        cgroup.kill()?;
        if !cgroup.wait_empty(DEATH)? {
            return Err(LeftoverError::Alive(cgroup.members()?.len()));
        }
    }
    Ok(count)
}

/// Kills every process that bears the session's label outside of its cgroup, where only an
/// administrator can have put it. Returns how many there were.
pub fn end_labelled(guard: &dyn Guard, session: u64) -> Result<usize, LeftoverError> {
    let mut ended = 0;
    for _ in 0..ROUNDS {
        let found = labelled(guard, session)?;
        if found.is_empty() {
            return Ok(ended);
        }
        ended += found.len();
        for process in &found {
            // One that is gone needs no signal; one that stays is found in the next round.
            let _ = rustix::process::pidfd_send_signal(process, Signal::KILL);
        }
        for process in &found {
            let limit = Timespec { tv_sec: 1, tv_nsec: 0 };
            // Any outcome is judged by the next round.
            let _ = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&limit));
        }
    }
    match labelled(guard, session)?.len() {
        0 => Ok(ended),
        alive => Err(LeftoverError::Alive(alive)),
    }
}

/// Living processes that bear the session's label.
pub fn labelled(guard: &dyn Guard, session: u64) -> Result<Vec<OwnedFd>, LeftoverError> {
    let mut found = Vec::new();
    for pid in process::all()? {
        let Some(fd) = process::open(pid)? else { continue };
        match guard.label(fd.as_fd()) {
            Ok(label) => {
                if label == Some(session) && !is_dead(pid) {
                    found.push(fd);
                }
            }
            Err(_) if is_dead(pid) => {}
            Err(source) => return Err(LeftoverError::Label { pid, source }),
        }
    }
    Ok(found)
}

fn is_dead(pid: i32) -> bool {
    match Stat::of(pid) {
        Ok(stat) => stat.dead(),
        Err(error) => {
            error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
        }
    }
}
