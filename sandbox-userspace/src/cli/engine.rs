//! `sandbox engine`: the programs in the kernel that all sessions share.

use super::Failure;
use super::run::lacking;
use crate::engine::{Aside, Engine, EngineError, Engines, Fault, Found, Identity};
use crate::kernel::features::{self, Facts};
use crate::session::state::{RUN, Registry};
use crate::session::{host, orphan};
use crate::sinks::{Level, Output};
use serde::Serialize;
use std::io::{self, Write as _};
use std::process::ExitCode;

/// Arguments of `sandbox engine`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, after_help = AFTER_HELP)]
pub struct EngineArgs {
    #[command(subcommand)]
    verb: Option<EngineVerb>,
    /// Print one JSON object an engine
    #[arg(long)]
    json: bool,
}

const AFTER_HELP: &str = "\
All sessions share the programs that the first of them loads. When the last one ends they are
detached, and whatever is not confined pays nothing. Loading and detaching take the kernel seconds:
where sessions come and go, keep the engine, and each starts at once.";

#[derive(Debug, clap::Subcommand)]
enum EngineVerb {
    /// Show the engines of this machine
    List {
        /// Print one JSON object an engine
        #[arg(long)]
        json: bool,
    },
    /// Load the engine of this build, and keep it without sessions until it is released or the
    /// machine ends
    Keep,
    /// Keep no engine any more; without sessions it is detached at once
    Release,
    /// In an emergency: detach everything now, also under running sessions
    Off {
        /// Leave the agents that run now without any confinement
        #[arg(long)]
        unconfine_sessions: bool,
    },
}

/// One line of the list.
#[derive(Debug, Serialize)]
struct Line {
    r#type: &'static str,
    engine: Identity,
    /// It is the one that this build uses; absent where that cannot be known.
    #[serde(skip_serializing_if = "Option::is_none")]
    own: Option<bool>,
    kept: bool,
    sessions: usize,
    /// Nothing is missing; absent where it is another build's.
    #[serde(skip_serializing_if = "Option::is_none")]
    whole: Option<bool>,
    /// What is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
    /// Records of denials of tasks whose session had ended; absent where it is another build's.
    #[serde(skip_serializing_if = "Option::is_none")]
    undelivered: Option<u64>,
    /// What was denied because it could not be judged; absent where it is another build's.
    #[serde(skip_serializing_if = "Option::is_none")]
    faults: Option<Vec<Fault>>,
}

/// Runs `sandbox engine`.
pub fn execute(args: &EngineArgs) -> ExitCode {
    let json = args.json || matches!(args.verb, Some(EngineVerb::List { json: true }));
    let mut output = Output::stderr(json, false);
    let done = match &args.verb {
        Some(EngineVerb::Keep) => keep(&mut output),
        Some(EngineVerb::Release) => release(&mut output),
        Some(EngineVerb::Off { unconfine_sessions }) => off(*unconfine_sessions, &mut output),
        _ => list(json),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => Failure { code: 1, ..failure }.tell(&mut output),
    }
}

fn checked() -> Result<Engines, Failure> {
    host::check().map_err(|error| Failure::new(&error).help(error.help()))?;
    Ok(Engines::at(host::PINS))
}

fn list(json: bool) -> Result<(), Failure> {
    let engines = checked()?;
    let own = features::require().ok().map(|facts| Identity::own(&facts.layout, facts.way));
    let mut out = io::stdout().lock();
    for found in engines.list().map_err(Failure::new)? {
        let line = line(found, own.as_ref());
        let text =
            if json { serde_json::to_string(&line).map_err(Failure::new)? } else { human(&line) };
        match writeln!(out, "{text}") {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            other => other.map_err(|error| Failure::new(format!("cannot print: {error}")))?,
        }
    }
    Ok(())
}

fn line(found: Found, own: Option<&Identity>) -> Line {
    let is_own = own.map(|own| *own == found.identity);
    let looked = (is_own == Some(true)).then(|| {
        let engine = Engine::adopt(&found.pins)?;
        engine.verify()?;
        Ok::<_, EngineError>((engine.lost(0)?, engine.faults()?))
    });
    let fault = looked.as_ref().and_then(|looked| looked.as_ref().err()).map(ToString::to_string);
    let whole = looked.as_ref().map(Result::is_ok);
    let (undelivered, faults) = looked.and_then(Result::ok).unzip();
    Line {
        r#type: "engine",
        engine: found.identity,
        own: is_own,
        kept: found.kept,
        sessions: found.owners.len(),
        whole,
        fault,
        undelivered,
        faults,
    }
}

