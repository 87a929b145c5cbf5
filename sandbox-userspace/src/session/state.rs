//! What is written down about a session: `/run/sandbox/ID/session.json`, and the lock beside it
//! that its supervisor holds as long as it lives.

use super::SessionId;
use crate::policy::compiled::Rule;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where the states of all sessions are.
pub const RUN: &str = "/run/sandbox";
const FILE: &str = "session.json";
const LOCK: &str = "lock";
const DOCTOR: &str = "doctor";
/// How long to wait for a lock: an engine is loaded or a killed session is cleaned up in seconds,
/// and many may be waiting.
const PATIENCE: Duration = Duration::from_mins(2);

/// Something about the state files failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what} {path}: {source}")]
pub struct StateError {
    /// What was attempted.
    pub what: &'static str,
    /// On what.
    pub path: PathBuf,
    /// Why not.
    pub source: io::Error,
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StateError {
    move |source| StateError { what, path: path.into(), source }
}

/// One session. Paths and the command are text for people where they are not UTF-8, except those
/// of which the program itself makes the names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The session.
    pub id: SessionId,
    /// Who supervises it.
    pub supervisor: Supervisor,
    /// When it was started, RFC 3339.
    pub started: String,
    /// Directory of its cgroup.
    pub cgroup: PathBuf,
    /// The cgroup's id; absent until it is made.
    pub cgroup_id: Option<u64>,
    /// Directory of its pins.
    pub pins: PathBuf,
    /// Its directory for temporary files.
    pub temporary: PathBuf,
    /// The workspace.
    pub workspace: String,
    /// The agent's command line.
    pub command: Vec<String>,
    /// Login name of the agent's user.
    pub user: String,
    /// User id of the agent's user.
    pub uid: u32,
    /// What rule ids in its events mean.
    pub rules: Vec<Rule>,
}

/// A process, named so that a later one with the same id is not taken for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Supervisor {
    /// Process id.
    pub pid: i32,
    /// When it started, clock ticks since boot.
    pub start: u64,
}

/// The directory of all sessions' states.
#[derive(Clone, Debug)]
pub struct Registry {
    root: PathBuf,
}

