//! Asking name servers, as programs do without a library.

use super::network::domain_of;
use super::{Failure, Outcome, Stage as _};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

/// How a name server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LookupWay {
    /// `connect`, `send`, `recv`: glibc.
    Connected,
    /// `sendto`, `recvfrom`: musl.
    Unconnected,
    Tcp,
    /// Asks, and does not wait for the answer.
    Unheard,
}

const PATIENCE: Option<Duration> = Some(Duration::from_secs(30));

/// Asks for the addresses of a name. `data`: code, whether the answer was cut, addresses. An answer that does
/// not come from the server is an error.
pub(super) fn lookup(server: SocketAddr, name: &str, kind: u16, way: LookupWay) -> Outcome {
    let question = question(name, kind);
    let any: IpAddr = match domain_of(server) {
        libc::AF_INET => Ipv4Addr::UNSPECIFIED.into(),
        _ => Ipv6Addr::UNSPECIFIED.into(),
    };
    let mut buffer = vec![0; 65_536];
    let wrong = Failure { errno: Errno::ADDRNOTAVAIL, stage: "the answer comes from elsewhere" };
    let length = match way {
        LookupWay::Tcp => {
            let mut stream = TcpStream::connect(server).stage("connect")?;
            stream.set_read_timeout(PATIENCE).stage("setsockopt")?;
            if stream.peer_addr().stage("getpeername")? != server {
                return Err(wrong);
            }
            let length = u16::try_from(question.len()).unwrap_or_default().to_be_bytes();
            stream.write_all(&[&length[..], &question].concat()).stage("write")?;
            let mut length = [0; 2];
            stream.read_exact(&mut length).stage("read")?;
            let length = usize::from(u16::from_be_bytes(length));
            stream.read_exact(&mut buffer[..length]).stage("read")?;
            length
        }
        LookupWay::Connected => {
            let socket = UdpSocket::bind((any, 0)).stage("bind")?;
            socket.set_read_timeout(PATIENCE).stage("setsockopt")?;
            socket.connect(server).stage("connect")?;
            socket.send(&question).stage("send")?;
            if socket.peer_addr().stage("getpeername")? != server {
                return Err(wrong);
            }
            let (length, from) = socket.recv_from(&mut buffer).stage("recvfrom")?;
            if from != server {
                return Err(wrong);
            }
            length
        }
        LookupWay::Unheard => {
            let socket = UdpSocket::bind((any, 0)).stage("bind")?;
            socket.send_to(&question, server).stage("sendto")?;
            return Ok(json!(null));
        }
        LookupWay::Unconnected => {
            let socket = UdpSocket::bind((any, 0)).stage("bind")?;
            socket.set_read_timeout(PATIENCE).stage("setsockopt")?;
            socket.send_to(&question, server).stage("sendto")?;
            let (length, from) = socket.recv_from(&mut buffer).stage("recvfrom")?;
            if from != server {
                return Err(wrong);
            }
            length
        }
    };
    let (code, cut, addresses) = answer(&buffer[..length])
        .ok_or(Failure { errno: Errno::BADMSG, stage: "the answer is none" })?;
    Ok(json!({ "code": code, "cut": cut, "addresses": addresses }))
}

/// Bytes that are no question, to a name server; nothing is waited for.
pub(super) fn garbage(server: SocketAddr) -> Outcome {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).stage("bind")?;
    let question = question("api.example.com", 1);
    for length in 0..question.len() {
        socket.send_to(&question[..length], server).stage("sendto")?;
        let mut damaged = question.clone();
        damaged[length] ^= 0xff;
        socket.send_to(&damaged, server).stage("sendto")?;
    }
    let mut stream = TcpStream::connect(server).stage("connect")?;
    stream.write_all(&[0xff; 4096]).stage("write")?;
    Ok(json!(null))
}

/// RFC 1035: header, name, type, class.
fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        bytes.push(u8::try_from(label.len()).unwrap_or(0));
        bytes.extend(label.bytes());
    }
    bytes.push(0);
    bytes.extend(kind.to_be_bytes());
    bytes.extend([0, 1]);
    bytes
}

/// Code, whether it was cut, addresses.
fn answer(bytes: &[u8]) -> Option<(u8, bool, Vec<IpAddr>)> {
    let number = |at: usize| Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    if number(0)? != 0x1234 || bytes.get(2)? & 0x80 == 0 {
        return None;
    }
    let mut at = 12;
    for _ in 0..number(4)? {
        at = behind_name(bytes, at)? + 4;
    }
    let mut addresses = Vec::new();
    for _ in 0..number(6)? {
        at = behind_name(bytes, at)?;
        let (kind, length) = (number(at)?, usize::from(number(at + 8)?));
        let data = bytes.get(at + 10..at + 10 + length)?;
        match kind {
            1 => addresses.push(IpAddr::from(<[u8; 4]>::try_from(data).ok()?)),
            28 => addresses.push(IpAddr::from(<[u8; 16]>::try_from(data).ok()?)),
            _ => {}
        }
        at += 10 + length;
    }
    Some((bytes.get(3)? & 15, bytes.get(2)? & 2 != 0, addresses))
}

fn behind_name(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *bytes.get(at)? {
            0 => return Some(at + 1),
            length if length & 0xc0 != 0 => return Some(at + 2),
            length => at += 1 + usize::from(length),
        }
    }
}
