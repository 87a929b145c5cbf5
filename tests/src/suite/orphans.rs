//! Enforcement outlives the program that keeps a session.

use crate::harness::{
    Denial, Ground, Policy, Runner, Session, Traces, both, eventually, key, verb, wait,
};
use crate::probe::{Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use std::path::Path;
use std::time::Duration;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] =
    &[("D5.80", "orphans::killed_keeper_leaves_the_members_confined")];

pub(super) fn trials() -> Vec<Trial> {
    both("orphans::killed_keeper_leaves_the_members_confined", killed).into()
}

fn open(path: &Place) -> Operation {
    Operation::Open { path: path.clone(), flags: libc::O_RDONLY }
}

fn killed() -> anyhow::Result<()> {
    let ground = Ground::new("orphan")?;
    let (key, twin) = (key()?, ground.file(&ground.workspace())?);
    let before = Traces::now()?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let (id, agent) = (session.id()?, session.identity()?.pid);
    session.refused("before the kill", &open(&key), &Denial::read(&key).of_key())?;

    session.keeper().kill().context("killing `sandbox run`")?;
    wait(session.keeper(), Duration::from_secs(10))?.context("`sandbox run` survived SIGKILL")?;
    // Nobody reads events now: only what the kernel does counts.
    for round in 0..3 {
        let answer = session.perform(&open(&key))?;
        if answer.errno != libc::EACCES {
            session.problem(format!("orphan reads the key, try {round}: {answer}"));
        }
        let create = Operation::Create { path: ground.absent(&ground.outside()) };
        let answer = session.perform(&create)?;
        if ![libc::EACCES, libc::EPERM].contains(&answer.errno) {
            session.problem(format!("orphan creates outside, try {round}: {answer}"));
        }
        let daemon = Operation::Daemon { then: Box::new(open(&key)) };
        let answer = session.perform(&daemon)?;
        if answer.errno != libc::EACCES {
            session.problem(format!("orphan's daemon reads the key, try {round}: {answer}"));
        }
        let answer = session.perform(&open(&twin))?;
        if answer.errno != 0 {
            session.problem(format!("orphan reads the workspace, try {round}: {answer}"));
        }
    }

    // The next session finds it and says so, and neither disturbs the other.
    let next = Runner::named(&ground, &Policy::preset(), "next")?;
    let finished = next.probe(&["exit", "0"], "")?;
    ensure!(finished.code() == Some(0), "the next session: {}", finished.report());
    let told = next.events.notices(&id);
    if !told.iter().any(|notice| notice["level"] == "warning") {
        session.problem(format!("the next session does not warn of {id}\n{}", next.events.tail(8)));
    }
    let answer = session.perform(&open(&key))?;
    if answer.errno != libc::EACCES {
        session.problem(format!("orphan reads the key after the next session: {answer}"));
    }

    let papers = ground.papers("verbs");
    let listed = verb(&papers, &["sessions", "list"])?;
    let line = listed.out.lines().find(|line| line.contains(&id)).unwrap_or_default();
    if !line.contains("orphan") {
        session.problem(format!(
            "`sandbox sessions list` does not call {id} an orphan: {}",
            listed.report()
        ));
    }
    let doctor = verb(&papers, &["doctor"])?;
    if !doctor.status.success() || !doctor.out.contains(&id) {
        session.problem(format!("`sandbox doctor` does not tell of {id}: {}", doctor.report()));
    }
    let answer = session.perform(&open(&key))?;
    if answer.errno != libc::EACCES {
        session.problem(format!("orphan reads the key after `doctor`: {answer}"));
    }
    let wrong = verb(&papers, &["sessions", "end", "no-such-session"])?;
    if wrong.status.success() {
        session.problem(format!("an unknown session was ended: {}", wrong.report()));
    }
    let ended = verb(&papers, &["sessions", "end", &id])?;
    if !ended.status.success() {
        session.problem(format!("`sandbox sessions end {id}`: {}", ended.report()));
    }
    let process = format!("/proc/{agent}/cgroup");
    let gone = || (!Path::new(&process).exists()).then_some(());
    if eventually(Duration::from_secs(10), gone).is_none() {
        session.problem(format!("the orphan's agent {agent} still lives"));
    }
    if let Err(error) = before.must_return() {
        session.problem(format!("after `sandbox sessions end`: {error:#}"));
    }
    session.abandon()
}
