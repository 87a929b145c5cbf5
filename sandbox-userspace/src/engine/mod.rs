//! The kernel side as seen from here: load, attach, pin, publish, read events.

pub mod events;

use crate::policy::compiled::CompiledPolicy;
use sandbox_common::event::Hook;
use sandbox_common::layout::KernelLayout;
use sandbox_common::subject::Subject;
use std::os::fd::BorrowedFd;
use std::path::Path;

/// What went wrong between here and the kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// Placeholder until the loader lands.
    #[error("the engine is not built yet")]
    Unbuilt,
}

/// Loaded, attached and pinned programs with their maps.
#[derive(Debug)]
pub struct Engine {}

impl Engine {
    /// Loads the programs, attaches the global hooks and pins programs' links and all maps beneath
    /// `pins` (a directory of a bpffs that is made here). Nothing is left behind on an error.
    pub fn load(layout: &KernelLayout<u32>, pins: &Path) -> Result<Self, EngineError> {
        let _ = (layout, pins);
        Err(EngineError::Unbuilt)
    }

    /// Opens what an earlier process pinned beneath `pins`. Attaches nothing.
    pub fn adopt(pins: &Path) -> Result<Self, EngineError> {
        let _ = pins;
        Err(EngineError::Unbuilt)
    }

    /// Attaches the cgroup programs to `cgroup` (its directory) and pins the links under `name`.
    pub fn attach(&mut self, cgroup: &Path, name: &str) -> Result<(), EngineError> {
        let _ = (cgroup, name);
        Err(EngineError::Unbuilt)
    }

    /// Detaches what [`attach`](Self::attach) attached under `name`.
    pub fn detach(&mut self, name: &str) -> Result<(), EngineError> {
        let _ = name;
        Err(EngineError::Unbuilt)
    }

    /// Enters a policy as `slot`. No subject may use the slot yet; on an error it stays empty.
    pub fn publish(&mut self, slot: u32, policy: &CompiledPolicy) -> Result<(), EngineError> {
        let _ = (slot, policy);
        Err(EngineError::Unbuilt)
    }

    /// From now on the tasks beneath the cgroup (id, depth in the hierarchy) are members.
    pub fn admit(&mut self, cgroup: u64, level: u8, subject: Subject) -> Result<(), EngineError> {
        let _ = (cgroup, level, subject);
        Err(EngineError::Unbuilt)
    }

    /// Ends a session: labelled tasks that still live are denied everything.
    pub fn dismiss(&mut self, cgroup: u64) -> Result<(), EngineError> {
        let _ = cgroup;
        Err(EngineError::Unbuilt)
    }

    /// The session (its cgroup id) of which a process bears the label, wherever it is now.
    pub fn label(&self, pidfd: BorrowedFd<'_>) -> Result<Option<u64>, EngineError> {
        let _ = pidfd;
        Err(EngineError::Unbuilt)
    }

    /// The ring of denials. Readable (epoll) when records wait.
    pub fn ring(&mut self) -> Result<events::Ring, EngineError> {
        Err(EngineError::Unbuilt)
    }

    /// Records that found no room on the ring, since load, over all CPUs.
    pub fn lost(&self) -> Result<u64, EngineError> {
        Err(EngineError::Unbuilt)
    }

    /// The hooks that are attached.
    pub fn hooks(&self) -> Vec<Hook> {
        Vec::new()
    }

    /// Detaches everything and removes the pins and their directory.
    pub fn remove(self) -> Result<(), EngineError> {
        Err(EngineError::Unbuilt)
    }
}
