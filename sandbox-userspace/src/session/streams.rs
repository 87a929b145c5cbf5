//! The standard streams that an agent inherits: no socket among them may reach what the policy closes.
//!
//! The programs of a cgroup see only sockets that were made in it. A connected TCP socket can be nothing
//! else (`socket_connect` refuses to connect it anew), a unix socket is judged whenever it is used; any other
//! could send anywhere.

use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, SocketType, getpeername, ipproto};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

/// A stream that cannot be given to an agent.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// It could send anywhere.
    #[error("standard {0} is a network socket that no rule would hold")]
    Socket(&'static str),
    /// It cannot be looked at.
    #[error("cannot look at standard {0}: {1}")]
    Look(&'static str, io::Error),
}

impl StreamError {
    /// How to mend it.
    pub const fn help(&self) -> Option<&'static str> {
        match self {
            Self::Socket(_) => {
                Some("give it a file, a pipe, a terminal or a connected TCP socket instead")
            }
            Self::Look(..) => None,
        }
    }
}

/// Refuses standard streams that no rule would hold.
pub fn check() -> Result<(), StreamError> {
    let (input, output, error) = (io::stdin(), io::stdout(), io::stderr());
    let streams = [("input", input.as_fd()), ("output", output.as_fd()), ("error", error.as_fd())];
    for (name, stream) in streams {
        match harmless(stream) {
            Ok(true) => {}
            Ok(false) => return Err(StreamError::Socket(name)),
            Err(error) => return Err(StreamError::Look(name, error.into())),
        }
    }
    Ok(())
}

fn harmless(stream: BorrowedFd<'_>) -> Result<bool, Errno> {
    match sockopt::socket_domain(stream) {
        Ok(AddressFamily::INET | AddressFamily::INET6) => {}
        // No socket, or closed: then there is nothing to inherit.
        Ok(AddressFamily::UNIX) | Err(Errno::NOTSOCK | Errno::BADF) => return Ok(true),
        Ok(_) => return Ok(false),
        Err(error) => return Err(error),
    }
    let kind = sockopt::socket_type(stream)?;
    let protocol = sockopt::socket_protocol(stream)?;
    if kind != SocketType::STREAM || protocol != Some(ipproto::TCP) {
        return Ok(false);
    }
    match getpeername(stream) {
        Ok(_) => Ok(true),
        Err(Errno::NOTCONN | Errno::INVAL) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn only_what_is_bound_to_one_peer_is_inherited() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        let (_reader, writer) = io::pipe().unwrap();
        assert!(harmless(connected.as_fd()).unwrap());
        assert!(harmless(writer.as_fd()).unwrap());
        assert!(harmless(UnixDatagram::unbound().unwrap().as_fd()).unwrap());
        assert!(!harmless(listener.as_fd()).unwrap());
        assert!(!harmless(datagrams.as_fd()).unwrap());
        // Datagrams can be sent elsewhere although it is connected.
        datagrams.connect(datagrams.local_addr().unwrap()).unwrap();
        assert!(!harmless(datagrams.as_fd()).unwrap());
    }
}
