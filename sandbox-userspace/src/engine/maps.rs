//! The pinned maps, opened with their types.

use super::EngineError;
use super::claims::Claimed;
use super::links::Attached;
#[expect(deprecated, reason = "what replaces it takes Linux 6.2")]
use aya::maps::CgroupStorage;
use aya::maps::lpm_trie::LpmTrie;
use aya::maps::{Array, ArrayOfMaps, HashMap, HashOfMaps, Map, MapData, MapError};
use aya::maps::{PerCpuArray, PerCpuHashMap};
use aya_obj::generated::bpf_map_type;
use sandbox_common::ask::{AskKey, Asks};
use sandbox_common::net::{
    AbstractKey, Count, CountKey, Named, NamedKey, Net4, Net6, Port, PortRule, Resolver,
};
use sandbox_common::path::{
    DeviceKey, EdgeKey, Linked, LinkedKey, LongEdgeKey, Node, PtyKey, Root, RootKey,
};
use sandbox_common::pattern::{Endings, Patterns};
use sandbox_common::subject::{Control, PATTERN_SETS, SESSIONS, Subject, TaskState};
use sandbox_common::tls::ServerNameKey;
use std::path::Path;

pub(super) struct Maps {
    pub(super) control: Array<MapData, Control>,
    pub(super) subjects: HashMap<MapData, u64, Subject>,
    /// Task storage: values are read by pidfd, with `kernel::bpf`.
    pub(super) labels: MapData,
    pub(super) roots: HashMap<MapData, RootKey, Root>,
    /// By superblock number; of the engine, not of a session: it only grows.
    pub(super) deaths: HashMap<MapData, u32, u32>,
    pub(super) edges: HashMap<MapData, EdgeKey, Node>,
    pub(super) long_edges: HashMap<MapData, LongEdgeKey, Node>,
    pub(super) linked: HashMap<MapData, LinkedKey, Linked>,
    pub(super) endings: Array<MapData, Endings>,
    pub(super) patterns: ArrayOfMaps<MapData, Array<MapData, Patterns>>,
    /// The same, for what aya has no call for.
    pub(super) patterns_raw: MapData,
    pub(super) devices: HashMap<MapData, DeviceKey, u32>,
    pub(super) ptys: HashMap<MapData, PtyKey, u64>,
    pub(super) sockets: HashMap<MapData, u64, u64>,
    pub(super) objects: HashMap<MapData, u64, u64>,
    pub(super) hosts: HashMap<MapData, Net6, u32>,
    pub(super) net4: LpmTrie<MapData, Net4, u32>,
    pub(super) net6: LpmTrie<MapData, Net6, u32>,
    pub(super) ports: LpmTrie<MapData, Port, PortRule>,
    pub(super) abstracts: HashMap<MapData, AbstractKey, PortRule>,
    pub(super) asks: HashMap<MapData, AskKey, Asks>,
    pub(super) server_names: LpmTrie<MapData, ServerNameKey, u32>,
    pub(super) counts: HashMap<MapData, CountKey, Count>,
    pub(super) names: LpmTrie<MapData, NamedKey, Named>,
    pub(super) resolvers: HashMap<MapData, u32, Resolver>,
    pub(super) rings: HashOfMaps<MapData, u32>,
    pub(super) lost: PerCpuHashMap<MapData, u32, u64>,
    pub(super) faults: PerCpuArray<MapData, u64>,
    #[expect(deprecated, reason = "what replaces it takes Linux 6.2")]
    pub(super) owner: CgroupStorage<MapData, u64>,
    /// At 0 the next number that no session had, at 1 the format (`identity`).
    pub(super) next: Array<MapData, u32>,
    /// Who has which number.
    pub(super) claims: HashMap<MapData, u32, Claimed>,
    /// Which places in `patterns` are taken, and by which slot.
    pub(super) pattern_slots: HashMap<MapData, u32, u32>,
    /// What was attached, by hook number.
    pub(super) attached: HashMap<MapData, u32, Attached>,
}

