//! The same operations through `io_uring`: a ring for one request at a time.
//!
//! Request numbers and the layout of a submission are those of `linux/io_uring.h`.

use super::files::content;
use super::network::{RawAddress, create, domain_of};
use super::{Failure, Outcome, Place, Stage, files};
use rustix::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::io_uring::{
    IoringEnterFlags, IoringSetupFlags, io_uring_enter, io_uring_params, io_uring_setup,
};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use serde_json::Value;
use std::ffi::{CString, c_void};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

const OP_CONNECT: u8 = 16;
const OP_OPENAT: u8 = 18;
const OP_WRITE: u8 = 23;
const OP_SEND: u8 = 26;
const OP_RENAMEAT: u8 = 35;
const OP_UNLINKAT: u8 = 36;
const OP_SOCKET: u8 = 45;
/// Always hand the request to a worker thread.
const SQE_ASYNC: u8 = 1 << 4;
/// Offsets into a ring's descriptor that name its parts for `mmap`.
const OFF_SQ_RING: u64 = 0;
const OFF_CQ_RING: u64 = 0x800_0000;
const OFF_SQES: u64 = 0x1000_0000;
/// More than a ring of one entry needs.
const RING_BYTES: usize = 4096;

/// `struct io_uring_sqe`, the parts that are used here.
#[repr(C)]
#[derive(Default)]
struct Submission {
    opcode: u8,
    flags: u8,
    ioprio: u16,
    fd: i32,
    /// `off`, `addr2`.
    second: u64,
    /// `addr`.
    first: u64,
    len: u32,
    /// `open_flags`, `rename_flags`, `unlink_flags`.
    op_flags: u32,
    user_data: u64,
    buffer: u16,
    personality: u16,
    rest: [u32; 5],
}

/// Maps one part of the ring for the life of the process, which is short.
fn map(ring: &OwnedFd, offset: u64) -> Result<*mut c_void, Failure> {
    // SAFETY: a new mapping that nothing else refers to.
    let place = unsafe {
        mmap(
            std::ptr::null_mut(),
            RING_BYTES,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::POPULATE,
            ring,
            offset,
        )
    };
    place.stage("mmap of ring")
}

/// A ring for one request at a time.
pub(super) struct Ring {
    descriptor: OwnedFd,
    parameters: io_uring_params,
    enter: IoringEnterFlags,
    sq: *mut c_void,
    cq: *mut c_void,
    entries: *mut c_void,
    done: u32,
}

impl Ring {
    pub(super) fn new() -> Result<Self, Failure> {
        Self::with(false)
    }

    /// One that a thread of the kernel looks after where `polled`.
    fn with(polled: bool) -> Result<Self, Failure> {
        let mut parameters = io_uring_params::default();
        let mut enter = IoringEnterFlags::GETEVENTS;
        if polled {
            parameters.flags = IoringSetupFlags::SQPOLL;
            // In milliseconds.
            parameters.sq_thread_idle = 1000;
            enter |= IoringEnterFlags::SQ_WAKEUP;
        }
        // SAFETY: the parameters are valid and ask for nothing.
        let descriptor = unsafe { io_uring_setup(1, &mut parameters) }.stage("io_uring_setup")?;
        let sq = map(&descriptor, OFF_SQ_RING)?;
        let cq = map(&descriptor, OFF_CQ_RING)?;
        let entries = map(&descriptor, OFF_SQES)?;
        Ok(Self { descriptor, parameters, enter, sq, cq, entries, done: 0 })
    }

    /// Registers the caller's own credentials.
    fn personality(&self) -> Result<u16, Failure> {
        /// `IORING_REGISTER_PERSONALITY`
        const REGISTER_PERSONALITY: u32 = 9;
        // SAFETY: this request takes no argument.
        let id = unsafe {
            let nothing = std::ptr::null::<c_void>();
            let register = libc::SYS_io_uring_register;
            libc::syscall(register, self.descriptor.as_raw_fd(), REGISTER_PERSONALITY, nothing, 0)
        };
        let id = files::checked(id, "io_uring_register")?;
        Ok(u16::try_from(id).unwrap_or_default())
    }

    /// Submits a request and waits for its result, which is negative where it failed.
    fn perform(&mut self, submission: Submission) -> Result<i32, Failure> {
        let Self { descriptor, parameters, enter, sq, cq, entries, done } = self;
        // SAFETY: the kernel gave these offsets for these mappings, all lie within the first page of a
        // ring of one entry and are aligned for what they hold; nobody else writes before the enter.
        unsafe {
            entries.cast::<Submission>().write(submission);
            sq.byte_add(parameters.sq_off.array as usize).cast::<u32>().write(0);
            (*sq.byte_add(parameters.sq_off.tail as usize).cast::<AtomicU32>())
                .store(*done + 1, Ordering::Release);
        }
        // SAFETY: the submission's pointers live in the caller until this returns, which is after the
        // completion.
        unsafe { io_uring_enter(&*descriptor, 1, 1, *enter) }.stage("io_uring_enter")?;
        // SAFETY: as above; a completion is of 16 bytes, the result its second half's first four. There
        // is room for two of them.
        let (tail, result) = unsafe {
            let tail = (*cq.byte_add(parameters.cq_off.tail as usize).cast::<AtomicU32>())
                .load(Ordering::Acquire);
            let at = parameters.cq_off.cqes as usize + 16 * (*done as usize & 1) + 8;
            let result = cq.byte_add(at).cast::<i32>().read();
            (*cq.byte_add(parameters.cq_off.head as usize).cast::<AtomicU32>())
                .store(tail, Ordering::Release);
            (tail, result)
        };
        *done += 1;
        if tail == *done {
            Ok(result)
        } else {
            Err(Failure { errno: Errno::IO, stage: "completion missing" })
        }
    }

