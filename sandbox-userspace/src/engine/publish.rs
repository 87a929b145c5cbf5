//! Entering a compiled policy into the maps, as one slot.

use super::{Engine, EngineError};
use crate::policy::compiled::{CompiledPolicy, Edge};
use aya::maps::MapError;
use aya::maps::lpm_trie::Key;
use sandbox_common::fold::FOLDED;
use sandbox_common::net::{NET_PREFIX, Net4, Net6, PORT_PREFIX, Port, PortRule};
use sandbox_common::path::{
    DeviceKey, EdgeKey, LONG_NAME, LinkedKey, LongEdgeKey, RootKey, SHORT_NAME,
};
use std::collections::HashMap;

/// What a slot needs to be known of to be withdrawn.
pub(super) struct Entered {
    /// Its first port set.
    first_set: u32,
    /// The eras that its roots were entered under.
    eras: HashMap<u32, u32>,
}

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
            Err(MapError::KeyNotFound) => {
                deaths.insert(dev, 0, 0)?;
                Ok(0)
            }
            known => known,
        };
        devs.into_iter()
            .map(|dev| Ok((dev, era(dev).map_err(EngineError::map("DEATHS"))?)))
            .collect()
    }

    /// Enters a policy as `slot`. No subject may use the slot yet; on an error it stays empty.
    pub fn publish(&mut self, slot: u32, policy: &CompiledPolicy) -> Result<(), EngineError> {
        if self.slots.contains_key(&slot) {
            return Err(EngineError::SlotUsed(slot));
        }
        let first_set = self.next_set;
        let sets = policy.ports.iter().map(|port| port.set + 1).max().unwrap_or(0);
        let unknown = policy.roots.iter().map(|(dev, _)| *dev);
        let unknown: Vec<u32> = unknown.filter(|dev| !policy.eras.contains_key(dev)).collect();
        let mut eras = self.eras(unknown)?;
        eras.extend(&policy.eras);
        self.slots.insert(slot, Entered { first_set, eras: eras.clone() });
        self.next_set = first_set.saturating_add(sets);
        let entered = self.enter(slot, first_set, &eras, policy);
        if entered.is_err() {
            // The error to tell is the first one.
            let _ = self.withdraw(slot, policy);
        }
        entered
    }

    fn enter(
        &mut self,
        slot: u32,
        first_set: u32,
        eras: &HashMap<u32, u32>,
        policy: &CompiledPolicy,
    ) -> Result<(), EngineError> {
        let maps = &mut self.maps;
        for (dev, node) in &policy.roots {
            let key = root_key(slot, *dev, eras);
            maps.roots.insert(key, node, 0).map_err(EngineError::map("ROOTS"))?;
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
        for prefix in &policy.net4 {
            let key = net4(slot, prefix.address.octets(), prefix.bits);
            maps.net4.insert(&key, first_set + prefix.set, 0).map_err(EngineError::map("NET4"))?;
        }
        for prefix in &policy.net6 {
            let key = net6(slot, prefix.address.octets(), prefix.bits);
            maps.net6.insert(&key, first_set + prefix.set, 0).map_err(EngineError::map("NET6"))?;
        }
        for port in &policy.ports {
            let key = port_key(first_set + port.set, port.protocol, port.port, port.bits);
            let rule = PortRule { rule: port.rule, allow: u16::from(port.allow) };
            maps.ports.insert(&key, rule, 0).map_err(EngineError::map("PORTS"))?;
        }
        Ok(())
    }

    /// Removes a policy that no subject uses any more. Entries that are not there do not matter;
    /// the first other error is told after everything was tried.
    pub fn withdraw(&mut self, slot: u32, policy: &CompiledPolicy) -> Result<(), EngineError> {
        let Some(Entered { first_set, eras }) = self.slots.remove(&slot) else { return Ok(()) };
        let mut first = Ok(());
        let mut note = |name: &'static str, result: Result<(), MapError>| match result {
            Ok(()) | Err(MapError::KeyNotFound) => {}
            Err(source) if is_missing(&source) => {}
            Err(source) if first.is_ok() => first = Err(EngineError::Map { name, source }),
            Err(_) => {}
        };
        let maps = &mut self.maps;
        for (dev, _) in &policy.roots {
            note("ROOTS", maps.roots.remove(&root_key(slot, *dev, &eras)));
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
        for prefix in &policy.net4 {
            note("NET4", maps.net4.remove(&net4(slot, prefix.address.octets(), prefix.bits)));
        }
        for prefix in &policy.net6 {
            note("NET6", maps.net6.remove(&net6(slot, prefix.address.octets(), prefix.bits)));
        }
        for port in &policy.ports {
            let key = port_key(first_set + port.set, port.protocol, port.port, port.bits);
            note("PORTS", maps.ports.remove(&key));
        }
        first
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
    matches!(error, MapError::SyscallError(call)
        if call.io_error.raw_os_error() == Some(libc::ENOENT))
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

fn net4(slot: u32, address: [u8; 4], bits: u8) -> Key<Net4> {
    Key::new(NET_PREFIX + u32::from(bits), Net4 { slot, address })
}

fn net6(slot: u32, address: [u8; 16], bits: u8) -> Key<Net6> {
    Key::new(NET_PREFIX + u32::from(bits), Net6 { slot, address })
}

fn port_key(set: u32, protocol: u8, port: u16, bits: u8) -> Key<Port> {
    let data = Port { set, protocol: u16::from(protocol), port: port.to_be_bytes() };
    Key::new(PORT_PREFIX + u32::from(bits), data)
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
