//! Where a test's files are, and how it starts a stand-in.

use crate::stand_in::PLACE;
use sandbox_common::subject::Parent;
use sandbox_userspace::session::cgroup::{Cgroup, CgroupTree};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Why these tests cannot run here.
pub(crate) fn lacks() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("they need root".into());
    }
    CgroupTree::find().err().map(|error| error.to_string())
}

/// A directory for the files of one test. Who made it removes it.
pub(crate) struct Place {
    directory: PathBuf,
    is_mine: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_mine {
            let path = self.tree().mount;
            let cgroup = Cgroup { path, id: 0, parent: Parent::default() };
            let _ = cgroup.kill();
            let _ = cgroup.wait_empty(Duration::from_secs(5));
            let _ = cgroup.remove();
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

impl Place {
    /// A new one.
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("session-test-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self { directory: path, is_mine: true }
    }

    /// One that exists.
    pub(crate) fn at(path: impl Into<PathBuf>) -> Self {
        Self { directory: path.into(), is_mine: false }
    }

    /// Cgroups of its sessions: beneath a cgroup of its own, so that no other session of this
    /// machine is taken for one of them.
    pub(crate) fn tree(&self) -> CgroupTree {
        let mut tree = CgroupTree::find().unwrap();
        tree.mount.push(self.directory.file_name().unwrap());
        match fs::create_dir(&tree.mount) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => panic!("{error}"),
            _ => tree,
        }
    }

    /// A file in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// States of sessions.
    pub(crate) fn run(&self) -> PathBuf {
        self.path("run")
    }

    /// Pins of sessions.
    pub(crate) fn pins(&self) -> PathBuf {
        self.path("pins")
    }

    /// What the stand-in was asked.
    pub(crate) fn log(&self) -> PathBuf {
        self.path("log")
    }

    /// The stand-in's ring.
    pub(crate) fn ring(&self) -> PathBuf {
        self.path("ring")
    }

    /// JSON events.
    pub(crate) fn events(&self) -> PathBuf {
        self.path("events.jsonl")
    }

    /// A file that the test is to find.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The stand-in for `sandbox run -- COMMAND`, in no terminal.
    pub(crate) fn command(&self, command: &[&str]) -> Command {
        let mut stand_in = Command::new("setsid");
        stand_in.arg("--wait").arg(std::env::current_exe().unwrap()).args(command);
        stand_in.env(PLACE, &self.directory).stdin(Stdio::null());
        stand_in
    }

    /// Runs the stand-in to its end.
    pub(crate) fn output(&self, command: &[&str]) -> Output {
        self.command(command).output().unwrap()
    }

    /// Runs the stand-in with a shell script and gives its exit status and stdout.
    pub(crate) fn script(&self, script: &str) -> (i32, String) {
        let output = self.output(&["sh", "-c", script]);
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    }

    /// Starts the stand-in itself, without another process around it.
    pub(crate) fn start(&self, script: &str) -> Child {
        let mut stand_in = Command::new(std::env::current_exe().unwrap());
        stand_in.args(["sh", "-c", script]).env(PLACE, &self.directory).stdin(Stdio::null());
        stand_in.spawn().unwrap()
    }

    /// Ids of the sessions that are written down.
    pub(crate) fn sessions(&self) -> Vec<String> {
        names(&self.run()).into_iter().filter(|name| name.len() == 8).collect()
    }

    /// Checks that no session left anything.
    pub(crate) fn is_clean(&self) {
        let id = self.read("id");
        assert_eq!(self.sessions(), [""; 0]);
        assert_eq!(names(&self.pins()), [""; 0]);
        if !id.is_empty() {
            let id = id.trim();
            assert!(self.tree().open(id).is_err(), "the cgroup is left");
            assert!(!Path::new(&format!("/tmp/sandbox-{id}")).exists(), "TMPDIR is left");
        }
        // Fails where anything is left in it.
        fs::remove_dir(self.tree().mount).unwrap();
    }
}

fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Waits until something is so; fails after ten seconds.
pub(crate) fn wait_for(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !so() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process lives.
pub(crate) fn lives(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().starts_with(" Z"))
}