impl Maps {
    /// Makes the maps that no program knows, in which processes pass on to one another what they
    /// must know of the engine, and pins them in `dir`.
    pub(super) fn make(dir: &Path) -> Result<(), EngineError> {
        fn pinned(
            dir: &Path,
            name: &'static str,
            made: Result<MapData, MapError>,
        ) -> Result<(), EngineError> {
            let path = dir.join(name);
            made.map_err(EngineError::map(name))?.pin(&path).map_err(|source| EngineError::Pin {
                name: name.into(),
                path,
                source,
            })
        }
        pinned(dir, "NEXT", create::<u32>(bpf_map_type::BPF_MAP_TYPE_ARRAY, "NEXT", 2))?;
        let hash = bpf_map_type::BPF_MAP_TYPE_HASH;
        pinned(dir, "CLAIMS", create::<Claimed>(hash, "CLAIMS", SESSIONS))?;
        pinned(dir, "PATTERN_SLOTS", create::<u32>(hash, "PATTERN_SLOTS", PATTERN_SETS))?;
        pinned(dir, "ATTACHED", create::<Attached>(hash, "ATTACHED", 256))
    }

    /// Opens every map beneath `dir`. A map of another shape is an error.
    pub(super) fn open(dir: &Path) -> Result<Self, EngineError> {
        Ok(Self {
            control: map(dir, "CONTROL")?,
            subjects: map(dir, "SUBJECTS")?,
            labels: labels(dir)?,
            roots: map(dir, "ROOTS")?,
            deaths: map(dir, "DEATHS")?,
            edges: map(dir, "EDGES")?,
            long_edges: map(dir, "LONG_EDGES")?,
            linked: map(dir, "LINKED")?,
            patterns: map(dir, "PATTERNS")?,
            patterns_raw: MapData::from_pin(dir.join("PATTERNS"))
                .map_err(EngineError::map("PATTERNS"))?,
            endings: map(dir, "ENDINGS")?,
            devices: map(dir, "DEVICES")?,
            ptys: map(dir, "PTYS")?,
            sockets: map(dir, "SOCKETS")?,
            objects: map(dir, "OBJECTS")?,
            hosts: map(dir, "HOSTS")?,
            net4: map(dir, "NET4")?,
            net6: map(dir, "NET6")?,
            ports: map(dir, "PORTS")?,
            abstracts: map(dir, "ABSTRACT")?,
            asks: map(dir, "ASKS")?,
            server_names: map(dir, "SERVER_NAMES")?,
            counts: map(dir, "COUNTS")?,
            names: map(dir, "NAMES")?,
            resolvers: map(dir, "RESOLVERS")?,
            rings: map(dir, "RINGS")?,
            lost: map(dir, "LOST")?,
            faults: map(dir, "FAULTS")?,
            owner: map(dir, "OWNER")?,
            next: map(dir, "NEXT")?,
            claims: map(dir, "CLAIMS")?,
            pattern_slots: map(dir, "PATTERN_SLOTS")?,
            attached: map(dir, "ATTACHED")?,
        })
    }
}

/// The map of labels, of which aya knows no type.
fn labels(dir: &Path) -> Result<MapData, EngineError> {
    let error = EngineError::map("LABELS");
    let labels = MapData::from_pin(dir.join("LABELS")).map_err(&error)?;
    // Whoever reads a value gives the kernel as many bytes.
    let (size, expected) = (labels.info().map_err(&error)?.value_size(), size_of::<TaskState>());
    if usize::try_from(size).ok() == Some(expected) {
        return Ok(labels);
    }
    Err(error(MapError::InvalidValueSize {
        size: expected,
        expected: usize::try_from(size).unwrap_or(usize::MAX),
    }))
}

/// A map of `V`s by `u32`.
fn create<V>(kind: bpf_map_type, name: &str, entries: u32) -> Result<MapData, MapError> {
    let size = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
    let (key, value) = (size(size_of::<u32>()), size(size_of::<V>()));
    let shape = aya_obj::Map::new_from_params(kind as u32, key, value, entries, 0);
    MapData::create(shape, name, None)
}

fn map<M: TryFrom<Map, Error = MapError>>(
    dir: &Path,
    name: &'static str,
) -> Result<M, EngineError> {
    MapData::from_pin(dir.join(name))
        .and_then(Map::from_map_data)
        .and_then(M::try_from)
        .map_err(EngineError::map(name))
}
