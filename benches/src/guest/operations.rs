//! The operations that are counted, by system calls.

use super::count::{Counted, count, now, of};
use super::ground;
use anyhow::{Context as _, Result};
use sandbox_benches::Operation;
use sandbox_benches::report::TREE_FILES;
use std::ffi::{CStr, CString};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// A port of the loopback that everyone may connect to, and where nobody listens.
pub(crate) const OPEN_PORT: u16 = 4009;
/// One that no policy names.
pub(crate) const SHUT_PORT: u16 = 4010;

/// A network (/16) of the loopback that the policies with networks open, beside them.
pub(crate) const NEW: Ipv4Addr = Ipv4Addr::new(127, 251, 0, 0);
/// Addresses of it that are connected to in turn: many times what is remembered.
const ADDRESSES: u16 = 1 << 15;

/// How deep the files and directories lie that are made, renamed, read and so on.
const DEPTH: u32 = 2;
/// How deep the file lies that is only looked at. Nobody writes it: how long a reader takes over
/// the time of last access depends on the time of the last change.
const STILL: u32 = 5;

/// Does it again and again, and counts. `tree` is the number of a tree for the passes.
pub(crate) fn perform(operation: Operation, tree: u32) -> Result<Counted> {
    let counted = match operation {
        Operation::Open { depth } => {
            let file = path(&ground::file(depth))?;
            count(|| open(&file, libc::O_RDONLY).map(drop))
        }
        Operation::FirstPass | Operation::SecondPass => pass(tree),
        Operation::CreateUnlink => {
            let file = path(&ground::directory(DEPTH).join("new"))?;
            count(|| {
                drop(open(&file, libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL)?);
                // SAFETY: the path is a string that ends in zero.
                done(unsafe { libc::unlink(file.as_ptr()) })
            })
        }
        Operation::Rename => rename(),
        Operation::MkdirRmdir => {
            let directory = path(&ground::directory(DEPTH).join("new"))?;
            count(|| {
                // SAFETY: the path is a string that ends in zero.
                done(unsafe { libc::mkdir(directory.as_ptr(), 0o755) })?;
                // SAFETY: as before.
                done(unsafe { libc::rmdir(directory.as_ptr()) })
            })
        }
        Operation::Stat => {
            let file = path(&ground::file(STILL))?;
            let mut about = std::mem::MaybeUninit::<libc::stat>::uninit();
            // SAFETY: a string that ends in zero, and room for what the kernel writes.
            count(|| done(unsafe { libc::stat(file.as_ptr(), about.as_mut_ptr()) }))
        }
        Operation::Read => {
            let file = open(&path(&ground::file(STILL))?, libc::O_RDONLY)?;
            let mut byte = 0_u8;
            count(|| {
                // SAFETY: room for the one byte.
                one(unsafe { libc::pread(file.as_raw_fd(), (&raw mut byte).cast(), 1, 0) })
            })
        }
        Operation::Write => {
            let file = open(&path(&ground::file(DEPTH))?, libc::O_WRONLY)?;
            // SAFETY: one byte that is there.
            count(|| one(unsafe { libc::pwrite(file.as_raw_fd(), c"c".as_ptr().cast(), 1, 0) }))
        }
        Operation::Getppid => count(|| {
            // SAFETY: takes nothing; libc keeps no copy of the answer.
            unsafe { libc::getppid() };
            Ok(())
        }),
        Operation::ForkExec => {
            let program = path(&ground::program())?;
            count(|| fork_exec(&program))
        }
        Operation::TcpConnect => {
            let socket = socket(libc::SOCK_STREAM)?;
            count(|| match connect(&socket, OPEN_PORT) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
                Err(error) => Err(error),
                Ok(()) => Err(io::Error::other("somebody listens")),
            })
        }
        Operation::UdpConnect => {
            let socket = socket(libc::SOCK_DGRAM)?;
            count(|| connect(&socket, OPEN_PORT))
        }
        Operation::UdpConnectNew => {
            let socket = socket(libc::SOCK_DGRAM)?;
            let mut next = 0..;
            count(|| {
                let number: u16 = next.next().unwrap_or_default() % ADDRESSES;
                let [third, last] = number.to_be_bytes();
                let [first, second, ..] = NEW.octets();
                connect_to(&socket, Ipv4Addr::new(first, second, third, last), OPEN_PORT)
            })
        }
        Operation::Socket => count(|| socket(libc::SOCK_DGRAM).map(drop)),
    };
    counted.with_context(|| format!("doing {operation}"))
}

/// Opens and closes every file of a tree once.
fn pass(tree: u32) -> Result<Counted> {
    let files = ground::tree(tree).iter().map(|file| path(file)).collect::<Result<Vec<_>>>()?;
    let start = now();
    for file in &files {
        open(file, libc::O_RDONLY)?;
    }
    of(vec![now() - start], TREE_FILES)
}

fn rename() -> Result<Counted> {
    let directory = ground::directory(DEPTH);
    let [mut from, mut to] = [path(&directory.join("one"))?, path(&directory.join("other"))?];
    drop(open(&from, libc::O_WRONLY | libc::O_CREAT)?);
    let counted = count(|| {
        // SAFETY: strings that end in zero.
        done(unsafe { libc::rename(from.as_ptr(), to.as_ptr()) })?;
        std::mem::swap(&mut from, &mut to);
        Ok(())
    });
    // SAFETY: a string that ends in zero.
    done(unsafe { libc::unlink(from.as_ptr()) })?;
    counted
}

fn fork_exec(program: &CStr) -> io::Result<()> {
    let words = [program.as_ptr(), std::ptr::null()];
    let variables = [std::ptr::null()];
    // SAFETY: this process has one thread, and the child makes system calls only.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: lists that end in null; what follows ends the child.
        unsafe {
            libc::execve(program.as_ptr(), words.as_ptr(), variables.as_ptr());
            libc::_exit(127);
        }
    }
    done(child.min(0))?;
    let mut status = 0;
    // SAFETY: room for the status.
    let ended = unsafe { libc::waitpid(child, &raw mut status, 0) };
    if ended == child && status == 0 {
        return Ok(());
    }
    Err(io::Error::other(format!("the program ended with status {status}")))
}

/// Opens a file; what is returned closes it.
pub(crate) fn open(path: &CStr, flags: i32) -> io::Result<OwnedFd> {
    // SAFETY: the path is a string that ends in zero.
    owned(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC, 0o644) })
}

pub(crate) fn socket(kind: i32) -> io::Result<OwnedFd> {
    // SAFETY: numbers only.
    owned(unsafe { libc::socket(libc::AF_INET, kind | libc::SOCK_CLOEXEC, 0) })
}

/// Connects to a port of the loopback.
pub(crate) fn connect(socket: &OwnedFd, port: u16) -> io::Result<()> {
    connect_to(socket, Ipv4Addr::LOCALHOST, port)
}

fn connect_to(socket: &OwnedFd, address: Ipv4Addr, port: u16) -> io::Result<()> {
    let address = libc::sockaddr_in {
        sin_family: 2, // AF_INET
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(address).to_be() },
        sin_zero: [0; 8],
    };
    let size = libc::socklen_t::try_from(size_of_val(&address)).map_err(io::Error::other)?;
    // SAFETY: an address of this size that outlives the call.
    done(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size) })
}

pub(crate) fn path(path: &Path) -> Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn one(length: isize) -> io::Result<()> {
    if length == 1 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn owned(fd: i32) -> io::Result<OwnedFd> {
    done(fd)?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
