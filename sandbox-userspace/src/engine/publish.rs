//! Entering a compiled policy into the maps, as one slot.

use super::claims::{NOT_YET, errno};
use super::{Engine, EngineError, sweep};
use crate::policy::compiled::{CompiledPolicy, Edge, Prefix, ServerName};
use aya::maps::lpm_trie::Key;
use aya::maps::{Array, MapError};
use sandbox_common::ask::AskKey;
use sandbox_common::fold::FOLDED;
use sandbox_common::net::{
    ABSTRACT_NAME, AbstractKey, AbstractName, NET_PREFIX, Net4, Net6, PORT_PREFIX, Port, PortRule,
};
use sandbox_common::path::{
    DeviceKey, EdgeKey, LONG_NAME, LinkedKey, LongEdgeKey, RootKey, SHORT_NAME,
};
use sandbox_common::pattern::Endings;
use sandbox_common::subject::{NO_PATTERNS, PATTERN_SETS};
use sandbox_common::tls::ServerNameKey;
use std::collections::{HashMap, HashSet};

impl Engine {
    /// The present eras of superblock numbers (see [`RootKey::era`]), counted from now on. Read them
    /// *before* the mount table that is compiled: a superblock that ends in between is then known as
    /// ended.
    pub fn eras(
        &mut self,
        devs: impl IntoIterator<Item = u32>,
    ) -> Result<HashMap<u32, u32>, EngineError> {
        let deaths = &mut self.maps.deaths;
        let mut era = |dev: u32| match deaths.get(&dev, 0) {
            // Another session may begin to count it at this moment.
            Err(MapError::KeyNotFound) => match deaths.insert(dev, 0, NOT_YET) {
                Err(other) if errno(&other) == Some(libc::EEXIST) => deaths.get(&dev, 0),
                other => other.map(|()| 0),
            },
            known => known,
        };
        // 0 stands for those that nobody knows.
        devs.into_iter()
            .filter(|dev| *dev != 0)
            .map(|dev| Ok((dev, era(dev).map_err(EngineError::map("DEATHS"))?)))
            .collect()
    }

    /// Enters a policy as `slot`, with the eras that it does not have yet; returns where its patterns are,
    /// see [`Subject::patterns`]. No subject may use the slot yet; on an error it stays empty.
    ///
    /// [`Subject::patterns`]: sandbox_common::subject::Subject::patterns
    pub fn publish(&mut self, slot: u32, policy: &mut CompiledPolicy) -> Result<u32, EngineError> {
        let devs = policy.roots.iter().map(|(dev, _)| *dev);
        let unknown: Vec<u32> = devs.filter(|dev| !policy.eras.contains_key(dev)).collect();
        policy.eras.extend(self.eras(unknown)?);
        let entered = self.enter(slot, policy).and_then(|()| self.enter_patterns(slot, policy));
        if entered.is_err() {
            // The error to tell is the first one.
            let _ = self.withdraw(slot, policy);
        }
        entered
    }

    /// Enters the patterns at a place that nobody has.
    fn enter_patterns(&mut self, slot: u32, policy: &CompiledPolicy) -> Result<u32, EngineError> {
        let error = EngineError::map("PATTERNS");
        let Some(patterns) = &policy.patterns else { return Ok(NO_PATTERNS) };
        let place = self.take_place(slot)?;
        let mut entry = Array::create(1, 0).map_err(&error)?;
        entry.set(0, **patterns, 0).map_err(&error)?;
        self.maps
            .endings
            .set(place, Endings::of(patterns), 0)
            .map_err(EngineError::map("ENDINGS"))?;
        self.maps.patterns.set(place, &entry, 0).map_err(&error)?;
        Ok(place)
    }

    /// Takes a free place for patterns. Written down first, so that it is given back whatever happens.
    fn take_place(&mut self, slot: u32) -> Result<u32, EngineError> {
        let error = EngineError::map("PATTERN_SLOTS");
        let places = &mut self.maps.pattern_slots;
        let mut taken = HashSet::new();
        for place in places.keys() {
            taken.insert(place.map_err(&error)?);
        }
        for place in (0..PATTERN_SETS).filter(|place| !taken.contains(place)) {
            // Another session may do the same at this moment; only one of both gets it.
            match places.insert(place, slot, NOT_YET) {
                Err(other) if errno(&other) == Some(libc::EEXIST) => {}
                other => return other.map_err(&error).map(|()| place),
            }
        }
        Err(EngineError::NoRoom { name: "PATTERNS" })
    }

