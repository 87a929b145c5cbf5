//! `sandbox run`: one confined agent, as root and without a daemon.

use super::Failure;
use super::enforce::Bpf;
use crate::engine::{Engines, Identity};
use crate::kernel::features::{self, Facts};
use crate::kernel::mounts::MountTable;
use crate::policy::layers::{self, Setting};
use crate::policy::{self, Policy, linked};
use crate::session::cgroup::CgroupTree;
use crate::session::live::LiveOf;
use crate::session::mounts::{Changes, Plan, SharedTable};
use crate::session::orphan::{self, Finding};
use crate::session::run::{Request, RunError};
use crate::session::state::{RUN, Registry};
use crate::session::user::User;
use crate::session::{SessionId, host, run, streams, tempdir, terminal};
use crate::sinks::escape::printable;
use crate::sinks::explain::{Explainer, SharedRules};
use crate::sinks::kept::Kept;
use crate::sinks::{Level, Output};
use sandbox_common::subject::Mode;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{PoisonError, RwLock};

/// Arguments of `sandbox run`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct RunArgs {
    /// The policy, or the name of a preset; without it ~/.config/sandbox/policy.toml of the agent's
    /// user, else the preset `default`
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// The directory that the policy calls ${WORKSPACE}; the current one without it
    #[arg(long, value_name = "DIR")]
    pub workspace: Option<PathBuf>,
    /// Run the agent as this user; without it as the user who called sudo, else as root
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Print JSON objects instead of lines for people
    #[arg(long)]
    pub json: bool,
    /// Print errors only
    #[arg(long)]
    pub quiet: bool,
    /// Append JSON objects to this file, besides
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// Report only, whatever the policy's mode is; what the administrator closes is refused all the same.
    #[arg(skip)]
    pub audit: bool,
    /// The agent's command
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
}

const AFTER_HELP: &str = "\
The agent keeps stdin, stdout, stderr, the terminal and the current directory. What `sandbox` says
goes to stderr, every line with `sandbox: ` before it. When the command ends, whatever it left
running is ended too.

Exit status: that of the command; 128 and the signal's number when a signal ended it;
  125  sandbox itself failed, nothing was run unconfined
  126  the command was found and cannot be executed
  127  the command was not found

Examples:
  sudo sandbox run -- claude
  sudo sandbox run --policy policy.toml --events denials.jsonl --quiet -- codex
  sudo sandbox run --workspace ~/src/app -- sh -c 'cat ~/.ssh/id_ed25519'";

/// Runs `sandbox run`.
pub fn execute(args: RunArgs) -> ExitCode {
    let mut output = match Output::new(args.json, args.quiet, args.events.as_deref()) {
        Ok(output) => output,
        Err(error) => {
            let path = args.events.unwrap_or_default();
            let failure = Failure::new(format!("cannot open {}: {error}", path.display()));
            return failure.tell(&mut Output::stderr(args.json, args.quiet));
        }
    };
    match confine(args, &mut output) {
        Ok(code) => code.into(),
        Err(failure) => failure.tell(&mut output),
    }
}

/// The same for another verb: the exit status of the command.
pub fn confined(args: RunArgs) -> Result<u8, Failure> {
    let mut output = Output::new(args.json, args.quiet, args.events.as_deref())
        .map_err(|error| Failure::new(format!("cannot write events: {error}")))?;
    confine(args, &mut output)
}

