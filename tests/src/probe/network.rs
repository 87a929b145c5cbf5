//! Every way to send something to an address.

use super::files::{checked, owned};
use super::{ENOUGH, Failure, Heard, Outcome, Place, Stage, UdpWay};
use rustix::fd::{AsFd, AsRawFd as _, OwnedFd};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

/// What arrives where an attempt succeeds.
const MESSAGE: &[u8] = b"probe";

/// A socket address in the kernel's form, with its length.
pub(super) struct RawAddress {
    storage: libc::sockaddr_storage,
    length: libc::socklen_t,
}

impl RawAddress {
    pub(super) fn new(address: SocketAddr) -> Self {
        // SAFETY: all-zero bytes are a valid `sockaddr_storage`.
        let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        let place = &raw mut storage;
        let length = match address {
            SocketAddr::V4(v4) => {
                let raw = libc::sockaddr_in {
                    sin_family: family_of(libc::AF_INET),
                    sin_port: v4.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from(*v4.ip()).to_be() },
                    sin_zero: [0; 8],
                };
                // SAFETY: the storage is larger than, and aligned for, every address type.
                unsafe { place.cast::<libc::sockaddr_in>().write(raw) };
                size_of::<libc::sockaddr_in>()
            }
            SocketAddr::V6(v6) => {
                let raw = libc::sockaddr_in6 {
                    sin6_family: family_of(libc::AF_INET6),
                    sin6_port: v6.port().to_be(),
                    sin6_flowinfo: v6.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                    sin6_scope_id: v6.scope_id(),
                };
                // SAFETY: the storage is larger than, and aligned for, every address type.
                unsafe { place.cast::<libc::sockaddr_in6>().write(raw) };
                size_of::<libc::sockaddr_in6>()
            }
        };
        Self { storage, length: libc::socklen_t::try_from(length).unwrap_or_default() }
    }

    pub(super) fn pointer(&self) -> *const libc::sockaddr_storage {
        &raw const self.storage
    }

    pub(super) fn length(&self) -> libc::socklen_t {
        self.length
    }
}

fn family_of(family: i32) -> libc::sa_family_t {
    libc::sa_family_t::try_from(family).unwrap_or_default()
}

pub(super) fn create(domain: i32, kind: i32, protocol: i32) -> Result<OwnedFd, Failure> {
    // SAFETY: plain numbers.
    let socket = unsafe { libc::syscall(libc::SYS_socket, domain, kind, protocol) };
    owned(checked(socket, "socket")?)
}

pub(super) fn domain_of(address: SocketAddr) -> i32 {
    if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }
}

pub(super) fn connect(socket: impl AsFd, address: &RawAddress) -> Result<(), Failure> {
    // SAFETY: pointer and length describe one address that lives through the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_connect,
            socket.as_fd().as_raw_fd(),
            address.pointer(),
            address.length(),
        )
    };
    checked(result, "connect").map(drop)
}

fn sendto(socket: impl AsFd, flags: i32, address: &RawAddress) -> Outcome {
    // SAFETY: message and address live through the call and have the stated lengths.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sendto,
            socket.as_fd().as_raw_fd(),
            MESSAGE.as_ptr(),
            MESSAGE.len(),
            flags,
            address.pointer(),
            address.length(),
        )
    };
    checked(result, "sendto").map(Value::from)
}

pub(super) fn tcp(address: SocketAddr) -> Outcome {
    let socket = create(domain_of(address), libc::SOCK_STREAM, 0)?;
    connect(&socket, &RawAddress::new(address))?;
    rustix::io::write(&socket, MESSAGE).stage("write").map(Value::from)
}

/// Sends, waits until something is there, and sends again.
pub(super) fn tcp_across(address: SocketAddr, until: &Place) -> Outcome {
    let socket = create(domain_of(address), libc::SOCK_STREAM, 0)?;
    connect(&socket, &RawAddress::new(address))?;
    rustix::io::write(&socket, MESSAGE).stage("write")?;
    while !until.path().exists() {
        std::thread::sleep(PAUSE);
    }
    rustix::io::write(&socket, MESSAGE).stage("write").map(Value::from)
}

/// For datagrams that do not come.
const PATIENCE: Duration = Duration::from_mins(1);

/// Between two looks at what is awaited.
const PAUSE: Duration = Duration::from_millis(4);

