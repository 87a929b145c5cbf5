//! What a session needs of the kernel side: an edge, so that the rest is testable without it.

use crate::engine::events::{DecodeError, Record, Ring};
use crate::engine::{Engine, EngineError};
use crate::policy::compiled::CompiledPolicy;
use std::collections::HashMap;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// The programs of one session and their maps.
pub trait Guard {
    /// The session (its cgroup id) of which a process bears the label.
    fn label(&self, pidfd: BorrowedFd<'_>) -> Result<Option<u64>, EngineError>;
    /// Ends the session: what still bears its label is denied everything.
    fn dismiss(&mut self, cgroup: u64) -> Result<(), EngineError>;
    /// Detaches the cgroup programs attached under `name`.
    fn detach(&mut self, name: &str) -> Result<(), EngineError>;
    /// See [`Engine::eras`].
    fn eras(&mut self, devs: &[u32]) -> Result<HashMap<u32, u32>, EngineError>;
    /// See [`Engine::replace`].
    fn replace(
        &mut self,
        cgroup: u64,
        old: &CompiledPolicy,
        new: &CompiledPolicy,
        usable: &mut dyn FnMut() -> bool,
    ) -> Result<bool, EngineError>;
    /// Records that were lost.
    fn lost(&self) -> Result<u64, EngineError>;
    /// Detaches everything and removes the pins.
    fn remove(self: Box<Self>) -> Result<(), EngineError>;
}

impl Guard for Engine {
    fn label(&self, pidfd: BorrowedFd<'_>) -> Result<Option<u64>, EngineError> {
        self.label(pidfd)
    }

    fn dismiss(&mut self, cgroup: u64) -> Result<(), EngineError> {
        self.dismiss(cgroup)
    }

    fn detach(&mut self, name: &str) -> Result<(), EngineError> {
        self.detach(name)
    }

    fn eras(&mut self, devs: &[u32]) -> Result<HashMap<u32, u32>, EngineError> {
        self.eras(devs.iter().copied())
    }

    fn replace(
        &mut self,
        cgroup: u64,
        old: &CompiledPolicy,
        new: &CompiledPolicy,
        usable: &mut dyn FnMut() -> bool,
    ) -> Result<bool, EngineError> {
        self.replace(cgroup, old, new, usable)
    }

    fn lost(&self) -> Result<u64, EngineError> {
        self.lost()
    }

    fn remove(self: Box<Self>) -> Result<(), EngineError> {
        Self::remove(*self)
    }
}

/// Where the records of a session come from.
pub trait Source {
    /// Readable when records wait.
    fn wait_on(&self) -> BorrowedFd<'_>;
    /// The next record that waits.
    fn next(&mut self) -> Option<Result<Record, DecodeError>>;
}

impl Source for Ring {
    fn wait_on(&self) -> BorrowedFd<'_> {
        // SAFETY: a ring's descriptor is open as long as the ring, which is borrowed.
        unsafe { BorrowedFd::borrow_raw(self.as_raw_fd()) }
    }

    fn next(&mut self) -> Option<Result<Record, DecodeError>> {
        self.next()
    }
}

/// What has to be followed while a session runs.
pub trait Watch {
    /// `POLLPRI` or `POLLERR` when something changed.
    fn wait_on(&self) -> BorrowedFd<'_>;
    /// Brings the session's policy up to date; the texts are for people.
    fn follow(&mut self, guard: &mut dyn Guard) -> Vec<String>;
}
