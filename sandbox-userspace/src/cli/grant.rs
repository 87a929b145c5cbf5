//! `sandbox grant`, `sandbox revoke` and `sandbox policy set`: change what a running session may do.

use super::Failure;
use crate::policy::asks::GRANTED;
use crate::policy::check::path::spelled_out;
use crate::policy::check::{Problem, address, program, words};
use crate::policy::services::Service;
use crate::session::request::{Answer, Request, ask};
use crate::session::state::{RUN, Registry};
use crate::session::{SessionId, host};
use crate::sinks::{Level, Output};
use clap::ValueEnum;
use jiff::SignedDuration;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Which session.
#[derive(Debug, clap::Args)]
pub struct Session {
    /// The session, as `sandbox sessions` prints it; the only one that runs without it
    #[arg(long, value_name = "ID")]
    session: Option<SessionId>,
    /// Print JSON objects instead of lines for people
    #[arg(long)]
    json: bool,
}

/// Arguments of `sandbox grant`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct GrantArgs {
    #[command(flatten)]
    session: Session,
    /// What is allowed
    access: GrantAccess,
    /// A file or directory with all beneath it; for `run` a command as the policy asks about it, `git push`; for
    /// `connect` an address, the name of a host, or a unix socket's
    /// path (with a slash), its abstract name behind an `@`, or the word of a service such as `ssh-agent`
    what: String,
    /// For how long: `90s`, `10m`, `2h`; until the session ends without it
    #[arg(long = "for", value_name = "TIME")]
    time: Option<SignedDuration>,
}

const AFTER_HELP: &str = "\
A grant is one more rule of the session's policy. It opens the very place that it names, even where
another rule of the user's policy or of a preset closes it; it opens nothing that the administrator's
policy closes, and is refused then. It is in force, or over, in one step.

Examples:
  sudo sandbox grant read ~/notes --for 10m
  sudo sandbox grant --session 0123abcd connect 10.0.0.7:5432/tcp
  sudo sandbox grant connect api.example.com:443
  sudo sandbox grant run 'git push' --for 2m
  sudo sandbox revoke";

/// Arguments of `sandbox revoke`.
#[derive(Debug, clap::Args)]
pub struct RevokeArgs {
    #[command(flatten)]
    session: Session,
    /// What was allowed; all grants without it
    #[arg(requires = "what")]
    access: Option<GrantAccess>,
    /// As it was granted
    what: Option<String>,
}

/// Arguments of `sandbox policy set`.
#[derive(Debug, clap::Args)]
pub struct SetArgs {
    #[command(flatten)]
    session: Session,
    /// A policy file, or the name of a preset
    policy: PathBuf,
}

/// What is allowed by a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum GrantAccess {
    /// Reading files, listing directories
    Read,
    /// Every way to change files and names
    Write,
    /// Deleting and renaming alone
    Delete,
    /// Changing mode, owner, times and extended attributes alone
    Attributes,
    /// Connecting and sending
    Connect,
    /// Running a program that the policy asks about first
    Run,
}

/// Runs `sandbox grant`.
pub fn grant(args: &GrantArgs) -> ExitCode {
    done(&args.session, || {
        let (key, rule) = rule(args.access, &args.what)?;
        let seconds = match args.time {
            None => None,
            Some(time) => match u64::try_from(time.as_secs()) {
                Ok(seconds) if seconds > 0 => Some(seconds),
                _ => return Err(Failure::new("a grant lasts a second at least")),
            },
        };
        Ok(Request::Grant { key: key.to_owned(), rule, seconds })
    })
}

/// Runs `sandbox revoke`.
pub fn revoke(args: &RevokeArgs) -> ExitCode {
    done(&args.session, || match (args.access, &args.what) {
        (Some(access), Some(what)) => {
            let (key, rule) = rule(access, what)?;
            Ok(Request::Revoke { key: Some(key.to_owned()), rule: Some(rule) })
        }
        _ => Ok(Request::Revoke { key: None, rule: None }),
    })
}

