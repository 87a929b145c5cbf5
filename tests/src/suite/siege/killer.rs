//! Starts programs, several at once, and kills each at a random moment of the time that it takes.

use super::{HEARD, Siege, counted};
use crate::harness::{Ground, Policy, Runner, probe_words, sandbox, wait};
use crate::probe::Answer;
use anyhow::{Context as _, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// So many are started at once: they wait for one another and for the kernel, and the processors do not.
const WORKERS: usize = 3;
/// How long what nobody kills may take: loading takes most of a minute in a machine without KVM, and that may be
/// starved.
const PATIENCE: Duration = Duration::from_mins(30);
/// Where sessions are written down.
const RUN: &str = "/run/sandbox";

/// What is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    /// `sandbox run` of an agent that attacks.
    Start,
    /// `sandbox sessions end` of what a killed start left.
    End,
    /// `sandbox engine keep`: adopts the engine and removes what the killed left.
    Keep,
    /// What keeps a session whose agent attacks, while it puts another policy in force.
    Keeper,
    /// Another build: it loads an engine of its own, starts a session on it, and detaches it.
    Load,
    OtherStart,
    Detach,
}

/// How long each takes whom nobody kills, beside as many others as there will be.
#[derive(Clone, Copy, Debug, Default)]
struct Spans {
    /// When a start begins to change what is in the kernel.
    changes: Duration,
    start: Duration,
    end: Duration,
    keep: Duration,
    load: Duration,
    detach: Duration,
}

/// What was done so far.
#[derive(Debug, Default)]
struct Dealt {
    kills: BTreeMap<Kind, u32>,
    /// Sessions whose keeper was to be killed.
    kept: u32,
    /// Tries of their agents.
    tries: u64,
}

pub(super) struct Killer<'a> {
    ground: &'a Ground,
    siege: &'a Siege,
    runners: [Runner; 2],
    words: Vec<String>,
    spans: Spans,
    dealt: Mutex<Dealt>,
}

impl<'a> Killer<'a> {
    pub(super) fn new(ground: &'a Ground, siege: &'a Siege) -> anyhow::Result<Self> {
        let short = Policy::presets(&[]).read_deny(siege.path.to_string());
        let runners = [
            Runner::named(ground, &short, "short")?,
            Runner::named(ground, &Policy::preset(), "preset")?,
        ];
        // The agent of each attacks too, once, and says how that went.
        let attack = siege.attack(&ground.workspace(), Duration::ZERO)?;
        let words = probe_words(&["one", &serde_json::to_string(&attack)?])?;
        let (spans, dealt) = (Spans::default(), Mutex::default());
        let mut killer = Self { ground, siege, runners, words, spans, dealt };
        killer.clean()?;
        Ok(killer)
    }

    /// Programs that nobody kills: they remove what the killed left, and show how long each takes by now.
    pub(super) fn clean(&mut self) -> anyhow::Result<()> {
        // What the verb ends is what a killed one left.
        let mut child = self.spawn(self.run())?;
        std::thread::sleep(between(self.spans.changes, self.spans.start));
        // It may have ended by itself.
        let _ = child.kill();
        child.wait()?;
        if let Some(session) = session_of(child.id())? {
            self.spans.end = timed(|| self.whole(ending(&session)))?;
        }
        self.spans.keep = timed(|| self.whole(engine("keep")))?;
        let starts = at_once(|| {
            let (before, since) = (sessions()?, Instant::now());
            let mut child = self.spawn(self.run())?;
            // Looking must not take from what is measured: whose it is that comes first does not matter.
            while sessions()?.is_subset(&before) && child.try_wait()?.is_none() {
                std::thread::sleep(Duration::from_millis(20));
            }
            let changes = since.elapsed();
            let status = wait(&mut child, PATIENCE)?.context("a start does not end")?;
            ensure!(status.success(), "a start failed: {status}");
            Ok((changes, since.elapsed()))
        })?;
        self.spans.changes = starts.iter().map(|(changes, _)| *changes).min().unwrap_or_default();
        self.spans.start = starts.iter().map(|(_, whole)| *whole).max().unwrap_or_default();
        println!("{:?}", self.spans);
        for name in ["short", "preset"] {
            let events = self.ground.papers(name).join("events.jsonl");
            // Perhaps none was started with this one.
            if events.exists() {
                fs::remove_file(events)?;
            }
        }
        Ok(())
    }

