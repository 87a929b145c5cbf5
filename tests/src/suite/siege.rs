//! A member that attacks without end while programs load, keep and end engines, and are killed at it.

use crate::harness::{
    Bystander, Ground, PATIENCE, Policy, Runner, Session, Traces, key, probe_words, sandbox, trial,
    verb, wait,
};
use crate::probe::{Answer, Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use std::fs::{self, File};
use std::io::Write as _;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] =
    &[("D5.80", "siege::starts_die_at_any_moment"), ("D5.80", "siege::programs_die_at_any_moment")];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("siege::starts_die_at_any_moment", || besieged(4, None)),
        // Each load takes most of a minute in a machine without KVM: by `--ignored`.
        trial("siege::programs_die_at_any_moment", || besieged(8, Some(8))).with_ignored_flag(true),
        // Hours: by `--ignored`.
        trial("siege::programs_die_ten_thousand_times", || besieged(10_000, Some(SHARE)))
            .with_ignored_flag(true),
    ]
}

/// Between two tries while the session's keeper lives, which tells each: whoever listens keeps what it hears
/// in memory.
const HEARD: Duration = Duration::from_millis(4);
/// The same when nobody listens any more.
const UNHEARD: Duration = Duration::from_millis(1);

/// Forbidden to whoever attacks: to open a key, and to connect to an address where somebody listens.
pub(super) struct Siege {
    listener: TcpListener,
    path: Place,
    stop: Place,
}

impl Siege {
    pub(super) fn new(ground: &Ground) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let siege = Self { listener, path: key()?, stop: ground.outside().join("stop") };
        // What is tried can be done by whoever is in no session.
        let once = siege.attack(&ground.workspace(), HEARD)?;
        let answer = Bystander::new()?.perform(&once)?;
        ensure!(counted(&answer)? == (0, 2), "a bystander is hindered: {answer}");
        siege.listener.accept().context("a bystander's connection did not arrive")?;
        Ok(siege)
    }

    /// Tries until there is something at `stop`, but once at the least.
    fn attack(&self, stop: &Place, pause: Duration) -> anyhow::Result<Operation> {
        Ok(Operation::Siege {
            path: self.path.clone(),
            address: self.listener.local_addr()?,
            stop: stop.clone(),
            pause: u64::try_from(pause.as_millis())?,
        })
    }

    /// While `meanwhile` happens, the member attacks: none of it gets through. Also how many tries that were.
    pub(super) fn during<T>(
        &self,
        session: &mut Session,
        pause: Duration,
        meanwhile: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<(T, u64)> {
        let attack = self.attack(&self.stop, pause)?;
        let (answer, done) = std::thread::scope(|scope| {
            let member = scope.spawn(|| session.perform(&attack));
            let done = meanwhile();
            // Ends the loop whatever came of it.
            let stopped = fs::write(self.stop.path(), "");
            (member.join(), done.and_then(|done| stopped.map(|()| done).map_err(Into::into)))
        });
        let done = done?;
        let answer = answer.map_err(|_| anyhow::anyhow!("the siege panicked"))??;
        let (refused, through) = counted(&answer)?;
        ensure!(through == 0 && refused > 0, "some of the siege got through: {answer}");
        self.nobody_came()?;
        fs::remove_file(self.stop.path())?;
        Ok((done, refused))
    }

    /// As `during`, where each try is told.
    pub(super) fn heard<T>(
        &self,
        session: &mut Session,
        meanwhile: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        Ok(self.during(session, HEARD, meanwhile)?.0)
    }

    fn nobody_came(&self) -> anyhow::Result<()> {
        ensure!(self.listener.accept().is_err(), "a connection arrived");
        Ok(())
    }
}

/// How many tries were refused, and how many not.
fn counted(answer: &Answer) -> anyhow::Result<(u64, u64)> {
    let count = |what: &str| answer.data[what].as_u64().with_context(|| format!("{answer}"));
    Ok((count("refused")?, count("through")?))
}

/// Kills while the besieged session's keeper lives; then it dies too, and the session goes on without.
const KEPT: u32 = 100;
/// Kills during one attack: its answer is not awaited for long.
const BATCH: u32 = 20;
/// Kills between two looks at what the dead have left.
const LOOK: u32 = 500;
/// One kill of each other kind among so many of starts that take up the engine in use.
const SHARE: u32 = 500;

