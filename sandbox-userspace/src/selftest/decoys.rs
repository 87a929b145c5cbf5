//! What is attacked: made outside the session, given to the agent's user, and removed in the end.

use crate::session::user::User;
use rustix::fs::{Gid, Uid, chown};
use std::fs::{self, DirBuilder};
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

/// Files with content, by name: `.env` is closed by many policies, wherever it lies.
pub const SECRETS: [&str; 3] = [".env", ".netrc", "secret"];
/// A file that may be run, of no format that is.
pub const PROGRAM: &str = "program";
/// A file that every attempt to change things may be aimed at.
pub const FILE: &str = "file";
/// An empty directory.
pub const DIRECTORY: &str = "directory";
/// A stream socket, and one for datagrams.
pub const SOCKETS: [&str; 2] = ["stream", "datagram"];

/// All of it.
#[derive(Debug)]
pub struct Decoys {
    /// The directory, in a place where others may make some, too.
    pub directory: PathBuf,
    /// The name of the abstract socket.
    pub hidden: String,
    /// Somebody else's process of the same user.
    pub outsider: i32,
    /// `127.0.0.1`, `::1` where there is one: a port for TCP, and one for UDP.
    pub ports: Vec<(std::net::IpAddr, u16, u16)>,
    sockets: Vec<Socket>,
    process: Child,
}

/// Nobody answers; that they are there is enough.
#[derive(Debug)]
#[expect(dead_code, reason = "open as long as this lives")]
enum Socket {
    Stream(UnixListener),
    Datagram(UnixDatagram),
    Tcp(TcpListener),
    Udp(UdpSocket),
}

/// An error with the place that it is about.
fn at(path: &Path) -> impl Fn(io::Error) -> io::Error + '_ {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Decoys {
    /// Makes them beneath `place`.
    pub fn make(place: &Path, user: &User) -> io::Result<Self> {
        let directory = place.join(format!("sandbox-selftest-{}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&directory).map_err(at(&directory))?;
        let made = Self::fill(&directory, user);
        if made.is_err() {
            // The error to tell is the first one.
            let _ = fs::remove_dir_all(&directory);
        }
        made
    }

    fn fill(directory: &Path, user: &User) -> io::Result<Self> {
        for name in SECRETS.into_iter().chain([FILE, PROGRAM]) {
            let (path, mode) = (directory.join(name), if name == PROGRAM { 0o700 } else { 0o600 });
            fs::write(&path, "a decoy of sandbox selftest\n").map_err(at(&path))?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(at(&path))?;
        }
        let empty = directory.join(DIRECTORY);
        fs::create_dir(&empty).map_err(at(&empty))?;
        let [stream, datagram] = SOCKETS.map(|name| directory.join(name));
        let hidden = format!("sandbox-selftest-{}", std::process::id());
        let mut sockets = vec![
            Socket::Stream(UnixListener::bind(&stream).map_err(at(&stream))?),
            Socket::Datagram(UnixDatagram::bind(&datagram).map_err(at(&datagram))?),
            Socket::Stream(UnixListener::bind_addr(&SocketAddr::from_abstract_name(&hidden)?)?),
        ];
        for entry in fs::read_dir(directory)? {
            give(&entry?.path(), user)?;
        }
        give(directory, user)?;
        let mut ports = Vec::new();
        let (v4, v6) = (std::net::Ipv4Addr::LOCALHOST, std::net::Ipv6Addr::LOCALHOST);
        for ip in [std::net::IpAddr::from(v4), v6.into()] {
            // A machine may be without either.
            let Ok(tcp) = TcpListener::bind((ip, 0)) else { continue };
            let udp = UdpSocket::bind((ip, 0))?;
            ports.push((ip, tcp.local_addr()?.port(), udp.local_addr()?.port()));
            sockets.extend([Socket::Tcp(tcp), Socket::Udp(udp)]);
        }
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(super::DECOY).env_clear().stdin(Stdio::piped()).stdout(Stdio::null());
        command.uid(user.uid).gid(user.gid);
        let process = command.spawn()?;
        let outsider = process.id().cast_signed();
        Ok(Self { directory: directory.to_owned(), hidden, outsider, ports, sockets, process })
    }

    /// What of the files is not as it was made.
    pub fn changes(&self) -> Vec<String> {
        let mut found = Vec::new();
        let expected = SECRETS.into_iter().chain([FILE, PROGRAM, DIRECTORY]).chain(SOCKETS);
        let expected: std::collections::BTreeSet<&str> = expected.collect();
        for name in &expected {
            match fs::symlink_metadata(self.directory.join(name)) {
                Err(error) => found.push(format!("{name}: {error}")),
                Ok(meta) if meta.is_file() && meta.len() == 0 => {
                    found.push(format!("{name} was emptied"));
                }
                Ok(_) => {}
            }
        }
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if !expected.contains(name.as_str()) {
                found.push(format!("{name} was made"));
            }
        }
        found
    }
}

impl Drop for Decoys {
    fn drop(&mut self) {
        // Nothing more can be done about a failure here.
        let _ = self.process.kill();
        let _ = self.process.wait();
        self.sockets.clear();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn give(path: &Path, user: &User) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    chown(path, Some(uid), Some(gid)).map_err(|error| at(path)(error.into()))
}

/// The hidden verb of the outsider: lives until its standard input ends.
pub fn main() -> ExitCode {
    match io::copy(&mut io::stdin(), &mut io::sink()) {
        Ok(_) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
