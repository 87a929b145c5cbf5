//! Unix sockets, by path and by abstract name.

use super::{Outcome, Place, Stage as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{self, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};

/// What arrives where an attempt succeeds.
pub(crate) const MESSAGE: &[u8] = b"probe";

/// Where a unix socket is bound.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum UnixName {
    /// In a file system.
    Path(Place),
    /// In the abstract name space.
    Abstract(String),
}

impl UnixName {
    pub(crate) fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Path(place) => SocketAddr::from_pathname(place.path()),
            Self::Abstract(name) => SocketAddr::from_abstract_name(name),
        }
    }
}

pub(super) fn stream(to: &UnixName) -> Outcome {
    let address = to.address().stage("the address")?;
    let mut socket = UnixStream::connect_addr(&address).stage("connect")?;
    socket.write_all(MESSAGE).stage("write")?;
    Ok(Value::Null)
}

pub(super) fn datagram(to: &UnixName) -> Outcome {
    let address = to.address().stage("the address")?;
    let socket = UnixDatagram::unbound().stage("socket")?;
    socket.send_to_addr(MESSAGE, &address).stage("sendto")?;
    Ok(Value::Null)
}

pub(super) fn connected(to: &UnixName) -> Outcome {
    let address = to.address().stage("the address")?;
    let socket = UnixDatagram::unbound().stage("socket")?;
    socket.connect_addr(&address).stage("connect")?;
    socket.send(MESSAGE).stage("send")?;
    Ok(Value::Null)
}

pub(super) fn own(at: &UnixName) -> Outcome {
    let address = at.address().stage("the address")?;
    let listener = UnixListener::bind_addr(&address).stage("bind")?;
    let mut socket = UnixStream::connect_addr(&address).stage("connect")?;
    socket.write_all(MESSAGE).stage("write")?;
    listener.accept().stage("accept")?;
    Ok(Value::Null)
}
