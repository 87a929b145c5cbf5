//! Entering a compiled policy into the maps, as one slot.

use super::{Engine, EngineError};
use crate::kernel::bpf;
use crate::policy::compiled::CompiledPolicy;
use aya::maps::lpm_trie::Key;
use aya::maps::{Array, MapError};
use sandbox_common::net::{NET_PREFIX, Net4, Net6, PORT_PREFIX, Port, PortRule};
use sandbox_common::path::{DeviceKey, EdgeKey, LONG_NAME, LongEdgeKey, RootKey, SHORT_NAME};
use sandbox_common::subject::NO_PATTERNS;

impl Engine {
    /// Enters a policy as `slot`; returns where its patterns are, see [`Subject::patterns`]. No subject
    /// may use the slot yet; on an error it stays empty.
    ///
    /// [`Subject::patterns`]: sandbox_common::subject::Subject::patterns
    pub fn publish(&mut self, slot: u32, policy: &CompiledPolicy) -> Result<u32, EngineError> {
        if self.sets.contains_key(&slot) {
            return Err(EngineError::SlotUsed(slot));
        }
        let first_set = self.next_set;
        let sets = policy.ports.iter().map(|port| port.set + 1).max().unwrap_or(0);
        self.sets.insert(slot, first_set);
        self.next_set = first_set.saturating_add(sets);
        let entered =
            self.enter(slot, first_set, policy).and_then(|()| self.enter_patterns(slot, policy));
        if entered.is_err() {
            // The error to tell is the first one.
            let _ = self.withdraw(slot, policy);
        }
        entered
    }

    /// Enters the patterns at the first free place.
    fn enter_patterns(&mut self, slot: u32, policy: &CompiledPolicy) -> Result<u32, EngineError> {
        let error = EngineError::map("PATTERNS");
        let Some(patterns) = &policy.patterns else { return Ok(NO_PATTERNS) };
        let all = &mut self.maps.patterns;
        let mut index = 0;
        while index < all.len() {
            match all.get(&index, 0) {
                Err(MapError::KeyNotFound) => break,
                other => other.map_err(&error)?,
            };
            index += 1;
        }
        let mut entry = Array::create(1, 0).map_err(&error)?;
        entry.set(0, **patterns, 0).map_err(&error)?;
        all.set(index, &entry, 0).map_err(&error)?;
        self.patterns.insert(slot, index);
        Ok(index)
    }

    fn enter(
        &mut self,
        slot: u32,
        first_set: u32,
        policy: &CompiledPolicy,
    ) -> Result<(), EngineError> {
        let maps = &mut self.maps;
        for (dev, root) in &policy.roots {
            let key = RootKey { slot, dev: *dev };
            maps.roots.insert(key, root, 0).map_err(EngineError::map("ROOTS"))?;
        }
        for edge in &policy.edges {
            match name_key(slot, edge.from, &edge.name) {
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
            let rule = PortRule { rule: port.rule, allow: port.allow.into() };
            maps.ports.insert(&key, rule, 0).map_err(EngineError::map("PORTS"))?;
        }
        Ok(())
    }

    /// Removes a policy that no subject uses any more. Entries that are not there do not matter;
    /// the first other error is told after everything was tried.
    pub fn withdraw(&mut self, slot: u32, policy: &CompiledPolicy) -> Result<(), EngineError> {
        let Some(first_set) = self.sets.remove(&slot) else { return Ok(()) };
        let mut first = Ok(());
        let mut note = |name: &'static str, result: Result<(), MapError>| match result {
            Ok(()) | Err(MapError::KeyNotFound) => {}
            Err(source) if is_missing(&source) => {}
            Err(source) if first.is_ok() => first = Err(EngineError::Map { name, source }),
            Err(_) => {}
        };
        let maps = &mut self.maps;
        if let Some(index) = self.patterns.remove(&slot) {
            note("PATTERNS", bpf::delete(maps.patterns_raw.fd(), index).map_err(MapError::IoError));
        }
        for (dev, _) in &policy.roots {
            note("ROOTS", maps.roots.remove(&RootKey { slot, dev: *dev }));
        }
        for edge in &policy.edges {
            match name_key(slot, edge.from, &edge.name) {
                NameKey::Short(key) => note("EDGES", maps.edges.remove(&key)),
                NameKey::Long(key) => note("LONG_EDGES", maps.long_edges.remove(&key)),
                NameKey::None => {}
            }
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

/// LPM tries answer a missing key with the plain system call error, and so do calls of our own.
fn is_missing(error: &MapError) -> bool {
    let error = match error {
        MapError::SyscallError(call) => &call.io_error,
        MapError::IoError(error) => error,
        _ => return false,
    };
    error.raw_os_error() == Some(libc::ENOENT)
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