    /// Kills until so many were killed.
    pub(super) fn kill(&self, until: u32) -> anyhow::Result<()> {
        at_once(|| {
            while self.kills() < until {
                // Of a hundred, so many are others than starts.
                match fastrand::u32(0..100) {
                    0..2 => self.kill_keeper()?,
                    2..12 => {
                        self.strike(Kind::Keep, engine("keep"), Duration::ZERO, self.spans.keep)?;
                    }
                    _ => self.kill_start()?,
                }
            }
            Ok(())
        })
        .map(drop)
    }

    /// A start is killed, at any moment or while it changes what is in the kernel, and perhaps also the verb
    /// that ends what it left, a few times.
    fn kill_start(&self) -> anyhow::Result<()> {
        let from = if fastrand::bool() { Duration::ZERO } else { self.spans.changes };
        let pid = self.strike(Kind::Start, self.run(), from, self.spans.start)?;
        for _ in 0..fastrand::u32(0..4) {
            let Some(session) = session_of(pid)? else { break };
            self.strike(Kind::End, ending(&session), Duration::ZERO, self.spans.end)?;
        }
        Ok(())
    }

    /// A session gets another policy, and what keeps it is killed meanwhile.
    fn kill_keeper(&self) -> anyhow::Result<()> {
        let name = {
            let mut dealt = self.dealt.lock().unwrap_or_else(PoisonError::into_inner);
            dealt.kept += 1;
            format!("kept-{}", dealt.kept)
        };
        let papers = self.ground.papers(&name);
        let mut session = Runner::named(self.ground, &Policy::preset(), &name)?.open()?;
        let (id, keeper) = (session.id()?, session.keeper().id().cast_signed());
        let policies = [80, 81].map(|port| {
            let file = papers.join(format!("{port}.toml"));
            let policy = Policy::preset().connect(format!("127.0.0.1:{port}"));
            fs::write(&file, policy.write().text).map(|()| file)
        });
        let [first, second] = policies;
        let set = |policy: PathBuf| {
            let mut command = Command::new(sandbox());
            command.args(["policy", "set", "--session", &id]).arg(policy);
            command
        };
        let (first, second) = (set(first?), set(second?));
        let (status, tries) = self.siege.during(&mut session, HEARD, || {
            let takes = timed(|| self.whole(first))?;
            let mut asking = self.spawn(second)?;
            std::thread::sleep(between(Duration::ZERO, takes));
            // SAFETY: plain numbers; it is our child and not waited for.
            unsafe { libc::kill(keeper, libc::SIGKILL) };
            // Whoever asked waits for an answer that may not come.
            let _ = asking.kill();
            Ok(asking.wait()?)
        })?;
        let killed = wait(session.keeper(), PATIENCE)?.context("it survived SIGKILL")?;
        ensure!(killed.signal() == Some(libc::SIGKILL), "{killed}, and who asked {status}");
        session.abandon()?;
        fs::remove_dir_all(papers)?;
        self.count(Kind::Keeper, tries);
        Ok(())
    }

    /// Another build uses an engine beside the one in use, and is killed at whatever it does with it.
    pub(super) fn other_build(&mut self) -> anyhow::Result<()> {
        let load = || other_build(engine("keep"));
        if self.spans.load.is_zero() {
            self.spans.load = timed(|| self.whole(load()))?;
            self.spans.detach = timed(|| self.whole(engine("keep")))?;
            println!("{:?}", self.spans);
        }
        let Spans { load: loading, detach, start, .. } = self.spans;
        self.strike(Kind::Load, load(), Duration::ZERO, loading)?;
        self.whole(load())?;
        at_once(|| self.strike(Kind::OtherStart, other_build(self.run()), Duration::ZERO, start))?;
        // Either detaches it.
        let word = if fastrand::bool() { "keep" } else { "release" };
        self.strike(Kind::Detach, engine(word), Duration::ZERO, detach).map(drop)
    }

    /// Kills a program at a random moment between these; its number. Whoever had ended by itself does not count.
    fn strike(
        &self,
        kind: Kind,
        command: Command,
        from: Duration,
        to: Duration,
    ) -> anyhow::Result<u32> {
        let mut child = self.spawn(command)?;
        std::thread::sleep(between(from, to));
        // It may have ended by itself.
        let _ = child.kill();
        if child.wait()?.signal() == Some(libc::SIGKILL) {
            self.count(kind, 0);
        }
        Ok(child.id())
    }

