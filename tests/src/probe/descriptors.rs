//! What can be done with a descriptor that somebody else opened, and how one is got.

use super::files::{checked, owned};
use super::{Failure, Outcome, Place, Stage, UnixName, uring};
use rustix::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;

/// What is done with a descriptor. What writes leaves `probe` at the file's beginning, or zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Use {
    /// Nothing: having it is enough.
    Nothing,
    Read,
    Write,
    /// `ftruncate`
    Truncate,
    /// `fallocate(FALLOC_FL_PUNCH_HOLE)`
    PunchHole,
    /// `copy_file_range` from a file of its own.
    CopyRange,
    /// `sendfile` from memory of its own.
    Sendfile,
    /// `splice` from a pipe.
    Splice,
    /// `IORING_OP_WRITE`
    UringWrite,
    /// A shared mapping for writing, and a store.
    MapShared,
    /// A shared mapping for reading, then `mprotect` and a store.
    MapThenProtect,
    /// A private mapping for executing.
    MapExecutable,
    /// A private mapping for reading, then `mprotect` for executing.
    ProtectExecutable,
    /// The same with `READ_IMPLIES_EXEC`: a mapping for reading only.
    MapReadImpliesExec,
}

const TEXT: &[u8] = b"probe";
const PAGE: usize = 4096;

/// Uses a descriptor that this process has had from its beginning.
pub(super) fn inherited(number: i32, usage: Use) -> Outcome {
    // SAFETY: the caller says that it is open, and nobody here closes it.
    let file = unsafe { BorrowedFd::borrow_raw(number) };
    apply(file, usage)
}

/// Opens a file for reading and writing and uses that.
pub(super) fn of_file(path: &Place, flags: i32, usage: Use) -> Outcome {
    let flags = super::files::flags_of(flags);
    let file = rustix::fs::open(path.path(), flags, Mode::empty()).stage("openat")?;
    apply(file.as_fd(), usage)
}

/// Asks a helper for a descriptor and uses it.
pub(super) fn received(from: &UnixName, usage: Use) -> Outcome {
    let address = from.address().stage("the address")?;
    let socket = UnixStream::connect_addr(&address).stage("connect")?;
    apply(receive(&socket)?.as_fd(), usage)
}

/// `pidfd_getfd`
pub(super) fn taken(pid: i32, number: i32, usage: Use) -> Outcome {
    let pid = rustix::process::Pid::from_raw(pid)
        .ok_or(Failure { errno: Errno::SRCH, stage: "the process id" })?;
    let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
        .stage("pidfd_open")?;
    // SAFETY: plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
    apply(owned(checked(result, "pidfd_getfd")?)?.as_fd(), usage)
}

/// Passes a file and a socket to itself.
pub(super) fn passed(path: &Place, flags: i32) -> Outcome {
    let (ours, theirs) = UnixStream::pair().stage("socketpair")?;
    let flags = super::files::flags_of(flags);
    let file = rustix::fs::open(path.path(), flags, Mode::empty()).stage("openat")?;
    let memory = rustix::fs::memfd_create("passed", rustix::fs::MemfdFlags::CLOEXEC)
        .stage("memfd_create")?;
    let network = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)
        .stage("socket(AF_INET)")?;
    let pair = rustix::net::socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::empty(),
        None,
    )
    .stage("socketpair")?;
    for descriptor in [file, memory, network, pair.0] {
        send(&ours, descriptor.as_fd()).stage("sendmsg")?;
        receive(&theirs)?;
    }
    Ok(Value::Null)
}

/// Passes a descriptor with one byte of text.
pub(crate) fn send(socket: &UnixStream, descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    rustix::net::sendmsg(socket, &[IoSlice::new(b"x")], &mut control, SendFlags::empty()).map(drop)
}

/// The kernel tells nobody why a descriptor did not arrive: the message comes without it.
fn receive(socket: &UnixStream) -> Result<OwnedFd, Failure> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut text = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::net::recvmsg(socket, &mut text, &mut control, flags).stage("recvmsg")?;
    if got.bytes == 0 {
        return Err(Failure { errno: Errno::CONNRESET, stage: "recvmsg" });
    }
    control
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        })
        .ok_or(Failure { errno: Errno::ACCESS, stage: "recvmsg (without the descriptor)" })
}

