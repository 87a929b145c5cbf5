//! Whose agents a test is about: the administrator's, or those of an ordinary user.
//!
//! Most tests ask a member that is root, who may do more. Those of [`both`] run once more with an ordinary
//! user's: grounds, keys, agents and bystanders are that user's then.

use super::trial;
use anyhow::Context as _;
use libtest_mimic::Trial;
use rustix::fs::{AtFlags, CWD, Gid, Uid};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// What the name of a test ends with that is about an ordinary user.
pub(crate) const ORDINARY: &str = "_of_an_ordinary_user";

/// Name of the ordinary user, and its number where the machine has to make it: one that no account has.
pub(super) const DEV: &str = "dev";
const UID: u32 = 7465;

/// The user id of whom the test that runs is about: one test runs at a time.
static WHO: AtomicU32 = AtomicU32::new(0);

/// The user id of whom the test is about.
pub(crate) fn uid() -> u32 {
    WHO.load(Ordering::Relaxed)
}

/// Whether that is the administrator.
pub(crate) fn is_root() -> bool {
    uid() == 0
}

/// The home directory of whom the test is about.
pub(crate) fn home() -> &'static str {
    if is_root() { super::HOME } else { "/home/dev" }
}

/// Gives a file, or a link itself, to whom the test is about.
pub(crate) fn give(path: impl AsRef<Path>) -> anyhow::Result<()> {
    if is_root() {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(uid()), Gid::from_raw(uid()));
    let path = path.as_ref();
    rustix::fs::chownat(CWD, path, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)
        .with_context(|| format!("chown {}", path.display()))
}

/// A test of what root's agents are refused, and the same of an ordinary user's.
pub(crate) fn both(name: &'static str, test: fn() -> anyhow::Result<()>) -> [Trial; 2] {
    [trial(name, test), ordinary(name, test)]
}

/// A test of what an ordinary user's agents are refused.
pub(crate) fn ordinary(name: &str, test: fn() -> anyhow::Result<()>) -> Trial {
    trial(&format!("{name}{ORDINARY}"), move || {
        let _until_its_end = Ordinary::begin()?;
        fs::create_dir_all(home())?;
        give(home())?;
        test()
    })
}

/// As long as it lives, tests are about the ordinary user.
struct Ordinary;

impl Ordinary {
    fn begin() -> anyhow::Result<Self> {
        WHO.store(dev()?, Ordering::Relaxed);
        Ok(Self)
    }
}

impl Drop for Ordinary {
    fn drop(&mut self) {
        WHO.store(0, Ordering::Relaxed);
    }
}

/// A file of the administrator's that the test's user has until this is dropped.
pub(crate) struct Lent(PathBuf);

impl Lent {
    pub(crate) fn of(path: impl AsRef<Path>) -> anyhow::Result<Self> {
        give(&path)?;
        Ok(Self(path.as_ref().to_owned()))
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        // It may be gone.
        let _ = rustix::fs::chown(&self.0, Some(Uid::ROOT), Some(Gid::ROOT));
    }
}

/// The user id of the ordinary user. The account is two lines of text: no tool is needed, and none is asked
/// for names, which a static program cannot do well.
pub(crate) fn dev() -> anyhow::Result<u32> {
    let accounts = match fs::read_to_string("/etc/passwd") {
        // A small machine has none.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        other => other.context("reading /etc/passwd")?,
    };
    let line = accounts.lines().find(|line| line.starts_with("dev:"));
    if let Some(uid) = line.and_then(|line| line.split(':').nth(2)) {
        return uid.parse().context("the user id of dev");
    }
    for (file, line) in [
        ("/etc/passwd", format!("{DEV}:x:{UID}:{UID}:dev:/home/dev:/bin/bash\n")),
        ("/etc/group", format!("{DEV}:x:{UID}:\n")),
    ] {
        let mut file = fs::OpenOptions::new().append(true).create(true).open(file)?;
        file.write_all(line.as_bytes())?;
    }
    Ok(UID)
}
