//! What a session consists of outside its processes, made step by step and taken down in the
//! reverse order, also when a step in between failed.

use super::cgroup::{Cgroup, CgroupError, CgroupTree};
use super::guard::{Guard, Source, Watch};
use super::leftovers;
use super::state::{Entry, Registry, State, StateError};
use super::tempdir;
use crate::dns::parent::Resolver;
use crate::engine::Passed;
use crate::engine::events::{DecodeError, Record};
use crate::policy::limits::Limits;
use crate::sinks::{Level, Output};
use std::io;
use std::path::PathBuf;

/// A part of a session could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// Its state.
    #[error(transparent)]
    State(#[from] StateError),
    /// Its cgroup.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A directory.
    #[error("cannot create {path}: {source}")]
    Create {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// The kernel side of a session in force.
pub struct Enforced {
    /// Its programs.
    pub guard: Box<dyn Guard>,
    /// Its denials.
    pub source: Box<dyn Source>,
    /// Its notes, where its policy has anything noted.
    pub notes: Option<Box<dyn Source>>,
    /// Its mounts.
    pub watch: Option<Box<dyn Watch>>,
    /// What answers its questions about names, where its policy knows any.
    pub resolver: Option<Resolver>,
}

impl Enforced {
    /// The next record that waits: of a denial, then of what is only noted.
    pub fn next_record(&mut self) -> Option<Result<Record, DecodeError>> {
        self.source.next().or_else(|| self.notes.as_mut()?.next())
    }
}

/// How many records found no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Of denials.
    pub denials: u64,
    /// Of what is only noted.
    pub notes: u64,
}

/// The parts that were made so far.
pub struct Resources {
    registry: Registry,
    state: State,
    entry: Entry,
    tree: CgroupTree,
    cgroup: Option<Cgroup>,
    temporary: bool,
    enforced: Option<Enforced>,
}

impl Resources {
    /// Writes the session down: whatever is made from now on can be found.
    pub fn begin(registry: &Registry, tree: CgroupTree, state: State) -> Result<Self, StateError> {
        let entry = registry.enter(&state)?;
        let registry = registry.clone();
        Ok(Self { registry, state, entry, tree, cgroup: None, temporary: false, enforced: None })
    }

    /// Makes the cgroup and the directories.
    pub fn make(&mut self, uid: u32, gid: u32, limits: Limits) -> Result<Cgroup, ResourceError> {
        let cgroup = self.tree.create(self.state.id.as_str())?;
        self.cgroup = Some(cgroup.clone());
        self.state.cgroup_id = Some(cgroup.id);
        self.entry.write(&self.state)?;
        self.tree.limit(&cgroup, limits)?;
        let path = &self.state.temporary;
        tempdir::create(path, uid, gid)
            .map_err(|source| ResourceError::Create { path: path.clone(), source })?;
        self.temporary = true;
        Ok(cgroup)
    }

    /// Takes the kernel side over.
    pub fn enforced(&mut self, enforced: Enforced) -> &mut Enforced {
        self.enforced.insert(enforced)
    }

    /// What is written down.
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Ends what still runs, tells the number of processes first. `Err` means that members live
    /// on: then nothing is taken down and the policy stays in force.
    pub fn end_members(
        &mut self,
        starting: &mut dyn FnMut(usize),
    ) -> Result<(), leftovers::LeftoverError> {
        let Some(cgroup) = &self.cgroup else { return Ok(()) };
        leftovers::end_members(cgroup, starting)?;
        if let Some(Enforced { guard, .. }) = &self.enforced {
            let moved = leftovers::end_labelled(guard.as_ref(), cgroup.id)?;
            if moved > 0 {
                starting(moved);
            }
        }
        Ok(())
    }

    /// Reads the records that wait and returns how many found no room, where that is known.
    pub fn drain(&mut self, output: &mut Output) -> Option<Lost> {
        let enforced = self.enforced.as_mut()?;
        let records: Vec<_> = std::iter::from_fn(|| enforced.next_record()).collect();
        let Enforced { guard, resolver, .. } = enforced;
        if let Some(resolver) = resolver {
            resolver.said().into_iter().for_each(|word| output.resolver(word));
        }
        for record in records {
            output.record(record);
        }
        let lost =
            guard.lost().and_then(|denials| Ok(Lost { denials, notes: guard.lost_notes()? }));
        match lost {
            Ok(lost) => Some(lost),
            Err(error) => {
                output.notice(Level::Warning, &format!("cannot count lost events: {error}"));
                None
            }
        }
    }

    /// What the rules that count have let pass.
    pub fn passed(&self, output: &mut Output) -> Vec<Passed> {
        let Some(Enforced { guard, .. }) = &self.enforced else { return Vec::new() };
        guard.passed().unwrap_or_else(|error| {
            output.notice(Level::Warning, &format!("cannot read what was counted: {error}"));
            Vec::new()
        })
    }

    /// Takes everything down. The session has no members. Each step that fails is told and does
    /// not keep the others from being done.
    pub fn take_down(self, failed: &mut dyn FnMut(String)) {
        let Self { registry, state, entry, tree, cgroup, temporary, enforced } = self;
        let mut step = |what: &str, result: Result<(), String>| {
            if let Err(error) = result {
                failed(format!("cannot {what} of session {}: {error}", state.id));
            }
        };
        let mut aside = None;
        if let Some(Enforced { mut guard, source, notes, .. }) = enforced {
            drop((source, notes));
            match registry.hold() {
                Err(error) => step("take the lock", Err(error.to_string())),
                Ok(held) => {
                    if let Some(cgroup) = &cgroup {
                        step("dismiss the members", text(guard.dismiss(cgroup.id, &held)));
                    }
                    step("detach the cgroup programs", text(guard.detach()));
                    match guard.remove(&held) {
                        Ok(idle) => aside = idle,
                        Err(error) => step("remove the policy", Err(chain(&error))),
                    }
                }
            }
        }
        if temporary {
            step(
                "remove the temporary directory",
                text(tempdir::remove(&state.temporary, Some(state.uid))),
            );
        }
        if let Some(cgroup) = &cgroup {
            step("remove the cgroup", text(cgroup.remove()));
        }
        tree.tidy();
        let removed = registry.hold().and_then(|held| entry.remove(&held));
        step("remove the state", text(removed));
        // The kernel takes its time for this, and nobody need wait for it but us.
        if let Some(aside) = aside {
            step("remove the programs", text(aside.discard()));
        }
    }
}

fn text<E: std::error::Error>(result: Result<(), E>) -> Result<(), String> {
    result.map_err(|error| chain(&error))
}

/// An error and what caused it.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
