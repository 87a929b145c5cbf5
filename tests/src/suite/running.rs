//! `sandbox run` as a command: status, streams, signals, inheritance, what it leaves.

use crate::harness::{
    Bystander, Denial, Ground, PATIENCE, Policy, Runner, Session, Traces, both, capture,
    eventually, ordinary, probe_words, trial, uid, wait,
};
use crate::probe::{Identity, Operation, Place, SIGNALLED, Step};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use rustix::fs::Mode;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("A59", "running::agent_inherits_nothing_else"),
    ("A59", "running::setuid_programs_give_nothing_of_an_ordinary_user"),
    ("A64", "running::agent_inherits_nothing_else"),
];

pub(super) fn trials() -> Vec<Trial> {
    let twice = [both("running::agent_inherits_nothing_else", inheritance)];
    let once = [
        trial("running::status_is_the_commands", status),
        trial("running::failures_to_start_have_their_own_status", failures),
        trial("running::standard_input_passes_through", input),
        ordinary("running::setuid_programs_give_nothing", setuid),
        trial("running::sigterm_reaches_the_command", sigterm),
        trial("running::leftovers_are_ended", leftovers),
        trial("running::nothing_stays_behind", nothing_stays),
        trial("running::events_tell_the_life_of_the_session", life),
        trial("running::two_sessions_do_not_disturb_each_other", two_sessions),
    ];
    twice.into_iter().flatten().chain(once).collect()
}

fn status() -> anyhow::Result<()> {
    let ground = Ground::new("status")?;
    let runner = Runner::new(&ground, &Policy::preset())?;
    for (words, wanted) in [
        (["exit", "0"], 0),
        (["exit", "3"], 3),
        (["exit", "255"], 255),
        (["signal", "9"], 128 + 9),
        (["signal", "15"], 128 + 15),
        (["signal", "6"], 128 + 6),
    ] {
        let finished = runner.probe(&words, "")?;
        ensure!(
            finished.code() == Some(wanted),
            "{words:?} should give {wanted}: {}",
            finished.report()
        );
    }
    Ok(())
}

fn failures() -> anyhow::Result<()> {
    let ground = Ground::new("failures")?;
    let file = ground.file(&ground.workspace())?.to_string();
    let directory = ground.directory(&ground.workspace())?.to_string();
    let runner = Runner::new(&ground, &Policy::preset())?;
    for (command, wanted) in [
        ("/nonexistent/program", 127),
        ("no-such-program", 127),
        (file.as_str(), 126),
        (directory.as_str(), 126),
    ] {
        let finished = runner.run(&[command])?;
        ensure!(
            finished.code() == Some(wanted),
            "{command} should give {wanted}: {}",
            finished.report()
        );
        ensure!(
            finished.err.contains(command),
            "the message does not name it: {}",
            finished.report()
        );
    }
    let mut missing = Runner::new(&ground, &Policy::preset())?;
    missing.policy = ground.papers("absent.toml");
    let finished = missing.run(&["/nonexistent"])?;
    ensure!(finished.code() == Some(125), "absent policy should give 125: {}", finished.report());
    ensure!(finished.err.contains("absent.toml"), "the file is not named: {}", finished.report());
    Ok(())
}

fn input() -> anyhow::Result<()> {
    let ground = Ground::new("input")?;
    let runner = Runner::new(&ground, &Policy::preset())?;
    let text = "line\n".repeat(50_000);
    let finished = runner.probe(&["echo"], &text)?;
    ensure!(finished.code() == Some(0), "{}", finished.report());
    ensure!(finished.out == text, "{} bytes became {}", text.len(), finished.out.len());
    Ok(())
}

/// The identity of a command that is started by `stage` with an open file too many.
fn identity_after_leak(ground: &Ground, command: &Command) -> anyhow::Result<Identity> {
    let leaked = ground.file(&ground.outside())?;
    let steps = serde_json::to_string(&[Step::Leak(leaked)])?;
    let mut staged = Command::new(std::env::current_exe()?);
    staged.arg("stage").arg(steps).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        staged.env(name, value.context("a variable is removed")?);
    }
    let papers = ground.papers("identity");
    std::fs::create_dir_all(&papers)?;
    let finished = capture(&mut staged, &papers, "")?;
    let answer = finished.out.lines().find(|line| line.starts_with('{'));
    let answer = answer.with_context(|| format!("no answer: {}", finished.report()))?;
    let answer: serde_json::Value = serde_json::from_str(answer)?;
    Ok(serde_json::from_value(answer["data"].clone())?)
}