/// Proof that [`Registry::hold`] holds.
#[derive(Debug)]
pub struct Held(#[expect(dead_code, reason = "open as long as the lock is held")] File);

/// What [`Registry::list`] finds.
#[derive(Debug)]
pub struct Found {
    /// The session.
    pub id: SessionId,
    /// Its state, or why it cannot be read.
    pub state: Result<State, StateError>,
    /// Its supervisor lives.
    pub supervised: bool,
}

impl Registry {
    /// Opens the registry at `root` (normally [`RUN`]), making the directory where it is missing.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, StateError> {
        let root = root.into();
        match DirBuilder::new().mode(0o700).create(&root) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(io_error("create", &root)(error))
            }
            _ => Ok(Self { root }),
        }
    }

    /// Keeps other processes from making sessions and from cleaning up, as long as it is held. Waits
    /// for who holds it, but not for ever.
    pub fn hold(&self) -> Result<Held, StateError> {
        self.hold_file(LOCK, PATIENCE)
    }

    /// Keeps other processes from running `doctor`, which calls itself by that name on the engine.
    pub fn hold_doctor(&self) -> Result<Held, StateError> {
        self.hold_file(DOCTOR, PATIENCE)
    }

    /// Whether `doctor` runs: whether its lock is held.
    pub fn doctor_runs(&self) -> bool {
        is_locked(&self.root.join(DOCTOR))
    }

    fn hold_file(&self, name: &str, patience: Duration) -> Result<Held, StateError> {
        let path = self.root.join(name);
        let file = lock_file(&path).map_err(io_error("open", &path))?;
        let end = Instant::now() + patience;
        let mut pause = Duration::from_millis(1);
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Held(file)),
                Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(50));
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let held = "another process of sandbox has held it for too long";
                    return Err(io_error("lock", &path)(io::Error::other(held)));
                }
                Err(error) => return Err(io_error("lock", &path)(error.into())),
            }
        }
    }

    /// Where the canary of an owner (a session, or `doctor`) has its files.
    pub fn scratch(&self, owner: &str) -> PathBuf {
        self.root.join(format!("canary-{owner}"))
    }

    /// Writes down a new session and locks it.
    pub fn enter(&self, state: &State) -> Result<Entry, StateError> {
        let _held = self.hold()?;
        let directory = self.directory(&state.id);
        DirBuilder::new().mode(0o700).create(&directory).map_err(io_error("create", &directory))?;
        let entry = self.lock(&state.id)?;
        entry.write(state)?;
        Ok(entry)
    }

    /// Takes over a session whose supervisor is gone: its lock must be free.
    pub fn lock(&self, id: &SessionId) -> Result<Entry, StateError> {
        let directory = self.directory(id);
        let path = directory.join(LOCK);
        let lock = lock_file(&path).map_err(io_error("open", &path))?;
        // Who only looks whether it is held takes it for a moment.
        let mut patience = 50;
        while let Err(error) = rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK || patience == 0 {
                return Err(io_error("lock", &path)(error.into()));
            }
            patience -= 1;
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(Entry { directory, _lock: lock })
    }

    /// All sessions, by id.
    pub fn list(&self) -> Result<Vec<Found>, StateError> {
        let found = |(id, supervised)| Found { state: self.read(&id), supervised, id };
        Ok(self.ids()?.into_iter().map(found).collect())
    }

    /// The ids of all sessions, in order, and whether their supervisors live.
    pub fn ids(&self) -> Result<Vec<(SessionId, bool)>, StateError> {
        let entries = fs::read_dir(&self.root).map_err(io_error("list", &self.root))?.flatten();
        let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut found: Vec<_> = ids
            .map(|id: SessionId| {
                let supervised = self.supervised(&id);
                (id, supervised)
            })
            .collect();
        found.sort_unstable();
        Ok(found)
    }

    /// The state of a session.
    pub fn read(&self, id: &SessionId) -> Result<State, StateError> {
        let path = self.directory(id).join(FILE);
        let text = fs::read(&path).map_err(io_error("read", &path))?;
        serde_json::from_slice(&text).map_err(|error| io_error("read", &path)(error.into()))
    }

    /// Whether its supervisor lives: whether its lock is held.
    fn supervised(&self, id: &SessionId) -> bool {
        is_locked(&self.directory(id).join(LOCK))
    }

    /// Whether the session is written down.
    pub fn exists(&self, id: &SessionId) -> bool {
        self.directory(id).exists()
    }

    /// Writes down what the rules of a running session are now; for its supervisor.
    pub fn set_rules(&self, id: &SessionId, rules: Vec<Rule>) -> Result<(), StateError> {
        let state = self.read(id)?;
        write(&self.directory(id), &State { rules, ..state })
    }

    /// Where what belongs to a session is written down.
    pub fn directory(&self, id: &SessionId) -> PathBuf {
        self.root.join(id.as_str())
    }
}

/// A session that this process supervises: its lock is held until this is dropped.
#[derive(Debug)]
pub struct Entry {
    directory: PathBuf,
    _lock: File,
}

impl Entry {
    /// Replaces the state as a whole.
    pub fn write(&self, state: &State) -> Result<(), StateError> {
        write(&self.directory, state)
    }

    /// Removes all that is written down about the session. Step by step, hence the proof: nobody
    /// may take what is left for an orphan meanwhile.
    pub fn remove(self, _held: &Held) -> Result<(), StateError> {
        fs::remove_dir_all(&self.directory).map_err(io_error("remove", &self.directory))
    }
}

