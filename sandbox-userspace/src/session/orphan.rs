//! Sessions whose supervisor is gone: killed, crashed, or the machine's power failed.
//!
//! What is pinned stays in force, so their members are still confined. Where none lives the rest
//! is removed; where some live the session is left as it is until it is ended by hand.

use super::SessionId;
use super::cgroup::{Cgroup, CgroupTree};
use super::guard::{HostEngines, Kernels};
use super::leftovers;
use super::run::processes;
use super::state::{Held, RUN, Registry, State};
use super::{canary, host, tempdir};
use crate::engine::{Aside, EngineError, Engines, Identity};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
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

/// Looks after sessions that nobody supervises.
#[derive(Debug)]
pub struct Keeper {
    /// States of sessions.
    pub registry: Registry,
    /// Cgroups of sessions.
    pub tree: CgroupTree,
    /// What sessions have in the kernel.
    pub kernels: Box<dyn Kernels>,
}

impl Keeper {
    /// The one of this host. The engine `own` is about to be used.
    pub fn host(own: Option<Identity>) -> anyhow::Result<Self> {
        let engines = Engines::at(host::PINS);
        Ok(Self {
            registry: Registry::open(RUN)?,
            tree: CgroupTree::find()?,
            kernels: Box::new(HostEngines { engines, own }),
        })
    }

    /// Judges every session that nobody supervises; removes what no process needs.
    pub fn report(&self) -> anyhow::Result<Vec<Finding>> {
        let held = self.registry.hold()?;
        let ids = self.orphans()?;
        let mut aside = Vec::new();
        let findings = ids.into_iter().map(|id| self.judge(&id, &held, &mut aside)).collect();
        aside.extend(self.sweep(&held)?);
        drop(held);
        discard(aside)?;
        Ok(findings)
    }

    /// Sessions without a supervisor: by state, and by pins and cgroups without a state.
    pub fn orphans(&self) -> anyhow::Result<BTreeSet<SessionId>> {
        let mut supervised = BTreeSet::new();
        let mut orphans = BTreeSet::new();
        for (id, lives) in self.registry.ids()? {
            if lives { &mut supervised } else { &mut orphans }.insert(id);
        }
        let mut found = self.kernels.sessions()?;
        match fs::read_dir(self.tree.parent()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => {
                let names = other?.flatten().map(|entry| entry.file_name());
                found.extend(names.filter_map(|name| {
                    let name = name.to_str()?;
                    name.strip_prefix(canary::PREFIX).unwrap_or(name).parse().ok()
                }));
            }
        }
        orphans.extend(found.into_iter().filter(|id| !supervised.contains(id)));
        Ok(orphans)
    }

    fn judge(&self, id: &SessionId, held: &Held, aside: &mut Vec<Aside>) -> Finding {
        match self.living(id) {
            Ok(0) => match self.remove(id, held) {
                Ok(idle) => {
                    aside.extend(idle);
                    Finding::Removed(id.clone())
                }
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
        let Some(session) = self.cgroup_id(id, cgroup.as_ref()) else { return Ok(0) };
        let guard =
            self.kernels.open(id).map_err(|e| format!("cannot open what is pinned: {e}"))?;
        let Some(guard) = guard else { return Ok(0) };
        let outside = leftovers::labelled(guard.as_ref(), session).map_err(|e| e.to_string())?;
        Ok(outside.len())
    }

    fn cgroup_id(&self, id: &SessionId, cgroup: Option<&Cgroup>) -> Option<u64> {
        let written = || self.registry.read(id).ok()?.cgroup_id;
        cgroup.map(|cgroup| cgroup.id).or_else(written)
    }

    /// Removes what a session without living processes left.
    fn remove(&self, id: &SessionId, held: &Held) -> Result<Vec<Aside>, String> {
        let text = |what: &Path| {
            let what = what.display().to_string();
            move |error: io::Error| format!("cannot remove {what}: {error}")
        };
        let aside = self.kernels.clear(id.as_str(), held).map_err(|e| e.to_string())?;
        self.remove_canary(id.as_str())?;
        if let Ok(cgroup) = self.tree.open(id.as_str()) {
            cgroup.remove().map_err(|e| e.to_string())?;
        }
        let temporary = tempdir::path(id);
        let uid = self.registry.read(id).ok().map(|state| state.uid);
        tempdir::remove(&temporary, uid).map_err(text(&temporary))?;
        self.tree.tidy();
        if self.registry.exists(id) {
            let entry = self.registry.lock(id).map_err(|e| e.to_string())?;
            entry.remove(held).map_err(|e| e.to_string())?;
        }
        Ok(aside)
    }

    /// Removes what an owner's canary left.
    fn remove_canary(&self, owner: &str) -> Result<(), String> {
        if let Ok(canary) = self.tree.open(&format!("{}{owner}", canary::PREFIX)) {
            // A canary whose order-giver is gone has nothing to wait for.
            canary.kill().and_then(|()| canary.remove()).map_err(|e| e.to_string())?;
        }
        let scratch = self.registry.scratch(owner);
        match fs::remove_dir_all(&scratch) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("cannot remove {}: {error}", scratch.display()))
            }
            _ => Ok(()),
        }
    }

    /// Removes what no session needs: engines, and what a killed `doctor` left.
    fn sweep(&self, held: &Held) -> anyhow::Result<Vec<Aside>> {
        let mut aside = Vec::new();
        // One that begins now waits for the lock that is held.
        if !self.registry.doctor_runs() {
            aside.extend(self.kernels.clear(canary::DOCTOR, held)?);
            self.remove_canary(canary::DOCTOR).map_err(anyhow::Error::msg)?;
        }
        aside.extend(self.kernels.idle(held)?);
        Ok(aside)
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
        let mut aside = self.end_orphan(id, &held, tell).map_err(failed)?;
        aside.extend(self.sweep(&held).map_err(|e| failed(e.to_string()))?);
        drop(held);
        discard(aside).map_err(|e| failed(e.to_string()))
    }

    fn end_orphan(
        &self,
        id: &SessionId,
        held: &Held,
        tell: &mut dyn FnMut(String),
    ) -> Result<Vec<Aside>, String> {
        let mut starting = |count| tell(format!("ending {}", processes(count)));
        let cgroup = self.tree.open(id.as_str()).ok();
        if let Some(cgroup) = &cgroup {
            leftovers::end_members(cgroup, &mut starting).map_err(|e| e.to_string())?;
        }
        if let Some(session) = self.cgroup_id(id, cgroup.as_ref()) {
            match self.kernels.open(id) {
                Ok(Some(guard)) => {
                    let moved = leftovers::end_labelled(guard.as_ref(), session)
                        .map_err(|e| e.to_string())?;
                    if moved > 0 {
                        starting(moved);
                    }
                }
                Ok(None) => {}
                // It never came into force, or a part of it is gone: it cannot be asked.
                Err(error) => {
                    tell(format!("cannot look for its processes outside its cgroup ({error})"));
                }
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

fn discard(aside: Vec<Aside>) -> Result<(), EngineError> {
    aside.into_iter().try_for_each(Aside::discard)
}

/// Judges the sessions of this host that nobody supervises, see [`Keeper::report`]. The engine `own`
/// is about to be used.
pub fn report(own: Option<Identity>) -> anyhow::Result<Vec<Finding>> {
    Keeper::host(own)?.report()
}
