//! `sandbox selftest`: the known attacks, tried in a session on this machine.

use super::Failure;
use super::policy::look::{self, Where};
use crate::kernel::features;
use crate::policy::explain::{Asked, Object, Wish};
use crate::policy::rule::Kind;
use crate::selftest::decoys::Decoys;
use crate::selftest::plan::{Ground, plan};
use crate::selftest::report::Report;
use crate::selftest::{Ended, MEMBER, Orders};
use crate::session::user::User;
use crate::sinks::Output;
use serde_json::Value;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output as Finished, Stdio};

/// Arguments of `sandbox selftest`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct SelftestArgs {
    #[command(flatten)]
    at: Where,
    /// Try it as this user; without it as the user who called sudo, else as root
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// Try it from inside what this command makes, which gets this program and a word behind its own:
    /// `sandbox selftest -- bwrap --dev-bind / /`
    #[arg(last = true, value_name = "COMMAND")]
    within: Vec<OsString>,
}

const AFTER_HELP: &str = "\
Runs a session as `sandbox run` would, with this program as its agent, and tries the known ways out and
around. It changes nothing of the machine's: what is attacked are decoys of its own (in /tmp or another
place that the policy closes), the machine's own files are at most opened and closed again, its
processes get signal 0 at most. It needs no compiler, but root, as `sandbox run` does.

`refused` names the hook and the rule; `permitted` is what the policy opens; `not here` is what this machine
has nothing of. Each family has harmless twins: the same ways, aimed at what is allowed. From inside a process id
namespace of COMMAND's no hook and no rule is named.

Exit status: 0 when nothing got through and every twin worked; 1 when something got through, or a twin did
not work; 125 when there was no session to try it in.";

/// Where decoys may be made: the first that the policy closes for writing. `/tmp` is in the file system of the
/// session's own directory, so that names can be moved and linked between them.
const PLACES: &[&str] = &["/tmp", "/var/tmp", "/var/lib", "/root"];

/// Runs `sandbox selftest`.
pub fn execute(args: &SelftestArgs) -> ExitCode {
    let report = match attempt(args) {
        Ok(report) => report,
        Err(failure) => return failure.tell(&mut Output::stderr(args.json, false)),
    };
    let text = if args.json {
        serde_json::to_string(&report).unwrap_or_else(|error| error.to_string()) + "\n"
    } else {
        report.render()
    };
    // Whoever reads may have gone away; the exit status still tells.
    let _ = anstream::stdout().write_all(text.as_bytes());
    if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn attempt(args: &SelftestArgs) -> Result<Report, Failure> {
    let facts = features::require().map_err(|missing| super::run::lacking(&missing))?;
    let sudo = std::env::var_os("SUDO_USER");
    let user = User::choose(args.user.as_deref(), sudo.as_deref(), std::env::var_os("HOME"))
        .map_err(Failure::new)?;
    let look = look::look_as(&args.at, &user).map_err(Failure::new)?;
    let asked = Asked::new(&look.policy, &look.context, &look.table).map_err(Failure::new)?;
    let decoys = Decoys::make(place(&asked, &user)?, &user)
        .map_err(|error| Failure::new(format!("cannot make what is to be attacked: {error}")))?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find this program: {error}")))?;
    let ground = Ground {
        asked: &asked,
        namespaces: look.policy.permits_namespaces(),
        temporary: &look.context.tmpdir,
        user: &user,
        cgroups: &facts.cgroup2,
        program: &program,
        decoys: &decoys,
    };
    let attempts = plan(&ground);
    let orders = serde_json::to_vec(&Orders { attempts: attempts.clone() })
        .map_err(|error| Failure::new(format!("cannot say what to try: {error}")))?;
    let finished = in_session(args, &user, &orders)
        .map_err(|error| Failure::new(format!("cannot start a session: {error}")))?;
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let ended: Vec<Ended> =
        said(&finished.stdout).lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let events: Vec<Value> =
        said(&finished.stderr).lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    if ended.len() != attempts.len() {
        return Err(cut_short(&attempts[ended.len()].name, &events, &finished));
    }
    let denials: HashMap<u64, Value> = events
        .into_iter()
        .filter(|event| event["type"] == "denial")
        .filter_map(|event| Some((event["pid"].as_u64()?, event)))
        .collect();
    let changed = decoys.changes();
    Ok(Report::new(facts.release, user.name.clone(), &attempts, &ended, &denials, changed))
}

/// The member did not come to its end.
fn cut_short(at: &str, events: &[Value], finished: &Finished) -> Failure {
    let told = |event: &Value| {
        let told = ["error", "warning"].iter().any(|level| event["level"] == *level);
        event["message"].as_str().filter(|_| told).map(str::to_owned)
    };
    let mut messages: Vec<String> = events.iter().filter_map(told).collect();
    if messages.is_empty() {
        messages.push(String::from_utf8_lossy(&finished.stderr).trim().to_owned());
    }
    let help = events.iter().find_map(|event| event["help"].as_str());
    let failure = Failure::new(format!(
        "the session ended before everything was tried ({}; next was: {at}): {}",
        finished.status,
        messages.join("\n")
    ));
    failure.help(help.unwrap_or("the policy must let the agent run this very program"))
}

/// A place for the decoys that is closed for writing, where there is one.
fn place(asked: &Asked<'_>, user: &User) -> Result<&'static Path, Failure> {
    let mut there =
        PLACES.iter().map(Path::new).filter(|place| place.is_dir() && reachable(place, user));
    let closed = |place: &&Path| {
        Asked::resolve(&place.join("sandbox-selftest/file"))
            .is_ok_and(|path| !asked.decide(&Object::Path(path), Wish::File(Kind::Write)).allow)
    };
    let first = there.clone().find(closed).or_else(|| there.next());
    first.ok_or_else(|| Failure::new("there is no place for what is to be attacked (/tmp)"))
}

/// Everybody may pass through it, or the user is root.
fn reachable(place: &Path, user: &User) -> bool {
    user.uid == 0 || place.metadata().is_ok_and(|meta| meta.mode() & 0o001 != 0)
}

/// `sandbox run`, with the member as its agent.
fn in_session(args: &SelftestArgs, user: &User, orders: &[u8]) -> std::io::Result<Finished> {
    let program: PathBuf = std::env::current_exe()?;
    let mut command = Command::new(&program);
    command.args(["run", "--json", "--user", &user.name]);
    if let Some(policy) = &args.at.policy {
        command.arg("--policy").arg(policy);
    }
    if let Some(workspace) = &args.at.workspace {
        command.arg("--workspace").arg(workspace);
    }
    command.arg("--").args(&args.within).arg(&program).arg(MEMBER);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    // Where the session does not start, nobody reads: what it said is what counts then.
    let stdin = child.stdin.take();
    std::thread::scope(|scope| {
        scope.spawn(move || stdin.map(|mut stdin| stdin.write_all(orders)));
        child.wait_with_output()
    })
}