/// Runs `sandbox policy set`.
pub fn set(args: &SetArgs) -> ExitCode {
    done(&args.session, || {
        let exists = args.policy.exists();
        let policy = match std::path::absolute(&args.policy) {
            Ok(path) if exists => path,
            // The name of a preset, or an error that the session tells.
            _ => args.policy.clone(),
        };
        Ok(Request::Set { policy })
    })
}

fn done(session: &Session, request: impl FnOnce() -> Result<Request, Failure>) -> ExitCode {
    let mut output = Output::stderr(session.json, false);
    match request().and_then(|request| send(session, &request)) {
        Ok(Answer { done: true, text }) => {
            output.notice(Level::Info, &text);
            ExitCode::SUCCESS
        }
        Ok(Answer { done: false, text }) => {
            Failure { code: 1, ..Failure::new(text) }.tell(&mut output)
        }
        Err(failure) => Failure { code: 1, ..failure }.tell(&mut output),
    }
}

fn send(session: &Session, request: &Request) -> Result<Answer, Failure> {
    host::check().map_err(|error| Failure::new(&error).help(error.help()))?;
    let registry = Registry::open(RUN).map_err(Failure::new)?;
    let id = chosen(session.session.as_ref(), &registry.ids().map_err(Failure::new)?)?;
    ask(&registry, &id, request)
        .map_err(|error| Failure::new(format!("session {id} does not answer: {error}")))
}

/// The session that is meant, of all with whether their supervisors live.
fn chosen(named: Option<&SessionId>, all: &[(SessionId, bool)]) -> Result<SessionId, Failure> {
    let running = || all.iter().filter(|(_, supervised)| *supervised).map(|(id, _)| id);
    match named {
        Some(named) if running().any(|id| id == named) => Ok(named.clone()),
        Some(named) if all.iter().any(|(id, _)| id == named) => Err(Failure::new(format!(
            "session {named} has lost its supervisor: its policy stays as it is"
        ))),
        Some(named) => {
            Err(Failure::new(format!("there is no session {named}")).help("sandbox sessions"))
        }
        None => match running().collect::<Vec<_>>().as_slice() {
            [only] => Ok((*only).clone()),
            [] => Err(Failure::new("no session is running")),
            several => Err(Failure::new(format!("{} sessions are running", several.len()))
                .help("name one with --session; `sandbox sessions` lists them")),
        },
    }
}

/// How the paths of unix sockets begin, as no address and no name does.
const PATHS: [&str; 5] = ["/", "./", "../", "~", "${"];