    fn enter(&mut self, slot: u32, policy: &CompiledPolicy) -> Result<(), EngineError> {
        let maps = &mut self.maps;
        for (dev, root) in &policy.roots {
            let key = root_key(slot, *dev, &policy.eras);
            maps.roots.insert(key, root, 0).map_err(EngineError::map("ROOTS"))?;
        }
        for (from, edge) in edges(policy) {
            match name_key(slot, from, &edge.name) {
                NameKey::Short(key) => {
                    maps.edges.insert(key, edge.to, 0).map_err(EngineError::map("EDGES"))?;
                }
                NameKey::Long(key) => {
                    maps.long_edges
                        .insert(*key, edge.to, 0)
                        .map_err(EngineError::map("LONG_EDGES"))?;
                }
                NameKey::None => return Err(EngineError::Name(edge.name.clone())),
            }
        }
        for file in &policy.linked {
            let key = LinkedKey { ino: file.ino, slot, dev: file.dev };
            maps.linked.insert(key, file.linked, 0).map_err(EngineError::map("LINKED"))?;
        }
        for device in &policy.devices {
            let key = DeviceKey { slot, kind: device.kind, dev: device.dev };
            maps.devices
                .insert(key, device.allow.bits(), 0)
                .map_err(EngineError::map("DEVICES"))?;
        }
        for (prefix, set) in prefixes(slot, policy) {
            match prefix {
                NetKey::Host(key) => {
                    maps.hosts.insert(key, set, 0).map_err(EngineError::map("HOSTS"))
                }
                NetKey::V4(key) => maps.net4.insert(&key, set, 0).map_err(EngineError::map("NET4")),
                NetKey::V6(key) => maps.net6.insert(&key, set, 0).map_err(EngineError::map("NET6")),
            }?;
        }
        for port in &policy.ports {
            let key = port_key(slot, port.set, port.protocol, port.port, port.bits);
            let rule = PortRule { rule: port.rule, allow: port.allow.into() };
            maps.ports.insert(&key, rule, 0).map_err(EngineError::map("PORTS"))?;
        }
        for entry in &policy.server_names {
            let Some(key) = server_key(slot, entry) else {
                return Err(EngineError::Name(entry.name.clone().into_bytes()));
            };
            let error = EngineError::map("SERVER_NAMES");
            maps.server_names.insert(&key, entry.set, 0).map_err(error)?;
        }
        for entry in &policy.abstracts {
            let Some(key) = abstract_key(slot, &entry.name) else {
                return Err(EngineError::Name(entry.name.clone()));
            };
            let rule = PortRule { rule: entry.rule, allow: entry.allow.into() };
            maps.abstracts.insert(key, rule, 0).map_err(EngineError::map("ABSTRACT"))?;
        }
        for entry in &policy.asks {
            let key = AskKey { slot, pad: 0, program: entry.program };
            maps.asks.insert(key, entry.asks, 0).map_err(EngineError::map("ASKS"))?;
        }
        Ok(())
    }

    /// Removes a policy that no subject uses any more. Entries that are not there do not matter;
    /// the first other error is told after everything was tried.
    pub fn withdraw(&mut self, slot: u32, policy: &CompiledPolicy) -> Result<(), EngineError> {
        let mut first = Ok(());
        let mut note = |name: &'static str, result: Result<(), MapError>| match result {
            Ok(()) | Err(MapError::KeyNotFound) => {}
            Err(source) if is_missing(&source) => {}
            Err(source) if first.is_ok() => first = Err(EngineError::Map { name, source }),
            Err(_) => {}
        };
        let maps = &mut self.maps;
        let patterns = policy.patterns.as_ref().map_or(Ok(()), |_| sweep::patterns(maps, slot));
        for (dev, _) in &policy.roots {
            note("ROOTS", maps.roots.remove(&root_key(slot, *dev, &policy.eras)));
        }
        for (from, edge) in edges(policy) {
            match name_key(slot, from, &edge.name) {
                NameKey::Short(key) => note("EDGES", maps.edges.remove(&key)),
                NameKey::Long(key) => note("LONG_EDGES", maps.long_edges.remove(&key)),
                NameKey::None => {}
            }
        }
        for file in &policy.linked {
            let key = LinkedKey { ino: file.ino, slot, dev: file.dev };
            note("LINKED", maps.linked.remove(&key));
        }
        for device in &policy.devices {
            let key = DeviceKey { slot, kind: device.kind, dev: device.dev };
            note("DEVICES", maps.devices.remove(&key));
        }
        for (prefix, _) in prefixes(slot, policy) {
            match prefix {
                NetKey::Host(key) => note("HOSTS", maps.hosts.remove(&key)),
                NetKey::V4(key) => note("NET4", maps.net4.remove(&key)),
                NetKey::V6(key) => note("NET6", maps.net6.remove(&key)),
            }
        }
        for port in &policy.ports {
            let key = port_key(slot, port.set, port.protocol, port.port, port.bits);
            note("PORTS", maps.ports.remove(&key));
        }
        for key in policy.server_names.iter().filter_map(|entry| server_key(slot, entry)) {
            note("SERVER_NAMES", maps.server_names.remove(&key));
        }
        for key in policy.abstracts.iter().filter_map(|entry| abstract_key(slot, &entry.name)) {
            note("ABSTRACT", maps.abstracts.remove(&key));
        }
        for entry in &policy.asks {
            note("ASKS", maps.asks.remove(&AskKey { slot, pad: 0, program: entry.program }));
        }
        patterns.and(first)
    }
}