    /// `IORING_OP_SOCKET`: a descriptor, or a negative error.
    pub(super) fn socket(&mut self, family: i32, kind: i32, protocol: i32) -> Result<i32, Failure> {
        self.perform(Submission {
            opcode: OP_SOCKET,
            fd: family,
            second: u64::from(kind.cast_unsigned()),
            len: protocol.cast_unsigned(),
            ..Submission::default()
        })
    }
}

/// Submits one request and waits for its result, a number that is not negative.
fn submit(submission: Submission) -> Result<i32, Failure> {
    submit_as(false, false, submission)
}

/// As `submit`, under a personality where `personality`, and picked up by a thread of the kernel where
/// `polled`.
fn submit_as(personality: bool, polled: bool, mut submission: Submission) -> Result<i32, Failure> {
    let mut ring = Ring::with(polled)?;
    if personality {
        submission.personality = ring.personality()?;
    }
    match ring.perform(submission)? {
        result @ 0.. => Ok(result),
        error => Err(Failure { errno: Errno::from_raw_os_error(-error), stage: "io_uring" }),
    }
}

fn c_path(path: &Place) -> Result<CString, Failure> {
    CString::new(path.bytes()).map_err(|_| Failure { errno: Errno::INVAL, stage: "path" })
}

fn address(text: &CString) -> u64 {
    text.as_ptr().expose_provenance() as u64
}

pub(super) fn open(path: &Place, flags: i32, worker: bool) -> Outcome {
    let path = c_path(path)?;
    let file = submit(Submission {
        opcode: OP_OPENAT,
        flags: if worker { SQE_ASYNC } else { 0 },
        fd: libc::AT_FDCWD,
        first: address(&path),
        len: 0o644,
        op_flags: flags.cast_unsigned(),
        ..Submission::default()
    })?;
    content(files::owned(file.into())?, flags)
}

pub(super) fn rename(from: &Place, to: &Place) -> Outcome {
    let (from, to) = (c_path(from)?, c_path(to)?);
    submit(Submission {
        opcode: OP_RENAMEAT,
        fd: libc::AT_FDCWD,
        first: address(&from),
        second: address(&to),
        len: libc::AT_FDCWD.cast_unsigned(),
        ..Submission::default()
    })?;
    Ok(Value::Null)
}

pub(super) fn unlink(path: &Place) -> Outcome {
    let path = c_path(path)?;
    submit(Submission {
        opcode: OP_UNLINKAT,
        fd: libc::AT_FDCWD,
        first: address(&path),
        ..Submission::default()
    })?;
    Ok(Value::Null)
}

pub(super) fn write(file: BorrowedFd<'_>, text: &[u8]) -> Result<(), Failure> {
    submit(Submission {
        opcode: OP_WRITE,
        fd: file.as_raw_fd(),
        first: text.as_ptr().expose_provenance() as u64,
        len: u32::try_from(text.len()).unwrap_or_default(),
        ..Submission::default()
    })
    .map(drop)
}

pub(super) fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Failure> {
    submit(Submission {
        opcode: OP_SEND,
        fd: socket.as_raw_fd(),
        first: bytes.as_ptr().expose_provenance() as u64,
        len: u32::try_from(bytes.len()).unwrap_or_default(),
        ..Submission::default()
    })
    .map(drop)
}

/// `IORING_OP_OPENAT` under a personality that was registered a moment before.
pub(super) fn open_as_personality(path: &Place, flags: i32) -> Outcome {
    let path = c_path(path)?;
    let file = submit_as(
        true,
        false,
        Submission {
            opcode: OP_OPENAT,
            fd: libc::AT_FDCWD,
            first: address(&path),
            op_flags: flags.cast_unsigned(),
            ..Submission::default()
        },
    )?;
    content(files::owned(file.into())?, flags)
}

/// `IORING_OP_OPENAT` that a thread of the kernel picks up.
pub(super) fn open_polled(path: &Place, flags: i32) -> Outcome {
    let path = c_path(path)?;
    let request = Submission {
        opcode: OP_OPENAT,
        fd: libc::AT_FDCWD,
        first: address(&path),
        op_flags: flags.cast_unsigned(),
        ..Submission::default()
    };
    let file = submit_as(false, true, request)?;
    content(files::owned(file.into())?, flags)
}

pub(super) fn connect(target: SocketAddr) -> Outcome {
    let socket = create(domain_of(target), libc::SOCK_STREAM, 0)?;
    let raw = RawAddress::new(target);
    submit(Submission {
        opcode: OP_CONNECT,
        fd: socket.as_raw_fd(),
        first: raw.pointer().expose_provenance() as u64,
        second: u64::from(raw.length()),
        ..Submission::default()
    })?;
    Ok(Value::Null)
}
