//! Enforcement outlives the program that keeps a session.

use crate::harness::{
    Denial, Ground, PATIENCE, Policy, Runner, Session, Traces, eventually, key, sandbox, trial,
    verb, wait,
};
use crate::probe::{Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] =
    &[("D5.80", "orphans::killed_keeper_leaves_the_members_confined")];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("orphans::killed_keeper_leaves_the_members_confined", killed),
        // Engines are loaded again and again: minutes in a machine without KVM, by `--ignored`.
        trial("orphans::besieged_while_programs_die", || besieged(8)).with_ignored_flag(true),
        // Days in a machine without KVM: by `--ignored`.
        trial("orphans::besieged_ten_thousand_times", || besieged(10_000)).with_ignored_flag(true),
    ]
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

/// A member tries a forbidden open and connect in a loop while programs that load, keep and end engines
/// are killed at any moment, one of them a build that loads an engine of its own; in the end the keeper of
/// the session itself is stopped and killed.
fn besieged(kills: u32) -> anyhow::Result<()> {
    let ground = Ground::new("siege")?;
    let key = key()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let before = Traces::now()?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let (id, keeper) = (session.id()?, session.keeper().id().cast_signed());
    let programs = Traces::now()?.programs();
    let stop = ground.outside().join("stop");
    let siege =
        Operation::Siege { path: key.clone(), address: listener.local_addr()?, stop: stop.clone() };
    let (answer, dealt) = std::thread::scope(|scope| {
        let member = scope.spawn(|| session.perform(&siege));
        let dealt = deal(&ground, kills, keeper);
        // Ends the loop whatever came of it.
        let stopped = std::fs::write(stop.path(), "");
        (member.join(), dealt.and(stopped.map_err(anyhow::Error::from)))
    });
    dealt?;
    let answer = answer.map_err(|_| anyhow::anyhow!("the siege panicked"))??;
    if ![libc::EACCES, libc::EPERM].contains(&answer.errno) {
        session.problem(format!("some of the siege got through: {answer}"));
    }
    ensure!(listener.accept().is_err(), "a connection arrived");
    let kept = verb(&ground.papers("verbs"), &["engine", "keep"])?;
    ensure!(kept.status.success(), "{}", kept.report());
    // The next start removes what the killed ones left; then there is one set of programs.
    let next = Runner::named(&ground, &Policy::preset(), "next")?;
    let finished = next.probe(&["exit", "0"], "")?;
    ensure!(finished.code() == Some(0), "after the siege: {}", finished.report());
    let one = || (Traces::now().ok()?.programs() == programs).then_some(());
    ensure!(eventually(PATIENCE, one).is_some(), "more programs than before: {programs:?}");
    let ended = verb(&ground.papers("verbs"), &["sessions", "end", &id])?;
    ensure!(ended.status.success(), "{}", ended.report());
    before.must_return()?;
    session.abandon()
}

/// Kills so many programs at random moments, then the keeper.
fn deal(ground: &Ground, kills: u32, keeper: i32) -> anyhow::Result<()> {
    let policy = Policy::preset();
    let papers = ground.papers("dealt");
    for round in 0..kills {
        let runner = Runner::named(ground, &policy, &format!("dealt-{}", round % 4))?;
        let words = crate::harness::probe_words(&["exit", "0"])?;
        let mut command = match round % 4 {
            // A keep and a release are killed in the middle of loading and detaching.
            1 => engine_verb("keep"),
            3 => engine_verb("release"),
            _ => runner.command(&words),
        };
        if round % 4 < 2 {
            // As another build does, this loads an engine beside the one in use.
            command.env("SANDBOX_NODE_CACHE", "off");
        }
        std::fs::create_dir_all(&papers)?;
        let null = || Stdio::null();
        let mut child = command.stdin(null()).stdout(null()).stderr(null()).spawn()?;
        std::thread::sleep(Duration::from_millis(fastrand::u64(0..2_000)));
        // It may have ended by itself.
        let _ = child.kill();
        child.wait()?;
    }
    for signal in [libc::SIGSTOP, libc::SIGKILL] {
        // SAFETY: plain numbers; it is our child and not waited for.
        unsafe { libc::kill(keeper, signal) };
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}

fn engine_verb(word: &str) -> Command {
    let mut command = Command::new(sandbox());
    command.args(["engine", word]);
    command
}