    fn count(&self, kind: Kind, tries: u64) {
        let mut dealt = self.dealt.lock().unwrap_or_else(PoisonError::into_inner);
        *dealt.kills.entry(kind).or_default() += 1;
        dealt.tries += tries;
    }

    fn kills(&self) -> u32 {
        let dealt = self.dealt.lock().unwrap_or_else(PoisonError::into_inner);
        dealt.kills.values().sum()
    }

    /// `sandbox run`: every fourth with a preset, which takes longer to be compiled and entered.
    fn run(&self) -> Command {
        let [short, preset] = &self.runners;
        let runner = if fastrand::u32(0..4) == 0 { preset } else { short };
        runner.command(&self.words)
    }

    fn spawn(&self, mut command: Command) -> anyhow::Result<Child> {
        let said = File::options().create(true).append(true).open(self.ground.papers("said"))?;
        let null = || Stdio::null();
        Ok(command.stdin(null()).stdout(said).stderr(null()).spawn()?)
    }

    /// One that nobody kills.
    fn whole(&self, command: Command) -> anyhow::Result<()> {
        let text = format!("{command:?}");
        let mut child = self.spawn(command)?;
        let status = wait(&mut child, PATIENCE)?;
        let status = status.with_context(|| format!("{text} does not end"))?;
        ensure!(status.success(), "{text}: {status}");
        Ok(())
    }

    /// What was killed, and what agents of the killed have tried. None got through.
    pub(super) fn account(&self) -> anyhow::Result<String> {
        let (mut agents, dealt) = (0, self.dealt.lock().unwrap_or_else(PoisonError::into_inner));
        for line in fs::read_to_string(self.ground.papers("said"))?.lines() {
            // What other verbs say is no answer.
            let Ok(answer) = serde_json::from_str::<Answer>(line) else { continue };
            let (refused, through) = counted(&answer)?;
            ensure!((refused, through) == (2, 0), "an agent got through: {answer}");
            agents += 1;
        }
        let mut text = format!("{} kills", dealt.kills.values().sum::<u32>());
        for (kind, kills) in &dealt.kills {
            write!(text, ", {kills} {kind:?}")?;
        }
        write!(text, "; {agents} agents of starts tried once, of keepers {} times", dealt.tries)?;
        Ok(text)
    }
}

/// Does it as many times at once as programs are killed at once.
fn at_once<T: Send>(what: impl Fn() -> anyhow::Result<T> + Sync) -> anyhow::Result<Vec<T>> {
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(&what)).collect();
        let joined = workers.into_iter().map(|worker| {
            worker.join().map_err(|_| anyhow::anyhow!("a worker panicked")).flatten()
        });
        joined.collect()
    })
}

fn timed(what: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Duration> {
    let since = Instant::now();
    what().map(|()| since.elapsed())
}

fn between(from: Duration, to: Duration) -> Duration {
    from + to.saturating_sub(from).mul_f64(fastrand::f64())
}

/// What is written down in the directory of sessions.
fn sessions() -> anyhow::Result<BTreeSet<OsString>> {
    Ok(fs::read_dir(RUN)?.flatten().map(|entry| entry.file_name()).collect())
}

/// The session that a process supervises or supervised, as far as it is written down.
fn session_of(pid: u32) -> anyhow::Result<Option<String>> {
    let supervisor = format!("\"pid\": {pid},");
    for entry in fs::read_dir(RUN)?.flatten() {
        // Sessions come and go meanwhile.
        let state = fs::read_to_string(entry.path().join("session.json"));
        if state.is_ok_and(|state| state.contains(&supervisor)) {
            return Ok(Some(entry.file_name().to_string_lossy().into_owned()));
        }
    }
    Ok(None)
}

fn ending(session: &str) -> Command {
    let mut command = Command::new(sandbox());
    command.args(["sessions", "end", session]);
    command
}

fn engine(word: &str) -> Command {
    let mut command = Command::new(sandbox());
    command.args(["engine", word]);
    command
}

/// As another build does, this uses an engine beside the one in use.
fn other_build(mut command: Command) -> Command {
    command.env("SANDBOX_NODE_CACHE", "off");
    command
}
