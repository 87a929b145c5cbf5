//! The engine: loaded once for all sessions of a build, and never used when a part of it is missing.

use crate::harness::{
    Denial, Finished, Ground, PATIENCE, Policy, Runner, Session, Traces, engines, eventually, key,
    sandbox, trial, trial_without_engine, verb, wait,
};
use crate::probe::{Operation, Place};
use crate::suite::siege::Siege;
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use rustix::fs::Mode;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

pub(super) fn trials_without_engine() -> Vec<Trial> {
    vec![
        trial_without_engine("engine::is_shared_kept_and_detached_with_the_last_session", shared),
        trial_without_engine("engine::with_a_part_missing_or_exchanged_starts_nothing", damaged),
        trial_without_engine("engine::is_turned_off_in_an_emergency_only", off),
    ]
}

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("engine::damaged_and_idle_is_replaced", replaced),
        trial("engine::killed_sessions_and_starts_leave_no_entry", killed),
        trial("engine::another_build_has_its_own", builds),
    ]
}

fn open(path: &Place) -> Operation {
    Operation::Open { path: path.clone(), flags: libc::O_RDONLY }
}

/// The one engine that is loaded.
fn engine() -> anyhow::Result<PathBuf> {
    let found = engines();
    ensure!(found.len() == 1, "there should be one engine: {found:?}");
    found.into_iter().next().context("no engine")
}

fn refuses(session: &mut Session, when: &str) -> anyhow::Result<()> {
    let key = key()?;
    session.refused(when, &open(&key), &Denial::read(&key).of_key()).map(drop)
}

fn engine_verb(ground: &Ground, word: &str) -> anyhow::Result<Finished> {
    let finished = verb(&ground.papers("engine"), &["engine", word])?;
    ensure!(finished.status.success(), "`sandbox engine {word}`: {}", finished.report());
    Ok(finished)
}

/// One engine for two sessions and, where it is kept, for none; released in use, it goes with the last session.
fn shared() -> anyhow::Result<()> {
    let ground = Ground::new("shared")?;
    let before = Traces::now()?;
    ensure!(engines().is_empty(), "an engine without sessions: {:?}", engines());
    engine_verb(&ground, "keep")?;
    let (pins, idle) = (engine()?, Traces::now()?);
    ensure!(idle.programs() > before.programs(), "nothing was loaded: {idle:?}");
    let listed = engine_verb(&ground, "list")?;
    ensure!(listed.out.contains("kept"), "{}", listed.report());
    let mut session = Session::start(&ground, &Policy::preset())?;
    refuses(&mut session, "on a kept engine")?;
    session.finish()?;
    idle.must_return().context("after a session on a kept engine")?;
    let mut first = Runner::named(&ground, &Policy::preset(), "first")?.open()?;
    let one = Traces::now()?;
    let mut second = Runner::named(&ground, &Policy::preset(), "second")?.open()?;
    let two = Traces::now()?;
    ensure!(engine()? == pins, "the second session loaded {:?}", engines());
    ensure!(one.programs() == two.programs(), "the second session loads more: {one:?}, {two:?}");
    engine_verb(&ground, "release")?;
    ensure!(engine()? == pins, "an engine in use was released");
    refuses(&mut first, "the first of two")?;
    refuses(&mut second, "the second of two")?;
    first.finish()?;
    ensure!(engine()? == pins, "the engine went with the first of two sessions");
    refuses(&mut second, "after the first ended")?;
    second.finish()?;
    before.must_return().context("after the last session on a released engine")
}

