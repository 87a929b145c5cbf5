//! `sandbox learn`: what sessions were denied, or would have been, as a policy that allows it.

use super::Failure;
use super::policy::{differences, opening, show_differences, user};
use super::run::{self, RunArgs};
use crate::learn::observe::observe;
use crate::learn::propose::{Place, Proposal, propose};
use crate::learn::write::write;
use crate::policy::layers::{self, Setting};
use crate::policy::{self, Context, Policy};
use crate::session::state::{RUN, Registry};
use crate::session::{SessionId, host, tempdir};
use crate::sinks::escape::printable;
use crate::sinks::{Level, Output, kept};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Arguments of `sandbox learn`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct LearnArgs {
    /// Of this session, running or not; without it of the one that was denied something last
    #[arg(long, value_name = "ID", conflicts_with_all = ["events", "command"])]
    session: Option<SessionId>,
    /// Out of a file that `sandbox run --events` wrote
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    events: Option<PathBuf>,
    /// The present policy, or the name of a preset; without it the one that `sandbox run` would take
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// The workspace; the current directory without it
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Run the command as this user
    #[arg(long, value_name = "USER", requires = "command")]
    user: Option<String>,
    /// Propose this path or address too, although it is closed knowingly; repeatable
    #[arg(long, value_name = "WHAT")]
    include: Vec<String>,
    /// Write the policy to this file, which must not exist; without it to standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print what the proposed policy says that the present one does not, and no policy
    #[arg(long)]
    diff: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    json: bool,
    /// Run this without refusing anything but what the administrator closes, and learn from it
    #[arg(last = true, value_name = "COMMAND", requires = "output")]
    command: Vec<OsString>,
}

const AFTER_HELP: &str = "\
Credentials, what would be run later outside the session, sockets of services and what a rule denies are
never proposed by themselves: they are listed, and each is proposed when --include names it.

While `sandbox learn -- COMMAND` runs, what the policy denies is done: run nothing that you do not trust.

Examples:
  sudo sandbox learn                                     from the last session
  sudo sandbox learn --events denials.jsonl --diff
  sudo sandbox learn --output policy.toml -- make test";

/// Runs the verb.
pub fn execute(args: &LearnArgs) -> ExitCode {
    match learn(args) {
        Ok(code) => code.into(),
        Err(failure) => failure.tell(&mut Output::stderr(args.json, false)),
    }
}

fn learn(args: &LearnArgs) -> Result<u8, Failure> {
    let mut output = Output::stderr(args.json, false);
    if let Some(path) = args.output.as_deref().filter(|path| path.exists()) {
        return Err(Failure::new(format!("{} exists: name another file", path.display())));
    }
    let (text, code) = events(args, &mut output)?;
    let session = text.lines().find_map(|line| {
        let event = serde_json::from_str::<serde_json::Value>(line).ok()?;
        event["session"].as_str()?.parse::<SessionId>().ok()
    });
    let bad = |error: policy::PolicyError| Failure::new(error);
    let user = user().map_err(bad)?;
    let present = opening(args.policy.as_deref(), &user).map_err(bad)?;
    let dir = args.workspace.as_deref().unwrap_or(Path::new("."));
    let workspace = policy::workspace::check(dir, &user.home, &present).map_err(Failure::new)?;
    let setting = Setting::new(&user.home, user.uid, &workspace, args.policy.as_deref());
    let (whole, _) = layers::over(present.clone(), &setting).map_err(bad)?;
    let tmpdir =
        session.map_or_else(|| PathBuf::from("/tmp/sandbox-none"), |id| tempdir::path(&id));
    let surroundings = policy::services::Surroundings::own(user.uid);
    let context = Context { home: user.home, workspace, tmpdir, terminal: None, surroundings };
    let include: Vec<String> = args.include.iter().map(|what| meant(what, &context)).collect();
    let except = excepted(&present);
    let place = Place { policy: &whole, context: &context, include: &include, except: &except };
    let observed = observe(&text);
    let proposal = propose(&observed, &place).map_err(bad)?;
    let written =
        write(present.sources.last().map(AsRef::as_ref), &proposal).map_err(Failure::new)?;
    let proposed = policy::load_text("proposed", written.clone()).map_err(bad)?;
    tell(&proposal, &observed.other, &mut output);
    if args.json {
        anstream::println!("{}", serde_json::json!({ "policy": written, "proposal": proposal }));
    } else if args.diff {
        show_differences(&differences(&present, &proposed));
    } else if args.output.is_none() {
        anstream::print!("{written}");
    }
    if let Some(path) = &args.output {
        keep(path, &written)
            .map_err(|error| Failure::new(format!("cannot write {}: {error}", path.display())))?;
    }
    Ok(code)
}

