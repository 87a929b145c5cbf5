//! Records of the ring, decoded.

use sandbox_common::event::{Header, NetPayload};

/// The ring of denials, to be wrapped in `tokio::io::unix::AsyncFd`.
#[derive(Debug)]
pub struct Ring {}

impl std::os::fd::AsRawFd for Ring {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        -1
    }
}

impl Ring {
    /// The next record that waits. A record that cannot be decoded is an error, and the next call
    /// goes on behind it.
    #[expect(clippy::should_implement_trait, reason = "not an iterator: records come in later")]
    pub fn next(&mut self) -> Option<Result<Record, DecodeError>> {
        None
    }
}

/// A record that this version does not understand.
#[derive(Debug, thiserror::Error)]
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
