//! The adversarial race: a directory is moved between places of different rights while a member opens
//! through it.
//!
//! No open may succeed that is forbidden at the old place and at the new; none may fail that is
//! allowed at both; and what is opened after a move has returned is judged by the new place, and no
//! other.

mod clock;
mod member;

pub(crate) use member::serve;

use crate::differential::resolved;
use crate::harness::{Ground, PATIENCE, probe_words, sandbox, trial, wait};
use anyhow::{Context as _, bail, ensure};
use clock::{Clock, State};
use libtest_mimic::Trial;
use member::Report;
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, open, renameat_with};
use sandbox_userspace::policy::rule::Kind;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Where the box goes; at first it is in the first.
const PLACES: [&str; 6] = ["open", "hidden", "fixed", "sealed", "named", "wide"];
/// Directories in the box.
const DEEP: &str = "1/2/3/4/5/6";
/// Moves of the suite.
const USUAL: u64 = 2_000;

const POLICY: &str = r#"version = 1
[files]
write.allow = ["${WORKSPACE}/**"]
read.deny = [
    "${WORKSPACE}/hidden/**",
    "${WORKSPACE}/sealed/**",
    "${WORKSPACE}/named/box/1/2/3/4/5/6/file",
]
write.deny = ["${WORKSPACE}/fixed/**", "${WORKSPACE}/sealed/**"]
"#;

/// The file, from the box.
fn inner() -> PathBuf {
    Path::new(DEEP).join("file")
}

const NAME: &str = "race::moved_directories_are_judged_where_they_are";

/// Rows of the coverage table that it tries.
pub(crate) const ROWS: &[(&str, &str)] = &[("A36", NAME)];

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial(NAME, || {
        let processors = std::thread::available_parallelism()?.get();
        ensure!(processors > 1, "the race needs two processors, this machine has {processors}");
        let report = run(&Until::Moves(USUAL))?;
        println!("{report:?}");
        ensure!(report.during > 100, "hardly any open met a move: {report:?}");
        Ok(())
    })]
}

/// When it is enough.
enum Until {
    Moves(u64),
    Time(Duration),
}

/// `kernel-tests race [--moves N | --minutes N]`
pub(crate) fn command(words: &[String]) -> ExitCode {
    let until = match words {
        [] => Some(Until::Moves(USUAL)),
        [word, number] => number.parse().ok().and_then(|number| match word.as_str() {
            "--moves" => Some(Until::Moves(number)),
            "--minutes" => Some(Until::Time(Duration::from_secs(60 * number))),
            _ => None,
        }),
        _ => None,
    };
    let Some(until) = until else {
        eprintln!("usage: kernel-tests race [--moves N | --minutes N]");
        return ExitCode::from(2);
    };
    match run(&until) {
        Ok(report) => {
            println!("{report:?}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(until: &Until) -> anyhow::Result<Report> {
    let ground = Ground::new("race")?;
    let workspace = ground.workspace().path().to_owned();
    furnish(&workspace)?;
    let policy = ground.papers("policy.toml");
    std::fs::write(&policy, POLICY)?;
    let digits = |kind| -> anyhow::Result<String> {
        let rules = resolved(POLICY, &workspace).map_err(anyhow::Error::msg)?;
        let files = PLACES.iter().map(|place| workspace.join(place).join("box").join(inner()));
        Ok(files.map(|file| if rules.allow_path(kind, &file) { '1' } else { '0' }).collect())
    };
    let (reads, writes) = (digits(Kind::Read)?, digits(Kind::Write)?);
    let file = open(workspace.join("clock"), OFlags::RDWR, Mode::empty())?;
    let clock = Clock::of(file)?;

    let shown = workspace.to_string_lossy();
    let errors = ground.papers("stderr");
    let mut command = Command::new(sandbox());
    command.args(["run", "--quiet", "--policy"]).arg(&policy).arg("--workspace").arg(&workspace);
    command.arg("--").args(probe_words(&["race", &shown, &reads, &writes])?);
    let mut keeper = command
        .current_dir(&workspace)
        .env("HOME", "/root")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(std::fs::File::create(&errors)?)
        .spawn()
        .with_context(|| format!("starting {command:?}"))?;
    let mut output = BufReader::new(keeper.stdout.take().context("no standard output")?).lines();
    let mut line = || output.next().transpose();
    let moved = match line()? {
        Some(word) if word == "ready" => move_about(clock, &workspace, until),
        other => Err(anyhow::anyhow!("the member did not start: {other:?}")),
    };
    clock.end();
    let report = line()?;
    // Detaching takes a grace period a hook, on a machine that may be starved.
    let status = wait(&mut keeper, PATIENCE * 5)?;
    let said = std::fs::read_to_string(&errors).unwrap_or_default();
    moved.with_context(|| said.clone())?;
    let report = report.with_context(|| format!("no report, {status:?}: {said}"))?;
    let report: Report = serde_json::from_str(&report).with_context(|| report.clone())?;
    if report.violations > 0 {
        bail!("{} violations\n  {}", report.violations, report.told.join("\n  "));
    }
    ensure!(status.is_some_and(|status| status.success()), "it ended with {status:?}: {said}");
    Ok(report)
}

fn furnish(workspace: &Path) -> anyhow::Result<()> {
    for place in PLACES {
        std::fs::create_dir(workspace.join(place))?;
    }
    for directory in ["hidden/left/d/x", "hidden/right"] {
        std::fs::create_dir_all(workspace.join(directory))?;
    }
    std::fs::write(workspace.join("hidden/left/d/x/file"), "secret")?;
    let boxed = workspace.join(PLACES[0]).join("box");
    std::fs::create_dir_all(boxed.join(DEEP))?;
    std::fs::write(boxed.join(inner()), "content")?;
    std::fs::write(workspace.join("clock"), [0; 4096])?;
    Ok(())
}

/// The outsider's side.
fn move_about(clock: &Clock, workspace: &Path, until: &Until) -> anyhow::Result<()> {
    let mut rng = fastrand::Rng::with_seed(2026);
    let since = Instant::now();
    let mut at = State { number: 0, from: 0, to: 0 };
    for moves in 0.. {
        let enough = match until {
            Until::Moves(wanted) => moves >= *wanted,
            Until::Time(wanted) => since.elapsed() >= *wanted,
        };
        if enough {
            break;
        }
        let mut next = rng.u8(0..5);
        next += u8::from(next >= at.to);
        let [from, to] =
            [at.to, next].map(|place| workspace.join(PLACES[usize::from(place)]).join("box"));
        // With and without something that comes back in exchange.
        let exchange = rng.bool();
        if exchange {
            std::fs::create_dir(&to)?;
        }
        let flags = if exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
        clock.set(State { number: at.number + 1, from: at.to, to: next });
        renameat_with(CWD, &from, CWD, &to, flags)
            .with_context(|| format!("moving {} to {}", from.display(), to.display()))?;
        at = State { number: at.number + 2, from: next, to: next };
        clock.set(at);
        if exchange {
            std::fs::remove_dir(&from)?;
        }
        ensure!(clock.hand_over(), "the member does not answer any more");
    }
    Ok(())
}
