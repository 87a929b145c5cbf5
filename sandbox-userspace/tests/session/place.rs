//! Where a test's files are, and how it starts a stand-in.

use crate::stand_in::PLACE;
use sandbox_userspace::session::cgroup::CgroupTree;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Why these tests cannot run here.
pub fn lacks() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("they need root".into());
    }
    CgroupTree::find().err().map(|error| error.to_string())
}

/// A directory for the files of one test.
#[derive(Clone)]
pub struct Place(PathBuf);

impl Place {
    /// A new one.
    pub fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("session-test-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// One that exists.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// A file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// States of sessions.
    pub fn run(&self) -> PathBuf {
        self.path("run")
    }

    /// Pins of sessions.
    pub fn pins(&self) -> PathBuf {
        self.path("pins")
    }

    /// What the stand-in was asked.
    pub fn log(&self) -> PathBuf {
        self.path("log")
    }

    /// JSON events.
    pub fn events(&self) -> PathBuf {
        self.path("events.jsonl")
    }

    /// A file that the test is to find.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// The stand-in for `sandbox run -- COMMAND`, in no terminal.
    pub fn command(&self, command: &[&str]) -> Command {
        let mut stand_in = Command::new("setsid");
        stand_in.arg("--wait").arg(std::env::current_exe().unwrap()).args(command);
        stand_in.env(PLACE, &self.0).stdin(Stdio::null());
        stand_in
    }

    /// Runs the stand-in to its end.
    pub fn output(&self, command: &[&str]) -> Output {
        self.command(command).output().unwrap()
    }

    /// Runs the stand-in with a shell script and gives its exit status and stdout.
    pub fn script(&self, script: &str) -> (i32, String) {
        let output = self.output(&["sh", "-c", script]);
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    }

    /// Starts the stand-in itself, without another process around it.
    pub fn start(&self, script: &str) -> Child {
        let mut stand_in = Command::new(std::env::current_exe().unwrap());
        stand_in.args(["sh", "-c", script]).env(PLACE, &self.0).stdin(Stdio::null());
        stand_in.spawn().unwrap()
    }

    /// Ids of the sessions that are written down.
    pub fn sessions(&self) -> Vec<String> {
        names(&self.run()).into_iter().filter(|name| name.len() == 8).collect()
    }

    /// Checks that no session left anything.
    pub fn is_clean(&self) {
        let id = self.read("id");
        assert_eq!(self.sessions(), [""; 0]);
        assert_eq!(names(&self.pins()), [""; 0]);
        if !id.is_empty() {
            let id = id.trim();
            assert!(CgroupTree::find().unwrap().open(id).is_err(), "the cgroup is left");
            assert!(!Path::new(&format!("/tmp/sandbox-{id}")).exists(), "TMPDIR is left");
        }
    }
}

fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Waits until something is so; fails after ten seconds.
pub fn wait_for(what: &str, mut so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !so() {
        assert!(Instant::now() < end, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process lives.
pub fn lives(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().starts_with(" Z"))
}
