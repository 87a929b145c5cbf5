//! Removing what bears a slot or a cgroup, wherever it is: for sessions of which nobody knows any
//! more what they entered.

use super::EngineError;
use super::maps::Maps;
use crate::kernel::bpf;
use aya::maps::MapError;

/// Empties a policy slot that no subject uses.
pub(super) fn slot(maps: &mut Maps, slot: u32) -> Result<(), EngineError> {
    /// Removes the entries of `$map` whose key is of the slot. The keys first: an iteration starts
    /// again from the beginning when the entry it stands on is removed.
    macro_rules! sweep {
        ($map:ident, $name:literal, $key:ident => $slot:expr) => {{
            let error = EngineError::map($name);
            let mut found = Vec::new();
            for key in maps.$map.keys() {
                let $key = key.map_err(&error)?;
                if $slot == slot {
                    found.push($key);
                }
            }
            for key in found {
                removed(maps.$map.remove(&key)).map_err(&error)?;
            }
        }};
    }
    sweep!(roots, "ROOTS", key => key.slot);
    sweep!(edges, "EDGES", key => key.slot);
    sweep!(long_edges, "LONG_EDGES", key => key.slot);
    sweep!(linked, "LINKED", key => key.slot);
    sweep!(devices, "DEVICES", key => key.slot);
    sweep!(hosts, "HOSTS", key => key.slot);
    sweep!(net4, "NET4", key => key.data().slot);
    sweep!(net6, "NET6", key => key.data().slot);
    sweep!(ports, "PORTS", key => key.data().slot);
    sweep!(server_names, "SERVER_NAMES", key => key.data().slot);
    sweep!(abstracts, "ABSTRACT", key => key.slot);
    sweep!(asks, "ASKS", key => key.slot);
    patterns(maps, slot)
}

/// Removes the patterns of a policy slot that no subject uses, and gives their place back.
pub(super) fn patterns(maps: &mut Maps, slot: u32) -> Result<(), EngineError> {
    let error = EngineError::map("PATTERN_SLOTS");
    let mut found = Vec::new();
    for entry in &maps.pattern_slots {
        match entry {
            Ok((place, of)) if of == slot => found.push(place),
            Ok(_) => {}
            Err(other) => removed(Err(other)).map_err(&error)?,
        }
    }
    for place in found {
        // The place last: until then nobody else takes it.
        removed(bpf::delete(maps.patterns_raw.fd(), place).map_err(MapError::IoError))
            .map_err(EngineError::map("PATTERNS"))?;
        removed(maps.pattern_slots.remove(&place)).map_err(&error)?;
    }
    Ok(())
}

/// Removes what names opened for a session, by its number.
pub(super) fn names(maps: &mut Maps, session: u32) -> Result<(), EngineError> {
    let error = EngineError::map("NAMES");
    let mut found = Vec::new();
    for key in maps.names.keys() {
        let key = key.map_err(&error)?;
        if key.data().session == session {
            found.push(key);
        }
    }
    for key in found {
        removed(maps.names.remove(&key)).map_err(&error)?;
    }
    Ok(())
}

/// Removes what the rules of a session counted, by its number.
pub(super) fn counts(maps: &mut Maps, session: u32) -> Result<(), EngineError> {
    let error = EngineError::map("COUNTS");
    let mut found = Vec::new();
    for key in maps.counts.keys() {
        let key = key.map_err(&error)?;
        if key.session == session {
            found.push(key);
        }
    }
    for key in found {
        removed(maps.counts.remove(&key)).map_err(&error)?;
    }
    Ok(())
}

/// Removes what the members of a session noted about terminals, sockets and other objects.
pub(super) fn cgroup(maps: &mut Maps, cgroup: u64) -> Result<(), EngineError> {
    macro_rules! sweep {
        ($map:ident, $name:literal) => {{
            let error = EngineError::map($name);
            let mut found = Vec::new();
            for entry in maps.$map.iter() {
                match entry {
                    Ok((key, of)) if of == cgroup => found.push(key),
                    Ok(_) => {}
                    Err(other) => removed(Err(other)).map_err(&error)?,
                }
            }
            for key in found {
                removed(maps.$map.remove(&key)).map_err(&error)?;
            }
        }};
    }
    sweep!(ptys, "PTYS");
    sweep!(sockets, "SOCKETS");
    sweep!(objects, "OBJECTS");
    Ok(())
}

/// Others (tasks that make sockets, sessions that end) may have removed the same entry.
fn removed(result: Result<(), MapError>) -> Result<(), MapError> {
    match result {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(error) if super::claims::errno(&error) == Some(libc::ENOENT) => Ok(()),
        other => other,
    }
}
