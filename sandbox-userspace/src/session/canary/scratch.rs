//! What the canary needs of the machine: a directory of files, a file system to run programs from, and
//! ports. All of it vanishes on drop.

use super::attempt::{CLOSED, DIRECTORY, FILES, OPEN, SHELF, SOCKETS, WITHIN};
use super::judge::Stat;
use super::{CanaryError, step};
use crate::kernel::mounts::{MountTable, to_components};
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use sandbox_common::path::kernel_dev;
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};

/// The canary's directory.
#[derive(Debug)]
pub(super) struct Scratch {
    /// Its path, without symbolic links.
    pub(super) dir: PathBuf,
    /// Its superblock, and the names from that one's root.
    pub(super) place: (u32, Vec<Vec<u8>>),
    pub(super) shelf: Shelf,
}

/// A file system with two files that are meant to be run. It is mounted nowhere: `/run`, where the
/// directory lies, often allows no programs at all.
#[derive(Debug)]
pub(super) struct Shelf {
    /// Its root directory.
    pub(super) root: OwnedFd,
    /// Its superblock, in the kernel's encoding.
    pub(super) dev: u32,
    stats: BTreeMap<String, Stat>,
}

impl Shelf {
    fn make() -> io::Result<Self> {
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        let mut shelf = Self { root, dev: 0, stats: BTreeMap::new() };
        for name in [OPEN, CLOSED] {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let file = name.strip_prefix(SHELF).unwrap_or(name);
            let mut file = File::from(openat(&shelf.root, file, flags, Mode::RWXU)?);
            file.write_all(b"canary\n")?;
            let meta = file.metadata()?;
            let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
            shelf.dev = kernel_dev(major, minor);
            let stat = (meta.mode(), meta.size(), meta.uid(), meta.gid());
            shelf.stats.insert(name.to_owned(), stat);
        }
        Ok(shelf)
    }
}

impl Scratch {
    /// Makes the directory `dir` with its files, in that of all sessions' states.
    pub(super) fn make(dir: &Path) -> Result<Self, CanaryError> {
        match fs::remove_dir_all(dir) {
            // Of a `doctor` that was killed.
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(step("remove", dir)(error)),
        }
        Self::fill(dir)
    }

    /// Makes the directory and what lies in it.
    pub(super) fn fill(dir: &Path) -> Result<Self, CanaryError> {
        DirBuilder::new().mode(0o700).create(dir).map_err(step("create", dir))?;
        // From here on dropping removes it.
        let shelf = Shelf::make().map_err(step("make a tmpfs for", dir))?;
        let mut scratch = Self { dir: dir.to_path_buf(), place: (0, Vec::new()), shelf };
        for place in [dir.to_path_buf(), dir.join(WITHIN)] {
            DirBuilder::new().recursive(true).create(&place).map_err(step("create", &place))?;
            for name in FILES {
                let file = place.join(name);
                fs::write(&file, b"canary\n").map_err(step("write", &file))?;
            }
            let directory = place.join(DIRECTORY);
            fs::create_dir(&directory).map_err(step("create", &directory))?;
        }
        let real = fs::canonicalize(dir).map_err(step("resolve", dir))?;
        scratch.place = MountTable::read(None)?
            .locate(&to_components(&real))
            .ok_or_else(|| CanaryError::NoPlace(real.clone()))?;
        scratch.dir = real;
        Ok(scratch)
    }

