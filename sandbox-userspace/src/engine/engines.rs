//! The engines of this host: one for each build and way of attaching, shared by all its sessions.
//!
//! Everything here happens under the lock of the sessions' registry: whoever holds it may be sure that
//! no engine comes or goes. What takes the kernel long, detaching, is done without it, on an engine
//! that was given another name before.

use super::claims;
use super::links;
use super::load;
use super::{Engine, EngineError, Identity, Way};
use crate::kernel::features::HookFact;
use crate::session::state::Held;
use sandbox_common::layout::KernelLayout;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Prefix of an engine's directory; its identity follows.
const ENGINE: &str = "engine-";
/// Prefix of the directory of one that is being loaded.
const LOADING: &str = "loading-";
/// Prefix of the directory of one that is being removed.
const ASIDE: &str = "aside-";
/// A directory of this name in an engine's says that it stays without sessions.
const KEPT: &str = "kept";

/// The directory of all engines.
#[derive(Clone, Debug)]
pub struct Engines {
    root: PathBuf,
}

/// An engine that was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// Which.
    pub identity: Identity,
    /// Its directory.
    pub pins: PathBuf,
    /// Owners of shares: ids of sessions.
    pub owners: Vec<String>,
    /// It stays without sessions.
    pub kept: bool,
}

/// An engine that no session uses and that nobody can find any more. Its programs are still attached.
#[derive(Debug)]
#[must_use = "the programs stay attached until it is discarded"]
pub struct Aside(PathBuf);

impl Aside {
    /// Detaches the programs, which takes the kernel seconds. The lock need not be held.
    pub fn discard(self) -> Result<(), EngineError> {
        let root = self.0.parent().map(Path::to_path_buf);
        remove(&self.0).map_err(|source| EngineError::Pins { path: self.0, source })?;
        if let Some(root) = root {
            // Anything but success means that it is in use or gone.
            let _ = fs::remove_dir(root);
        }
        Ok(())
    }
}

impl Engines {
    /// Those beneath a directory of a bpffs, normally `/sys/fs/bpf/sandbox`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where an engine is pinned.
    pub fn pins(&self, identity: &Identity) -> PathBuf {
        self.root.join(format!("{ENGINE}{identity}"))
    }

    /// The engine of this build: adopted where it is loaded, else loaded. One that is damaged is
    /// replaced when no session uses it. `hooks` says which program fits each hook.
    pub fn obtain(
        &self,
        layout: &KernelLayout<u32>,
        way: Way,
        hooks: &[HookFact],
        held: &Held,
    ) -> Result<Engine, EngineError> {
        let identity = Identity::own(layout, way);
        self.own_root()?;
        let pins = self.pins(&identity);
        let mut kept = false;
        if pins.exists() {
            match Engine::adopt(&pins).and_then(|engine| whole(engine, held)) {
                Ok(engine) => return Ok(engine),
                Err(error) => {
                    if is_used(&pins)? {
                        return Err(error);
                    }
                    tracing::warn!(%error, "replacing the engine");
                    kept = pins.join(KEPT).exists();
                    set_aside(&pins, held)?.discard()?;
                    self.own_root()?;
                }
            }
        }
        let loading = self.root.join(format!("{LOADING}{identity}"));
        // Of a process that was killed: whoever loads holds the lock.
        remove(&loading).map_err(|source| EngineError::Pins { path: loading.clone(), source })?;
        let loaded = load::load(layout, way, hooks, &loading).and_then(|()| {
            fs::rename(&loading, &pins)
                .map_err(|source| EngineError::Pins { path: pins.clone(), source })
        });
        if let Err(error) = loaded {
            // The first error is the one to tell; what cannot be removed now is by the next start.
            let _ = remove(&loading);
            let _ = fs::remove_dir(&self.root);
            return Err(error);
        }
        if kept {
            self.keep(&identity, held)?;
        }
        Engine::adopt(&pins).and_then(|engine| whole(engine, held))
    }