/// The events, and the exit status of what was run for them.
fn events(args: &LearnArgs, output: &mut Output) -> Result<(String, u8), Failure> {
    let read = |path: &Path| {
        std::fs::read_to_string(path)
            .map_err(|error| Failure::new(format!("cannot read {}: {error}", path.display())))
    };
    if let Some(file) = &args.events {
        return Ok((read(file)?, 0));
    }
    host::check().map_err(|error| Failure::new(&error).help(error.help()))?;
    // Made where it is missing, so that there is something to read.
    Registry::open(RUN).map_err(Failure::new)?;
    if args.command.is_empty() {
        let kept = kept::read(Path::new(RUN), args.session.as_ref())
            .map_err(|error| Failure::new(format!("cannot read {RUN}: {error}")))?;
        let (id, text) = kept.ok_or_else(|| Failure::new("nothing was denied lately"))?;
        output.notice(Level::Info, &format!("learning from session {id}"));
        return Ok((text, 0));
    }
    let file = Path::new(RUN).join(format!("learn-{}.jsonl", std::process::id()));
    // Left by another process of this number.
    let _ = std::fs::remove_file(&file);
    let code = run::confined(RunArgs {
        policy: args.policy.clone(),
        workspace: args.workspace.clone(),
        user: args.user.clone(),
        json: args.json,
        quiet: false,
        events: Some(file.clone()),
        command: args.command.clone(),
        audit: true,
    });
    let text = read(&file);
    let _ = std::fs::remove_file(&file);
    Ok((text?, code?))
}

/// What is asked for, as events name it.
fn meant(what: &str, context: &Context) -> String {
    let under =
        |base: &Path, rest: &str| base.join(rest.trim_start_matches('/')).display().to_string();
    match (what.strip_prefix('~'), what.strip_prefix("${WORKSPACE}")) {
        (Some(rest), _) => under(&context.home, rest),
        (_, Some(rest)) => under(&context.workspace, rest),
        _ => what.to_owned(),
    }
}

/// The presets that a policy's text does without.
fn excepted(policy: &Policy) -> BTreeSet<String> {
    let text = policy.sources.last().map(|source| source.text()).unwrap_or_default();
    let table = toml::from_str::<toml::Table>(text).unwrap_or_default();
    let list = table.get("except").and_then(toml::Value::as_array).into_iter().flatten();
    list.filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

fn tell(proposal: &Proposal, other: &std::collections::BTreeMap<String, u64>, output: &mut Output) {
    for left in &proposal.left {
        let (what, evidence) =
            (printable(left.what.as_bytes()), printable(left.evidence.as_bytes()));
        let why = printable(left.why.as_bytes());
        let text = format!("left out of {}: {what} ({evidence}): {why}", left.key);
        output.notice(Level::Warning, &text);
    }
    for (what, count) in other {
        let what = printable(what.as_bytes());
        output.notice(Level::Warning, &format!("no rule would allow {what}, {count} times"));
    }
    let count = proposal.rules.len();
    output
        .notice(Level::Info, &format!("{count} rules proposed, {} left out", proposal.left.len()));
}

/// A new file; who has put something else there is not followed.
fn keep(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes())
}
