//! A kernel that keeps its memory to itself: programs cannot be loaded in it, those in force stay so.
//!
//! The last of all tests: a kernel does not come back from it. In a machine of its own it is so from the start.

use super::prerequisites::refused;
use crate::harness::{Denial, Ground, Policy, Session, key, trial_without_engine, verb};
use crate::probe::{Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("D6.95", "lockdown::nothing_starts_and_all_stays"),
    ("D6.95", "locked_at_boot::nothing_starts"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![trial_without_engine("lockdown::nothing_starts_and_all_stays", locked)]
}

/// In the machine that is for this.
pub(super) fn trials_at_boot() -> Vec<Trial> {
    let words = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let locked = words.split_whitespace().any(|word| word == "lockdown=confidentiality");
    let trial = trial_without_engine("locked_at_boot::nothing_starts", nothing_starts);
    vec![trial.with_ignored_flag(!locked)]
}

/// By `run`, `doctor` and `engine keep`: each says what to do.
fn nothing_starts() -> anyhow::Result<()> {
    let ground = Ground::new("locked-down")?;
    refused(&ground, &[], &["lockdown=integrity"])?;
    let kept = verb(&ground.papers("verbs"), &["engine", "keep"])?;
    ensure!(kept.code() == Some(1), "an engine was loaded: {}", kept.report());
    ensure!(kept.err.contains("lockdown=integrity"), "no remedy: {}", kept.report());
    Ok(())
}

/// As by writing to the file that an administrator has for it.
fn locked() -> anyhow::Result<()> {
    let ground = Ground::new("lockdown")?;
    let open = |path: &Place| Operation::Open { path: path.clone(), flags: libc::O_RDONLY };
    let (key, twin) = (key()?, ground.file(&ground.workspace())?);
    let mut session = Session::start(&ground, &Policy::preset())?;
    session.refused("before", &open(&key), &Denial::read(&key).of_key())?;
    std::fs::write("/sys/kernel/security/lockdown", "confidentiality")
        .context("locking the kernel down")?;
    session.refused("locked down", &open(&key), &Denial::read(&key).of_key())?;
    session.allowed("locked down (harmless twin)", &open(&twin))?;
    session.finish()?;
    nothing_starts()
}