fn inheritance() -> anyhow::Result<()> {
    let ground = Ground::new("inheritance")?;
    let runner = Runner::new(&ground, &Policy::preset())?;
    let words = probe_words(&["one", r#"{"op":"identity"}"#])?;
    let mut plain = Command::new(&words[0]);
    plain.args(&words[1..]);
    let outside = identity_after_leak(&ground, &plain)?;
    ensure!(outside.descriptors.len() > 3, "nothing was leaked: {outside:?}");
    let inside = identity_after_leak(&ground, &runner.command(&words))?;
    ensure!(inside.descriptors == [0, 1, 2], "descriptors of the agent: {:?}", inside.descriptors);
    let status = &inside.status;
    ensure!(
        status.lines().any(|line| line == "NoNewPrivs:\t1"),
        "no_new_privs is not set: {status}"
    );
    ensure!(inside.group == inside.pid, "the agent does not lead its process group: {inside:?}");
    ensure!(inside.group != outside.group, "the agent shares our process group");
    ensure!(inside.uid == uid(), "{inside:?}");
    Ok(())
}

/// A program that is root's, for whoever runs it.
fn setuid() -> anyhow::Result<()> {
    let ground = Ground::new("setuid")?;
    let (secret, program) = (ground.papers("secret"), ground.papers("program"));
    std::fs::write(&secret, "root's")?;
    rustix::fs::chmod(&secret, Mode::from(0o600))?;
    std::fs::copy(std::env::current_exe()?, &program)?;
    rustix::fs::chmod(&program, Mode::from(0o4755))?;
    let reads = |path: Place| -> anyhow::Result<Operation> {
        let open = serde_json::to_string(&Operation::Open { path, flags: libc::O_RDONLY })?;
        let program = program.to_string_lossy().into_owned();
        Ok(Operation::Run { words: vec![program, "probe".into(), "one".into(), open] })
    };
    let (attack, twin) = (reads(secret.into())?, reads(ground.file(&ground.workspace())?)?);
    let mut session = Session::start(&ground, &Policy::preset())?;
    // By the file's mode: the program is not root.
    let refused = Denial::by(&[]).perhaps_untold().error(libc::EPERM);
    session.refused("a setuid program", &attack, &refused)?;
    session.allowed("a setuid program (harmless twin)", &twin)?;
    let answer = Bystander::new()?.perform(&attack)?;
    ensure!(answer.errno == 0, "a bystander is hindered: {answer}");
    session.finish()
}

fn sigterm() -> anyhow::Result<()> {
    let ground = Ground::new("sigterm")?;
    let runner = Runner::new(&ground, &Policy::preset())?;
    let mut command = runner.command(&probe_words(&["await-signal"])?);
    // A group of its own, so that the signal reaches `sandbox run` alone.
    let mut keeper = command.process_group(0).stdout(Stdio::piped()).spawn()?;
    let output = keeper.stdout.take().context("no standard output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    ensure!(line == "ready\n", "the command said {line:?}");
    let pid = rustix::process::Pid::from_child(&keeper);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
    let status = wait(&mut keeper, PATIENCE)?;
    if status.is_none() {
        keeper.kill()?;
        keeper.wait()?;
    }
    let status = status.context("`sandbox run` did not end after SIGTERM")?;
    ensure!(status.code() == Some(SIGNALLED.into()), "the command's handler did not run: {status}");
    Ok(())
}

fn leftovers() -> anyhow::Result<()> {
    let ground = Ground::new("leftovers")?;
    let before = Traces::now()?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let answer = session.allowed("leaving a process behind", &Operation::Leftover {})?;
    let pid = answer.data.as_i64().context("the leftover has no pid")?;
    let process = format!("/proc/{pid}/status");
    ensure!(Path::new(&process).exists(), "the leftover {pid} does not live");
    session.finish()?;
    let dead = || {
        // A zombie that nobody has collected yet is dead enough.
        let text = std::fs::read_to_string(&process).unwrap_or_default();
        (text.is_empty() || text.contains("State:\tZ")).then_some(())
    };
    ensure!(eventually(Duration::from_secs(10), dead).is_some(), "the leftover {pid} still lives");
    before.must_return()
}

fn nothing_stays() -> anyhow::Result<()> {
    let ground = Ground::new("nothing-stays")?;
    let before = Traces::now()?;
    let runner = Runner::new(&ground, &Policy::preset())?;
    let finished = runner.probe(&["exit", "0"], "")?;
    ensure!(finished.code() == Some(0), "{}", finished.report());
    before.must_return().context("after a normal end")?;
    runner.probe(&["signal", "9"], "")?;
    before.must_return().context("after a death by signal")?;
    runner.run(&["/nonexistent/program"])?;
    before.must_return().context("after a command that was not found")?;
    runner.run(&[ground.file(&ground.workspace())?.to_string()])?;
    before.must_return().context("after a command that is no program")?;
    // While it runs there is something to be seen, or all of the above says nothing.
    let session = Session::start(&ground, &Policy::preset())?;
    let during = Traces::now()?;
    ensure!(
        during.places.len() >= before.places.len() + 4,
        "a running session shows only {during:?}"
    );
    session.finish()?;
    before.must_return().context("after a session")
}

fn life() -> anyhow::Result<()> {
    let ground = Ground::new("life")?;
    let runner = Runner::new(&ground, &Policy::preset())?;
    let denied = ground.absent(&ground.outside());
    let operation = serde_json::to_string(&Operation::Create { path: denied })?;
    let finished = runner.probe(&["one", &operation], "")?;
    ensure!(finished.code() == Some(1), "{}", finished.report());
    let events = runner.events.tail(20);
    let started = runner.events.state("started", Duration::ZERO).context(events.clone())?;
    let ended = runner.events.state("ended", Duration::ZERO).context(events.clone())?;
    for name in ["session", "cgroup", "pins"] {
        ensure!(started[name].is_string(), "started event without {name}: {started}");
    }
    ensure!(started["session"] == ended["session"], "{started}\n{ended}");
    ensure!(ended["exit"] == 1, "the command's status was 1: {ended}");
    ensure!(ended["denials"] == 1, "there was one denial: {ended}\n{events}");
    ensure!(ended["lost"] == 0, "nothing was lost: {ended}");
    Ok(())
}

/// What one session may not read the other may, at the same time.
pub(crate) fn two_sessions() -> anyhow::Result<()> {
    let ground = Ground::new("two")?;
    let (one, two) = (ground.file(&ground.outside())?, ground.file(&ground.outside())?);
    let mut first =
        Runner::named(&ground, &Policy::preset().read_deny(one.to_string()), "first")?.open()?;
    let mut second =
        Runner::named(&ground, &Policy::preset().read_deny(two.to_string()), "second")?.open()?;
    ensure!(first.id()? != second.id()?, "both sessions are {}", first.id()?);
    let open = |path| Operation::Open { path, flags: libc::O_RDONLY };
    for _ in 0..3 {
        for (session, denied, allowed) in [(&mut first, &one, &two), (&mut second, &two, &one)] {
            let denial = Denial::read(denied).rule("files.read.deny", denied.to_string());
            session.refused("its own rule", &open(denied.clone()), &denial)?;
            session.allowed("the other's rule", &open(allowed.clone()))?;
        }
    }
    for (session, other) in [(&first, &second), (&second, &first)] {
        let foreign = session.events().denials_of_sessions_but(&session.id()?);
        ensure!(foreign.is_empty(), "events of {}: {foreign:?}", other.id()?);
        let other = other.runner_file();
        ensure!(
            !session.events().all().iter().any(|event| event["rule"]["file"] == other.as_str()),
            "a rule of the other session's"
        );
    }
    first.finish()?;
    let denial = Denial::read(&two).rule("files.read.deny", two.to_string());
    second.refused("after the other ended", &open(two.clone()), &denial)?;
    second.allowed("after the other ended", &open(one))?;
    second.finish()
}
