//! `sandbox sessions`: what runs, what was left behind, and how to end it.

use super::Failure;
use crate::session::orphan::Keeper;
use crate::session::state::{Found, State};
use crate::session::{SessionId, host};
use crate::sinks::escape::printable;
use crate::sinks::{Level, Output};
use serde::Serialize;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// Arguments of `sandbox sessions`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct SessionsArgs {
    #[command(subcommand)]
    verb: Option<SessionsVerb>,
    /// Print one JSON object a session
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum SessionsVerb {
    /// List the sessions of this machine
    List {
        /// Print one JSON object a session
        #[arg(long)]
        json: bool,
    },
    /// End a session: its processes, then all that it consists of
    End {
        /// The session, as `sandbox sessions` prints it
        id: SessionId,
    },
}

/// One line of the list.
#[derive(Debug, Serialize)]
struct Line<'a> {
    r#type: &'static str,
    session: &'a SessionId,
    /// `running`, or `orphan` when its supervisor is gone.
    state: &'static str,
    /// Processes in its cgroup.
    processes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    supervisor: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    started: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workspace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'a [String]>,
}

/// Runs `sandbox sessions`.
pub fn execute(args: &SessionsArgs) -> ExitCode {
    let json = args.json || matches!(args.verb, Some(SessionsVerb::List { json: true }));
    let mut output = Output::stderr(json, false);
    let done = match &args.verb {
        Some(SessionsVerb::End { id }) => end(id, &mut output),
        _ => list(json),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => Failure { code: 1, ..failure }.tell(&mut output),
    }
}

fn keeper() -> Result<Keeper, Failure> {
    host::check().map_err(|error| Failure::new(&error).help(error.help()))?;
    Keeper::host(None).map_err(Failure::new)
}

fn list(json: bool) -> Result<(), Failure> {
    let keeper = keeper()?;
    let mut found = keeper.registry.list().map_err(Failure::new)?;
    // Pins and cgroups without a state are orphans too.
    for id in keeper.orphans().map_err(Failure::new)? {
        if !found.iter().any(|known| known.id == id) {
            let state = keeper.registry.read(&id);
            found.push(Found { id, state, supervised: false });
        }
    }
    let mut out = io::stdout().lock();
    for Found { id, state, supervised } in &found {
        let processes = keeper.tree.open(id.as_str()).and_then(|cgroup| cgroup.members());
        let line = line(id, state.as_ref().ok(), *supervised, processes.map_or(0, |p| p.len()));
        let text =
            if json { serde_json::to_string(&line).map_err(Failure::new)? } else { human(&line) };
        match writeln!(out, "{text}") {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            other => other.map_err(|error| Failure::new(format!("cannot print: {error}")))?,
        }
    }
    Ok(())
}

fn line<'a>(
    session: &'a SessionId,
    state: Option<&'a State>,
    supervised: bool,
    processes: usize,
) -> Line<'a> {
    Line {
        r#type: "session",
        session,
        state: if supervised { "running" } else { "orphan" },
        processes,
        supervisor: state.filter(|_| supervised).map(|state| state.supervisor.pid),
        started: state.map(|state| state.started.as_str()),
        user: state.map(|state| state.user.as_str()),
        workspace: state.map(|state| state.workspace.as_str()),
        command: state.map(|state| state.command.as_slice()),
    }
}

fn human(line: &Line<'_>) -> String {
    let Line { session, state, processes, user, workspace, command, .. } = line;
    let words: Vec<String> =
        command.unwrap_or_default().iter().map(|word| printable(word.as_bytes())).collect();
    format!(
        "{session}  {state:<7}  {processes:>4} processes  {}  {}  {}",
        user.unwrap_or("?"),
        printable(workspace.unwrap_or("?").as_bytes()),
        words.join(" ")
    )
}

fn end(id: &SessionId, output: &mut Output) -> Result<(), Failure> {
    keeper()?.end(id, &mut |text| output.notice(Level::Info, &text)).map_err(Failure::new)?;
    output.notice(Level::Info, &format!("session {id} has ended"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_one_line() {
        let id = "0123abcd".parse().unwrap();
        let bare = line(&id, None, false, 2);
        assert_eq!(human(&bare), "0123abcd  orphan      2 processes  ?  ?  ");
        assert_eq!(
            serde_json::to_string(&bare).unwrap(),
            r#"{"type":"session","session":"0123abcd","state":"orphan","processes":2}"#
        );
        let command = ["sh".to_owned(), "\u{1b}[1m".to_owned()];
        let full = Line {
            user: Some("ann"),
            workspace: Some("/w"),
            command: Some(&command),
            supervisor: Some(7),
            state: "running",
            ..bare
        };
        assert_eq!(human(&full), "0123abcd  running     2 processes  ann  /w  sh \\u{1b}[1m");
    }
}