fn root_key(slot: u32, dev: u32, eras: &HashMap<u32, u32>) -> RootKey {
    RootKey { slot, dev, era: eras.get(&dev).copied().unwrap_or_default() }
}

/// Every edge and the `node` of its key.
fn edges(policy: &CompiledPolicy) -> impl Iterator<Item = (u32, &Edge)> {
    let exact = policy.edges.iter().map(|edge| (edge.from, edge));
    exact.chain(policy.folded.iter().map(|edge| (edge.from | FOLDED, edge)))
}

/// LPM tries answer a missing key with the plain system call error.
fn is_missing(error: &MapError) -> bool {
    errno(error) == Some(libc::ENOENT)
}

/// The key of an edge: by the length of its name in one of two maps.
enum NameKey {
    Short(EdgeKey),
    Long(Box<LongEdgeKey>),
    /// Empty or longer than any file name.
    None,
}

fn name_key(slot: u32, node: u32, name: &[u8]) -> NameKey {
    match name.len() {
        1..=SHORT_NAME => {
            let mut key = EdgeKey { slot, node, name: [0; SHORT_NAME] };
            key.name[..name.len()].copy_from_slice(name);
            NameKey::Short(key)
        }
        0 => NameKey::None,
        _ if name.len() <= LONG_NAME => {
            let mut key = LongEdgeKey { slot, node, name: [0; LONG_NAME + 1] };
            key.name[..name.len()].copy_from_slice(name);
            NameKey::Long(Box::new(key))
        }
        _ => NameKey::None,
    }
}

/// The key of an address prefix, by its length in the hash or in one of two tries.
enum NetKey {
    Host(Net6),
    V4(Key<Net4>),
    V6(Key<Net6>),
}

/// Every address prefix of a policy, and its port set.
fn prefixes(slot: u32, policy: &CompiledPolicy) -> impl Iterator<Item = (NetKey, u32)> {
    let v4 = policy.net4.iter().map(move |Prefix { address, bits, set }| {
        let key = if bits == &32 {
            NetKey::Host(Net6 { slot, address: address.to_ipv6_mapped().octets() })
        } else {
            let data = Net4 { slot, address: address.octets() };
            NetKey::V4(Key::new(NET_PREFIX + u32::from(*bits), data))
        };
        (key, *set)
    });
    let v6 = policy.net6.iter().map(move |Prefix { address, bits, set }| {
        let data = Net6 { slot, address: address.octets() };
        let key = match bits {
            128 => NetKey::Host(data),
            _ => NetKey::V6(Key::new(NET_PREFIX + u32::from(*bits), data)),
        };
        (key, *set)
    });
    v4.chain(v6)
}

fn port_key(slot: u32, set: u32, protocol: u16, port: u16, bits: u8) -> Key<Port> {
    let data = Port { slot, set, protocol, port: port.to_be_bytes() };
    Key::new(PORT_PREFIX + u32::from(bits), data)
}

/// The key of a server's name; `None` where it is longer than any.
fn server_key(slot: u32, entry: &ServerName) -> Option<Key<ServerNameKey>> {
    let (key, bits) = ServerNameKey::new(slot, entry.name.as_bytes(), entry.beneath)?;
    Some(Key::new(bits, key))
}

/// The key of an abstract name; `None` where it is longer than any.
fn abstract_key(slot: u32, name: &[u8]) -> Option<AbstractKey> {
    let len = u32::try_from(name.len()).ok().filter(|_| name.len() <= ABSTRACT_NAME)?;
    let mut key = AbstractKey { slot, name: AbstractName { len, name: [0; ABSTRACT_NAME + 1] } };
    key.name.name[..name.len()].copy_from_slice(name);
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_choose_their_map_by_length() {
        assert!(matches!(name_key(1, 2, b""), NameKey::None));
        assert!(matches!(name_key(1, 2, b"a"), NameKey::Short(key) if key.name[..2] == *b"a\0"));
        assert!(matches!(name_key(1, 2, &[7; SHORT_NAME]), NameKey::Short(_)));
        assert!(matches!(name_key(1, 2, &[7; SHORT_NAME + 1]), NameKey::Long(_)));
        assert!(
            matches!(name_key(1, 2, &[7; LONG_NAME]), NameKey::Long(key) if key.name[LONG_NAME] == 0)
        );
        assert!(matches!(name_key(1, 2, &[7; LONG_NAME + 1]), NameKey::None));
    }
}

#[cfg(test)]
#[path = "publish_tests.rs"]
mod large;