/// Checks, compiles, runs.
fn confine(args: RunArgs, output: &mut Output) -> Result<u8, Failure> {
    let facts = features::require().map_err(|missing| lacking(&missing))?;
    host::check().map_err(|error| Failure::new(&error).help(error.help()))?;
    streams::check().map_err(|error| {
        let failure = Failure::new(&error);
        match error.help() {
            Some(help) => failure.help(help),
            None => failure,
        }
    })?;
    let tree = CgroupTree::find().map_err(Failure::new)?;
    let registry = Registry::open(RUN).map_err(Failure::new)?;
    let (engines, identity) = (Engines::at(host::PINS), Identity::own(&facts.layout, facts.way));
    report_orphans(&identity, output)?;
    let sudo = std::env::var_os("SUDO_USER");
    let user = User::choose(args.user.as_deref(), sudo.as_deref(), std::env::var_os("HOME"))
        .map_err(Failure::new)?;
    let policy = super::policy::opening(args.policy.as_deref(), &user).map_err(bad_policy)?;
    let policy = if args.audit { Policy { mode: Mode::Audit, ..policy } } else { policy };
    let given = args.workspace.as_deref().unwrap_or(Path::new("."));
    let workspace = policy::workspace::check(given, &user.home, &policy).map_err(Failure::new)?;
    let setting = Setting::new(&user.home, user.uid, &workspace, args.policy.as_deref());
    let (policy, untrusted) = layers::over(policy, &setting).map_err(bad_policy)?;
    policy::workspace::check(given, &user.home, &policy).map_err(Failure::new)?;
    if let Some(untrusted) = untrusted {
        let help =
            "read it, then: sandbox policy trust, as the user whose agent this is".to_owned();
        output.notice_with_help(Level::Warning, &untrusted, Some(help));
    }
    warn_of_events(args.events.as_deref(), &workspace, output);
    let id = SessionId::random()
        .map_err(|error| Failure::new(format!("cannot make a session id: {error}")))?;

    let changes = Changes::open()
        .map_err(|error| Failure::new(format!("cannot watch /proc/self/mountinfo: {error}")))?;
    let mounts = MountTable::read(None).map_err(Failure::new)?;
    let context = policy::Context {
        home: user.home.clone(),
        workspace: workspace.clone(),
        tmpdir: tempdir::path(&id),
        terminal: terminal::device(),
        surroundings: policy::services::Surroundings::own(user.uid),
    };
    let unextended = policy.clone();
    let (policy, refusal) =
        policy::worktree::extend(policy, &context, user.uid).map_err(bad_policy)?;
    if let Some(refusal) = refusal {
        let help = Some(policy::worktree::HELP.to_owned());
        output.notice_with_help(Level::Warning, &refusal.message(), help);
    }
    let variables = policy::environment::variables(&policy, &context).map_err(bad_policy)?;
    let removed = removed(&policy, output);
    let mode = mode(&policy, output);
    let placed = policy::expand::expand(&policy, &context).map_err(bad_policy)?;
    let (mut compiled, warnings) =
        policy::compile_placed(&policy, &context, &placed, &mounts, &[]).map_err(bad_policy)?;
    for warning in warnings {
        output.notice(Level::Warning, &warning.to_string());
    }
    let linked = linked::find(&placed, policy.defaults, &mounts, linked::ENTRIES);
    for gap in &linked.gaps {
        output.notice(Level::Warning, &gap.to_string());
    }
    compiled.linked = linked.files;

    let table = SharedTable::new(RwLock::new(mounts));
    let shown = table.clone();
    let show = move |dev, components: &[Vec<u8>]| {
        shown.read().unwrap_or_else(PoisonError::into_inner).show(dev, components)
    };
    let rules = SharedRules::new(RwLock::new(compiled.rules.clone()));
    output.explain_with(Explainer::new(id.clone(), rules.clone(), mode, Box::new(show)));
    output.also(Box::new(Kept::new(RUN.into(), id.clone())));
    let live =
        LiveOf { registry: registry.clone(), id: id.clone(), setting, policy: unextended, rules };
    let request = Request {
        id,
        registry: registry.clone(),
        tree: tree.clone(),
        pins: engines.pins(&identity).join("sessions"),
        user,
        workspace,
        command: args.command,
        variables,
        removed,
        limits: policy.effective_limits(),
        rules: compiled.rules.clone(),
    };
    let Facts { layout, way, hooks, .. } = facts;
    let plan = Some(Plan { policy, context, placed, table, changes, registry: registry.clone() });
    let mut kernel = Bpf {
        registry,
        engines,
        tree,
        layout,
        way,
        hooks,
        mode,
        policy: compiled,
        plan,
        live: Some(live),
    };
    run::run(request, &mut kernel, output).map_err(|error| failure(&error))
}

/// The mode in which it is enforced; a warning where that is not to refuse, or not what the policy says.
fn mode(policy: &Policy, output: &mut Output) -> Mode {
    let mode = policy.effective_mode();
    if policy.mode == Mode::Audit {
        let text = match mode {
            Mode::Audit => "the policy's mode is `audit`: what it denies is reported, and done",
            Mode::Enforce => "the policy's mode is `audit`, which the layers above do not allow",
        };
        output.notice(Level::Warning, text);
    }
    mode
}

/// The variables that the agent does not get; they are told by name.
fn removed(policy: &Policy, output: &mut Output) -> Vec<OsString> {
    let own: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let own = own.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()));
    let removed = policy::environment::removed(policy, own);
    let names: Vec<OsString> = removed.into_iter().map(|removed| removed.name).collect();
    if !names.is_empty() {
        let shown: Vec<_> = names.iter().map(|name| printable(name.as_encoded_bytes())).collect();
        output.notice(Level::Info, &format!("the agent does not get {}", shown.join(", ")));
    }
    names
}

fn failure(error: &RunError) -> Failure {
    Failure { code: error.code(), message: error.to_string(), help: error.help() }
}

/// Tells of sessions that lost their supervisor. What is left in force may be in nobody's way, so
/// that only a host that cannot be looked at is refused.
fn report_orphans(own: &Identity, output: &mut Output) -> Result<(), Failure> {
    let findings = orphan::report(Some(own.clone()))
        .map_err(|error| Failure::new(format!("cannot look for sessions left behind: {error}")))?;
    for finding in findings {
        let level = match finding {
            Finding::Removed(_) => Level::Info,
            Finding::Alive(..) | Finding::Failed(..) => Level::Warning,
        };
        output.notice(level, &finding.to_string());
    }
    Ok(())
}

/// Everything that is missing at once, and how to mend each.
pub(super) fn lacking(missing: &[features::Missing]) -> Failure {
    let texts: Vec<_> = missing.iter().map(ToString::to_string).collect();
    let remedies: Vec<_> = missing.iter().map(features::Missing::mend).collect();
    Failure::new(texts.join("\n")).help(remedies.join("\n"))
}

fn bad_policy(error: policy::PolicyError) -> Failure {
    Failure::new(error).help("nothing was started; `sandbox policy check FILE` checks a policy")
}

fn warn_of_events(events: Option<&Path>, workspace: &Path, output: &mut Output) {
    let inside = events
        .and_then(|path| std::fs::canonicalize(path).ok())
        .filter(|path| path.starts_with(workspace));
    if let Some(path) = inside {
        let path = path.display();
        let text = format!("the agent may be able to change {path}: it lies in the workspace");
        output.notice(Level::Warning, &text);
    }
}
