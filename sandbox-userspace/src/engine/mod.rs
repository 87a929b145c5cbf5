//! The kernel side as seen from here: load, attach, pin, publish, read events.

mod cgroup;
mod claims;
mod counts;
mod engines;
mod error;
pub mod events;
mod identity;
mod links;
mod load;
mod maps;
pub(crate) mod modify_return;
mod names;
mod notes;
mod publish;
mod replace;
mod sweep;

pub use claims::Share;
pub use counts::Passed;
pub use engines::{Aside, Engines, Found};
pub use error::EngineError;
pub use identity::Identity;
pub use load::{CGROUP_HOOKS, LSM_HOOKS, Need, Way};
pub use names::NameTable;

use crate::kernel::bpf;
use crate::session::state::Held;
use maps::Maps;
use sandbox_common::event::{Hook, Reason, fault_counter};
use sandbox_common::subject::{Control, Parent, Subject};
use std::fs;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

/// Loaded, attached and pinned programs with their maps, shared by all sessions of a build.
///
/// Beneath the pin directory: `maps/NAME`, `links/HOOK`, `programs/HOOK` (those that are attached to
/// each session's cgroup) and `sessions/OWNER/HOOK`, a session's cgroup links. An engine is in use as
/// long as `sessions` holds anything: that much every build understands of another's engine.
/// The pins, not this value, hold the programs: dropping it changes nothing.
pub struct Engine {
    pins: PathBuf,
    maps: Maps,
}

/// How often a hook denied for a reason that is none of a policy's.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Fault {
    /// The hook.
    pub hook: &'static str,
    /// The reason: one of [`Reason::FAULTS`].
    pub reason: &'static str,
    /// How often.
    pub count: u64,
}

impl Engine {
    /// Opens what is pinned beneath `pins`, whether or not it is complete: to judge and to end
    /// sessions. For a new one, see [`Engines::obtain`]. It may be another build's, if that one means
    /// the same by what is in the maps.
    pub fn adopt(pins: &Path) -> Result<Self, EngineError> {
        let maps = Maps::open(&pins.join("maps"))?;
        let format = maps.next.get(&1, 0).map_err(EngineError::map("NEXT"))?;
        if format != identity::FORMAT {
            return Err(EngineError::Foreign(pins.to_owned()));
        }
        Ok(Self { pins: pins.to_owned(), maps })
    }

    /// Attaches programs of [`CGROUP_HOOKS`] to a cgroup (its directory and id) for an owner of a share, and
    /// pins the links. An owner's cgroups are told apart by `prefix`.
    fn attach(
        &mut self,
        hooks: impl IntoIterator<Item = Hook>,
        cgroup: (&Path, u64),
        (owner, prefix): (&str, &str),
    ) -> Result<(), EngineError> {
        let links = self.links(owner);
        load::attach(&self.pins, &mut self.maps, hooks, cgroup, (&links, prefix))
    }

    /// Where an owner's links are pinned.
    fn links(&self, owner: &str) -> PathBuf {
        self.pins.join("sessions").join(owner)
    }

    /// Detaches what [`attach`](Self::attach) attached. That it was not is no error.
    pub fn detach(&mut self, owner: &str, prefix: &str) -> Result<(), EngineError> {
        let links = self.links(owner);
        for hook in CGROUP_HOOKS {
            let path = links.join(format!("{prefix}{}", hook.name()));
            match fs::remove_file(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                other => other.map_err(|source| EngineError::Pins { path, source })?,
            }
        }
        Ok(())
    }

    /// From now on the tasks beneath the cgroup, which lies directly in `parent`, are members.
    pub fn admit(
        &mut self,
        cgroup: u64,
        parent: Parent,
        subject: Subject,
        held: &Held,
    ) -> Result<(), EngineError> {
        // The directory of all sessions' cgroups goes with the last of them, and comes back as another.
        let alone = self.maps.subjects.keys().next().is_none();
        let subjects = &mut self.maps.subjects;
        subjects.insert(cgroup, subject, 0).map_err(EngineError::map("SUBJECTS"))?;
        let admitted = self.control(held, |control| {
            if alone {
                control.parents = Default::default();
            }
            if !control.parents.contains(&parent) {
                let free = control.parents.iter_mut().find(|known| known.cgroup == 0);
                *free.ok_or(EngineError::Parents)? = parent;
            }
            Ok(())
        });
        if admitted.is_err() {
            // The error to tell is the first one; an entry that is left is found by the claim.
            let _ = self.maps.subjects.remove(&cgroup);
        }
        admitted
    }

    /// Ends a session: labelled tasks that still live are denied everything.
    pub fn dismiss(&mut self, cgroup: u64, held: &Held) -> Result<(), EngineError> {
        self.maps.subjects.remove(&cgroup).map_err(EngineError::map("SUBJECTS"))?;
        self.renew(held)
    }

    /// Has tasks look up their subjects anew, of which they keep copies.
    fn renew(&mut self, held: &Held) -> Result<(), EngineError> {
        self.control(held, |_| Ok(()))
    }

    /// Changes `CONTROL`, and has tasks look up their subjects anew.
    fn control(
        &mut self,
        _held: &Held,
        change: impl FnOnce(&mut Control) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let mut control = self.maps.control.get(&0, 0).map_err(EngineError::map("CONTROL"))?;
        change(&mut control)?;
        control.generation += 1;
        self.maps.control.set(0, control, 0).map_err(EngineError::map("CONTROL"))
    }

    /// The session (its cgroup id) of which a process bears the label, wherever it is now.
    pub fn label(&self, pidfd: BorrowedFd<'_>) -> Result<Option<u64>, EngineError> {
        let label = bpf::label_of(self.maps.labels.fd(), pidfd)
            .map_err(|source| EngineError::Label { source })?;
        Ok(label.map(|label| label.cgroup).filter(|cgroup| *cgroup != 0))
    }

    /// Records of a session (its number; 0 for those that have none) that could not be delivered,
    /// over all CPUs.
    pub fn lost(&self, session: u32) -> Result<u64, EngineError> {
        let counts = self.maps.lost.get(&session, 0).map_err(EngineError::map("LOST"))?;
        Ok(counts.iter().sum())
    }

    /// What was denied because it could not be judged, since the engine was loaded: by hook and reason,
    /// over all CPUs and sessions.
    pub fn faults(&self) -> Result<Vec<Fault>, EngineError> {
        let mut faults = Vec::new();
        for hook in Hook::ALL {
            for reason in Reason::FAULTS {
                let Some(index) = fault_counter(*hook as u8, reason as u16) else { continue };
                let counts = self.maps.faults.get(&index, 0).map_err(EngineError::map("FAULTS"))?;
                let count = counts.iter().sum();
                if count != 0 {
                    faults.push(Fault { hook: hook.name(), reason: reason.name(), count });
                }
            }
        }
        Ok(faults)
    }

    /// Whether everything that was attached is still attached.
    pub fn verify(&self) -> Result<(), EngineError> {
        links::verify(self)
    }
}
