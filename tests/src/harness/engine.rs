//! The engine that all sessions share. It stays loaded between the tests, because loading and detaching it
//! takes seconds; but for those that are about just that.

use super::session::verb;
use anyhow::{Context as _, ensure};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Where engines are pinned.
pub(crate) const PINS: &str = "/sys/fs/bpf/sandbox";

/// Whether the suite has it kept.
static KEPT: AtomicBool = AtomicBool::new(false);

/// Papers of the verbs that the suite itself calls.
fn call(word: &str) -> anyhow::Result<()> {
    let papers = std::env::temp_dir().join(format!("engine-{}", std::process::id()));
    let finished = verb(&papers, &["engine", word])?;
    std::fs::remove_dir_all(&papers).context("removing the papers")?;
    ensure!(finished.status.success(), "`sandbox engine {word}`: {}", finished.report());
    Ok(())
}

/// From now on the engine is loaded.
pub(super) fn keep() {
    if KEPT.swap(true, Ordering::Relaxed) {
        return;
    }
    if let Err(error) = call("keep") {
        // A stand-in for `sandbox` need not know the verb; each test then waits for its own.
        eprintln!("the engine is not kept between the tests: {error:#}");
    }
}

/// From now on it ends with its last session, as it does for users.
pub(super) fn release() -> anyhow::Result<()> {
    if KEPT.swap(false, Ordering::Relaxed) { call("release") } else { Ok(()) }
}

/// Directories of the engines that are loaded.
pub(crate) fn engines() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(Path::new(PINS)) else { return Vec::new() };
    let is_engine = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("engine-"))
    };
    entries.flatten().map(|entry| entry.path()).filter(is_engine).collect()
}