    /// Everything in it, by relative name.
    pub(super) fn stats(&self) -> Result<BTreeMap<String, Stat>, CanaryError> {
        let mut found = self.shelf.stats.clone();
        for prefix in ["", "w/"] {
            let place = self.dir.join(prefix);
            for entry in fs::read_dir(&place).map_err(step("list", &place))? {
                let entry = entry.map_err(step("list", &place))?;
                let meta = fs::symlink_metadata(entry.path()).map_err(step("look at", &place))?;
                let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
                // Directories change size with what is in them, which is listed anyway.
                let size = if meta.is_dir() { 0 } else { meta.size() };
                found.insert(name, (meta.mode(), size, meta.uid(), meta.gid()));
            }
        }
        Ok(found)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing more can be done about a failure here; the next canary of this id tries again.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Unix sockets: in the canary's directory and with abstract names.
#[derive(Debug)]
pub(super) struct Sockets {
    /// Where nothing may arrive, and where it must.
    closed: (UnixListener, [UnixDatagram; 2]),
    open: (UnixListener, [UnixDatagram; 2]),
    names: (Vec<u8>, Vec<u8>),
}

impl Sockets {
    pub(super) fn bind(dir: &Path) -> Result<Self, CanaryError> {
        let bind = |place: PathBuf| {
            let [stream, datagram] = SOCKETS.map(|name| place.join(name));
            let listener = UnixListener::bind(&stream).map_err(step("bind", &stream))?;
            let at_path = UnixDatagram::bind(&datagram).map_err(step("bind", &datagram))?;
            let (named, name) = abstract_socket().map_err(step("bind a unix socket in", &place))?;
            for set in [
                listener.set_nonblocking(true),
                at_path.set_nonblocking(true),
                named.set_nonblocking(true),
            ] {
                set.map_err(step("set up a unix socket in", &place))?;
            }
            Ok::<_, CanaryError>(((listener, [at_path, named]), name))
        };
        let (closed, other) = bind(dir.to_path_buf())?;
        let (open, allowed) = bind(dir.join(WITHIN))?;
        Ok(Self { closed, open, names: (allowed, other) })
    }

    /// Abstract names, without the leading zero: allowed, other.
    pub(super) fn names(&self) -> (Vec<u8>, Vec<u8>) {
        self.names.clone()
    }

    /// Whether something came to all that are open, and to one that is closed.
    pub(super) fn arrived(&self) -> (bool, bool) {
        let came = |socket: &UnixDatagram| socket.recv(&mut [0; 64]).is_ok();
        let (listener, datagrams) = &self.open;
        let open = listener.accept().is_ok() && datagrams.iter().all(came);
        let (listener, datagrams) = &self.closed;
        (open, listener.accept().is_ok() || datagrams.iter().any(came))
    }
}

/// A datagram socket with an abstract name that the kernel chooses, and that name.
fn abstract_socket() -> io::Result<(UnixDatagram, Vec<u8>)> {
    let socket = UnixDatagram::unbound()?;
    rustix::net::bind(&socket, &rustix::net::SocketAddrUnix::new_unnamed())?;
    let address = socket.local_addr()?;
    let name = address.as_abstract_name().ok_or(io::ErrorKind::AddrNotAvailable)?.to_vec();
    Ok((socket, name))
}

/// Sockets of this machine, bound so that nobody else answers on their ports.
#[derive(Debug)]
pub(super) struct Ports {
    v4: [UdpSocket; 2],
    /// `None` where `::1` does not exist.
    v6: Option<[UdpSocket; 2]>,
}

impl Ports {
    pub(super) fn bind() -> Result<Self, CanaryError> {
        let loopback = Path::new("lo, is it up? (`ip link set lo up`) 127.0.0.1");
        let v4 = Self::pair(Ipv4Addr::LOCALHOST).map_err(step("use a port of", loopback))?;
        Ok(Self { v4, v6: Self::pair(Ipv6Addr::LOCALHOST).ok() })
    }

    fn pair(address: impl Into<std::net::IpAddr>) -> io::Result<[UdpSocket; 2]> {
        let address = address.into();
        let (allowed, other) = (UdpSocket::bind((address, 0))?, UdpSocket::bind((address, 0))?);
        allowed.set_nonblocking(true)?;
        other.set_nonblocking(true)?;
        Ok([allowed, other])
    }

    /// Ports of `127.0.0.1`: allowed, other.
    pub(super) fn v4(&self) -> (u16, u16) {
        let [allowed, other] = self.v4.each_ref().map(port);
        (allowed, other)
    }

    /// Ports of `::1`; those of IPv4 where it does not exist.
    pub(super) fn v6(&self) -> (u16, u16) {
        self.v6.as_ref().map_or(self.v4(), |pair| {
            let [allowed, other] = pair.each_ref().map(port);
            (allowed, other)
        })
    }

    pub(super) fn loopback6(&self) -> bool {
        self.v6.is_some()
    }

    /// Whether datagrams came to an allowed port, and to another.
    pub(super) fn arrived(&self) -> (bool, bool) {
        let [allowed, other] = &self.v4;
        let other6 = self.v6.as_ref().is_some_and(|[_, other]| received(other));
        (received(allowed), received(other) || other6)
    }
}

fn port(socket: &UdpSocket) -> u16 {
    socket.local_addr().map_or(0, |address| address.port())
}

fn received(socket: &UdpSocket) -> bool {
    socket.recv(&mut [0; 64]).is_ok()
}
