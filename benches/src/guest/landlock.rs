//! Landlock by its system calls: what confines without any program of ours, and at which price.

use super::operations::OPEN_PORT;
use anyhow::{Context as _, Result, bail};
use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// linux/landlock.h
const CREATE_RULESET_VERSION: u32 = 1;
const RULE_PATH_BENEATH: i32 = 1;
const RULE_NET_PORT: i32 = 2;
const ACCESS_NET_CONNECT_TCP: u64 = 1 << 1;

/// `struct landlock_ruleset_attr` of version 4 of the interface.
#[repr(C)]
struct Ruleset {
    files: u64,
    network: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    access: u64,
    parent: i32,
}

#[repr(C)]
struct NetPort {
    access: u64,
    port: u64,
}

/// Confines this process: one layer that handles every access to files, with one rule that grants
/// all of it beneath `place`; and where the kernel can, connecting, to one port only.
pub(crate) fn confine(place: &Path) -> Result<()> {
    let version = ruleset(None, CREATE_RULESET_VERSION).context("no Landlock in this kernel")?;
    // How many kinds of access to files a version knows.
    let (files, network) = match version {
        ..1 => bail!("Landlock says that its version is {version}"),
        1 => ((1 << 13) - 1, 0),
        2 => ((1 << 14) - 1, 0),
        3 => ((1 << 15) - 1, 0),
        4 => ((1 << 15) - 1, ACCESS_NET_CONNECT_TCP),
        5.. => ((1 << 16) - 1, ACCESS_NET_CONNECT_TCP),
    };
    let fd = ruleset(Some(&Ruleset { files, network }), 0).context("making the ruleset")?;
    // SAFETY: a new descriptor that nobody else owns.
    let rules = unsafe { OwnedFd::from_raw_fd(fd) };
    let path = CString::new(place.as_os_str().as_bytes())?;
    // SAFETY: the path is a string that ends in zero.
    let parent = unsafe { libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC) };
    if parent < 0 {
        return Err(io::Error::last_os_error()).context("opening the workspace");
    }
    // SAFETY: a new descriptor that nobody else owns.
    let parent = unsafe { OwnedFd::from_raw_fd(parent) };
    add(&rules, RULE_PATH_BENEATH, &PathBeneath { access: files, parent: parent.as_raw_fd() })?;
    if network != 0 {
        add(&rules, RULE_NET_PORT, &NetPort { access: network, port: OPEN_PORT.into() })?;
    }
    // SAFETY: system calls with numbers only.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()).context("confining ourselves") }
}

fn ruleset(ruleset: Option<&Ruleset>, flags: u32) -> io::Result<i32> {
    let size = match ruleset {
        None => 0,
        // Before version 4 there is nothing about the network in it.
        Some(Ruleset { network: 0, .. }) => size_of::<u64>(),
        Some(_) => size_of::<Ruleset>(),
    };
    let pointer = ruleset.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: null, or a ruleset of at least this size that outlives the call.
    let fd = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, pointer, size, flags) };
    i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)
}

fn add<T>(rules: &OwnedFd, kind: i32, rule: &T) -> Result<()> {
    let (fd, rule) = (rules.as_raw_fd(), std::ptr::from_ref(rule));
    // SAFETY: the rule is of the type that belongs to its kind and outlives the call.
    let done = unsafe { libc::syscall(libc::SYS_landlock_add_rule, fd, kind, rule, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()).context("adding a rule") }
}
