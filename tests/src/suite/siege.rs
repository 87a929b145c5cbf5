//! A member that attacks without end while programs load, keep and end engines, and are killed at it.

mod killer;

use crate::harness::{Bystander, Ground, Policy, Session, Traces, key, trial, verb};
use crate::probe::{Answer, Operation, Place};
use anyhow::{Context as _, ensure};
use killer::Killer;
use libtest_mimic::Trial;
use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] =
    &[("D5.80", "siege::starts_die_at_any_moment"), ("D5.80", "siege::programs_die_at_any_moment")];

pub(super) fn trials() -> Vec<Trial> {
    let ignored = |name: &str, kills, builds| {
        trial(name, move || besieged(kills, builds)).with_ignored_flag(true)
    };
    vec![
        trial("siege::starts_die_at_any_moment", || besieged(6, 0)),
        // Each load takes most of a minute in a machine without KVM: by `--ignored`.
        ignored("siege::programs_die_at_any_moment", 24, 1),
        // Hours: by `--ignored`.
        ignored("siege::programs_die_a_thousand_times", 1_000, 1),
        ignored("siege::programs_die_five_thousand_times", 5_000, 4),
    ]
}

/// Between two tries while the session's keeper lives, which tells each: whoever listens keeps what it hears
/// in memory.
const HEARD: Duration = Duration::from_millis(8);
/// The same when nobody listens any more.
const UNHEARD: Duration = Duration::from_millis(2);
/// One attack may last as long as several loads do in a starved machine.
const LONG: Duration = Duration::from_hours(2);

/// Forbidden to whoever attacks: to open a key, and to connect to an address where somebody listens.
pub(super) struct Siege {
    listener: TcpListener,
    path: Place,
    outside: Place,
    attacks: AtomicU32,
}

impl Siege {
    pub(super) fn new(ground: &Ground) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let (outside, attacks) = (ground.outside(), AtomicU32::new(0));
        let siege = Self { listener, path: key()?, outside, attacks };
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
        let number = self.attacks.fetch_add(1, Ordering::Relaxed);
        let stop = self.outside.join(format!("stop-{number}"));
        let attack = self.attack(&stop, pause)?;
        let (answer, done) = std::thread::scope(|scope| {
            let member = scope.spawn(|| session.perform_within(&attack, LONG));
            let done = meanwhile();
            // Ends the loop whatever came of it.
            let stopped = fs::write(stop.path(), "");
            (member.join(), done.and_then(|done| stopped.map(|()| done).map_err(Into::into)))
        });
        let done = done?;
        let answer = answer.map_err(|_| anyhow::anyhow!("the siege panicked"))??;
        let (refused, through) = counted(&answer)?;
        ensure!(through == 0 && refused > 0, "some of the siege got through: {answer}");
        self.nobody_came()?;
        fs::remove_file(stop.path())?;
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
/// Kills between two looks at what the dead have left.
const LOOK: u32 = 250;

/// Programs are killed at any moment of what they do, in the end so many times those of another build, with an
/// engine of its own. In between, the keeper of the besieged session itself is stopped and killed. After it all
/// there is one set of programs, and nothing of what was killed.
fn besieged(kills: u32, builds: u32) -> anyhow::Result<()> {
    let ground = Ground::new("siege")?;
    let siege = Siege::new(&ground)?;
    let before = Traces::now()?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let (id, keeper) = (session.id()?, session.keeper().id().cast_signed());
    let since = Instant::now();
    let (mut killer, mut tries) =
        siege.during(&mut session, HEARD, || Killer::new(&ground, &siege))?;
    let alone = Traces::now()?;
    let kept = KEPT.min(kills / 2);
    tries += siege.during(&mut session, HEARD, || killer.kill(kept))?.1;
    tries += siege
        .during(&mut session, HEARD, || {
            end(keeper);
            Ok(())
        })?
        .1;
    for step in 1..=kills.div_ceil(LOOK) {
        let until = kills.min(step * LOOK);
        tries += siege.during(&mut session, UNHEARD, || killer.kill(until))?.1;
        tries += siege.during(&mut session, UNHEARD, || killer.clean())?.1;
        alone.must_return().with_context(|| format!("after {until} kills"))?;
        told(&killer, tries, since)?;
    }
    for _ in 0..builds {
        tries += siege.during(&mut session, UNHEARD, || killer.other_build())?.1;
        tries += siege.during(&mut session, UNHEARD, || killer.clean())?.1;
        alone.must_return().context("after kills of another build")?;
        told(&killer, tries, since)?;
    }
    let ended = verb(&ground.papers("verbs"), &["sessions", "end", &id])?;
    ensure!(ended.status.success(), "{}", ended.report());
    before.must_return()?;
    session.abandon()
}

fn told(killer: &Killer<'_>, tries: u64, since: Instant) -> anyhow::Result<()> {
    let seconds = since.elapsed().as_secs();
    println!("{}; {tries} tries, none got through; {seconds} s", killer.account()?);
    Ok(std::io::stdout().flush()?)
}

/// Stops, then kills the program that keeps the session.
fn end(keeper: i32) {
    for signal in [libc::SIGSTOP, libc::SIGKILL] {
        // SAFETY: plain numbers; it is our child and not waited for.
        unsafe { libc::kill(keeper, signal) };
        std::thread::sleep(Duration::from_millis(500));
    }
}
