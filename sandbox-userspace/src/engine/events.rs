//! Records of the ring, decoded.

use super::EngineError;
use aya::maps::{Map, MapData, RingBuf};
use sandbox_common::event::{
    Header, Kind, MovedPayload, NetPayload, PathPayload, ProcessPayload, Reason, ServerPayload,
    VERSION,
};
use sandbox_common::net::AbstractName;
use std::os::fd::{AsRawFd, RawFd};
use zerocopy::FromBytes;

/// A session's ring of denials, or that of its notes, to be wrapped in `tokio::io::unix::AsyncFd`.
pub struct Ring(RingBuf<MapData>);

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Ring {
    pub(super) fn of(ring: MapData, name: &'static str) -> Result<Self, EngineError> {
        Map::from_map_data(ring)
            .and_then(RingBuf::try_from)
            .map(Self)
            .map_err(EngineError::map(name))
    }

    /// The next record that waits. A record that cannot be decoded is an error, and the next call
    /// goes on behind it.
    #[expect(clippy::should_implement_trait, reason = "not an iterator: records come in later")]
    pub fn next(&mut self) -> Option<Result<Record, DecodeError>> {
        self.0.next().map(|bytes| Record::decode(&bytes))
    }
}

/// A record that this version does not understand.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("event record of {len} bytes: {what}")]
pub struct DecodeError {
    /// Bytes of the record.
    pub len: usize,
    /// What was wrong with it.
    pub what: &'static str,
}

/// One record.
#[derive(Clone, Debug)]
pub enum Record {
    /// About an object in a file system.
    Path {
        /// Who, when, why.
        header: Header,
        /// The object.
        object: Object,
    },
    /// About an address.
    Net {
        /// Who, when, why.
        header: Header,
        /// The address.
        net: NetPayload,
    },
    /// About another process.
    Process {
        /// Who, when, why.
        header: Header,
        /// The other process.
        process: ProcessPayload,
    },
    /// A member was moved to another cgroup.
    Moved {
        /// Who moved it, and when.
        header: Header,
        /// The member.
        moved: Box<MovedPayload>,
    },
    /// About a unix socket with an abstract name.
    Unix {
        /// Who, when, why.
        header: Header,
        /// The name, without the leading zero.
        name: Vec<u8>,
    },
    /// About a connection by TLS.
    Server {
        /// Who, when, why.
        header: Header,
        /// The address.
        net: NetPayload,
        /// The name that was asked for; empty where it is not known.
        name: Vec<u8>,
    },
    /// About the task itself.
    Task {
        /// Who, when, why.
        header: Header,
    },
}

/// An object in a file system, as the kernel saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// `super_block.s_dev`, kernel encoding.
    pub dev: u32,
    /// `inode.i_rdev`, kernel encoding; 0 unless a device.
    pub rdev: u32,
    /// `inode.i_mode`; 0 where it does not exist yet.
    pub mode: u32,
    /// Components from the superblock's root, outermost first; empty is the root itself.
    pub components: Vec<Vec<u8>>,
    /// The outermost components are missing.
    pub truncated: bool,
}

