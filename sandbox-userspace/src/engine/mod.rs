//! The kernel side as seen from here: load, attach, pin, publish, read events.

mod error;
pub mod events;
mod load;
mod maps;
pub(crate) mod modify_return;
mod publish;

pub use error::EngineError;
pub use load::{CGROUP_HOOKS, LSM_HOOKS, Need, Way};

use crate::kernel::bpf;
use load::Programs;
use maps::Maps;
use sandbox_common::event::Hook;
use sandbox_common::layout::KernelLayout;
use sandbox_common::subject::{Parent, Subject};
use std::collections::HashMap;
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

/// Loaded, attached and pinned programs with their maps.
///
/// Beneath the pin directory: `maps/NAME`, `links/HOOK`, `links/NAME-HOOK` for a cgroup's links.
/// The pins, not this value, hold the programs: dropping it changes nothing.
pub struct Engine {
    pins: PathBuf,
    maps: Maps,
    /// The cgroup programs, for [`attach`](Self::attach); an adopted engine has none.
    programs: Option<Programs>,
    /// First port set of each slot.
    sets: HashMap<u32, u32>,
    /// Where the patterns of each slot are that has any.
    patterns: HashMap<u32, u32>,
    next_set: u32,
}

impl Engine {
    /// Loads the programs, attaches the global hooks and pins links and maps beneath `pins` (a
    /// directory of a bpffs that is made here). Nothing is left behind on an error.
    pub fn load(layout: &KernelLayout<u32>, way: Way, pins: &Path) -> Result<Self, EngineError> {
        fs::create_dir_all(pins)
            .map_err(|source| EngineError::Pins { path: pins.to_owned(), source })?;
        let loaded = load::load(layout, way, pins)
            .and_then(|programs| Ok((programs, Maps::open(&pins.join("maps"))?)));
        match loaded {
            Ok((programs, maps)) => Ok(Self {
                pins: pins.to_owned(),
                maps,
                programs: Some(programs),
                sets: HashMap::new(),
                patterns: HashMap::new(),
                next_set: 0,
            }),
            Err(error) => {
                // The first error is the one to tell; what cannot be removed now is found as a
                // leftover by the next start.
                let _ = fs::remove_dir_all(pins);
                Err(error)
            }
        }
    }

    /// Opens what an earlier process pinned beneath `pins`. Attaches nothing.
    pub fn adopt(pins: &Path) -> Result<Self, EngineError> {
        Ok(Self {
            pins: pins.to_owned(),
            maps: Maps::open(&pins.join("maps"))?,
            programs: None,
            sets: HashMap::new(),
            patterns: HashMap::new(),
            next_set: 0,
        })
    }

    /// Attaches the cgroup programs to `cgroup` (its directory) and pins the links under `name`.
    pub fn attach(&mut self, cgroup: &Path, name: &str) -> Result<(), EngineError> {
        let programs = self.programs.as_mut().ok_or(EngineError::Adopted)?;
        programs.attach(cgroup, &self.pins.join("links"), name)
    }

    /// Detaches what [`attach`](Self::attach) attached under `name`.
    pub fn detach(&mut self, name: &str) -> Result<(), EngineError> {
        for hook in CGROUP_HOOKS {
            let path = self.pins.join("links").join(load::cgroup_link(name, *hook));
            fs::remove_file(&path).map_err(|source| EngineError::Pins { path, source })?;
        }
        Ok(())
    }

    /// From now on the tasks beneath the cgroup, which lies directly in `parent`, are members.
    pub fn admit(
        &mut self,
        cgroup: u64,
        parent: Parent,
        subject: Subject,
    ) -> Result<(), EngineError> {
        let mut control = self.maps.control.get(&0, 0).map_err(EngineError::map("CONTROL"))?;
        if !control.parents.contains(&parent) {
            let free = control.parents.iter_mut().find(|known| known.cgroup == 0);
            *free.ok_or(EngineError::Parents)? = parent;
        }
        self.maps.subjects.insert(cgroup, subject, 0).map_err(EngineError::map("SUBJECTS"))?;
        control.generation += 1;
        self.maps.control.set(0, control, 0).map_err(EngineError::map("CONTROL"))
    }

    /// Ends a session: labelled tasks that still live are denied everything.
    pub fn dismiss(&mut self, cgroup: u64) -> Result<(), EngineError> {
        self.maps.subjects.remove(&cgroup).map_err(EngineError::map("SUBJECTS"))?;
        let mut control = self.maps.control.get(&0, 0).map_err(EngineError::map("CONTROL"))?;
        control.generation += 1;
        self.maps.control.set(0, control, 0).map_err(EngineError::map("CONTROL"))
    }

    /// The session (its cgroup id) of which a process bears the label, wherever it is now.
    pub fn label(&self, pidfd: BorrowedFd<'_>) -> Result<Option<u64>, EngineError> {
        let label = bpf::label_of(self.maps.labels.fd(), pidfd)
            .map_err(|source| EngineError::Label { source })?;
        Ok(label.map(|label| label.cgroup).filter(|cgroup| *cgroup != 0))
    }

    /// The ring of denials. Readable (epoll) when records wait.
    pub fn ring(&mut self) -> Result<events::Ring, EngineError> {
        events::Ring::open(&self.pins.join("maps").join("DENIALS"))
    }

    /// Records that found no room on the ring, since load, over all CPUs.
    pub fn lost(&self) -> Result<u64, EngineError> {
        let counts = self.maps.lost.get(&0, 0).map_err(EngineError::map("LOST"))?;
        Ok(counts.iter().sum())
    }

    /// The hooks that are attached, by their pins.
    pub fn hooks(&self) -> Vec<Hook> {
        let attached = |hook: &Hook| self.pins.join("links").join(hook.name()).exists();
        Hook::ALL.iter().copied().filter(attached).collect()
    }

    /// Detaches everything and removes the pins and their directory.
    pub fn remove(self) -> Result<(), EngineError> {
        fs::remove_dir_all(&self.pins)
            .map_err(|source| EngineError::Pins { path: self.pins.clone(), source })
    }
}
