//! Where a test plays: a workspace, and a place outside it in the same file system.

use super::who::{give, home};
use crate::probe::Place;
use anyhow::Context as _;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Home of the administrator, who runs the sessions unless a test says otherwise.
pub(crate) const HOME: &str = "/root";

/// The private key that nobody may read, of whom the test is about; made if there is none.
pub(crate) fn key() -> anyhow::Result<Place> {
    let directory = Path::new(home()).join(".ssh");
    fs::create_dir_all(&directory).context("making ~/.ssh")?;
    let key = directory.join("id_ed25519");
    if !key.exists() {
        fs::write(&key, "PRIVATE KEY").context("writing the private key")?;
    }
    give(&directory)?;
    give(&key)?;
    Ok(key.into())
}

/// A directory of its own beneath the home directory, removed in the end.
#[derive(Debug)]
pub(crate) struct Ground {
    root: PathBuf,
    count: AtomicU32,
    mounts: Mutex<Vec<PathBuf>>,
}

impl Ground {
    pub(crate) fn new(name: &str) -> anyhow::Result<Self> {
        Self::beneath(Path::new(home()), name)
    }

    pub(crate) fn beneath(parent: &Path, name: &str) -> anyhow::Result<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let root = parent.join("ground").join(format!("{name}-{}-{number}", std::process::id()));
        for part in ["workspace", "outside"] {
            fs::create_dir_all(root.join(part)).context("making the test's directories")?;
            give(root.join(part))?;
        }
        Ok(Self { root, count: AtomicU32::new(0), mounts: Mutex::default() })
    }

    /// Neither workspace nor outside: policies, events, output.
    pub(crate) fn papers(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn workspace(&self) -> Place {
        self.root.join("workspace").into()
    }

    pub(crate) fn outside(&self) -> Place {
        self.root.join("outside").into()
    }

    fn fresh(&self, parent: &Place, kind: &str) -> Place {
        let number = self.count.fetch_add(1, Ordering::Relaxed) + 1;
        parent.join(format!("{kind}-{number}"))
    }

    /// A name in `parent` that nothing has.
    pub(crate) fn absent(&self, parent: &Place) -> Place {
        self.fresh(parent, "absent")
    }

    /// A new file with some text.
    pub(crate) fn file(&self, parent: &Place) -> anyhow::Result<Place> {
        let file = self.fresh(parent, "file");
        write(&file, "content")?;
        Ok(file)
    }

    /// A new empty directory.
    pub(crate) fn directory(&self, parent: &Place) -> anyhow::Result<Place> {
        let directory = self.fresh(parent, "directory");
        fs::create_dir(&directory).with_context(|| format!("mkdir {directory}"))?;
        give(&directory)?;
        Ok(directory)
    }

    /// A bind mount of `from` at a new place in `parent`, made by nobody in a session.
    pub(crate) fn bind(&self, from: &Place, parent: &Place) -> anyhow::Result<Place> {
        let at = self.directory(parent)?;
        rustix::mount::mount_bind(from.path(), at.path())
            .with_context(|| format!("mount --bind {from} {at}"))?;
        self.was_mounted(at.path().to_owned());
        Ok(at)
    }

    /// An overlay over `lower` at an existing directory, with what it needs beside `lower`; mounted
    /// by nobody in a session.
    pub(crate) fn overlay(&self, lower: &Place, at: &Place) -> anyhow::Result<Place> {
        let layers = Place::from(self.papers("layers"));
        fs::create_dir_all(&layers)?;
        let (upper, work) = (self.directory(&layers)?, self.directory(&layers)?);
        let data = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let data = std::ffi::CString::new(data)?;
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("overlay", at.path(), "overlay", flags, data.as_c_str())
            .with_context(|| format!("mount -t overlay -o {data:?} {at}"))?;
        self.was_mounted(at.path().to_owned());
        Ok(upper)
    }

    /// Remembers a mount, to be undone in the end.
    pub(crate) fn was_mounted(&self, at: PathBuf) {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner).push(at);
    }

    /// A symbolic link to `target` at a new place in `parent`.
    pub(crate) fn symlink(&self, target: &Place, parent: &Place) -> anyhow::Result<Place> {
        let at = self.fresh(parent, "link");
        std::os::unix::fs::symlink(target, &at).with_context(|| format!("symlink {at}"))?;
        give(&at)?;
        Ok(at)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let mounts = self.mounts.get_mut().unwrap_or_else(PoisonError::into_inner);
        for mount in mounts.iter().rev() {
            // What stays mounted must not be emptied by the removal below.
            if rustix::mount::unmount(mount, rustix::mount::UnmountFlags::DETACH).is_err() {
                return;
            }
        }
        // A test that left a mess has failed already.
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// Writes a file of whom the test is about; its parent exists.
pub(crate) fn write(file: &Place, text: &str) -> anyhow::Result<()> {
    fs::write(file, text).with_context(|| format!("writing {file}"))?;
    give(file)
}

/// Everything beneath a directory: names, types, modes, owners, sizes, contents, and when any of it
/// or an attribute was changed. Two equal
/// snapshots mean that nothing was changed in between.
pub(crate) fn snapshot(directory: &Path) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(path) = waiting.pop() {
        let meta =
            fs::symlink_metadata(&path).with_context(|| format!("lstat {}", path.display()))?;
        let mut text = format!("mode {:o} uid {} links {}", meta.mode(), meta.uid(), meta.nlink());
        // Set by the kernel at every change, of times, attributes and access lists too.
        write!(text, " changed {}.{:09}", meta.ctime(), meta.ctime_nsec())?;
        if meta.is_dir() {
            for entry in fs::read_dir(&path)? {
                waiting.push(entry?.path());
            }
        } else if meta.is_symlink() {
            write!(text, " -> {}", fs::read_link(&path)?.display())?;
        } else if meta.is_file() {
            write!(text, " {:?}", String::from_utf8_lossy(&fs::read(&path)?))?;
        }
        found.insert(path, text);
    }
    Ok(found)
}

/// What differs between two snapshots; empty where nothing does.
pub(crate) fn difference(
    before: &BTreeMap<PathBuf, String>,
    after: &BTreeMap<PathBuf, String>,
) -> Vec<String> {
    let changed = before.iter().filter_map(|(path, was)| match after.get(path) {
        None => Some(format!("{} is gone", path.display())),
        Some(is) if is != was => Some(format!("{}: {was} became {is}", path.display())),
        Some(_) => None,
    });
    let new = after.keys().filter(|path| !before.contains_key(*path));
    changed.chain(new.map(|path| format!("{} appeared", path.display()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_shows_every_kind_of_change() -> anyhow::Result<()> {
        let root = std::env::temp_dir().join(format!("snapshot-{}", std::process::id()));
        fs::create_dir_all(root.join("directory"))?;
        let file = root.join("file");
        fs::write(&file, "one")?;
        let first = snapshot(&root)?;
        assert_eq!(difference(&first, &snapshot(&root)?), Vec::<String>::new());
        fs::write(&file, "two")?;
        let second = snapshot(&root)?;
        assert_eq!(difference(&first, &second).len(), 1);
        rustix::fs::chmod(&file, rustix::fs::Mode::from(0o600))?;
        let third = snapshot(&root)?;
        assert_eq!(difference(&second, &third).len(), 1);
        // The directory, the new name, and the second link of the file.
        fs::hard_link(&file, root.join("link"))?;
        assert_eq!(difference(&third, &snapshot(&root)?).len(), 3);
        fs::remove_dir_all(&root)?;
        assert!(snapshot(&root).is_err());
        Ok(())
    }
}
