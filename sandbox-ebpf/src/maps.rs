//! The maps. User space finds them by these names.

use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, bpf_map_type::BPF_MAP_TYPE_TASK_STORAGE};
use aya_ebpf::btf_maps::{self, HashOfMaps, RingBuf, SkStorage};
use aya_ebpf::helpers::generated::{bpf_get_current_task_btf, bpf_task_storage_get};
use aya_ebpf::macros::{btf_map, map};
#[expect(deprecated, reason = "what replaces it takes Linux 6.2")]
use aya_ebpf::maps::CgroupStorage;
use aya_ebpf::maps::{
    Array, HashMap, LpmTrie, LruHashMap, PerCpuArray, PerCpuHashMap, ProgramArray,
};
use core::ffi::c_void;
use core::ptr;
use sandbox_common::ask::{AskKey, Asks};
use sandbox_common::event::{FAULT_COUNTERS, RING_BYTES};
use sandbox_common::net::{
    AbstractKey, Asked, Connection, Count, CountKey, Named, NamedKey, Net4, Net6, Port, PortRule,
    Resolver,
};
use sandbox_common::path::{
    DeviceKey, EdgeKey, Linked, LinkedKey, LongEdgeKey, Node, PtyKey, Root, RootKey,
};
use sandbox_common::pattern::{Endings, Patterns};
use sandbox_common::subject::{Control, PATTERN_SETS, SESSIONS, Subject, TaskState};
use sandbox_common::tls::ServerNameKey;

use crate::cgroup::hello::Hello;
use crate::path::Chain;
use crate::path::cache::{ENTRIES, Entry};

const SESSIONS_USIZE: usize = SESSIONS as usize;

/// A map of values that hang on tasks, kernel 5.11 and later. aya-ebpf has the other storage
/// types; this is shaped like them.
#[repr(C)]
pub(crate) struct TaskStorage<T> {
    r#type: *const [i32; BPF_MAP_TYPE_TASK_STORAGE as usize],
    key: *const i32,
    value: *const T,
    max_entries: *const [i32; 0],
    map_flags: *const [i32; BPF_F_NO_PREALLOC as usize],
}

// SAFETY: the fields are never dereferenced, the loader replaces the whole definition by a map.
unsafe impl<T> Sync for TaskStorage<T> {}

impl<T> TaskStorage<T> {
    const fn new() -> Self {
        Self {
            r#type: ptr::null(),
            key: ptr::null(),
            value: ptr::null(),
            max_entries: ptr::null(),
            map_flags: ptr::null(),
        }
    }

    /// The value of `task`, null where there is none. With `create` a zeroed one is made; null then
    /// means that there was no memory.
    #[inline(always)]
    pub(crate) fn of(&self, task: *mut c_void, create: bool) -> *mut T {
        // SAFETY: the verifier checks that `task` is a task.
        unsafe {
            bpf_task_storage_get(
                ptr::from_ref(self).cast_mut().cast(),
                task.cast(),
                ptr::null_mut(),
                u64::from(create),
            )
            .cast()
        }
    }

    /// [`of`](Self::of) the current task.
    #[inline(always)]
    pub(crate) fn of_current(&self, create: bool) -> *mut T {
        // SAFETY: a helper without arguments.
        self.of(unsafe { bpf_get_current_task_btf() }.cast(), create)
    }
}

#[map]
pub(crate) static CONTROL: Array<Control> = Array::with_max_entries(1, 0);
/// [`Control::generation`].
#[inline(always)]
pub(crate) fn generation() -> u64 {
    CONTROL.get(0).map_or(0, |control| control.generation)
}

/// Every session, and besides the canary of each that is starting.
#[map]
pub(crate) static SUBJECTS: HashMap<u64, Subject> = HashMap::with_max_entries(SESSIONS * 2, 0);
#[btf_map]
pub(crate) static LABELS: TaskStorage<TaskState> = TaskStorage::new();
#[btf_map]
pub(crate) static CHAINS: TaskStorage<Chain> = TaskStorage::new();

