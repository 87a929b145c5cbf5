//! Opening, reading, writing, truncating.

use super::{Failure, Handle, Outcome, Place, Stage};
use rustix::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::io::Read as _;

/// Most bytes an operation reads from a file.
const READ_LIMIT: u64 = 64 * 1024;

pub(super) fn flags_of(flags: i32) -> OFlags {
    OFlags::from_bits_retain(flags.cast_unsigned())
}

/// What can be read from an opened file, as text; `null` where it was not opened for reading.
pub(super) fn content(file: OwnedFd, flags: i32) -> Outcome {
    let unreadable = libc::O_WRONLY | libc::O_PATH | libc::O_DIRECTORY;
    if flags & unreadable != 0 {
        return Ok(Value::Null);
    }
    let mut bytes = Vec::new();
    let mut limited = std::fs::File::from(file).take(READ_LIMIT);
    limited.read_to_end(&mut bytes).stage("read")?;
    Ok(String::from_utf8_lossy(&bytes).into())
}

pub(super) fn open(path: &Place, flags: i32) -> Outcome {
    let file = rustix::fs::open(path.path(), flags_of(flags), Mode::from(0o644)).stage("openat")?;
    // A device that never ends, or that waits, is only opened.
    let kind = rustix::fs::fstat(&file).stage("fstat")?.st_mode & libc::S_IFMT;
    if kind == libc::S_IFREG || kind == libc::S_IFDIR {
        content(file, flags)
    } else {
        Ok(Value::Null)
    }
}

/// The first refusal is the outcome where all were; else how often it was opened.
pub(super) fn flood(path: &Place, flags: i32, times: u32) -> Outcome {
    let (mut opened, mut refused) = (0u32, None);
    for _ in 0..times {
        match rustix::fs::open(path.path(), flags_of(flags), Mode::empty()) {
            Ok(_) => opened += 1,
            Err(errno) => refused = Some(errno),
        }
    }
    match refused {
        Some(errno) if opened == 0 => Err(Failure { errno, stage: "openat" }),
        _ => Ok(json!(opened)),
    }
}

pub(super) fn openat2(path: &Place, flags: i32) -> Outcome {
    let file = rustix::fs::openat2(
        CWD,
        path.path(),
        flags_of(flags),
        Mode::empty(),
        ResolveFlags::empty(),
    )
    .stage("openat2")?;
    content(file, flags)
}

pub(super) fn reopen(path: &Place, flags: i32) -> Outcome {
    let handle =
        rustix::fs::open(path.path(), OFlags::PATH, Mode::empty()).stage("open(O_PATH)")?;
    let link = format!("/proc/self/fd/{}", handle.as_raw_fd());
    let file = rustix::fs::open(link, flags_of(flags), Mode::empty()).stage("openat")?;
    content(file, flags)
}