fn apply(file: BorrowedFd<'_>, usage: Use) -> Outcome {
    match usage {
        Use::Nothing => return Ok(Value::Null),
        Use::Read => {
            let mut buffer = [0; 64];
            let count = rustix::io::pread(file, &mut buffer, 0).stage("pread")?;
            return Ok(String::from_utf8_lossy(&buffer[..count]).into());
        }
        Use::Write => drop(rustix::io::pwrite(file, TEXT, 0).stage("pwrite")?),
        Use::Truncate => rustix::fs::ftruncate(file, 0).stage("ftruncate")?,
        Use::PunchHole => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            rustix::fs::fallocate(file, flags, 0, TEXT.len() as u64).stage("fallocate")?;
        }
        Use::CopyRange => copy_range(file)?,
        Use::Sendfile => {
            let mut offset = 0;
            rustix::fs::sendfile(file, memory()?, Some(&mut offset), TEXT.len())
                .stage("sendfile")?;
        }
        Use::Splice => {
            let (reader, writer) = rustix::pipe::pipe().stage("pipe")?;
            rustix::io::write(&writer, TEXT).stage("write to pipe")?;
            let flags = rustix::pipe::SpliceFlags::empty();
            rustix::pipe::splice(&reader, None, file, None, TEXT.len(), flags).stage("splice")?;
        }
        Use::UringWrite => uring::write(file, TEXT)?,
        Use::MapShared => store(file, ProtFlags::READ | ProtFlags::WRITE)?,
        Use::MapThenProtect => store(file, ProtFlags::READ)?,
        Use::MapExecutable => drop(map(file, ProtFlags::READ | ProtFlags::EXEC, false)?),
        Use::ProtectExecutable => {
            let at = map(file, ProtFlags::READ, false)?;
            protect(at, MprotectFlags::READ | MprotectFlags::EXEC)?;
        }
        Use::MapReadImpliesExec => {
            // SAFETY: a plain number; this process ends soon.
            let result = unsafe { libc::personality(0x0040_0000) };
            checked(result.into(), "personality")?;
            map(file, ProtFlags::READ, false)?;
        }
    }
    Ok(Value::Null)
}

/// Memory that holds the text.
fn memory() -> Result<OwnedFd, Failure> {
    let memory =
        rustix::fs::memfd_create("probe", rustix::fs::MemfdFlags::CLOEXEC).stage("memfd_create")?;
    rustix::io::pwrite(&memory, TEXT, 0).stage("pwrite to memfd")?;
    Ok(memory)
}

/// From the file itself where it is long enough, else within it: both ends are in one file system.
fn copy_range(file: BorrowedFd<'_>) -> Result<(), Failure> {
    let from = format!("/proc/self/fd/{}", file.as_raw_fd());
    let from = rustix::fs::open(from, OFlags::RDONLY, Mode::empty()).stage("openat")?;
    // Ranges of one file must not overlap.
    let (mut at, mut to) = (1, 4);
    rustix::fs::copy_file_range(&from, Some(&mut at), file, Some(&mut to), 3)
        .stage("copy_file_range")?;
    Ok(())
}

fn map(
    file: BorrowedFd<'_>,
    protection: ProtFlags,
    shared: bool,
) -> Result<*mut std::ffi::c_void, Failure> {
    let flags = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
    // SAFETY: a new mapping that nothing else refers to; it lives as long as the process.
    unsafe { mmap(std::ptr::null_mut(), PAGE, protection, flags, file, 0) }.stage("mmap")
}

fn protect(at: *mut std::ffi::c_void, protection: MprotectFlags) -> Result<(), Failure> {
    // SAFETY: a mapping of ours of this length.
    unsafe { mprotect(at, PAGE, protection) }.stage("mprotect")
}

fn store(file: BorrowedFd<'_>, protection: ProtFlags) -> Result<(), Failure> {
    let at = map(file, protection, true)?;
    if !protection.contains(ProtFlags::WRITE) {
        protect(at, MprotectFlags::READ | MprotectFlags::WRITE)?;
    }
    // SAFETY: the mapping is a page long and writable; the file has the length of the text or more.
    unsafe { at.cast::<u8>().copy_from_nonoverlapping(TEXT.as_ptr(), TEXT.len()) };
    Ok(())
}
