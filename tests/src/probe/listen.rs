//! Being reached, reaching oneself, and sending by other ways than to where one connected.

use super::files::checked;
use super::network::{RawAddress, connect, create, domain_of};
use super::{Failure, Outcome, Stage as _};
use rustix::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use rustix::io::Errno;
use serde_json::Value;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

fn bound(address: SocketAddr, udp: bool) -> Result<OwnedFd, Failure> {
    let kind = if udp { libc::SOCK_DGRAM } else { libc::SOCK_STREAM };
    let socket = create(domain_of(address), kind, 0)?;
    let raw = RawAddress::new(address);
    // SAFETY: pointer and length describe one address that lives through the call.
    let result =
        unsafe { libc::syscall(libc::SYS_bind, socket.as_raw_fd(), raw.pointer(), raw.length()) };
    checked(result, "bind")?;
    Ok(socket)
}

pub(super) fn bind(address: SocketAddr, udp: bool) -> Outcome {
    bound(address, udp).map(|_| Value::Null)
}

pub(super) fn listen(address: SocketAddr, unbound: bool) -> Outcome {
    let socket = if unbound {
        create(domain_of(address), libc::SOCK_STREAM, 0)?
    } else {
        bound(address, false)?
    };
    rustix::net::listen(&socket, 1).stage("listen")?;
    Ok(Value::Null)
}

/// Listens at `at` and connects to it as `to`, which may name the same place otherwise.
pub(super) fn own_tcp(at: IpAddr, to: IpAddr) -> Outcome {
    let listener = TcpListener::bind((at, 0)).stage("bind")?;
    let port = listener.local_addr().stage("getsockname")?.port();
    let _client = TcpStream::connect((to, port)).stage("connect")?;
    listener.accept().stage("accept")?;
    Ok(Value::Null)
}

/// Leaves a child behind that listens, until its session ends.
pub(super) fn listen_on(ip: IpAddr) -> Outcome {
    let listener = TcpListener::bind((ip, 0)).stage("bind")?;
    let port = listener.local_addr().stage("getsockname")?.port();
    super::process::keep_open(listener)?;
    Ok(port.into())
}

/// A question and its answer by UDP, connected on the one side.
pub(super) fn own_udp(at: IpAddr) -> Outcome {
    let (server, client) =
        (UdpSocket::bind((at, 0)).stage("bind")?, UdpSocket::bind((at, 0)).stage("bind")?);
    let place = server.local_addr().stage("getsockname")?;
    let patience = Some(Duration::from_secs(20));
    server.set_read_timeout(patience).stage("setsockopt")?;
    client.set_read_timeout(patience).stage("setsockopt")?;
    client.send_to(b"unconnected", place).stage("sendto")?;
    let mut buffer = [0; 16];
    server.recv(&mut buffer).stage("recv")?;
    client.connect(place).stage("connect")?;
    client.send(b"question").stage("send")?;
    let (_, from) = server.recv_from(&mut buffer).stage("recvfrom")?;
    server.send_to(b"answer", from).stage("sendto of the answer")?;
    client.recv(&mut buffer).stage("recv of the answer")?;
    Ok(Value::Null)
}

/// Listens at an address, closes that, and connects to whoever is there now.
pub(super) fn after_own(address: SocketAddr) -> Outcome {
    drop(TcpListener::bind(address).stage("bind")?);
    TcpStream::connect(address).stage("connect")?;
    Ok(Value::Null)
}

/// Connected UDP to `address`, by way of `via`: a loose source route, a routing header.
pub(super) fn routed(address: SocketAddr, via: IpAddr) -> Outcome {
    let socket = create(domain_of(address), libc::SOCK_DGRAM, 0)?;
    connect(&socket, &RawAddress::new(address))?;
    let (level, name, value) = match via {
        IpAddr::V4(via) => {
            // RFC 791: no operation, loose source and record route, length, pointer to the first.
            let mut value = vec![1, 131, 7, 4];
            value.extend(via.octets());
            (libc::IPPROTO_IP, libc::IP_OPTIONS, value)
        }
        IpAddr::V6(via) => {
            // RFC 6275: next header, eight octets more than eight, type 2, one segment left.
            let mut value = vec![0, 2, 2, 1, 0, 0, 0, 0];
            value.extend(via.octets());
            (libc::IPPROTO_IPV6, libc::IPV6_RTHDR, value)
        }
    };
    let length = libc::socklen_t::try_from(value.len()).unwrap_or_default();
    // SAFETY: the value lives through the call and has the stated length.
    let result =
        unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value.as_ptr().cast(), length) };
    checked(result.into(), "setsockopt")?;
    rustix::io::write(&socket, b"probe").stage("write").map(Value::from)
}

/// `connect` with `AF_UNSPEC` of a descriptor that this process has had from its beginning.
pub(super) fn disconnect_inherited(number: i32) -> Outcome {
    let nothing: libc::sa_family_t = 0;
    let address = [nothing; 8];
    let length = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or_default();
    // SAFETY: the address lives through the call and has the stated length.
    let result = unsafe { libc::syscall(libc::SYS_connect, number, address.as_ptr(), length) };
    checked(result, "connect").map(|_| Value::Null)
}

/// Whether an address is one of this machine's; without it, an attack on it means nothing.
pub(crate) fn add_address(name: &str, address: std::net::Ipv4Addr) -> Result<(), Errno> {
    let socket = create(libc::AF_INET, libc::SOCK_DGRAM, 0).map_err(|failure| failure.errno)?;
    // SAFETY: all-zero bytes are a valid request.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    let raw = RawAddress::new((address, 0).into());
    // SAFETY: the storage begins with an address of the family, which is what the request holds.
    request.ifr_ifru.ifru_addr = unsafe { raw.pointer().cast::<libc::sockaddr>().read() };
    // SAFETY: the request lives through the call.
    let result =
        unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCSIFADDR, &raw const request) };
    if result == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(errno())) }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
