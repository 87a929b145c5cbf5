//! Every way to send the first bytes of a connection.

use super::files::{checked, owned};
use super::network::{RawAddress, connect, create, domain_of};
use super::{Failure, HelloWay, Outcome, Stage, uring};
use rustix::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use rustix::io::Errno;
use serde_json::Value;
use std::net::SocketAddr;

/// Of linux/tcp.h and linux/socket.h.
const TCP_FASTOPEN_NO_COOKIE: i32 = 34;
const SO_ZEROCOPY: i32 = 60;

/// What the other side says when it has heard something.
pub(crate) const ANSWER: &[u8] = b"heard";

/// Sends the parts one by one, each as soon as it can leave, and waits for an answer where `answered`.
pub(super) fn send(
    address: SocketAddr,
    parts: &[Vec<u8>],
    way: HelloWay,
    answered: bool,
) -> Outcome {
    let socket = create(domain_of(address), libc::SOCK_STREAM, 0)?;
    let raw = RawAddress::new(address);
    option(&socket, libc::IPPROTO_TCP, libc::TCP_NODELAY)?;
    let mut parts = parts.iter();
    match way {
        HelloWay::FastOpen => {
            option(&socket, libc::IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE)?;
            let first = parts.next().map(Vec::as_slice).unwrap_or_default();
            transmit(&socket, first, libc::MSG_FASTOPEN, Some(&raw))?;
        }
        HelloWay::Again => {
            connect(&socket, &raw)?;
            let first = parts.next().map(Vec::as_slice).unwrap_or_default();
            transmit(&socket, first, 0, None)?;
            answer(&socket)?;
            disconnect(&socket)?;
            connect(&socket, &raw)?;
        }
        _ => connect(&socket, &raw)?,
    }
    for part in parts {
        match way {
            HelloWay::Write | HelloWay::FastOpen | HelloWay::Again => {
                transmit(&socket, part, 0, None)?;
            }
            HelloWay::Urgent => transmit(&socket, part, libc::MSG_OOB, None)?,
            HelloWay::ZeroCopy => {
                option(&socket, libc::SOL_SOCKET, SO_ZEROCOPY)?;
                transmit(&socket, part, libc::MSG_ZEROCOPY, None)?;
            }
            HelloWay::Uring => uring::send(socket.as_fd(), part)?,
            HelloWay::Sendfile => sendfile(&socket, part)?,
            HelloWay::Splice => splice(&socket, part)?,
        }
    }
    if answered {
        answer(&socket)?;
    }
    Ok(Value::Null)
}

fn option(socket: &OwnedFd, level: i32, name: i32) -> Result<(), Failure> {
    let on = 1_i32;
    let length = libc::socklen_t::try_from(size_of::<i32>()).unwrap_or_default();
    // SAFETY: the value lives through the call and has the stated length.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const on).cast(), length)
    };
    checked(result.into(), "setsockopt").map(drop)
}

fn transmit(
    socket: &OwnedFd,
    bytes: &[u8],
    flags: i32,
    to: Option<&RawAddress>,
) -> Result<(), Failure> {
    let (address, length) =
        to.map_or((std::ptr::null(), 0), |raw| (raw.pointer().cast(), raw.length()));
    // SAFETY: bytes and address live through the call and have the stated lengths. What is sent without a copy is
    // not changed as long as this process lives.
    let sent = unsafe {
        libc::sendto(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags, address, length)
    };
    match checked(i64::try_from(sent).unwrap_or(-1), "send")? {
        count if usize::try_from(count) == Ok(bytes.len()) => Ok(()),
        _ => Err(Failure { errno: Errno::MSGSIZE, stage: "send of all" }),
    }
}

fn answer(socket: &OwnedFd) -> Result<(), Failure> {
    let mut heard = 0;
    while heard < ANSWER.len() {
        match rustix::io::read(socket, &mut [0; ANSWER.len()][heard..]).stage("read")? {
            0 => return Err(Failure { errno: Errno::CONNRESET, stage: "answer" }),
            count => heard += count,
        }
    }
    Ok(())
}

fn disconnect(socket: &OwnedFd) -> Result<(), Failure> {
    // SAFETY: all-zero bytes are an address of no family.
    let none: libc::sockaddr = unsafe { std::mem::zeroed() };
    let length = libc::socklen_t::try_from(size_of::<libc::sockaddr>()).unwrap_or_default();
    // SAFETY: the address lives through the call and has the stated length.
    let result = unsafe { libc::connect(socket.as_raw_fd(), &raw const none, length) };
    checked(result.into(), "disconnect").map(drop)
}

fn sendfile(socket: &OwnedFd, bytes: &[u8]) -> Result<(), Failure> {
    // SAFETY: a name that ends in a zero.
    let file = unsafe { libc::memfd_create(c"hello".as_ptr(), 0) };
    let file = owned(checked(file.into(), "memfd_create")?)?;
    rustix::io::write(&file, bytes).stage("write")?;
    let mut from = 0;
    // SAFETY: two descriptors, and a place for the offset that lives through the call.
    let sent =
        unsafe { libc::sendfile(socket.as_raw_fd(), file.as_raw_fd(), &raw mut from, bytes.len()) };
    checked(i64::try_from(sent).unwrap_or(-1), "sendfile").map(drop)
}

fn splice(socket: &OwnedFd, bytes: &[u8]) -> Result<(), Failure> {
    let (read, write) = rustix::pipe::pipe().stage("pipe")?;
    rustix::io::write(&write, bytes).stage("write")?;
    // SAFETY: two descriptors, no offsets.
    let sent = unsafe {
        let none = std::ptr::null_mut();
        libc::splice(read.as_raw_fd(), none, socket.as_raw_fd(), none, bytes.len(), 0)
    };
    checked(i64::try_from(sent).unwrap_or(-1), "splice").map(drop)
}