impl Record {
    /// Decodes the bytes of one record.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let error = |what| DecodeError { len: bytes.len(), what };
        let (header, rest) =
            Header::read_from_prefix(bytes).map_err(|_| error("shorter than a header"))?;
        if header.version != VERSION {
            return Err(error("of another version"));
        }
        match Kind::from_number(header.kind) {
            Some(Kind::Path) => {
                let (path, names) = PathPayload::read_from_prefix(rest)
                    .map_err(|_| error("shorter than its payload"))?;
                let object = object(&path, names).map_err(error)?;
                Ok(Self::Path { header, object })
            }
            Some(Kind::Net) => {
                let (net, _) = NetPayload::read_from_prefix(rest)
                    .map_err(|_| error("shorter than its payload"))?;
                Ok(Self::Net { header, net })
            }
            Some(Kind::Process) => {
                let (process, _) = ProcessPayload::read_from_prefix(rest)
                    .map_err(|_| error("shorter than its payload"))?;
                Ok(Self::Process { header, process })
            }
            Some(Kind::Moved) => {
                let (moved, _) = MovedPayload::read_from_prefix(rest)
                    .map_err(|_| error("shorter than its payload"))?;
                Ok(Self::Moved { header, moved: Box::new(moved) })
            }
            Some(Kind::Unix) => {
                let (name, _) = AbstractName::read_from_prefix(rest)
                    .map_err(|_| error("shorter than its payload"))?;
                let len = usize::try_from(name.len).ok();
                let name = len.and_then(|len| name.name.get(..len));
                let name = name.ok_or_else(|| error("with a length out of range"))?.to_vec();
                Ok(Self::Unix { header, name })
            }
            Some(Kind::Server) => {
                let (server, _) = ServerPayload::read_from_prefix(rest)
                    .map_err(|_| error("shorter than its payload"))?;
                let len = usize::try_from(server.len).ok();
                let name = len.and_then(|len| server.name.get(..len));
                let name = name.ok_or_else(|| error("with a length out of range"))?.to_vec();
                Ok(Self::Server { header, net: server.net, name })
            }
            Some(Kind::Task) => Ok(Self::Task { header }),
            None => Err(error("of unknown kind")),
        }
    }

    /// Who, when, why.
    pub fn header(&self) -> &Header {
        match self {
            Self::Path { header, .. }
            | Self::Net { header, .. }
            | Self::Process { header, .. }
            | Self::Moved { header, .. }
            | Self::Unix { header, .. }
            | Self::Server { header, .. }
            | Self::Task { header } => header,
        }
    }

    /// Whether it tells of something that was allowed.
    pub fn is_note(&self) -> bool {
        self.header().reason == Reason::Allowed as u8
    }
}

fn object(path: &PathPayload, names: &[u8]) -> Result<Object, &'static str> {
    let PathPayload { dev, rdev, mode, len, truncated, pad: _ } = *path;
    let len = usize::try_from(len).map_err(|_| "with a length out of range")?;
    let names = names.get(..len).ok_or("shorter than its names")?;
    let mut components = Vec::new();
    if !names.is_empty() {
        let names = names.strip_suffix(&[0]).ok_or("with an unterminated name")?;
        components.extend(names.split(|byte| *byte == 0).map(<[u8]>::to_vec));
    }
    components.reverse();
    Ok(Object { dev, rdev, mode, components, truncated: truncated != 0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    fn header(kind: u8) -> Header {
        Header {
            version: VERSION,
            kind,
            hook: 1,
            reason: 1,
            access: 1,
            session: 1,
            rule: 3,
            mode: 1,
            time: 5,
            cgroup: 6,
            pid: 7,
            tid: 8,
            uid: 0,
            comm: *b"cat\0\0\0\0\0\0\0\0\0\0\0\0\0",
        }
    }

    fn path_record(names: &[u8]) -> Vec<u8> {
        let path = PathPayload {
            dev: 1,
            rdev: 0,
            mode: 0o100_644,
            len: u32::try_from(names.len()).unwrap(),
            truncated: 0,
            pad: 0,
        };
        [header(Kind::Path as u8).as_bytes(), path.as_bytes(), names].concat()
    }

    #[test]
    fn names_come_innermost_first_and_are_turned_round() {
        let bytes = path_record(b"id_rsa\0.ssh\0root\0");
        let Ok(Record::Path { object, .. }) = Record::decode(&bytes) else { panic!() };
        assert_eq!(object.components, [b"root".to_vec(), b".ssh".to_vec(), b"id_rsa".to_vec()]);
        let Ok(Record::Path { object, .. }) = Record::decode(&path_record(b"")) else { panic!() };
        assert!(object.components.is_empty());
    }

    #[test]
    fn what_is_cut_short_is_refused() {
        let bytes = path_record(b"id_rsa\0.ssh\0");
        for len in 0..bytes.len() {
            assert!(Record::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        assert_eq!(
            Record::decode(&path_record(b"x")).unwrap_err().what,
            "with an unterminated name"
        );
    }

    #[test]
    fn other_versions_and_kinds_are_refused() {
        let mut other = header(Kind::Task as u8);
        assert!(Record::decode(other.as_bytes()).is_ok());
        other.kind = 77;
        assert_eq!(Record::decode(other.as_bytes()).unwrap_err().what, "of unknown kind");
        other.version = 1;
        assert_eq!(Record::decode(other.as_bytes()).unwrap_err().what, "of another version");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Record::decode(&bytes);
        }

        #[test]
        fn no_payload_panics(kind in 0_u8..8, rest in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = Record::decode(&[header(kind).as_bytes(), &rest].concat());
        }
    }
}
