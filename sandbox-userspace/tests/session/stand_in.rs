//! `sandbox run` with the kernel side replaced: it writes down what is asked of it.

use crate::place::Place;
use rustix::fs::{FileType, Mode, OFlags};
use sandbox_common::Access;
use sandbox_common::event::{Header, Hook, Kind, Reason};
use sandbox_userspace::engine::events::{DecodeError, Object, Record};
use sandbox_userspace::engine::{Aside, EngineError, Passed};
use sandbox_userspace::policy::compiled::CompiledPolicy;
use sandbox_userspace::session::SessionId;
use sandbox_userspace::session::cgroup::Cgroup;
use sandbox_userspace::session::guard::{Guard, Kernels, Source};
use sandbox_userspace::session::resources::Enforced;
use sandbox_userspace::session::run::{Kernel, Request, RunError, run};
use sandbox_userspace::session::state::{Held, Registry};
use sandbox_userspace::session::user::User;
use sandbox_userspace::sinks::explain::{Explainer, SharedRules};
use sandbox_userspace::sinks::{Level, Output};
use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Environment variable that makes this program the stand-in: the place of its files.
pub(crate) const PLACE: &str = "SESSION_TEST_PLACE";

/// Runs as the stand-in if the environment says so.
pub(crate) fn main() -> Option<ExitCode> {
    let place = Place::at(std::env::var_os(PLACE)?);
    let mut command: Vec<_> = std::env::args_os().skip(1).collect();
    let mut user = None;
    if command.first().is_some_and(|first| first == "--user") {
        user = Some(command[1].to_str().unwrap().to_owned());
        command.drain(..2);
    }
    let request = Request {
        id: SessionId::random().unwrap(),
        registry: Registry::open(place.run()).unwrap(),
        tree: place.tree(),
        pins: place.pins(),
        user: User::choose(user.as_deref(), None, None).unwrap(),
        workspace: "/".into(),
        command,
        variables: Vec::new(),
        removed: Vec::new(),
        limits: sandbox_userspace::policy::limits::Limits::default(),
        rules: Vec::new(),
    };
    let mut output = Output::new(false, false, Some(&place.events())).unwrap();
    let show = |_, names: &[Vec<u8>]| {
        Some(PathBuf::from(String::from_utf8_lossy(&names.concat()).into_owned()))
    };
    output.explain_with(Explainer::new(
        request.id.clone(),
        SharedRules::default(),
        sandbox_common::subject::Mode::Enforce,
        Box::new(show),
    ));
    Some(match run(request, &mut StandIn { place }, &mut output) {
        Ok(code) => code.into(),
        Err(error) => {
            output.notice(Level::Error, &error.to_string());
            error.code().into()
        }
    })
}

struct StandIn {
    place: Place,
}

impl Kernel for StandIn {
    fn enforce(&mut self, cgroup: &Cgroup, pins: &Path) -> Result<Enforced, RunError> {
        if self.place.path("refuse").exists() {
            return Err(RunError::Enforce { message: "refused".into(), help: None });
        }
        assert!(cgroup.members().unwrap().is_empty(), "nobody is in before it is in force");
        fs::create_dir_all(pins).unwrap();
        let log = Log::adopt(pins);
        log.say(&format!("enforce beneath level {}", cgroup.parent.level));
        Ok(Enforced {
            guard: Box::new(log),
            source: Box::new(Ring::open(&self.place)),
            notes: None,
            watch: None,
            resolver: None,
        })
    }
}

/// A ring into which the test writes: every byte is one denial of the process with that id.
struct Ring(File);

impl Ring {
    fn open(place: &Place) -> Self {
        let path = place.ring();
        let _ = fs::remove_file(&path);
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .unwrap();
        // For writing too, or it would be at its end when the test closes it.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Self(rustix::fs::open(path, flags, Mode::empty()).unwrap().into())
    }
}

