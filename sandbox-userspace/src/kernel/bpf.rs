//! The `bpf` system call where aya has no call for it.

use sandbox_common::subject::Label;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

/// `BPF_MAP_LOOKUP_ELEM`, include/uapi/linux/bpf.h
const MAP_LOOKUP_ELEM: libc::c_long = 1;

/// The members of `union bpf_attr` that a lookup uses.
#[repr(C)]
struct Lookup {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The value that task storage `map` (of [`Label`]s) has for the process of `pidfd`.
pub fn label_of(map: impl AsFd, pidfd: BorrowedFd<'_>) -> io::Result<Option<Label>> {
    let key = pidfd.as_raw_fd();
    let mut label = Label::default();
    let attr = Lookup {
        map_fd: map.as_fd().as_raw_fd().cast_unsigned(),
        pad: 0,
        key: (&raw const key) as u64,
        value: (&raw mut label) as u64,
        flags: 0,
    };
    // SAFETY: the attribute is as long as said; key and value live until the call returns, and the
    // kernel writes as many bytes as the map's values have, which is `Label`'s size (a pinned map
    // of another shape is refused when the engine opens the other maps of its directory).
    let status = unsafe {
        libc::syscall(libc::SYS_bpf, MAP_LOOKUP_ELEM, &raw const attr, size_of::<Lookup>())
    };
    if status == 0 {
        return Ok(Some(label));
    }
    match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        error => Err(error),
    }
}