/// Programs are killed at any moment of what they do; one of each kind in `share` is another build's, with an
/// engine of its own. In between, the keeper of the besieged session itself is stopped and killed. After it all
/// there is one set of programs, and nothing of what was killed.
fn besieged(kills: u32, share: Option<u32>) -> anyhow::Result<()> {
    let ground = Ground::new("siege")?;
    let siege = Siege::new(&ground)?;
    let before = Traces::now()?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let (id, keeper) = (session.id()?, session.keeper().id().cast_signed());
    let killer = Killer::new(&ground, &siege, share)?;
    let alone = Traces::now()?;
    let (since, mut tries, mut dealt, mut pause) = (Instant::now(), 0, 0, HEARD);
    let kept = KEPT.min(kills / 2);
    while dealt < kills {
        let next = if dealt < kept { kept } else { kills };
        let batch = BATCH.min(next - dealt).min(LOOK - dealt % LOOK);
        tries += siege.during(&mut session, pause, || killer.kill(dealt..dealt + batch))?.1;
        dealt += batch;
        if dealt == kept {
            tries += siege
                .during(&mut session, pause, || {
                    end(keeper);
                    Ok(())
                })?
                .1;
            pause = UNHEARD;
        }
        if dealt.is_multiple_of(LOOK) || dealt == kills {
            tries += siege.during(&mut session, pause, || killer.clean())?.1;
            alone.must_return().with_context(|| format!("after {dealt} kills"))?;
            let seconds = since.elapsed().as_secs();
            println!("{dealt} kills, {tries} tries, none got through, in {seconds} s");
            std::io::stdout().flush()?;
        }
    }
    let agents = killer.agents()?;
    println!("{agents} of the killed had started their agent, which attacked as well");
    let ended = verb(&ground.papers("verbs"), &["sessions", "end", &id])?;
    ensure!(ended.status.success(), "{}", ended.report());
    before.must_return()?;
    session.abandon()
}

/// Stops, then kills the program that keeps the session.
fn end(keeper: i32) {
    for signal in [libc::SIGSTOP, libc::SIGKILL] {
        // SAFETY: plain numbers; it is our child and not waited for.
        unsafe { libc::kill(keeper, signal) };
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Starts programs and kills each at a random moment of the time that it would take.
struct Killer<'a> {
    runner: Runner,
    ground: &'a Ground,
    words: Vec<String>,
    share: Option<u32>,
    /// How long each takes whom nobody kills.
    start: Duration,
    load: Duration,
    detach: Duration,
}

impl<'a> Killer<'a> {
    fn new(ground: &'a Ground, siege: &Siege, share: Option<u32>) -> anyhow::Result<Self> {
        let runner = Runner::named(ground, &Policy::preset(), "dealt")?;
        // The agent of each attacks too, once, and says how that went.
        let attack = siege.attack(&ground.workspace(), Duration::ZERO)?;
        let words = probe_words(&["one", &serde_json::to_string(&attack)?])?;
        let none = Duration::ZERO;
        let mut killer =
            Self { runner, ground, words, share, start: none, load: none, detach: none };
        // The first one is slower.
        for _ in 0..3 {
            killer.start = killer.takes(|killer| Ok(killer.run()))?;
        }
        if share.is_none() {
            println!("a start takes {:?}", killer.start);
            return Ok(killer);
        }
        killer.load = killer.takes(|_| Ok(other_build(engine("keep"))))?;
        killer.detach = killer.takes(|_| Ok(engine("keep")))?;
        let Self { start, load, detach, .. } = &killer;
        println!("a start takes {start:?}, a load {load:?}, detaching {detach:?}");
        Ok(killer)
    }

    fn takes(&self, what: fn(&Self) -> anyhow::Result<Command>) -> anyhow::Result<Duration> {
        let since = Instant::now();
        self.whole(what(self)?)?;
        Ok(since.elapsed())
    }

    /// `sandbox run`, what its agent says at the end of a file.
    fn run(&self) -> Command {
        self.runner.command(&self.words)
    }

    fn spawn(&self, mut command: Command) -> anyhow::Result<std::process::Child> {
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

    fn kill(&self, rounds: std::ops::Range<u32>) -> anyhow::Result<()> {
        for round in rounds {
            // Of another build's engine its load, a start that takes it up, and its end are killed.
            let (command, takes) = match self.share.map_or(0, |share| round % share) {
                1 => (other_build(engine("keep")), self.load),
                3 => {
                    self.whole(other_build(engine("keep")))?;
                    (other_build(self.run()), self.start)
                }
                5 => {
                    // Either detaches it.
                    let word = if fastrand::bool() { "keep" } else { "release" };
                    (engine(word), self.detach)
                }
                _ => (self.run(), self.start),
            };
            let moment = fastrand::u64(0..=u64::try_from(takes.as_micros())?);
            let mut child = self.spawn(command)?;
            std::thread::sleep(Duration::from_micros(moment));
            // It may have ended by itself.
            let _ = child.kill();
            child.wait()?;
        }
        Ok(())
    }

    /// A start and a verb that nobody kills: they remove what the killed ones left.
    fn clean(&self) -> anyhow::Result<()> {
        self.whole(engine("keep"))?;
        self.whole(self.run())?;
        fs::remove_file(self.ground.papers("dealt").join("events.jsonl"))?;
        Ok(())
    }

    /// How many agents have spoken. None got through.
    fn agents(&self) -> anyhow::Result<u32> {
        let mut agents = 0;
        for line in fs::read_to_string(self.ground.papers("said"))?.lines() {
            // What `sandbox engine` says is no answer.
            let Ok(answer) = serde_json::from_str::<Answer>(line) else { continue };
            let (refused, through) = counted(&answer)?;
            ensure!((refused, through) == (2, 0), "an agent got through: {answer}");
            agents += 1;
        }
        Ok(agents)
    }
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
