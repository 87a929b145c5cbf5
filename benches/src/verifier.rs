//! How many instructions the verifier followed for each attached program.

use anyhow::{Context as _, Result, ensure};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Commands of `bpf(2)`, linux/bpf.h.
const OBJ_GET: i32 = 7;
const PROG_GET_FD_BY_ID: i32 = 13;
const OBJ_GET_INFO_BY_FD: i32 = 15;

/// Bytes of `struct bpf_link_info` that are asked for: type, id, program.
const LINK_INFO: usize = 12;
const LINK_PROGRAM: usize = 8;
/// Bytes of `struct bpf_prog_info` up to and with `verified_insns`, which is there since 5.16.
const PROGRAM_INFO: usize = 220;
const VERIFIED: usize = 216;

/// The counts of the programs whose links are pinned in the directory `links` of a session's pins,
/// by the link's name: the hook's, without the cgroup's before it.
pub fn counts(links: &Path) -> Result<BTreeMap<String, u32>> {
    let mut counts = BTreeMap::new();
    let entries = fs::read_dir(links).with_context(|| format!("listing {}", links.display()))?;
    for entry in entries {
        let path = entry?.path();
        let count = count(&path).with_context(|| format!("program behind {}", path.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let hook = name.rsplit('-').next().unwrap_or(&name);
        counts.insert(hook.to_owned(), count);
    }
    ensure!(!counts.is_empty(), "no links in {}", links.display());
    Ok(counts)
}

fn count(link: &Path) -> Result<u32> {
    let path = CString::new(link.as_os_str().as_bytes())?;
    // The path and flags of BPF_OBJ_GET: a pointer, a descriptor, flags.
    let get = Attributes { pointer: path.as_ptr() as u64, ..Attributes::default() };
    let link = bpf(OBJ_GET, &get).context("opening the link")?;
    let program = u32_at(&info::<LINK_INFO>(&link).context("asking the link")?, LINK_PROGRAM);
    let by_id = Attributes { pointer: program.into(), ..Attributes::default() };
    let program = bpf(PROG_GET_FD_BY_ID, &by_id).context("opening the program")?;
    Ok(u32_at(&info::<PROGRAM_INFO>(&program).context("asking the program")?, VERIFIED))
}

/// As much of `union bpf_attr` as these commands read: for `OBJ_GET` a pointer, for
/// `PROG_GET_FD_BY_ID` an id in the low half of it, for `OBJ_GET_INFO_BY_FD` descriptor and length
/// in its halves, and then a pointer.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    pointer: u64,
    second: u64,
}

/// A command whose result is a descriptor.
fn bpf(command: i32, attributes: &Attributes) -> io::Result<OwnedFd> {
    let size = size_of::<Attributes>();
    // SAFETY: the attributes are valid for the call, have the stated size, and what they point at
    // outlives it.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attributes), size) };
    match i32::try_from(fd) {
        // SAFETY: a new descriptor that nobody else owns.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The first bytes of what the kernel tells of a link or program.
fn info<const LENGTH: usize>(object: &OwnedFd) -> io::Result<[u8; LENGTH]> {
    let mut bytes = [0; LENGTH];
    let fd = u64::from(object.as_raw_fd().cast_unsigned());
    let attributes =
        Attributes { pointer: fd | (LENGTH as u64) << 32, second: bytes.as_mut_ptr() as u64 };
    let size = size_of::<Attributes>();
    // SAFETY: the attributes are valid for the call; the kernel writes at most LENGTH bytes to
    // where `second` points.
    let done = unsafe {
        libc::syscall(libc::SYS_bpf, OBJ_GET_INFO_BY_FD, std::ptr::from_ref(&attributes), size)
    };
    if done == 0 { Ok(bytes) } else { Err(io::Error::last_os_error()) }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(four)
}
