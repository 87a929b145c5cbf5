//! The engine that all sessions share. The suites keep it loaded, because loading and detaching it
//! takes seconds; a test that is about just that says so with [`Unkept`].

use super::session::verb;
use anyhow::{Context as _, ensure};
use std::path::{Path, PathBuf};

/// Where engines are pinned.
pub(crate) const PINS: &str = "/sys/fs/bpf/sandbox";

/// Papers of the verbs that the suite itself calls.
fn call(word: &str) -> anyhow::Result<()> {
    let papers = std::env::temp_dir().join(format!("engine-{}", std::process::id()));
    let finished = verb(&papers, &["engine", word])?;
    std::fs::remove_dir_all(&papers).context("removing the papers")?;
    ensure!(finished.status.success(), "`sandbox engine {word}`: {}", finished.report());
    Ok(())
}

/// Loads the engine and keeps it.
pub(crate) fn keep() -> anyhow::Result<()> {
    call("keep")
}

/// As long as this lives the engine ends with its last session, as it does for users.
#[derive(Debug)]
pub(crate) struct Unkept(());

impl Unkept {
    pub(crate) fn now() -> anyhow::Result<Self> {
        call("release")?;
        Ok(Self(()))
    }
}

impl Drop for Unkept {
    fn drop(&mut self) {
        if let Err(error) = keep() {
            eprintln!("the engine is not kept any more: {error:#}");
        }
    }
}

/// Directories of the engines that are loaded.
pub(crate) fn engines() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(Path::new(PINS)) else { return Vec::new() };
    let is_engine = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("engine-"))
    };
    entries.flatten().map(|entry| entry.path()).filter(is_engine).collect()
}