fn human(line: &Line) -> String {
    let mut words = vec![format!("{}  {:>4} sessions", line.engine, line.sessions)];
    if line.kept {
        words.push("kept".into());
    }
    if line.own == Some(false) {
        words.push("of another build".into());
    }
    if let Some(fault) = &line.fault {
        words.push(fault.clone());
    }
    for Fault { hook, reason, count } in line.faults.iter().flatten() {
        words.push(format!("{count} times {reason} at {hook}"));
    }
    words.join("  ")
}

/// With everything that is behind it, and the remedy where one is known.
fn failure(error: EngineError) -> Failure {
    let help = error.mend().map(str::to_owned);
    Failure { help, ..Failure::new(format!("{:#}", anyhow::Error::from(error))) }
}

fn keep(output: &mut Output) -> Result<(), Failure> {
    let engines = checked()?;
    let Facts { layout, way, hooks, .. } =
        features::require().map_err(|missing| lacking(&missing))?;
    let own = Identity::own(&layout, way);
    orphan::report(Some(own.clone())).map_err(Failure::new)?;
    let registry = Registry::open(RUN).map_err(Failure::new)?;
    let held = registry.hold().map_err(Failure::new)?;
    engines.obtain(&layout, way, &hooks, &held).map_err(failure)?;
    engines.keep(&own, &held).map_err(failure)?;
    // Another one may have been kept until now.
    let aside = engines.set_aside_idle(Some(&own), &held).map_err(failure)?;
    drop(held);
    aside.into_iter().try_for_each(Aside::discard).map_err(failure)?;
    output.notice(Level::Info, &format!("engine {own} is loaded and kept"));
    Ok(())
}

fn release(output: &mut Output) -> Result<(), Failure> {
    let engines = checked()?;
    let registry = Registry::open(RUN).map_err(Failure::new)?;
    let held = registry.hold().map_err(Failure::new)?;
    engines.release(None, &held).map_err(failure)?;
    let aside = engines.set_aside_idle(None, &held).map_err(failure)?;
    drop(held);
    aside.into_iter().try_for_each(Aside::discard).map_err(failure)?;
    output.notice(Level::Info, "no engine is kept; one in use is detached with its last session");
    Ok(())
}

/// Detaches every engine. What was done is told to the kernel's log first, which no session can write.
fn off(unconfine: bool, output: &mut Output) -> Result<(), Failure> {
    let engines = checked()?;
    let registry = Registry::open(RUN).map_err(Failure::new)?;
    let held = registry.hold().map_err(Failure::new)?;
    let owners: Vec<String> =
        engines.list().map_err(Failure::new)?.into_iter().flat_map(|found| found.owners).collect();
    if !owners.is_empty() && !unconfine {
        let message =
            format!("{} sessions are confined by it: {}", owners.len(), owners.join(", "));
        return Err(Failure::new(message).help(
            "end them (sandbox sessions end ID) and release the engine (sandbox engine release); or \
             leave their agents without any confinement with --unconfine-sessions",
        ));
    }
    let user = std::env::var("SUDO_USER").unwrap_or_else(|_| "root".into());
    let line = format!(
        "sandbox: enforcement turned off by {} (pid {}); sessions no longer confined: {}",
        user.escape_debug(),
        std::process::id(),
        if owners.is_empty() { "none".into() } else { owners.join(" ") }
    );
    // Level warning. What cannot be told is not done.
    std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/kmsg")
        .and_then(|mut log| log.write_all(format!("<4>{line}\n").as_bytes()))
        .map_err(|error| Failure::new(format!("cannot write to the kernel's log: {error}")))?;
    let aside = engines.set_aside_all(&held).map_err(failure)?;
    drop(held);
    aside.into_iter().try_for_each(Aside::discard).map_err(failure)?;
    output.notice(Level::Warning, &line);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_one_line() {
        let identity: Identity = Identity::own(
            &sandbox_common::layout::KernelLayout::default(),
            crate::engine::Way::BpfLsm,
        );
        let found = Found {
            identity: identity.clone(),
            pins: "/nowhere".into(),
            owners: vec!["0123abcd".into()],
            kept: true,
        };
        let other = line(found.clone(), None);
        assert_eq!(human(&other), format!("{identity}     1 sessions  kept"));
        let own = line(found, Some(&identity));
        assert_eq!(
            (own.own, own.whole),
            (Some(true), Some(false)),
            "what cannot be opened is not whole"
        );
    }
}