/// Replaces the state in a directory as a whole.
fn write(directory: &Path, state: &State) -> Result<(), StateError> {
    let new = directory.join("session.json.new");
    let text =
        serde_json::to_vec_pretty(state).map_err(|error| io_error("write", &new)(error.into()))?;
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .map_err(io_error("create", &new))?;
    file.write_all(&text).map_err(io_error("write", &new))?;
    fs::rename(&new, directory.join(FILE)).map_err(io_error("rename", &new))
}

/// Whether somebody holds a lock.
fn is_locked(path: &Path) -> bool {
    // Opened, not made: looking must not change anything.
    let Ok(file) = File::open(path) else { return false };
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)
        .is_err_and(|error| error == rustix::io::Errno::WOULDBLOCK)
}

fn lock_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)
}

#[cfg(test)]
pub(in crate::session) mod tests {
    use super::*;

    pub(in crate::session) fn state(id: &str) -> State {
        State {
            id: id.parse().unwrap(),
            supervisor: Supervisor { pid: 1, start: 2 },
            started: "2026-11-29T12:00:00Z".into(),
            cgroup: format!("/sys/fs/cgroup/sandbox/{id}").into(),
            cgroup_id: Some(u64::MAX),
            pins: format!("/sys/fs/bpf/sandbox/{id}").into(),
            temporary: format!("/tmp/sandbox-{id}").into(),
            workspace: "/home/ann/a \"b\"".into(),
            command: vec!["sh".into(), "-c".into(), "echo \u{1b}[1m".into()],
            user: "ann".into(),
            uid: 1000,
            rules: vec![Rule {
                id: 1,
                key: "files.read.deny".into(),
                text: "~/.ssh/**".into(),
                layer: "preset".into(),
                file: "preset:default".into(),
                line: 12,
                column: 5,
            }],
        }
    }

    #[test]
    fn state_survives_the_file() {
        let place = tempfile::tempdir().unwrap();
        let registry = Registry::open(place.path()).unwrap();
        let mut written = state("0123abcd");
        let entry = registry.enter(&written).unwrap();
        assert_eq!(registry.read(&written.id).unwrap(), written);
        written.cgroup_id = None;
        entry.write(&written).unwrap();
        assert_eq!(registry.read(&written.id).unwrap(), written);
        assert!(registry.enter(&written).is_err(), "one session, one entry");
        entry.remove(&registry.hold().unwrap()).unwrap();
        assert!(registry.list().unwrap().is_empty());
    }

    #[test]
    fn a_free_lock_marks_an_orphan() {
        let place = tempfile::tempdir().unwrap();
        let registry = Registry::open(place.path()).unwrap();
        let entry = registry.enter(&state("0123abcd")).unwrap();
        fs::create_dir(place.path().join("not-a-session")).unwrap();
        assert!(registry.list().unwrap()[0].supervised);
        assert!(registry.lock(&state("0123abcd").id).is_err());
        drop(entry);
        let found = registry.list().unwrap();
        assert_eq!(found.len(), 1);
        assert!(!found[0].supervised && found[0].state.is_ok());
        registry.lock(&found[0].id).unwrap();
    }

    #[test]
    fn a_lock_that_cannot_be_had_is_an_error() {
        let place = tempfile::tempdir().unwrap();
        let registry = Registry::open(place.path()).unwrap();
        let held = registry.hold().unwrap();
        let error = registry.hold_file(LOCK, Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("another process"), "{error}");
        drop(held);
        registry.hold_file(LOCK, Duration::ZERO).unwrap();
        assert!(!registry.doctor_runs());
        let doctor = registry.hold_doctor().unwrap();
        assert!(registry.doctor_runs());
        drop(doctor);
        assert!(!registry.doctor_runs());
    }

    #[test]
    fn a_state_that_cannot_be_read_is_listed() {
        let place = tempfile::tempdir().unwrap();
        let registry = Registry::open(place.path()).unwrap();
        fs::create_dir(place.path().join("0123abcd")).unwrap();
        fs::write(place.path().join("0123abcd").join(FILE), "{").unwrap();
        let found = registry.list().unwrap();
        assert!(!found[0].supervised && found[0].state.is_err());
    }
}
