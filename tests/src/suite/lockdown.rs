//! A kernel that keeps its memory to itself: programs cannot be loaded in it, those in force stay so.
//!
//! The last of all tests: a kernel does not come back from it.

use super::prerequisites::refused;
use crate::harness::{Denial, Ground, Policy, Session, key, trial_without_engine, verb};
use crate::probe::{Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[("D6.95", "lockdown::nothing_starts_and_all_stays")];

pub(super) fn trials() -> Vec<Trial> {
    vec![trial_without_engine("lockdown::nothing_starts_and_all_stays", locked)]
}

/// As by `lockdown=confidentiality` on the kernel's command line.
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
    let alone = Ground::new("locked-down")?;
    refused(&alone, &[], &["lockdown=integrity"])?;
    let kept = verb(&alone.papers("verbs"), &["engine", "keep"])?;
    ensure!(kept.code() == Some(1), "an engine was loaded: {}", kept.report());
    Ok(())
}
