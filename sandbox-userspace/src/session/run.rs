//! One session from the first file to the last: made, supervised, taken down.

use super::cgroup::{Cgroup, CgroupError, CgroupTree};
use super::guard::Told;
use super::launch::{Launch, LaunchError, launch};
use super::process::Stat;
use super::program::{self, ProgramError};
use super::resources::{Enforced, ResourceError, Resources};
use super::signals::Signals;
use super::state::{Registry, State, StateError, Supervisor};
use super::supervise::{Ending, Heard, supervise};
use super::terminal::Group;
use super::user::User;
use super::{SessionId, tempdir};
use crate::policy::compiled::Rule;
use crate::policy::limits::Limits;
use crate::sinks::{Level, Output};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

/// Where programs are looked for when there is no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What is to be run, and where its traces go.
#[derive(Debug)]
pub struct Request {
    /// The session.
    pub id: SessionId,
    /// States of sessions.
    pub registry: Registry,
    /// Cgroups of sessions.
    pub tree: CgroupTree,
    /// Directory in which the session's own pins are made, on a bpffs.
    pub pins: PathBuf,
    /// The agent's user.
    pub user: User,
    /// The workspace, canonical.
    pub workspace: PathBuf,
    /// The command and its arguments; not empty.
    pub command: Vec<OsString>,
    /// Variables that the agent gets because of its policy; `None`: one that it does not get.
    pub variables: Vec<(&'static str, Option<OsString>)>,
    /// Variables of this process that it does not get.
    pub removed: Vec<OsString>,
    /// How much of the machine it may have.
    pub limits: Limits,
    /// What rule ids mean.
    pub rules: Vec<Rule>,
}

/// The session did not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// There is no such program.
    #[error(transparent)]
    Program(#[from] ProgramError),
    /// A part of the session could not be made.
    #[error(transparent)]
    Resource(#[from] ResourceError),
    /// The policy could not be put in force.
    #[error("{message}")]
    Enforce {
        /// What was attempted and why it failed.
        message: String,
        /// How to mend it.
        help: Option<String>,
    },
    /// Something about this process.
    #[error("cannot {what}: {source}")]
    Own {
        /// What was attempted.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The agent did not start.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A signal came before the agent was started.
    #[error("ended by signal {0} before the agent was started")]
    Signalled(i32),
    /// The agent was started and could not be supervised; it was ended.
    #[error("cannot supervise the agent: {0}")]
    Supervise(io::Error),
}

impl From<StateError> for RunError {
    fn from(error: StateError) -> Self {
        Self::Resource(error.into())
    }
}

impl From<CgroupError> for RunError {
    fn from(error: CgroupError) -> Self {
        Self::Resource(error.into())
    }
}

fn own(what: &'static str) -> impl FnOnce(io::Error) -> RunError {
    move |source| RunError::Own { what, source }
}

impl RunError {
    /// How to mend it, where that can be said.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Enforce { help, .. } => help.clone(),
            Self::Program(ProgramError::NotFound(name)) => {
                let sudo = std::env::var_os("SUDO_USER").is_some();
                (sudo && !name.as_encoded_bytes().contains(&b'/')).then(|| {
                    "sudo replaces PATH; keep yours: sudo env \"PATH=$PATH\" sandbox run -- ..."
                        .into()
                })
            }
            Self::Launch(LaunchError::Exec { .. }) => {
                Some("a denial above, if there is one, names the rule that refused it".into())
            }
            _ => None,
        }
    }

    /// The exit status that tells of it.
    pub fn code(&self) -> u8 {
        match self {
            Self::Program(ProgramError::NotFound(_)) => 127,
            Self::Program(ProgramError::NotExecutable { .. }) => 126,
            Self::Launch(LaunchError::Exec { source, .. }) => match source.kind() {
                io::ErrorKind::NotFound => 127,
                _ => 126,
            },
            Self::Signalled(signal) => Ending::Signalled(*signal).code(),
            _ => 125,
        }
    }
}

/// The kernel side, as [`run`] asks for it.
pub trait Kernel {
    /// Puts the policy in force for the tasks of `cgroup` and pins what is the session's alone beneath
    /// `pins`, a directory that bears its name and is made here. When this returns, denials were seen.
    /// Nothing is left on an error.
    fn enforce(&mut self, cgroup: &Cgroup, pins: &Path) -> Result<Enforced, RunError>;
}

/// Runs the session; `Ok` is the exit status of its command.
pub fn run(request: Request, kernel: &mut dyn Kernel, output: &mut Output) -> Result<u8, RunError> {
    let Request { id, registry, tree, pins, user, workspace, command, .. } = request;
    let Request { variables, removed, limits, rules, .. } = request;
    let directory = std::env::current_dir().map_err(own("find the current directory"))?;
    let search = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let name = command.first().map_or(OsStr::new(""), OsString::as_os_str);
    let program = program::find(name, &search, &directory, &user)?;
    let group = Group::choose().map_err(own("look at the terminal"))?;
    let signals = Signals::take(group.is_own()).map_err(own("take the signals"))?;
    let text = |text: &OsString| text.to_string_lossy().into_owned();
    let supervisor = Supervisor {
        pid: std::process::id().cast_signed(),
        start: Stat::of("self").map_err(own("find when it was started"))?.start,
    };
    let pins = pins.join(id.as_str());
    let state = State {
        supervisor,
        started: jiff::Timestamp::now().to_string(),
        cgroup: tree.parent().join(id.as_str()),
        cgroup_id: None,
        pins: pins.clone(),
        temporary: tempdir::path(&id),
        workspace: workspace.to_string_lossy().into_owned(),
        command: command.iter().map(text).collect(),
        user: user.name.clone(),
        uid: user.uid,
        rules,
        id: id.clone(),
    };
    let mut resources = Resources::begin(&registry, tree, state)?;
    let outcome = (|| {
        let cgroup = resources.make(user.uid, user.gid, limits)?;
        let entrance = cgroup.entrance()?;
        let enforced = kernel.enforce(&cgroup, &pins)?;
        if let Some(signal) = signals.asked_to_end().map_err(own("read the signals"))? {
            resources.enforced(enforced);
            return Err(RunError::Signalled(signal));
        }
        let environment = environment(resources.state(), &user, variables);
        let enforced = resources.enforced(enforced);
        let launching = Launch {
            program: &program,
            command: &command,
            removed: &removed,
            environment,
            user: &user,
            entrance: &entrance,
        };
        let mut agent = launch(&launching, group, &signals)?;
        drop(entrance);
        output.started(&id, &cgroup.path, &pins, agent.pid.as_raw_nonzero().get());
        let mut heard = |heard| match heard {
            Heard::Record(record) => output.record(record),
            Heard::Told(Told::Warning(text)) => output.notice(Level::Warning, &text),
            Heard::Told(Told::Info(text)) => output.notice(Level::Info, &text),
            Heard::Resolver(word) => output.resolver(word),
        };
        supervise(&mut agent, &signals, enforced, &mut heard).map_err(RunError::Supervise)
    })();
    finish(resources, outcome, output)
}

/// How the agent's variables differ from those of this process.
fn environment(
    state: &State,
    user: &User,
    mut variables: Vec<(&'static str, Option<OsString>)>,
) -> Vec<(&'static str, Option<OsString>)> {
    let mut set = vec![
        ("TMPDIR", state.temporary.clone().into_os_string()),
        ("SANDBOX_SESSION", state.id.to_string().into()),
    ];
    if user.changed {
        set.extend([
            ("HOME", user.home.clone().into_os_string()),
            ("USER", user.name.clone().into()),
            ("LOGNAME", user.name.clone().into()),
            ("SHELL", user.shell.clone().into_os_string()),
        ]);
    }
    variables.extend(set.into_iter().map(|(name, value)| (name, Some(value))));
    variables
}

fn finish(
    mut resources: Resources,
    outcome: Result<Ending, RunError>,
    output: &mut Output,
) -> Result<u8, RunError> {
    let id = resources.state().id.clone();
    let members = resources.end_members(&mut |count| {
        output.notice(Level::Warning, &format!("ending what still runs: {}", processes(count)));
    });
    let lost = resources.drain(output);
    let passed = resources.passed(output);
    match members {
        Ok(()) => resources.take_down(&mut |text| output.notice(Level::Warning, &text)),
        Err(error) => {
            let text = format!(
                "session {id} stays in force: {error}; end it later: sandbox sessions end {id}"
            );
            output.notice(Level::Error, &text);
        }
    }
    if let Ok(ending) = &outcome {
        output.ended(&id, ending.code(), lost, &passed);
    }
    outcome.map(Ending::code)
}

/// `1 process`, `2 processes`.
pub fn processes(count: usize) -> String {
    format!("{count} process{}", if count == 1 { "" } else { "es" })
}