#[map]
pub(crate) static ROOTS: HashMap<RootKey, Root> =
    HashMap::with_max_entries(262_144, BPF_F_NO_PREALLOC);
/// How often a superblock of a number (`s_dev`, kernel encoding) has ended, for the numbers in `ROOTS`.
#[map]
pub(crate) static DEATHS: HashMap<u32, u32> = HashMap::with_max_entries(65_536, BPF_F_NO_PREALLOC);
#[map]
pub(crate) static EDGES: HashMap<EdgeKey, Node> =
    HashMap::with_max_entries(1_048_576, BPF_F_NO_PREALLOC);
#[map]
pub(crate) static LONG_EDGES: HashMap<LongEdgeKey, Node> =
    HashMap::with_max_entries(1_048_576, BPF_F_NO_PREALLOC);
/// Files with a second name in a protected place.
#[map]
pub(crate) static LINKED: HashMap<LinkedKey, Linked> =
    HashMap::with_max_entries(262_144, BPF_F_NO_PREALLOC);
/// A [`Patterns`]: not the type itself, for 6.1 takes only inner maps of which it knows as much as of the
/// template, and of those that user space makes it knows no structure.
pub(crate) type PatternWords = [u32; size_of::<Patterns>() / 4];
const _: () = assert!(size_of::<Patterns>() == size_of::<PatternWords>());

/// The patterns of a policy, at its `Subject::patterns`. The one inner map here is a template.
#[btf_map]
pub(crate) static PATTERNS: btf_maps::ArrayOfMaps<
    btf_maps::Array<PatternWords, 1>,
    { PATTERN_SETS as usize },
> = btf_maps::ArrayOfMaps::new();

/// Which names the patterns cannot match, by `Subject::patterns`.
#[map]
pub(crate) static ENDINGS: Array<Endings> = Array::with_max_entries(PATTERN_SETS, 0);

/// What directories pass on, see `path::cache`. 5 MiB.
#[map]
pub(crate) static NODES: Array<Entry> = Array::with_max_entries(ENTRIES as u32, 0);

/// Tasks (process id above thread id) that are renaming a directory, see `hooks::directories`.
#[map]
pub(crate) static MOVES: HashMap<u64, u32> = HashMap::with_max_entries(65_536, BPF_F_NO_PREALLOC);

#[map]
pub(crate) static DEVICES: HashMap<DeviceKey, u32> =
    HashMap::with_max_entries(262_144, BPF_F_NO_PREALLOC);

/// Pseudo-terminals that members made, and the cgroup id of their session.
#[map]
pub(crate) static PTYS: HashMap<PtyKey, u64> = HashMap::with_max_entries(65_536, BPF_F_NO_PREALLOC);

/// Unix sockets that members made, by the address of their `struct sock`, and the cgroup id of their
/// session. An outsider's new socket at the same address takes the entry away. (Socket storage would
/// be the place, but `fmod_ret` programs may not use it.)
#[map]
pub(crate) static SOCKETS: LruHashMap<u64, u64> = LruHashMap::with_max_entries(65_536, 0);

/// What an entry of [`OBJECTS`] is about. Memory of the kernel that held an object of one kind may come to hold
/// one of another, so the kind is part of the key.
#[derive(Clone, Copy)]
#[repr(u64)]
pub(crate) enum Object {
    Key = 0,
    /// A file that signals.
    File = 1,
    Superblock = 2,
}

impl Object {
    /// The key of the object at an address, which is a multiple of 8. By addition: the address may be a pointer
    /// to the verifier, with which it allows nothing else.
    #[inline(always)]
    pub(crate) fn at(self, address: u64) -> u64 {
        address.wrapping_add(self as u64)
    }
}

/// Kernel objects that members made or took possession of, by [`Object::at`], and the cgroup id of their
/// session. An outsider's key or signalling file at the same address takes the entry away, and so does the end
/// of a superblock.
#[map]
pub(crate) static OBJECTS: HashMap<u64, u64> =
    HashMap::with_max_entries(1_048_576, BPF_F_NO_PREALLOC);

