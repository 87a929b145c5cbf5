//! The pinned maps, opened with their types.

use super::EngineError;
use aya::maps::lpm_trie::LpmTrie;
use aya::maps::{Array, ArrayOfMaps, HashMap, Map, MapData, PerCpuArray};
use sandbox_common::net::{Net4, Net6, Port, PortRule};
use sandbox_common::path::{DeviceKey, EdgeKey, LongEdgeKey, Node, Root, RootKey};
use sandbox_common::pattern::Patterns;
use sandbox_common::subject::{Control, Subject};
use std::path::Path;

pub(super) struct Maps {
    pub(super) control: Array<MapData, Control>,
    pub(super) subjects: HashMap<MapData, u64, Subject>,
    /// Task storage: values are read by pidfd, with `kernel::bpf`.
    pub(super) labels: MapData,
    pub(super) roots: HashMap<MapData, RootKey, Root>,
    pub(super) edges: HashMap<MapData, EdgeKey, Node>,
    pub(super) long_edges: HashMap<MapData, LongEdgeKey, Node>,
    pub(super) patterns: ArrayOfMaps<MapData, Array<MapData, Patterns>>,
    /// The same, for what aya has no call for.
    pub(super) patterns_raw: MapData,
    pub(super) devices: HashMap<MapData, DeviceKey, u32>,
    pub(super) net4: LpmTrie<MapData, Net4, u32>,
    pub(super) net6: LpmTrie<MapData, Net6, u32>,
    pub(super) ports: LpmTrie<MapData, Port, PortRule>,
    pub(super) lost: PerCpuArray<MapData, u64>,
}

impl Maps {
    /// Opens every map beneath `dir`. A map of another shape is an error.
    pub(super) fn open(dir: &Path) -> Result<Self, EngineError> {
        Ok(Self {
            control: map(dir, "CONTROL")?,
            subjects: map(dir, "SUBJECTS")?,
            labels: MapData::from_pin(dir.join("LABELS")).map_err(EngineError::map("LABELS"))?,
            roots: map(dir, "ROOTS")?,
            edges: map(dir, "EDGES")?,
            long_edges: map(dir, "LONG_EDGES")?,
            patterns: map(dir, "PATTERNS")?,
            patterns_raw: MapData::from_pin(dir.join("PATTERNS"))
                .map_err(EngineError::map("PATTERNS"))?,
            devices: map(dir, "DEVICES")?,
            net4: map(dir, "NET4")?,
            net6: map(dir, "NET6")?,
            ports: map(dir, "PORTS")?,
            lost: map(dir, "LOST")?,
        })
    }
}

fn map<M: TryFrom<Map, Error = aya::maps::MapError>>(
    dir: &Path,
    name: &'static str,
) -> Result<M, EngineError> {
    MapData::from_pin(dir.join(name))
        .and_then(Map::from_map_data)
        .and_then(M::try_from)
        .map_err(EngineError::map(name))
}