    /// Makes the directory, or refuses one that others could have prepared.
    fn own_root(&self) -> Result<(), EngineError> {
        let error = |source| EngineError::Pins { path: self.root.clone(), source };
        match DirBuilder::new().mode(0o700).create(&self.root) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => Err(error(source)),
            _ => private(&self.root),
        }
    }

    /// All engines.
    pub fn list(&self) -> io::Result<Vec<Found>> {
        let entries = match fs::read_dir(&self.root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut found = Vec::new();
        for entry in entries {
            let (pins, name) = {
                let entry = entry?;
                (entry.path(), entry.file_name())
            };
            let identity = name.to_str().and_then(|name| name.strip_prefix(ENGINE));
            if let Some(identity) = identity.and_then(Identity::parse) {
                let (owners, kept) = (claims::owners(&pins)?, pins.join(KEPT).exists());
                found.push(Found { identity, pins, owners, kept });
            }
        }
        found.sort_by(|a, b| a.identity.cmp(&b.identity));
        Ok(found)
    }

    /// Sets aside every engine that no session uses and nobody keeps, but the one of `own`, and
    /// whatever processes left that were killed while they loaded or removed one.
    pub fn set_aside_idle(
        &self,
        own: Option<&Identity>,
        held: &Held,
    ) -> Result<Vec<Aside>, EngineError> {
        let error = |source| EngineError::Pins { path: self.root.clone(), source };
        let mut aside = Vec::new();
        for found in self.list().map_err(error)? {
            if Some(&found.identity) != own {
                aside.extend(set_aside_if_idle(&found.pins, held)?);
            }
        }
        let Ok(entries) = fs::read_dir(&self.root) else { return Ok(aside) };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(LOADING) || name.starts_with(ASIDE) {
                // One that another process is removing right now takes no harm of two.
                aside.push(Aside(entry.path()));
            }
        }
        // Those of this very call are in the list twice.
        aside.sort_by(|a, b| a.0.cmp(&b.0));
        aside.dedup_by(|a, b| a.0 == b.0);
        if aside.is_empty() {
            // Anything but success means that it is in use or gone.
            let _ = fs::remove_dir(&self.root);
        }
        Ok(aside)
    }

    /// Sets aside every engine, used or not: the sessions on them are confined no longer once these are
    /// discarded.
    pub fn set_aside_all(&self, held: &Held) -> Result<Vec<Aside>, EngineError> {
        let error = |source| EngineError::Pins { path: self.root.clone(), source };
        let found = self.list().map_err(error)?;
        found.iter().map(|found| set_aside(&found.pins, held)).collect()
    }

    /// Where an owner's cgroup links are pinned, on the engine where it has a share.
    pub fn of(&self, owner: &str) -> io::Result<Option<Found>> {
        Ok(self.list()?.into_iter().find(|found| found.owners.iter().any(|name| name == owner)))
    }

    /// Removes what an owner that is gone left on any engine; no task may be in it any more. Of an
    /// engine of another build only the links are removed: its maps end with it.
    pub fn clear(&self, owner: &str, held: &Held) -> Result<Vec<Aside>, EngineError> {
        let error = |source| EngineError::Pins { path: self.root.clone(), source };
        let mut aside = Vec::new();
        while let Some(found) = self.of(owner).map_err(error)? {
            let share = Engine::adopt(&found.pins).and_then(|engine| engine.share_of(owner));
            if let Ok(Some(share)) = share {
                aside.extend(share.end(held)?);
            } else {
                let path = found.pins.join("sessions").join(owner);
                remove(&path).map_err(|source| EngineError::Pins { path, source })?;
                aside.extend(set_aside_if_idle(&found.pins, held)?);
            }
        }
        Ok(aside)
    }

    /// Keeps an engine without sessions, and no other.
    pub fn keep(&self, identity: &Identity, held: &Held) -> Result<(), EngineError> {
        self.release(Some(identity), held)?;
        let path = self.pins(identity).join(KEPT);
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(source) if source.kind() != io::ErrorKind::AlreadyExists => {
                Err(EngineError::Pins { path, source })
            }
            _ => Ok(()),
        }
    }

    /// Keeps no engine any more, but perhaps one.
    pub fn release(&self, but: Option<&Identity>, _held: &Held) -> Result<(), EngineError> {
        let error = |source| EngineError::Pins { path: self.root.clone(), source };
        for found in self.list().map_err(error)? {
            if found.kept && Some(&found.identity) != but {
                let path = found.pins.join(KEPT);
                fs::remove_dir(&path).map_err(|source| EngineError::Pins { path, source })?;
            }
        }
        Ok(())
    }
}

/// An engine of which nothing is missing, without what killed processes left in it.
fn whole(mut engine: Engine, held: &Held) -> Result<Engine, EngineError> {
    private(&engine.pins)?;
    links::verify(&engine)?;
    engine.forget_strangers(held)?;
    Ok(engine)
}

/// Refuses a directory that others than root own or can look into.
fn private(path: &Path) -> Result<(), EngineError> {
    let meta = fs::symlink_metadata(path)
        .map_err(|source| EngineError::Pins { path: path.into(), source })?;
    if meta.is_dir() && meta.uid() == 0 && meta.mode() & 0o7777 == 0o700 {
        return Ok(());
    }
    Err(EngineError::NotPrivate(path.into()))
}

/// Sets an engine aside that no session uses, unless it is kept.
pub(super) fn set_aside_if_idle(pins: &Path, held: &Held) -> Result<Option<Aside>, EngineError> {
    if is_used(pins)? || pins.join(KEPT).exists() {
        return Ok(None);
    }
    set_aside(pins, held).map(Some)
}

/// Whether anybody has a share of an engine.
fn is_used(pins: &Path) -> Result<bool, EngineError> {
    let path = pins.join("sessions");
    match fs::read_dir(&path) {
        Ok(mut entries) => Ok(entries.next().is_some()),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(EngineError::Pins { path, source }),
    }
}

/// Gives an engine a name under which no session looks for it.
fn set_aside(pins: &Path, _held: &Held) -> Result<Aside, EngineError> {
    let name = pins.file_name().unwrap_or_default().to_string_lossy();
    let name = format!("{ASIDE}{}-{}", name.trim_start_matches(ENGINE), std::process::id());
    let aside = pins.with_file_name(name);
    fs::rename(pins, &aside)
        .map_err(|source| EngineError::Pins { path: pins.to_owned(), source })?;
    Ok(Aside(aside))
}

/// Removes a directory of pins; that it is gone, or goes meanwhile, is no error.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