impl Source for Ring {
    fn wait_on(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn next(&mut self) -> Option<Result<Record, DecodeError>> {
        let mut byte = [0];
        (self.0.read(&mut byte).ok()? == 1).then(|| Ok(denial(byte[0].into())))
    }
}

fn denial(pid: u32) -> Record {
    let header = Header {
        version: 1,
        kind: Kind::Path as u8,
        hook: Hook::FileOpen as u8,
        reason: Reason::Default as u8,
        access: Access::WRITE.bits(),
        session: 1,
        rule: 0,
        mode: 1,
        time: 0,
        cgroup: 0,
        pid,
        tid: pid,
        uid: 0,
        comm: *b"agent\0\0\0\0\0\0\0\0\0\0\0",
    };
    let components = vec![b"etc".to_vec(), b"passwd".to_vec()];
    let object = Object { dev: 0, rdev: 0, mode: 0o100_644, components, truncated: false };
    Record::Path { header, object }
}

/// Writes down what is asked of the kernel side.
pub(crate) struct Log {
    place: Place,
    pins: PathBuf,
}

impl Log {
    /// As an engine opens its pins.
    pub(crate) fn adopt(pins: &Path) -> Self {
        let place = Place::at(pins.parent().unwrap().parent().unwrap());
        Self { place, pins: pins.into() }
    }

    fn say(&self, text: &str) {
        let mut log = OpenOptions::new().create(true).append(true).open(self.place.log()).unwrap();
        writeln!(log, "{text}").unwrap();
    }

    fn session(&self) -> String {
        self.pins.file_name().unwrap().to_str().unwrap().into()
    }
}

impl Guard for Log {
    /// Processes listed in the file `labelled` bear the label.
    fn label(&self, pidfd: BorrowedFd<'_>) -> Result<Option<u64>, EngineError> {
        let Ok(list) = fs::read_to_string(self.place.path("labelled")) else { return Ok(None) };
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_raw_fd())).unwrap();
        let pid = info.lines().find_map(|line| line.strip_prefix("Pid:")).unwrap().trim();
        let cgroup = self.place.tree().open(&self.session()).unwrap();
        Ok(list.lines().any(|line| line == pid).then_some(cgroup.id))
    }

    fn eras(&mut self, _devs: &[u32]) -> Result<HashMap<u32, u32>, EngineError> {
        Ok(HashMap::new())
    }

    fn replace(
        &mut self,
        _registry: &Registry,
        _new: &CompiledPolicy,
        _usable: &mut dyn FnMut() -> bool,
    ) -> Result<bool, EngineError> {
        Ok(true)
    }

    fn dismiss(&mut self, cgroup: u64, _held: &Held) -> Result<(), EngineError> {
        let found = self.place.tree().open(&self.session()).unwrap();
        assert_eq!(found.id, cgroup);
        assert!(!found.populated().unwrap(), "members are ended before they are dismissed");
        self.say("dismiss");
        Ok(())
    }

    fn detach(&mut self) -> Result<(), EngineError> {
        self.say("detach");
        Ok(())
    }

    fn keep_names(&mut self, _: &std::collections::HashSet<u32>) -> Result<(), EngineError> {
        Ok(())
    }

    fn lost(&self) -> Result<u64, EngineError> {
        Ok(0)
    }

    fn passed(&self) -> Result<Vec<Passed>, EngineError> {
        Ok(Vec::new())
    }

    fn remove(self: Box<Self>, _held: &Held) -> Result<Option<Aside>, EngineError> {
        fs::remove_dir_all(&self.pins).unwrap();
        self.say("remove");
        Ok(None)
    }
}

/// As the engines of a host: a directory for each session.
#[derive(Debug)]
pub(crate) struct Logs(pub(crate) PathBuf);

impl Kernels for Logs {
    fn sessions(&self) -> io::Result<BTreeSet<SessionId>> {
        let Ok(entries) = fs::read_dir(&self.0) else { return Ok(BTreeSet::new()) };
        let names = entries.map(|entry| entry.unwrap().file_name());
        Ok(names.filter_map(|name| name.to_str()?.parse().ok()).collect())
    }

    fn open(&self, id: &SessionId) -> Result<Option<Box<dyn Guard>>, EngineError> {
        let pins = self.0.join(id.as_str());
        Ok(pins.exists().then(|| Box::new(Log::adopt(&pins)) as Box<dyn Guard>))
    }

    fn clear(&self, owner: &str, _held: &Held) -> Result<Vec<Aside>, EngineError> {
        let _ = fs::remove_dir_all(self.0.join(owner));
        Ok(Vec::new())
    }

    fn idle(&self, _held: &Held) -> Result<Vec<Aside>, EngineError> {
        Ok(Vec::new())
    }
}
