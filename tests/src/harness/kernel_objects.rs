//! How many BPF programs, links and maps the kernel holds, what is in a pinned map, and what is attached to a cgroup.

use anyhow::Context as _;
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// `bpf(2)` commands, linux/bpf.h.
const PROG_GET_NEXT_ID: i32 = 11;
const MAP_GET_NEXT_ID: i32 = 12;
const LINK_GET_NEXT_ID: i32 = 31;
const MAP_GET_NEXT_KEY: i32 = 4;
const OBJ_GET: i32 = 7;
const PROG_QUERY: i32 = 16;
/// No map of ours has keys of more bytes.
const KEY: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelObjects {
    pub(crate) programs: usize,
    pub(crate) links: usize,
    pub(crate) maps: usize,
}

impl KernelObjects {
    pub(crate) fn count() -> anyhow::Result<Self> {
        Ok(Self {
            programs: count(PROG_GET_NEXT_ID).context("counting BPF programs")?,
            links: count(LINK_GET_NEXT_ID).context("counting BPF links")?,
            maps: count(MAP_GET_NEXT_ID).context("counting BPF maps")?,
        })
    }

    /// No more of anything than there.
    pub(crate) fn within(self, other: Self) -> bool {
        self.programs <= other.programs && self.links <= other.links && self.maps <= other.maps
    }
}

fn count(command: i32) -> io::Result<usize> {
    /// The part of `union bpf_attr` for these commands.
    #[repr(C)]
    #[derive(Default)]
    struct Attributes {
        start: u32,
        next: u32,
        flags: u32,
    }
    let mut attributes = Attributes::default();
    let mut found = 0;
    loop {
        let size = size_of::<Attributes>();
        // SAFETY: the attributes are valid for the call and have the stated size.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut attributes, size) };
        if result < 0 {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::ENOENT) { Ok(found) } else { Err(error) };
        }
        found += 1;
        attributes.start = attributes.next;
    }
}

/// What a program of a cgroup is asked about: `enum bpf_attach_type`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Packets {
    Received = 0,
    Sent = 1,
}

/// How many programs are attached to the cgroup itself for its packets.
pub(crate) fn attached(cgroup: &Path, packets: Packets) -> anyhow::Result<u32> {
    /// The part of `union bpf_attr` for `BPF_PROG_QUERY`.
    #[repr(C)]
    struct Query {
        target: u32,
        kind: u32,
        flags: u32,
        attached: u32,
        ids: u64,
        count: u32,
        pad: u32,
    }
    let directory = std::fs::File::open(cgroup)?;
    let target = directory.as_raw_fd().cast_unsigned();
    let kind = packets as u32;
    // Without room for their numbers, the kernel only counts.
    let mut query = Query { target, kind, flags: 0, attached: 0, ids: 0, count: 0, pad: 0 };
    let size = size_of::<Query>();
    // SAFETY: the attributes are valid for the call and have the stated size.
    let result = unsafe { libc::syscall(libc::SYS_bpf, PROG_QUERY, &raw mut query, size) };
    if result < 0 {
        return Err(io::Error::last_os_error())
            .with_context(|| format!("counting the programs of {}", cgroup.display()));
    }
    Ok(query.count)
}

/// The map pinned at `pin`; `None` where it is gone.
fn opened(pin: &Path) -> io::Result<Option<OwnedFd>> {
    /// The part of `union bpf_attr` for `BPF_OBJ_GET`.
    #[repr(C)]
    struct Get {
        path: u64,
        fd: u32,
        flags: u32,
    }
    let path = CString::new(pin.as_os_str().as_bytes())?;
    let get = Get { path: path.as_ptr() as u64, fd: 0, flags: 0 };
    // SAFETY: the path lives until the call returns.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, OBJ_GET, &raw const get, size_of::<Get>()) };
    if fd < 0 {
        let error = io::Error::last_os_error();
        return if error.kind() == io::ErrorKind::NotFound { Ok(None) } else { Err(error) };
    }
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }))
}

/// Bytes of kernel memory that the map pinned at `pin` takes, as the kernel tells (`memlock`): what is in use
/// since 6.4, the most it may become before that. `None` where it is gone.
pub(crate) fn memory_of(pin: &Path) -> io::Result<Option<u64>> {
    let Some(map) = opened(pin)? else { return Ok(None) };
    let told = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", map.as_raw_fd()))?;
    let bytes = told.lines().find_map(|line| line.strip_prefix("memlock:"));
    let bytes = bytes.and_then(|bytes| bytes.trim().parse().ok());
    bytes.map(Some).ok_or_else(|| io::Error::other(format!("no memlock in {told:?}")))
}

/// The number of entries of the map pinned at `pin`; `None` where it is gone or is of a kind that
/// cannot be listed.
pub(crate) fn entries_of(pin: &Path) -> io::Result<Option<usize>> {
    /// The part of `union bpf_attr` for `BPF_MAP_GET_NEXT_KEY`.
    #[repr(C)]
    struct Next {
        map: u32,
        pad: u32,
        key: u64,
        result: u64,
    }
    let Some(map) = opened(pin)? else { return Ok(None) };
    let (mut key, mut next) = ([0_u8; KEY], [0_u8; KEY]);
    let (mut found, mut first) = (0, true);
    loop {
        let attributes = Next {
            map: map.as_raw_fd().cast_unsigned(),
            pad: 0,
            key: if first { 0 } else { key.as_ptr() as u64 },
            result: next.as_mut_ptr() as u64,
        };
        let size = size_of::<Next>();
        // SAFETY: both keys live until the call returns and have room for any map's.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, MAP_GET_NEXT_KEY, &raw const attributes, size) };
        if result < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::ENOENT) => Ok(Some(found)),
                // ENOTSUPP of linux/errno.h: task storage and rings have no keys to list.
                Some(libc::EOPNOTSUPP | libc::EINVAL | libc::EPERM | 524) if first => Ok(None),
                _ => Err(error),
            };
        }
        (found, first, key) = (found + 1, false, next);
    }
}