/// The list and the rule of a grant.
fn rule(access: GrantAccess, what: &str) -> Result<(&'static str, String), Failure> {
    let refused = |problem: Problem| Failure::new(problem.message).help(problem.help);
    let named = what.starts_with('@') || Service::of(what).is_some();
    if access == GrantAccess::Connect && named {
        return Ok(("network.unix.allow", what.to_owned()));
    }
    let is_path = PATHS.iter().any(|begin| what.starts_with(begin));
    if access == GrantAccess::Connect && !is_path {
        let words = words::split(what).map_err(refused)?;
        let host = address::parse_host(words.what).map_err(refused)?;
        if words.sni {
            words::is_checkable(words.what, &host).map_err(refused)?;
        }
        return Ok(("network.allow", what.to_owned()));
    }
    let key = match access {
        GrantAccess::Run => {
            let words = program::parse(what).map_err(refused)?;
            return Ok((GRANTED, words.join(" ")));
        }
        GrantAccess::Read => "files.read.allow",
        GrantAccess::Write => "files.write.allow",
        GrantAccess::Delete => "files.delete.allow",
        GrantAccess::Attributes => "files.attributes.allow",
        GrantAccess::Connect => "network.unix.allow",
    };
    if what.is_empty() {
        return Err(Failure::new("an empty path"));
    }
    let variable =
        ["~", "${WORKSPACE}", "${TMPDIR}", "${RUNTIME_DIR}"].into_iter().find_map(|begin| {
            let rest = what.strip_prefix(begin)?;
            (rest.is_empty() || rest.starts_with('/'))
                .then(|| format!("{begin}{}", spelled_out(rest)))
        });
    if let Some(rule) = variable {
        return Ok((key, rule));
    }
    let path = std::path::absolute(Path::new(what)).map_err(Failure::new)?;
    let text = path.to_str().ok_or_else(|| Failure::new("a rule cannot name what is not UTF-8"))?;
    Ok((key, spelled_out(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_granted_is_spelled_out() {
        for (access, what, key, expected) in [
            (GrantAccess::Read, "/a/[b]*", "files.read.allow", r"/a/\[b\]\*"),
            (GrantAccess::Write, "~/x {y}", "files.write.allow", r"~/x \{y\}"),
            (GrantAccess::Write, "${WORKSPACE}", "files.write.allow", "${WORKSPACE}"),
            (GrantAccess::Delete, "/a", "files.delete.allow", "/a"),
            (GrantAccess::Attributes, "/a", "files.attributes.allow", "/a"),
            (GrantAccess::Connect, "10.0.0.1:80/tcp", "network.allow", "10.0.0.1:80/tcp"),
            (GrantAccess::Connect, "[::1]:80", "network.allow", "[::1]:80"),
            (GrantAccess::Connect, "api.example.com:443", "network.allow", "api.example.com:443"),
            (GrantAccess::Connect, "*.example.org", "network.allow", "*.example.org"),
            (GrantAccess::Connect, "a.example:1 max 1MB", "network.allow", "a.example:1 max 1MB"),
            (GrantAccess::Connect, "a.example:1/tcp sni", "network.allow", "a.example:1/tcp sni"),
            (GrantAccess::Connect, "10.0.0.0/8:80/tcp", "network.allow", "10.0.0.0/8:80/tcp"),
            (GrantAccess::Connect, "/a b", "network.unix.allow", "/a b"),
            (GrantAccess::Run, " git  push ", "files.exec.granted", "git push"),
            (GrantAccess::Connect, "ssh-agent", "network.unix.allow", "ssh-agent"),
            (GrantAccess::Connect, "@a", "network.unix.allow", "@a"),
            (GrantAccess::Connect, "/run/docker.sock", "network.unix.allow", "/run/docker.sock"),
        ] {
            let found = rule(access, what).map_err(|failure| failure.message);
            assert_eq!(found, Ok((key, expected.to_owned())), "{what}");
        }
        let here = std::env::current_dir().unwrap().join("a");
        let (_, text) = rule(GrantAccess::Read, "./a").map_err(|f| f.message).unwrap();
        assert_eq!(text, here.to_str().unwrap());
        let (key, text) = rule(GrantAccess::Connect, "./a").map_err(|f| f.message).unwrap();
        assert_eq!((key, text.as_str()), ("network.unix.allow", here.to_str().unwrap()));
        assert!(rule(GrantAccess::Read, "").is_err());
        // What is no address becomes no path by mistake.
        for (access, what) in [
            (GrantAccess::Connect, ""),
            (GrantAccess::Connect, "a.example:443/tpc"),
            (GrantAccess::Connect, "a.example:99999"),
            (GrantAccess::Connect, "a.example:1 max"),
            (GrantAccess::Connect, "a b/c"),
            (GrantAccess::Connect, "10.0.0.1:1 sni"),
            (GrantAccess::Connect, "10.0.0.1/8:1"),
            (GrantAccess::Run, "/bin/git push"),
        ] {
            assert!(rule(access, what).is_err_and(|failure| failure.help.is_some()), "{what}");
        }
    }

    #[test]
    fn the_session_is_the_one_that_is_meant() {
        let id = |text: &str| text.parse::<SessionId>().unwrap();
        let all = [(id("00000001"), true), (id("00000002"), false)];
        assert_eq!(chosen(None, &all).map_err(|f| f.message), Ok(id("00000001")));
        assert_eq!(chosen(Some(&id("00000001")), &all).map_err(|f| f.message), Ok(id("00000001")));
        for (named, all, part) in [
            (Some(id("00000002")), &all[..], "lost its supervisor"),
            (Some(id("00000003")), &all[..], "no session 00000003"),
            (None, &all[1..], "no session is running"),
            (None, &[(id("00000001"), true), (id("00000003"), true)][..], "2 sessions"),
        ] {
            let failure = chosen(named.as_ref(), all).map(|_| ()).unwrap_err();
            assert!(failure.message.contains(part), "{}", failure.message);
        }
    }
}
