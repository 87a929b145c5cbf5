//! What a session needs of the kernel side: an edge, so that the rest is testable without it.

use super::SessionId;
use super::state::{Held, Registry};
use crate::engine::events::{DecodeError, Record, Ring};
use crate::engine::{Aside, Engine, EngineError, Engines, Identity, Passed, Share};
use crate::policy::compiled::CompiledPolicy;
use crate::policy::names::NameLayer;
use ipnet::IpNet;
use rustix::event::PollFlags;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};

/// What one session has on an engine.
pub trait Guard {
    /// The session (its cgroup id) of which a process bears the label.
    fn label(&self, pidfd: BorrowedFd<'_>) -> Result<Option<u64>, EngineError>;
    /// Ends the session: what still bears its label is denied everything.
    fn dismiss(&mut self, cgroup: u64, held: &Held) -> Result<(), EngineError>;
    /// Detaches the session's cgroup programs.
    fn detach(&mut self) -> Result<(), EngineError>;
    /// See [`Engine::eras`].
    fn eras(&mut self, devs: &[u32]) -> Result<HashMap<u32, u32>, EngineError>;
    /// See [`Share::replace`].
    fn replace(
        &mut self,
        registry: &Registry,
        new: &CompiledPolicy,
        usable: &mut dyn FnMut() -> bool,
    ) -> Result<bool, EngineError>;
    /// Closes what names opened by other rules than these.
    fn keep_names(&mut self, rules: &HashSet<u32>) -> Result<(), EngineError>;
    /// Records that were lost.
    fn lost(&self) -> Result<u64, EngineError>;
    /// Where notes come from, where that was made since this was last asked.
    fn new_notes(&mut self) -> Option<Box<dyn Source>> {
        None
    }
    /// Notes that were lost.
    fn lost_notes(&self) -> Result<u64, EngineError> {
        Ok(0)
    }
    /// What the rules that count have let pass.
    fn passed(&self) -> Result<Vec<Passed>, EngineError>;
    /// Gives back all the rest. The engine itself where nobody needs it any more.
    fn remove(self: Box<Self>, held: &Held) -> Result<Option<Aside>, EngineError>;
}

impl Guard for Share {
    fn label(&self, pidfd: BorrowedFd<'_>) -> Result<Option<u64>, EngineError> {
        self.label(pidfd)
    }

    fn dismiss(&mut self, cgroup: u64, held: &Held) -> Result<(), EngineError> {
        self.engine().dismiss(cgroup, held)
    }

    fn detach(&mut self) -> Result<(), EngineError> {
        self.detach("")
    }

    fn eras(&mut self, devs: &[u32]) -> Result<HashMap<u32, u32>, EngineError> {
        self.engine().eras(devs.iter().copied())
    }

    fn replace(
        &mut self,
        registry: &Registry,
        new: &CompiledPolicy,
        usable: &mut dyn FnMut() -> bool,
    ) -> Result<bool, EngineError> {
        self.replace(registry, new, usable)
    }

    fn keep_names(&mut self, rules: &HashSet<u32>) -> Result<(), EngineError> {
        self.keep_names(rules)
    }

    fn lost(&self) -> Result<u64, EngineError> {
        self.lost()
    }

    fn new_notes(&mut self) -> Option<Box<dyn Source>> {
        self.new_notes().map(|ring| Box::new(ring) as Box<dyn Source>)
    }

    fn lost_notes(&self) -> Result<u64, EngineError> {
        self.lost_notes()
    }

    fn passed(&self) -> Result<Vec<Passed>, EngineError> {
        self.passed()
    }

    fn remove(self: Box<Self>, held: &Held) -> Result<Option<Aside>, EngineError> {
        self.end(held)
    }
}

/// Where it is found what sessions have in the kernel, whoever made it.
pub trait Kernels: fmt::Debug {
    /// Sessions that have anything.
    fn sessions(&self) -> io::Result<BTreeSet<SessionId>>;
    /// What a session has; `None` where that is nothing.
    fn open(&self, id: &SessionId) -> Result<Option<Box<dyn Guard>>, EngineError>;
    /// Removes what an owner has (a session, or `doctor`) of which no process lives.
    fn clear(&self, owner: &str, held: &Held) -> Result<Vec<Aside>, EngineError>;
    /// What nobody needs any more.
    fn idle(&self, held: &Held) -> Result<Vec<Aside>, EngineError>;
}

/// The engines of this host.
#[derive(Debug)]
pub struct HostEngines {
    /// All of them.
    pub engines: Engines,
    /// The one that is about to be used, and stays without sessions.
    pub own: Option<Identity>,
}

impl Kernels for HostEngines {
    fn sessions(&self) -> io::Result<BTreeSet<SessionId>> {
        let owners = self.engines.list()?.into_iter().flat_map(|found| found.owners);
        Ok(owners.filter_map(|owner| owner.parse().ok()).collect())
    }

    fn open(&self, id: &SessionId) -> Result<Option<Box<dyn Guard>>, EngineError> {
        let found = self.engines.of(id.as_str());
        let found =
            found.map_err(|source| EngineError::Pins { path: super::host::PINS.into(), source })?;
        let Some(found) = found else { return Ok(None) };
        let share = Engine::adopt(&found.pins)?.share_of(id.as_str())?;
        Ok(share.map(|share| Box::new(share) as Box<dyn Guard>))
    }

    fn clear(&self, owner: &str, held: &Held) -> Result<Vec<Aside>, EngineError> {
        self.engines.clear(owner, held)
    }

    fn idle(&self, held: &Held) -> Result<Vec<Aside>, EngineError> {
        self.engines.set_aside_idle(self.own.as_ref(), held)
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

/// What answers the questions about names.
pub trait Names {
    /// Whether it lives.
    fn answers(&self) -> bool;
    /// Has it answer by other rules from now on, and close what those do not open: what the layers of the policy
    /// say of names, and the networks that it opens. On an error it answers by the one or the other, or not at all.
    fn change(&mut self, names: &[NameLayer], within: &[IpNet]) -> Result<(), String>;
}

/// What has to be followed while a session runs.
pub trait Watch {
    /// What to wait on, and for what: something changed.
    fn wait_on(&self) -> Vec<(BorrowedFd<'_>, PollFlags)>;
    /// Brings the session's policy up to date; `woken` are the numbers of those of [`wait_on`](Self::wait_on)
    /// that something came for. The texts are for people.
    fn follow(
        &mut self,
        guard: &mut dyn Guard,
        names: Option<&mut dyn Names>,
        woken: &[usize],
    ) -> Vec<Told>;
}

/// Something that people should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Told {
    /// It went as it should.
    Info(String),
    /// It did not.
    Warning(String),
}