/// Whole addresses, before the prefixes.
#[map]
pub(crate) static HOSTS: HashMap<Net6, u32> = HashMap::with_max_entries(262_144, BPF_F_NO_PREALLOC);
#[map]
pub(crate) static NET4: LpmTrie<Net4, u32> = LpmTrie::with_max_entries(262_144, 0);
#[map]
pub(crate) static NET6: LpmTrie<Net6, u32> = LpmTrie::with_max_entries(262_144, 0);
#[map]
pub(crate) static PORTS: LpmTrie<Port, PortRule> = LpmTrie::with_max_entries(1_048_576, 0);

/// Abstract names of unix sockets that rules speak of.
#[map]
pub(crate) static ABSTRACT: HashMap<AbstractKey, PortRule> =
    HashMap::with_max_entries(65_536, BPF_F_NO_PREALLOC);

/// Programs that a person is asked about.
#[map]
pub(crate) static ASKS: HashMap<AskKey, Asks> =
    HashMap::with_max_entries(65_536, BPF_F_NO_PREALLOC);

/// What names opened, by session number.
#[map]
pub(crate) static NAMES: LpmTrie<NamedKey, Named> = LpmTrie::with_max_entries(1_048_576, 0);
/// What the rules that count have let pass. User space makes the entries.
#[map]
pub(crate) static COUNTS: HashMap<CountKey, Count> =
    HashMap::with_max_entries(262_144, BPF_F_NO_PREALLOC);
/// For which of them a connection counts, and what it has to show.
#[btf_map]
pub(crate) static CONNECTIONS: SkStorage<Connection> = SkStorage::new();
/// Names that TLS may ask for: the port set. By the longest prefix, see [`ServerNameKey`].
#[map]
pub(crate) static SERVER_NAMES: LpmTrie<ServerNameKey, u32> = LpmTrie::with_max_entries(65_536, 0);
/// What `egress` goes on with where a connection is checked. User space enters it.
#[map]
pub(crate) static TAILS: ProgramArray = ProgramArray::with_max_entries(1, 0);
/// Working memory of connections whose first packet is being read. On the socket, which is locked while it sends:
/// memory of the processor would be shared with whoever interrupts this.
#[btf_map]
pub(crate) static HELLOS: SkStorage<Hello> = SkStorage::new();
/// Where the resolvers of sessions listen, by session number.
#[map]
pub(crate) static RESOLVERS: HashMap<u32, Resolver> = HashMap::with_max_entries(SESSIONS, 0);
/// Sockets that were led to a resolver.
#[map]
pub(crate) static ASKED: LruHashMap<u64, Asked> = LruHashMap::with_max_entries(16_384, 0);

/// The rings of denials, by session number, and those of notes, by the number behind it. User space makes the former
/// when the session begins, the latter where its policy begins to have something noted.
#[btf_map]
pub(crate) static RINGS: HashOfMaps<
    u32,
    RingBuf<u64, { RING_BYTES as usize }>,
    { 2 * SESSIONS_USIZE },
> = HashOfMaps::new();
/// Records that could not be delivered, by the numbers of `RINGS`; 0 counts for those without an entry.
#[map]
pub(crate) static LOST: PerCpuHashMap<u32, u64> =
    PerCpuHashMap::with_max_entries(2 * SESSIONS + 1, 0);

/// How often something was denied because it could not be judged, see
/// [`fault_counter`](sandbox_common::event::fault_counter).
#[map]
pub(crate) static FAULTS: PerCpuArray<u64> = PerCpuArray::with_max_entries(FAULT_COUNTERS, 0);

/// The cgroup id of the session, beside each of its cgroup programs. These run for the cgroup that a
/// socket was made in, whoever holds it. (`BPF_MAP_TYPE_CGRP_STORAGE` takes 6.2.)
#[expect(deprecated, reason = "what replaces it takes Linux 6.2")]
#[map]
pub(crate) static OWNER: CgroupStorage<u64> = CgroupStorage::new();
