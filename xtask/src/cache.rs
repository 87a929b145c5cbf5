//! Where downloads and built images are kept, shared by all checkouts of a user.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::command::progress;

/// The cache directory. Holding one means holding the lock: two runs do not fetch the same thing,
/// and none sees half of one. What is in place is never changed, only replaced by a rename.
pub(crate) struct Cache {
    root: PathBuf,
    _lock: File,
}

impl Cache {
    /// Opens `$SANDBOX_CACHE`, else `$XDG_CACHE_HOME/sandbox-xtask`, else `~/.cache/sandbox-xtask`,
    /// waiting for another process that has it.
    pub(crate) fn open() -> Result<Self> {
        let root = directory()?;
        fs::create_dir_all(&root).with_context(|| {
            format!("cannot make the cache {}; set SANDBOX_CACHE to another place", root.display())
        })?;
        let path = root.join("lock");
        let lock =
            File::create(&path).with_context(|| format!("cannot open {}", path.display()))?;
        if lock.try_lock().is_err() {
            progress("waiting for another xtask that fills the cache");
            lock.lock().with_context(|| format!("cannot lock {}", path.display()))?;
        }
        Ok(Self { root, _lock: lock })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Makes `name` (a directory) by `fill`, which gets an empty directory under another name.
    /// Only when `fill` succeeds is it renamed into place, over whatever was there.
    pub(crate) fn replace(&self, name: &str, fill: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let new = self.root.join(format!("{name}.new"));
        let old = self.root.join(format!("{name}.old"));
        let place = self.root.join(name);
        remove(&new)?;
        fs::create_dir_all(&new).with_context(|| format!("cannot make {}", new.display()))?;
        fill(&new)?;
        remove(&old)?;
        if place.exists() {
            fs::rename(&place, &old)
                .with_context(|| format!("cannot move {} away", place.display()))?;
        }
        fs::rename(&new, &place)
            .with_context(|| format!("cannot put {} in place", place.display()))?;
        remove(&old)
    }
}

fn directory() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let directory = if let Some(cache) = set("SANDBOX_CACHE") {
        cache
    } else if let Some(caches) = set("XDG_CACHE_HOME") {
        caches.join("sandbox-xtask")
    } else if let Some(home) = set("HOME") {
        home.join(".cache/sandbox-xtask")
    } else {
        bail!("no place for the cache: set SANDBOX_CACHE to a directory");
    };
    std::path::absolute(&directory).with_context(|| format!("cache {}", directory.display()))
}

/// Removes a directory tree if it is there.
pub(crate) fn remove(directory: &Path) -> Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", directory.display()))
        }
        _ => Ok(()),
    }
}
