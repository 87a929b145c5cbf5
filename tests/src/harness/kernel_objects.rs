//! How many BPF programs, links and maps the kernel holds.

use anyhow::Context as _;
use std::io;

/// `bpf(2)` commands, linux/bpf.h.
const PROG_GET_NEXT_ID: i32 = 11;
const MAP_GET_NEXT_ID: i32 = 12;
const LINK_GET_NEXT_ID: i32 = 31;

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
