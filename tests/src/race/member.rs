//! The member's side of the race: opens through a directory that is being moved.

use super::clock::{Clock, State};
use super::{DEEP, PLACES, inner};
use anyhow::Context as _;
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, open, openat, renameat_with};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::ExitCode;
use std::thread;

/// Violations that are told; more are only counted.
const TOLD: usize = 10;

/// What came of it.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Report {
    /// Opens while the box was or was not moving.
    pub(super) opens: u64,
    /// Those that began and ended during one move.
    pub(super) during: u64,
    /// Those during which it moved too often to tell where it had been.
    pub(super) unclear: u64,
    /// Opens by the checker, after a move had returned.
    pub(super) checked: u64,
    /// The member's own moves.
    pub(super) own_moves: u64,
    pub(super) violations: u64,
    pub(super) told: Vec<String>,
}

impl Report {
    fn violation(&mut self, text: String) {
        self.violations += 1;
        if self.told.len() < TOLD {
            self.told.push(text);
        }
    }

    fn add(&mut self, other: Self) {
        let Self { opens, during, unclear, checked, own_moves, violations, told } = other;
        self.opens += opens;
        self.during += during;
        self.unclear += unclear;
        self.checked += checked;
        self.own_moves += own_moves;
        self.violations += violations;
        self.told.extend(told);
    }
}

/// Ways to open, and whether each place allows them; in the order of [`PLACES`].
const WAYS: [OFlags; 3] = [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR];

/// `probe race WORKSPACE READS WRITES`, the latter a digit a place, 1 where it is allowed.
pub(crate) fn serve(workspace: &str, reads: &str, writes: &str) -> ExitCode {
    let digits = |text: &str| text.bytes().map(|digit| digit == b'1').collect();
    let allowed = Allowed { reads: digits(reads), writes: digits(writes) };
    match race(Path::new(workspace), &allowed) {
        Ok(report) => {
            println!("{}", serde_json::to_string(&report).unwrap_or_default());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("probe: {error:#}");
            ExitCode::from(99)
        }
    }
}

struct Allowed {
    reads: Vec<bool>,
    writes: Vec<bool>,
}

impl Allowed {
    fn at(&self, place: u8, way: OFlags) -> bool {
        let place = usize::from(place);
        (way == OFlags::WRONLY || self.reads[place])
            && (way == OFlags::RDONLY || self.writes[place])
    }
}

fn race(workspace: &Path, allowed: &Allowed) -> anyhow::Result<Report> {
    let clock = open(workspace.join("clock"), OFlags::RDWR, Mode::empty()).context("the clock")?;
    let clock = Clock::of(clock)?;
    let start = workspace.join(PLACES[0]).join("box");
    let directory = |path: &Path| {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        open(path, flags, Mode::empty()).with_context(|| path.display().to_string())
    };
    let (boxed, deep) = (directory(&start)?, directory(&start.join(DEEP))?);
    let own = directory(&workspace.join("hidden/left/d"))?;
    println!("ready");
    let report = thread::scope(|scope| {
        let hammer = scope.spawn(|| hammer(clock, allowed, &boxed, &deep, &own));
        let checker = scope.spawn(|| checker(clock, allowed, workspace, &deep));
        let mut report = mover(clock, workspace);
        for thread in [hammer, checker] {
            match thread.join() {
                Ok(other) => report.add(other),
                Err(_) => report.violation("a thread of the member panicked".to_owned()),
            }
        }
        report
    });
    Ok(report)
}

/// How an open went: allowed, refused, or as nobody expects.
fn went(result: &Result<OwnedFd, Errno>) -> Result<bool, Errno> {
    match result {
        Ok(_) => Ok(true),
        Err(Errno::ACCESS | Errno::PERM) => Ok(false),
        Err(other) => Err(*other),
    }
}

/// Opens all the time, by descriptors that were had before.
fn hammer(
    clock: &Clock,
    allowed: &Allowed,
    boxed: &OwnedFd,
    deep: &OwnedFd,
    own: &OwnedFd,
) -> Report {
    let mut report = Report::default();
    while !clock.is_over() {
        for way in WAYS {
            for (base, path) in [(deep, Path::new("file")), (boxed, &inner())] {
                let before = clock.state();
                let result = went(&openat(base.as_fd(), path, way, Mode::empty()));
                let after = clock.state();
                report.opens += 1;
                report.during += u64::from(before == after && before.number % 2 == 1);
                judge(&mut report, allowed, way, (before, after), result);
            }
        }
        let result = openat(own.as_fd(), "x/file", OFlags::RDONLY, Mode::empty());
        if result.is_ok() {
            report.violation("read between two places that are both closed".to_owned());
        }
    }
    report
}

fn judge(
    report: &mut Report,
    allowed: &Allowed,
    way: OFlags,
    (before, after): (State, State),
    result: Result<bool, Errno>,
) {
    // One number further is the next end of a move: then the places of both are all there were.
    if after.number > before.number + 1 {
        report.unclear += 1;
        return;
    }
    let places = [before.from, before.to, after.from, after.to];
    let can = places.iter().any(|place| allowed.at(*place, way));
    let must = places.iter().all(|place| allowed.at(*place, way));
    let tell = |what: &str| {
        let names = places.map(|place| PLACES[usize::from(place)]);
        format!("{what}: {way:?} between {names:?}, moves {} to {}", before.number, after.number)
    };
    match result {
        Ok(true) if !can => report.violation(tell("opened what is closed at all of these places")),
        Ok(false) if must => report.violation(tell("refused what is open at all of these places")),
        Err(errno) => report.violation(tell(&format!("failed with {errno}"))),
        Ok(_) => {}
    }
}

/// Opens once after each move has returned.
fn checker(clock: &Clock, allowed: &Allowed, workspace: &Path, deep: &OwnedFd) -> Report {
    let mut report = Report::default();
    while clock.next() {
        let state = clock.state();
        let place = PLACES[usize::from(state.to)];
        let path = workspace.join(place).join("box").join(inner());
        for way in WAYS {
            let by_descriptor = openat(deep.as_fd(), "file", way, Mode::empty());
            let by_path = open(&path, way, Mode::empty());
            for (road, result) in [("descriptor", by_descriptor), ("path", by_path)] {
                report.checked += 1;
                let expected = allowed.at(state.to, way);
                let found = went(&result);
                if found != Ok(expected) {
                    report.violation(format!(
                        "after move {} to {place}: {way:?} by {road} should be {expected}, is {found:?}",
                        state.number
                    ));
                }
            }
        }
        clock.was_judged();
    }
    report
}

/// Moves a directory of the member's own between two places of equal rights, in bursts, so that there
/// is time without any such move too.
fn mover(clock: &Clock, workspace: &Path) -> Report {
    let mut report = Report::default();
    let mut sides = ["hidden/left/d", "hidden/right/d"].map(|path| workspace.join(path));
    while !clock.is_over() {
        if clock.state().number % 64 < 16 {
            let moved = renameat_with(CWD, &sides[0], CWD, &sides[1], RenameFlags::empty());
            if let Err(errno) = moved {
                report.violation(format!("own move between equal places: {errno}"));
                return report;
            }
            report.own_moves += 1;
            sides.swap(0, 1);
            thread::yield_now();
        } else {
            thread::sleep(std::time::Duration::from_millis(2));
        }
    }
    report
}
