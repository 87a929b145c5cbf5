//! Sessions whose supervisor is gone: killed, crashed, or the machine's power failed.
//!
//! What is pinned stays in force, so their members are still confined. Where none lives the rest
//! is removed; where some live the session is left as it is until it is ended by hand.

use super::SessionId;
use super::cgroup::{Cgroup, CgroupTree};
use super::guard::Guard;
use super::leftovers;
use super::resources::tidy;
use super::run::processes;
use super::state::{Held, RUN, Registry, State};
use super::{host, tempdir};
use crate::engine::{Engine, EngineError};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Something about an orphan failed.
#[derive(Debug, thiserror::Error)]
#[error("session {id}: {message}")]
pub struct OrphanError {
    /// The session.
    pub id: SessionId,
    /// What failed and what to do.
    pub message: String,
}

/// What was found about one session.
#[derive(Debug, PartialEq, Eq)]
pub enum Finding {
    /// Nothing of it lived; what it left was removed.
    Removed(SessionId),
    /// Its processes run on, confined and unsupervised.
    Alive(SessionId, usize),
    /// It could not be judged or removed; what is pinned stays.
    Failed(SessionId, String),
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Removed(id) => {
                write!(
                    f,
                    "session {id} had lost its supervisor and all processes; removed what it left"
                )
            }
            Self::Alive(id, count) => write!(
                f,
                "session {id} has lost its supervisor; still confined: {}; \
                 end it: sandbox sessions end {id}",
                processes(*count)
            ),
            Self::Failed(id, error) => write!(
                f,
                "session {id} has lost its supervisor and is left as it is: {error}; \
                 end it: sandbox sessions end {id}"
            ),
        }
    }
}

/// Opens what a session pinned.
pub type Adopt = fn(&Path) -> Result<Box<dyn Guard>, EngineError>;

/// Looks after sessions that nobody supervises.
#[derive(Debug)]
pub struct Keeper {
    /// States of sessions.
    pub registry: Registry,
    /// Cgroups of sessions.
    pub tree: CgroupTree,
    /// Directory of the pins of all sessions.
    pub pins: PathBuf,
    /// How pins are opened.
    pub adopt: Adopt,
}

impl Keeper {
    /// The one of this host.
    pub fn host() -> anyhow::Result<Self> {
        Ok(Self {
            registry: Registry::open(RUN)?,
            tree: CgroupTree::find()?,
            pins: Path::new(host::BPFFS).join("sandbox"),
            adopt: |pins| Ok(Box::new(Engine::adopt(pins)?)),
        })
    }

    /// Judges every session that nobody supervises; removes what no process needs.
    pub fn report(&self) -> anyhow::Result<Vec<Finding>> {
        let held = self.registry.hold()?;
        let ids = self.orphans()?;
        Ok(ids.into_iter().map(|id| self.judge(&id, &held)).collect())
    }

    /// Sessions without a supervisor: by state, and by pins and cgroups without a state.
    pub fn orphans(&self) -> anyhow::Result<BTreeSet<SessionId>> {
        let mut supervised = BTreeSet::new();
        let mut orphans = BTreeSet::new();
        for found in self.registry.list()? {
            if found.supervised { &mut supervised } else { &mut orphans }.insert(found.id);
        }
        for place in [self.pins.clone(), self.tree.parent()] {
            let entries = match fs::read_dir(&place) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            let names = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
            orphans.extend(names.filter(|id| !supervised.contains(id)));
        }
        Ok(orphans)
    }

    fn judge(&self, id: &SessionId, held: &Held) -> Finding {
        match self.living(id) {
            Ok(0) => match self.remove(id, held) {
                Ok(()) => Finding::Removed(id.clone()),
                Err(error) => Finding::Failed(id.clone(), error),
            },
            Ok(count) => Finding::Alive(id.clone(), count),
            Err(error) => Finding::Failed(id.clone(), error),
        }
    }

    /// How many of its processes live, in its cgroup and, by their label, outside.
    fn living(&self, id: &SessionId) -> Result<usize, String> {
        let cgroup = self.tree.open(id.as_str()).ok();
        if let Some(cgroup) = &cgroup
            && cgroup.populated().map_err(|e| e.to_string())?
        {
            // Processes of another pid namespace are members that cannot be listed.
            return Ok(cgroup.members().map_err(|e| e.to_string())?.len().max(1));
        }
        let pins = self.pins.join(id.as_str());
        let Some(session) = self.cgroup_id(id, cgroup.as_ref()) else { return Ok(0) };
        if !pins.exists() {
            return Ok(0);
        }
        let guard =
            (self.adopt)(&pins).map_err(|e| format!("cannot open {}: {e}", pins.display()))?;
        let outside = leftovers::labelled(guard.as_ref(), session).map_err(|e| e.to_string())?;
        Ok(outside.len())
    }