pub(super) fn siege(path: &Place, address: SocketAddr, stop: &Place, pause: u64) -> Outcome {
    let (mut refused, mut through) = (0_u64, 0_u64);
    loop {
        for tried in [super::files::open(path, libc::O_RDONLY), tcp(address)] {
            match tried {
                Err(Failure { errno: Errno::ACCESS | Errno::PERM, .. }) => refused += 1,
                _ => through += 1,
            }
        }
        if stop.path().exists() {
            return Ok(json!({ "refused": refused, "through": through }));
        }
        std::thread::sleep(Duration::from_millis(pause));
    }
}

/// Nobody listens to what comes of it. Some hundred times a second, as a siege.
pub(super) fn hammer(address: SocketAddr, threads: u8) -> Value {
    for _ in 0..threads {
        std::thread::spawn(move || {
            loop {
                let _ = udp(address, UdpWay::Sendto);
                let _ = udp(address, UdpWay::Connect);
                std::thread::sleep(PAUSE / 4);
            }
        });
    }
    Value::Null
}

pub(super) fn tcp_fast_open(address: SocketAddr) -> Outcome {
    let socket = create(domain_of(address), libc::SOCK_STREAM, 0)?;
    sendto(&socket, libc::MSG_FASTOPEN, &RawAddress::new(address))
}

pub(super) fn udp(address: SocketAddr, way: UdpWay) -> Outcome {
    let domain = match way {
        UdpWay::SendtoOldAddress => libc::AF_INET6,
        _ => domain_of(address),
    };
    let socket = create(domain, libc::SOCK_DGRAM, 0)?;
    let mut raw = RawAddress::new(address);
    match way {
        UdpWay::Connect => {
            connect(&socket, &raw)?;
            rustix::io::write(&socket, MESSAGE).stage("write").map(Value::from)
        }
        UdpWay::Sendto | UdpWay::SendtoOldAddress => sendto(&socket, 0, &raw),
        UdpWay::SendtoUnspecified => {
            raw.storage.ss_family = family_of(libc::AF_UNSPEC);
            sendto(&socket, 0, &raw)
        }
        UdpWay::Sendmsg | UdpWay::Sendmmsg => sendmsg(&socket, &raw, way == UdpWay::Sendmmsg),
    }
}

pub(super) fn hear(to: &[SocketAddr]) -> Outcome {
    let domain = if to.iter().all(SocketAddr::is_ipv4) { libc::AF_INET } else { libc::AF_INET6 };
    let socket = create(domain, libc::SOCK_DGRAM, 0)?;
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(PATIENCE)).stage("setsockopt")?;
    let (mut heard, mut buffer) = (Vec::new(), [0; 4096]);
    for address in to {
        sendto(&socket, 0, &RawAddress::new(*address))?;
        loop {
            let (length, from) = socket.recv_from(&mut buffer).stage("recvfrom")?;
            if buffer[..length] == *ENOUGH {
                break;
            }
            heard.push(Heard { from, length });
        }
    }
    Ok(json!(heard))
}

fn sendmsg(socket: impl AsFd, address: &RawAddress, many: bool) -> Outcome {
    let mut part =
        libc::iovec { iov_base: MESSAGE.as_ptr().cast_mut().cast(), iov_len: MESSAGE.len() };
    // SAFETY: all-zero bytes are a valid, empty `mmsghdr`.
    let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
    message.msg_hdr.msg_name = address.pointer().cast_mut().cast();
    message.msg_hdr.msg_namelen = address.length();
    message.msg_hdr.msg_iov = &raw mut part;
    message.msg_hdr.msg_iovlen = 1;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: header, address, vector and text live through the call; the kernel only reads them,
    // but for `msg_len`.
    let result = unsafe {
        if many {
            libc::syscall(libc::SYS_sendmmsg, socket, &raw mut message, 1, 0)
        } else {
            libc::syscall(libc::SYS_sendmsg, socket, &raw const message.msg_hdr, 0)
        }
    };
    checked(result, if many { "sendmmsg" } else { "sendmsg" }).map(Value::from)
}

pub(super) fn socket(domain: i32, kind: i32, protocol: i32) -> Outcome {
    match create(domain, kind, protocol) {
        Ok(_) => Ok(Value::Null),
        // A kernel without the family has nothing to refuse.
        Err(failure) if failure.errno == Errno::AFNOSUPPORT => {
            Err(Failure { stage: "socket (family absent)", ..failure })
        }
        Err(failure) => Err(failure),
    }
}
