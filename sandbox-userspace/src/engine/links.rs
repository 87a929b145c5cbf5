//! What was attached when an engine was loaded, and whether all of it still is.

use super::load::{CGROUP_HOOKS, LSM_HOOKS, NOTED, Need};
use super::maps::Maps;
use super::{Engine, EngineError, cgroup};
use aya::programs::links::{FdLink, LinkError, PinnedLink};
use sandbox_common::event::Hook;
use std::path::Path;

/// Value of map `ATTACHED`, keyed by hook number; from [`NOTED_KEY`] on, [`NOTED`].
#[repr(C)]
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
)]
pub(super) struct Attached {
    /// The kernel's number of the link; 0 for a program of a cgroup.
    pub(super) link: u32,
    /// The kernel's number of the program.
    pub(super) program: u32,
}

// SAFETY: the derives above show that every bit pattern is valid and that there is no padding.
unsafe impl aya::Pod for Attached {}

/// Key of the first of [`NOTED`]; hooks have smaller numbers, one byte in records.
const NOTED_KEY: u32 = 256;

/// Everything that is pinned in `links`, by key of `ATTACHED`.
fn places() -> impl Iterator<Item = (u32, &'static str, Need)> {
    let hooks = LSM_HOOKS.iter().map(|(hook, need)| (*hook as u32, hook.name(), *need));
    hooks.chain((NOTED_KEY..).zip(NOTED).map(|(key, (name, _))| (key, *name, Need::Required)))
}

/// The link that is pinned at `path`.
fn link(path: &Path) -> Result<Attached, LinkError> {
    let info = FdLink::from(PinnedLink::from_pin(path)?).info()?;
    Ok(Attached { link: info.id(), program: info.program_id() })
}

/// The program that is pinned for a cgroup's hook.
fn program(pins: &Path, hook: Hook) -> Result<Attached, EngineError> {
    let program = cgroup::program(&pins.join("programs"), hook)?;
    let info = program
        .info()
        .map_err(|source| EngineError::Attach { name: hook.name(), source: Box::new(source) })?;
    Ok(Attached { link: 0, program: info.id() })
}

/// Writes down what was just attached and pinned beneath `pins`.
pub(super) fn record(pins: &Path, maps: &mut Maps) -> Result<(), EngineError> {
    let mut enter = |key: u32, attached| {
        maps.attached.insert(key, attached, 0).map_err(EngineError::map("ATTACHED"))
    };
    for (key, name, need) in places() {
        let path = pins.join("links").join(name);
        if need == Need::WhereItExists && !path.exists() {
            continue;
        }
        let attached = link(&path).map_err(|source| EngineError::Link { path, source })?;
        enter(key, attached)?;
    }
    for hook in CGROUP_HOOKS {
        enter(*hook as u32, program(pins, *hook)?)?;
    }
    Ok(())
}

/// Whether every link is pinned and is the one that was made when the engine was loaded. A link that
/// is pinned is attached: those of LSM hooks and functions cannot be detached otherwise.
pub(super) fn verify(engine: &Engine) -> Result<(), EngineError> {
    let damaged = |what: String| EngineError::Damaged { path: engine.pins.clone(), what };
    let known = |key: u32| match engine.maps.attached.get(&key, 0) {
        Ok(attached) => Ok(Some(attached)),
        Err(aya::maps::MapError::KeyNotFound) => Ok(None),
        Err(error) => Err(EngineError::map("ATTACHED")(error)),
    };
    for (key, name, need) in places() {
        let Some(expected) = known(key)? else {
            if need == Need::WhereItExists {
                continue;
            }
            return Err(damaged(format!("`{name}` was never attached")));
        };
        match link(&engine.pins.join("links").join(name)) {
            Ok(found) if found == expected => {}
            Ok(_) => return Err(damaged(format!("the link of `{name}` was exchanged"))),
            Err(error) => return Err(damaged(format!("the link of `{name}` is gone: {error}"))),
        }
    }
    for hook in CGROUP_HOOKS {
        let (name, expected) = (hook.name(), known(*hook as u32)?);
        match program(&engine.pins, *hook) {
            Ok(found) if Some(found) == expected => {}
            Ok(_) => return Err(damaged(format!("program `{name}` was exchanged"))),
            Err(error) => return Err(damaged(format!("program `{name}` is gone: {error}"))),
        }
    }
    Ok(())
}