    fn cgroup_id(&self, id: &SessionId, cgroup: Option<&Cgroup>) -> Option<u64> {
        let written = || self.registry.read(id).ok()?.cgroup_id;
        cgroup.map(|cgroup| cgroup.id).or_else(written)
    }

    /// Removes what a session without living processes left.
    fn remove(&self, id: &SessionId, held: &Held) -> Result<(), String> {
        let text = |what: &Path| {
            let what = what.display().to_string();
            move |error: io::Error| format!("cannot remove {what}: {error}")
        };
        let pins = self.pins.join(id.as_str());
        match fs::remove_dir_all(&pins) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(text(&pins)(error));
            }
            _ => {}
        }
        if let Ok(cgroup) = self.tree.open(id.as_str()) {
            cgroup.remove().map_err(|e| e.to_string())?;
        }
        let temporary = tempdir::path(id);
        let uid = self.registry.read(id).ok().map(|state| state.uid);
        tempdir::remove(&temporary, uid).map_err(text(&temporary))?;
        tidy(&self.tree, &pins);
        if self.registry.exists(id) {
            let entry = self.registry.lock(id).map_err(|e| e.to_string())?;
            entry.remove(held).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    /// Ends a session: by its supervisor where it has one, else by hand. Tells what it does.
    pub fn end(&self, id: &SessionId, tell: &mut dyn FnMut(String)) -> Result<(), OrphanError> {
        let failed = |message| OrphanError { id: id.clone(), message };
        let found = self.registry.list().map_err(|e| failed(e.to_string()))?;
        let found = found.into_iter().find(|found| found.id == *id);
        if let Some(state) = found.filter(|f| f.supervised).map(|f| f.state) {
            let state = state.map_err(|e| failed(e.to_string()))?;
            return self.ask(&state).map_err(failed);
        }
        let held = self.registry.hold().map_err(|e| failed(e.to_string()))?;
        if !self.orphans().map_err(|e| failed(e.to_string()))?.contains(id) {
            return Err(failed("there is no such session; see: sandbox sessions".into()));
        }
        self.end_orphan(id, &held, tell).map_err(failed)
    }

    fn end_orphan(
        &self,
        id: &SessionId,
        held: &Held,
        tell: &mut dyn FnMut(String),
    ) -> Result<(), String> {
        let mut starting = |count| tell(format!("ending {}", processes(count)));
        let cgroup = self.tree.open(id.as_str()).ok();
        if let Some(cgroup) = &cgroup {
            leftovers::end_members(cgroup, &mut starting).map_err(|e| e.to_string())?;
        }
        let pins = self.pins.join(id.as_str());
        let session = self.cgroup_id(id, cgroup.as_ref());
        if pins.exists()
            && let Some(session) = session
        {
            match (self.adopt)(&pins) {
                Ok(guard) => {
                    let moved = leftovers::end_labelled(guard.as_ref(), session)
                        .map_err(|e| e.to_string())?;
                    if moved > 0 {
                        starting(moved);
                    }
                }
                // It never came into force, or a part of it is gone: it cannot be asked.
                Err(error) => tell(format!(
                    "cannot look for its processes outside its cgroup ({}: {error})",
                    pins.display()
                )),
            }
        }
        self.remove(id, held)
    }

    /// Asks a living supervisor to end its session; kills the members when it takes too long.
    fn ask(&self, state: &State) -> Result<(), String> {
        let pid = state.supervisor.pid;
        let supervisor: Option<OwnedFd> =
            super::process::open(pid).map_err(|e| format!("cannot reach process {pid}: {e}"))?;
        let is_it = super::process::Stat::of(pid).is_ok_and(|s| s.start == state.supervisor.start);
        let Some(supervisor) = supervisor.filter(|_| is_it) else {
            return Err(format!(
                "its supervisor, process {pid}, cannot be seen from here; \
                 run this in the pid namespace where it runs"
            ));
        };
        rustix::process::pidfd_send_signal(&supervisor, Signal::TERM)
            .map_err(|e| format!("cannot signal process {pid}: {e}"))?;
        let gone = |limit: Duration| {
            let limit = rustix::event::Timespec {
                tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: 0,
            };
            let wait = rustix::event::PollFd::new(&supervisor, rustix::event::PollFlags::IN);
            rustix::event::poll(&mut [wait], Some(&limit)).is_ok_and(|ready| ready > 0)
        };
        if gone(Duration::from_secs(5)) {
            return Ok(());
        }
        if let Ok(cgroup) = self.tree.open(state.id.as_str()) {
            cgroup.kill().map_err(|e| e.to_string())?;
        }
        if gone(Duration::from_secs(15)) {
            return Ok(());
        }
        Err(format!("its supervisor, process {pid}, does not end"))
    }
}

/// Judges the sessions of this host that nobody supervises, see [`Keeper::report`].
pub fn report() -> anyhow::Result<Vec<Finding>> {
    Keeper::host()?.report()
}
