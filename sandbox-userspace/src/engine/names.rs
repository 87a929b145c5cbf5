//! What names opened, in the kernel's table, and where a session's resolver listens.

use super::{EngineError, Share};
use crate::dns::{Open, Spot, Table};
use aya::maps::lpm_trie::{Key, LpmTrie};
use aya::maps::{Map, MapData, MapError};
use sandbox_common::net::{NAMED_PREFIX, Named, NamedKey, Resolver};
use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

/// The part of one session in map `NAMES`, for its resolver.
pub struct NameTable {
    names: LpmTrie<MapData, NamedKey, Named>,
    session: u32,
}

impl NameTable {
    /// Of the session with a number on the engine that is pinned at `pins`.
    pub fn open(pins: &Path, session: u32) -> Result<Self, EngineError> {
        let names = MapData::from_pin(pins.join("maps/NAMES"))
            .and_then(Map::from_map_data)
            .and_then(LpmTrie::try_from)
            .map_err(EngineError::map("NAMES"))?;
        Ok(Self { names, session })
    }

    /// Closes what was opened by other rules than these.
    pub fn keep(&mut self, rules: &HashSet<u32>) -> Result<(), EngineError> {
        let mut left = Vec::new();
        for key in self.names.keys() {
            let key = key.map_err(EngineError::map("NAMES"))?;
            if key.data().session != self.session {
                continue;
            }
            match self.names.get(&key, 0) {
                Ok(named) if rules.contains(&named.rule) => {}
                // It went meanwhile.
                Err(MapError::KeyNotFound) => {}
                Ok(_) => left.push(key),
                Err(error) => return Err(EngineError::map("NAMES")(error)),
            }
        }
        left.iter().try_for_each(|key| super::claims::gone("NAMES", self.names.remove(key)))
    }

    fn key(&self, spot: Spot) -> Key<NamedKey> {
        let address = match spot.address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let data = NamedKey {
            session: self.session,
            address: address.octets(),
            protocol: spot.protocol,
            port: spot.port.to_be_bytes(),
        };
        Key::new(NAMED_PREFIX + u32::from(spot.bits), data)
    }
}

impl Table for NameTable {
    fn open(&mut self, spot: Spot, open: Open) -> anyhow::Result<()> {
        let [until, free] = [open.until, open.free]
            .map(|time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let named = Named { rule: open.rule, check: open.check, until, free };
        self.names.insert(&self.key(spot), named, 0).map_err(EngineError::map("NAMES"))?;
        Ok(())
    }

    fn close(&mut self, spot: Spot) -> anyhow::Result<()> {
        super::claims::gone("NAMES", self.names.remove(&self.key(spot)))?;
        Ok(())
    }
}

impl Share {
    /// Closes what names of the session opened by other rules than these, whether there is a resolver or not.
    pub fn keep_names(&mut self, rules: &HashSet<u32>) -> Result<(), EngineError> {
        NameTable::open(&self.engine.pins, self.number())?.keep(rules)
    }

    /// From now on what members ask of any name server goes to `port` of this machine.
    pub fn resolve_at(&mut self, port: u16) -> Result<(), EngineError> {
        let (number, resolver) = (self.number(), Resolver { port: port.to_be(), pad: 0 });
        let resolvers = &mut self.engine.maps.resolvers;
        resolvers.insert(number, resolver, 0).map_err(EngineError::map("RESOLVERS"))
    }
}