/// The directory `depth` levels `level` beneath `base`, reached level by level so that no path is too
/// long. Missing levels are made if `make`.
pub(crate) fn deep_directory(
    base: &Place,
    level: &str,
    depth: usize,
    make: bool,
) -> Result<OwnedFd, Errno> {
    let directory = OFlags::PATH | OFlags::DIRECTORY;
    let mut here = rustix::fs::open(base.path(), directory, Mode::empty())?;
    for _ in 0..depth {
        if make {
            match rustix::fs::mkdirat(&here, level, Mode::from(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        here = rustix::fs::openat(&here, level, directory, Mode::empty())?;
    }
    Ok(here)
}

pub(super) fn open_deep(
    base: &Place,
    level: &str,
    depth: usize,
    name: &str,
    flags: i32,
) -> Outcome {
    let directory = deep_directory(base, level, depth, false).stage("open(O_PATH)")?;
    let file =
        rustix::fs::openat(&directory, name, flags_of(flags), Mode::from(0o644)).stage("openat")?;
    content(file, flags)
}

pub(super) fn open_tree(directory: &Place, name: &str, flags: i32) -> Outcome {
    use rustix::mount::OpenTreeFlags as F;
    let tree =
        rustix::mount::open_tree(CWD, directory.path(), F::OPEN_TREE_CLONE | F::OPEN_TREE_CLOEXEC)
            .stage("open_tree")?;
    let file = rustix::fs::openat(&tree, name, flags_of(flags), Mode::empty()).stage("openat")?;
    content(file, flags)
}

/// `struct file_handle` with room for the largest handle (`MAX_HANDLE_SZ`).
#[repr(C)]
struct RawHandle {
    bytes: u32,
    kind: i32,
    handle: [u8; 128],
}

/// The result of a raw system call that gives -1 and `errno`.
pub(super) fn checked(result: libc::c_long, stage: &'static str) -> Result<libc::c_long, Failure> {
    if result < 0 { Err(std::io::Error::last_os_error()).stage(stage) } else { Ok(result) }
}

pub(super) fn c_path(path: &Place) -> Result<std::ffi::CString, Failure> {
    std::ffi::CString::new(path.bytes()).map_err(|_| Failure { errno: Errno::INVAL, stage: "path" })
}

/// The owner of a descriptor that the kernel has just returned.
pub(super) fn owned(descriptor: libc::c_long) -> Result<OwnedFd, Failure> {
    let number = i32::try_from(descriptor)
        .map_err(|_| Failure { errno: Errno::BADF, stage: "descriptor number" })?;
    // SAFETY: the kernel returned this descriptor to us and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

pub(super) fn handle(path: &Place) -> Outcome {
    let path = c_path(path)?;
    let mut raw = RawHandle { bytes: 128, kind: 0, handle: [0; 128] };
    let mut mount = 0i32;
    // SAFETY: the pointers are valid for the call, and `bytes` states the room behind the header.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw mut raw,
            &raw mut mount,
            0,
        )
    };
    checked(result, "name_to_handle_at")?;
    let bytes = raw.handle.get(..raw.bytes as usize).unwrap_or_default();
    Ok(json!(Handle { kind: raw.kind, bytes: bytes.to_vec() }))
}

pub(super) fn open_handle(mount: &Place, handle: &Handle, flags: i32) -> Outcome {
    let directory = OFlags::DIRECTORY | OFlags::RDONLY;
    let mount = rustix::fs::open(mount.path(), directory, Mode::empty()).stage("open of mount")?;
    let mut raw = RawHandle { bytes: 0, kind: handle.kind, handle: [0; 128] };
    for (to, from) in raw.handle.iter_mut().zip(&handle.bytes) {
        *to = *from;
        raw.bytes += 1;
    }
    // SAFETY: the handle is valid for the call and `bytes` states how much of it is filled.
    let result = unsafe {
        libc::syscall(libc::SYS_open_by_handle_at, mount.as_fd().as_raw_fd(), &raw mut raw, flags)
    };
    content(owned(checked(result, "open_by_handle_at")?)?, flags)
}

pub(super) fn write(path: &Place, text: &str, flags: i32) -> Outcome {
    let file = rustix::fs::open(path.path(), flags_of(flags), Mode::from(0o644)).stage("openat")?;
    let count = rustix::io::write(&file, text.as_bytes()).stage("write")?;
    Ok(count.into())
}

pub(super) fn truncate(path: &Place, length: u64) -> Outcome {
    let path = c_path(path)?;
    // SAFETY: the path is a valid string for the call.
    let result = unsafe { libc::syscall(libc::SYS_truncate, path.as_ptr(), length) };
    checked(result, "truncate")?;
    Ok(Value::Null)
}

pub(super) fn own_memory() -> Outcome {
    let memory =
        rustix::fs::memfd_create("probe", rustix::fs::MemfdFlags::CLOEXEC).stage("memfd_create")?;
    let again = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let memory = rustix::fs::open(again, OFlags::RDWR, Mode::empty()).stage("openat of memfd")?;
    rustix::io::write(&memory, b"text").stage("write to memfd")?;
    rustix::fs::fchmod(&memory, Mode::from(0o600)).stage("fchmod of memfd")?;
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    let now = rustix::fs::Timestamps { last_access: now, last_modification: now };
    rustix::fs::futimens(&memory, &now).stage("futimens of memfd")?;
    let (reader, writer) = rustix::pipe::pipe().stage("pipe")?;
    let again = format!("/proc/self/fd/{}", writer.as_raw_fd());
    let writer = rustix::fs::open(again, OFlags::WRONLY, Mode::empty()).stage("openat of pipe")?;
    rustix::io::write(&writer, b"text").stage("write to pipe")?;
    let mut buffer = [0; 4];
    rustix::io::read(&reader, &mut buffer).stage("read from pipe")?;
    Ok(String::from_utf8_lossy(&buffer).into())
}