/// A damage, what undoes it, and the word by which it is told.
type Damage = (fn(&Path) -> std::io::Result<()>, fn(&Path) -> std::io::Result<()>, &'static str);

const DAMAGES: [Damage; 3] = [
    (
        |pins| Ok(rustix::fs::chmod(pins, Mode::from(0o755))?),
        |pins| Ok(rustix::fs::chmod(pins, Mode::from(0o700))?),
        "0700",
    ),
    (
        |pins| {
            let [other, link, away] = links(pins);
            fs::rename(&link, away)?;
            fs::rename(other, link)
        },
        |pins| {
            let [other, link, away] = links(pins);
            fs::rename(&link, other)?;
            fs::rename(away, link)
        },
        "`path_link` was exchanged",
    ),
    // This one is not undone.
    (|pins| fs::remove_file(pins.join("links/path_rename")), |_| Ok(()), "`path_rename`"),
];

fn links(pins: &Path) -> [PathBuf; 3] {
    [pins.join("links/syslog"), pins.join("links/path_link"), pins.join("path_link")]
}

/// The engine of a running session is damaged: nothing starts, and why is told. Afterwards the engine goes
/// with its session, and the next one is whole.
fn damaged() -> anyhow::Result<()> {
    let ground = Ground::new("damaged")?;
    let before = Traces::now()?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    refuses(&mut session, "before")?;
    let pins = engine()?;
    let mark = ground.workspace().join("started");
    let start = |name: &str| {
        let next = Runner::named(&ground, &Policy::preset(), name)?;
        next.probe(&["touch", &mark.to_string()], "")
    };
    for (at, (damage, undo, word)) in DAMAGES.iter().enumerate() {
        damage(&pins).with_context(|| format!("damaging the engine: {word}"))?;
        let finished = start(&format!("next-{at}"))?;
        ensure!(finished.code() == Some(125), "must end with 125: {}", finished.report());
        ensure!(!mark.path().exists(), "the command was started: {}", finished.report());
        ensure!(finished.err.contains(word), "the message lacks {word:?}: {}", finished.report());
        let doctor = verb(&ground.papers(&format!("doctor-{at}")), &["doctor"])?;
        ensure!(doctor.code() == Some(1), "`doctor` is content: {}", doctor.report());
        ensure!(doctor.out.contains(word), "`doctor` does not tell: {}", doctor.report());
        ensure!(engine()? == pins, "the engine of a running session was removed");
        undo(&pins).with_context(|| format!("mending the engine: {word}"))?;
    }
    refuses(&mut session, "on a damaged engine")?;
    session.finish()?;
    before.must_return()?;
    let finished = start("after")?;
    ensure!(finished.code() == Some(0) && mark.path().exists(), "{}", finished.report());
    before.must_return()
}

fn replaced() -> anyhow::Result<()> {
    let ground = Ground::new("replaced")?;
    let link = engine()?.join("links/path_rename");
    fs::remove_file(&link).context("damaging the kept engine")?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    ensure!(link.exists(), "the session runs on a damaged engine");
    refuses(&mut session, "on a replaced engine")?;
    session.finish()?;
    ensure!(link.exists(), "the engine that replaced the kept one is not kept");
    Ok(())
}

/// `kill -9` whenever it comes: what is left in the maps is removed by whoever comes next.
fn killed() -> anyhow::Result<()> {
    let ground = Ground::new("killed")?;
    let before = Traces::now()?;
    let policy = Policy::preset()
        .connect("127.0.0.1:80")
        .read_deny("/nowhere/at/all")
        .read_deny("/nowhere/**/*.key");
    for round in 0..3 {
        let mut session = Runner::named(&ground, &policy, &format!("round-{round}"))?.open()?;
        refuses(&mut session, "before the kill")?;
        session.keeper().kill()?;
        wait(session.keeper(), Duration::from_secs(10))?.context("it survived SIGKILL")?;
        session.abandon()?;
    }
    ensure!(before.must_return_at_once().is_err(), "killed sessions left nothing to be removed");
    let mut agents = 0;
    for delay in [0, 3, 10, 30, 60, 100, 150, 200, 300, 400, 600, 900] {
        let runner = Runner::named(&ground, &policy, &format!("start-{delay}"))?;
        let mut command = runner.command(&crate::harness::probe_words(&["exit", "0"])?);
        let null = || Stdio::null();
        let mut keeper = command.stdin(null()).stdout(null()).stderr(null()).spawn()?;
        std::thread::sleep(Duration::from_millis(delay));
        // It may have ended by itself.
        let _ = keeper.kill();
        keeper.wait()?;
        agents += usize::from(runner.events.state("started", Duration::ZERO).is_some());
    }
    println!("of 12 starts that were killed {agents} had come as far as their agent");
    let finished = Runner::named(&ground, &policy, "last")?.probe(&["exit", "0"], "")?;
    ensure!(finished.code() == Some(0), "{}", finished.report());
    before.must_return()
}

/// A copy of the program in which these bytes are others, as many; and whose object is called otherwise.
fn changed(to: &Path, from: &[u8], into: &[u8]) -> anyhow::Result<()> {
    let mut bytes = fs::read(sandbox())?;
    for (from, into) in [(from, into), (&b"programs of sha256 "[..], &b"programs of SHA256 "[..])] {
        let mut changed = 0;
        for at in 0..bytes.len() - from.len() {
            if bytes[at..].starts_with(from) {
                bytes[at..at + into.len()].copy_from_slice(into);
                changed += 1;
            }
        }
        ensure!(changed > 0, "the program does not hold {:?}", String::from_utf8_lossy(from));
    }
    fs::write(to, bytes)?;
    Ok(rustix::fs::chmod(to, Mode::from(0o755))?)
}

/// Another build: its BPF object differs, in a string that only debuggers read.
fn other_build(to: &Path) -> anyhow::Result<()> {
    changed(to, b"/@/aya_ebpf.", b"/~/aya_ebpf.")
}

/// One whose programs the kernel refuses: by their licence they may not call its helpers.
fn broken_build(to: &Path) -> anyhow::Result<()> {
    changed(to, b"Dual MIT/GPL\0", b"Unknown/None\0")
}

/// An upgrade under attack: the next build loads beside, and either enforces its own sessions until the last
/// of them has ended. One that cannot be loaded changes nothing.
fn builds() -> anyhow::Result<()> {
    let ground = Ground::new("builds")?;
    let before = Traces::now()?;
    let (own, other, broken) = (engine()?, ground.papers("sandbox"), ground.papers("broken"));
    other_build(&other)?;
    broken_build(&broken)?;
    let mut first = Runner::named(&ground, &Policy::preset(), "first")?.open()?;
    let one = Traces::now()?;
    let siege = Siege::new(&ground)?;
    let mut second = siege.heard(&mut first, || {
        let failing = Runner::named(&ground, &Policy::preset(), "failing")?.with_program(&broken);
        let failed = failing.probe(&["exit", "0"], "")?;
        ensure!(failed.code() == Some(125), "the broken build runs: {}", failed.report());
        ensure!(failed.err.contains("the kernel refused"), "{}", failed.report());
        ensure!(engine()? == own, "a failed upgrade changed the engines: {:?}", engines());
        let now = Traces::now()?;
        ensure!(now.programs() == one.programs(), "a failed upgrade left {now:?}, not {one:?}");
        Runner::named(&ground, &Policy::preset(), "second")?.with_program(&other).open()
    })?;
    let found = engines();
    ensure!(found.len() == 2 && found.contains(&own), "two builds have the engines {found:?}");
    for session in [&mut first, &mut second] {
        refuses(session, "one of two builds")?;
    }
    // Either build lists both, and looks after what the other's killed supervisor left.
    let listed = verb(&ground.papers("list"), &["sessions", "list"])?;
    for session in [&first, &second] {
        ensure!(listed.out.contains(&session.id()?), "{}", listed.report());
    }
    let id = second.id()?;
    second.keeper().kill()?;
    wait(second.keeper(), Duration::from_secs(10))?.context("it survived SIGKILL")?;
    let finished = Runner::named(&ground, &Policy::preset(), "third")?.probe(&["exit", "0"], "")?;
    ensure!(finished.code() == Some(0), "{}", finished.report());
    ensure!(engines().len() == 2, "an orphan's engine was removed: {:?}", engines());
    let answer = second.perform(&open(&key()?))?;
    ensure!(answer.errno == libc::EACCES, "the orphan of another build reads the key: {answer}");
    // One of the two is dropped while the other is attacked.
    siege.heard(&mut first, || {
        let ended = verb(&ground.papers("end"), &["sessions", "end", &id])?;
        ensure!(ended.status.success(), "{}", ended.report());
        ensure!(engine()? == own, "the other build's engine stays without sessions");
        Ok(())
    })?;
    second.abandon()?;
    refuses(&mut first, "after the other build's session ended")?;
    first.finish()?;
    before.must_return()
}

/// Turning everything off takes an administrator outside every session, who says so twice, and is told to
/// the kernel's log.
fn off() -> anyhow::Result<()> {
    let ground = Ground::new("off")?;
    let key = key()?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let id = session.id()?;
    let program = sandbox().to_string_lossy().into_owned();
    let words = [program.as_str(), "engine", "off", "--unconfine-sessions"];
    let inside = Operation::Run { words: words.iter().map(ToString::to_string).collect() };
    let refused = Denial::by(&[]).perhaps_untold().error(libc::EPERM);
    session.refused("off from inside", &inside, &refused)?;
    refuses(&mut session, "after off from inside")?;
    let papers = ground.papers("off");
    let unsure = verb(&papers, &["engine", "off"])?;
    ensure!(!unsure.status.success() && unsure.err.contains(&id), "{}", unsure.report());
    refuses(&mut session, "after off without its word")?;
    let sure = verb(&papers, &["engine", "off", "--unconfine-sessions"])?;
    ensure!(sure.status.success(), "{}", sure.report());
    ensure!(engines().is_empty(), "engines are left: {:?}", engines());
    // The kernel detaches in its own time.
    let free = || session.perform(&open(&key)).ok().filter(|answer| answer.errno == 0);
    ensure!(eventually(PATIENCE, free).is_some(), "still confined");
    let log = kernel_log()?;
    let told = log.contains("enforcement turned off") && log.contains(&id);
    ensure!(told, "the kernel's log does not tell: {log}");
    // Its keeper has nothing to give back any more.
    session.keeper().kill()?;
    wait(session.keeper(), Duration::from_secs(10))?.context("it survived SIGKILL")?;
    let ended = verb(&papers, &["sessions", "end", &id])?;
    ensure!(ended.status.success(), "{}", ended.report());
    session.abandon()
}

/// What the kernel has told so far.
fn kernel_log() -> anyhow::Result<String> {
    let mut text = vec![0u8; 1 << 20];
    let size = libc::c_int::try_from(text.len())?;
    // `SYSLOG_ACTION_READ_ALL`
    // SAFETY: a buffer of that many bytes.
    let read = unsafe { libc::klogctl(3, text.as_mut_ptr().cast(), size) };
    text.truncate(usize::try_from(read).context("reading the kernel's log")?);
    Ok(String::from_utf8_lossy(&text).into_owned())
}
