//! The canary itself: makes the attempts and says how each ended.

use super::attempt::{ATTEMPTS, Act, Answer, Attempt, Orders, Port, SHELF, To, WITHIN, Whom};
use super::calls;
use rustix::fs::{self, Mode, OFlags};
use rustix::io::{Errno, Result};
use rustix::mount;
use rustix::net::{
    self, AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, ipproto, sockopt,
};
use rustix::process::{self, Pid};
use std::ffi::{CStr, CString};
use std::io::{BufRead as _, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::ExitCode;

/// The hidden verb `canary`: takes its orders from standard input and answers on standard output.
/// It is started by [`prove`](super::prove) and harms nothing when it is started by somebody else.
pub fn child() -> ExitCode {
    match converse() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandbox: canary: {error}");
            ExitCode::FAILURE
        }
    }
}

fn converse() -> std::io::Result<()> {
    let mut orders = String::new();
    std::io::stdin().lock().read_line(&mut orders)?;
    let orders: Orders = serde_json::from_str(&orders)?;
    say(&attempt(&orders, false))?;
    let mut go = String::new();
    if std::io::stdin().lock().read_line(&mut go)? == 0 {
        return Ok(());
    }
    say(&attempt(&orders, true))
}

fn say(answer: &Answer) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    let mut out = std::io::stdout().lock();
    out.write_all(&line)?;
    out.flush()
}

/// Makes the attempts of one stage.
pub(super) fn attempt(orders: &Orders, moved: bool) -> Answer {
    let results = ATTEMPTS
        .iter()
        .filter(|attempt| attempt.moved == moved)
        .map(|Attempt { name, act, .. }| {
            let errno = perform(orders, *act).map_or_else(Errno::raw_os_error, |()| 0);
            ((*name).to_owned(), errno)
        })
        .collect();
    let comm = rustix::thread::name().unwrap_or_default().to_string_lossy().into_owned();
    Answer { comm, results }
}

fn perform(orders: &Orders, act: Act) -> Result<()> {
    let at = |name: &str| orders.dir.join(name);
    let mode = Mode::RUSR | Mode::WUSR;
    match act {
        Act::Read(name) => fs::open(at(name), OFlags::RDONLY, mode).map(drop),
        Act::Write(name) => fs::open(at(name), OFlags::WRONLY, mode).map(drop),
        Act::Create(name) => {
            fs::open(at(name), OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, mode).map(drop)
        }
        Act::Mkdir(name) => fs::mkdir(at(name), mode),
        Act::Symlink(name) => fs::symlink("open", at(name)),
        Act::Unlink(name) => fs::unlink(at(name)),
        Act::Rmdir(name) => fs::rmdir(at(name)),
        Act::Rename(from, to) => fs::rename(at(from), at(to)),
        Act::Link(from, to) => fs::link(at(from), at(to)),
        Act::Truncate(name) => calls::truncate(&at(name)),
        Act::TruncateInherited => {
            // SAFETY: takes integers only; a descriptor that is not open gives EBADF.
            match unsafe { libc::ftruncate(orders.inherited, 0) } {
                0 => Ok(()),
                _ => Err(calls::last_errno()),
            }
        }
        Act::Chmod(name) => fs::chmod(at(name), Mode::RUSR),
        Act::Chown(name) => fs::chown(at(name), Some(fs::Uid::ROOT), Some(fs::Gid::ROOT)),
        Act::Touch(name) => {
            let now = fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW };
            let times = fs::Timestamps { last_access: now, last_modification: now };
            fs::utimensat(fs::CWD, at(name), &times, fs::AtFlags::empty())
        }
        Act::Mark(name) => {
            fs::setxattr(at(name), "user.sandbox", b"canary", fs::XattrFlags::empty())
        }
        Act::MapInherited => map(orders.inherited),
        Act::ReceiveInherited => receive(orders.inherited),
        Act::TcpConnect(to, port) => {
            let socket = socket(to, SocketType::STREAM)?;
            net::connect(&socket, &address(orders, to, port))
        }
        Act::UdpConnect(to, port) => {
            let socket = socket(to, SocketType::DGRAM)?;
            net::connect(&socket, &address(orders, to, port))?;
            net::send(&socket, b"connected", SendFlags::empty()).map(drop)
        }
        Act::UdpSend(to, port) => {
            let socket = socket(to, SocketType::DGRAM)?;
            let address = address(orders, to, port);
            net::sendto(&socket, b"sent", SendFlags::empty(), &address).map(drop)
        }
        Act::Socket => socket(To::V4, SocketType::DGRAM).map(drop),
        Act::RawSocket => {
            net::socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP)).map(drop)
        }
        Act::UnixConnect(name) => {
            let socket = unix(SocketType::STREAM)?;
            net::connect(&socket, &SocketAddrUnix::new(at(name))?)
        }
        Act::UnixSend(name) => {
            let (socket, to) = (unix(SocketType::DGRAM)?, SocketAddrUnix::new(at(name))?);
            net::sendto(&socket, b"sent", SendFlags::empty(), &to).map(drop)
        }
        Act::AbstractSend(port) => {
            let (allowed, other) = &orders.names;
            let name = if port == Port::Allowed { allowed } else { other };
            let (socket, to) = (unix(SocketType::DGRAM)?, SocketAddrUnix::new_abstract_name(name)?);
            net::sendto(&socket, b"sent", SendFlags::empty(), &to).map(drop)
        }
        Act::Execute(name) => execute(orders.shelf, name, None),
        Act::ExecuteWith(name, argument) => execute(orders.shelf, name, Some(argument)),
        Act::Seize => calls::seize(pid(Whom::Outsider)?),
        Act::Chattr(name) => {
            let file = fs::open(at(name), OFlags::RDONLY, mode)?;
            fs::ioctl_setflags(&file, fs::IFlags::empty())
        }
        Act::Signal(whom) => process::test_kill_process(pid(whom)?),
        Act::Environment(whom) => {
            let file = format!("/proc/{}/environ", pid(whom)?.as_raw_nonzero());
            let file = fs::open(file, OFlags::RDONLY, mode)?;
            // 7.x asks when it is read, earlier kernels when it is opened.
            match rustix::io::read(&file, &mut [0_u8; 1][..])? {
                0 => Err(Errno::NODATA),
                _ => Ok(()),
            }
        }
        Act::Mount => mount::mount(
            "none",
            at(WITHIN),
            "sandbox-canary",
            mount::MountFlags::empty(),
            None::<&CStr>,
        ),
        Act::Bpf => calls::bpf(),
        Act::Log => calls::log(),
        Act::CloneInto => calls::clone_into(&orders.cgroup),
    }
}

fn unix(kind: SocketType) -> Result<OwnedFd> {
    net::socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)
}

fn socket(to: To, kind: SocketType) -> Result<OwnedFd> {
    let family = if to == To::V4 { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    if to == To::Mapped {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    Ok(socket)
}

fn address(orders: &Orders, to: To, port: Port) -> SocketAddr {
    let (ip, (allowed, other)) = match to {
        To::V4 => (Ipv4Addr::LOCALHOST.into(), orders.v4),
        To::V6 => (Ipv6Addr::LOCALHOST.into(), orders.v6),
        To::Mapped => (Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(), orders.v4),
    };
    SocketAddr::new(ip, if port == Port::Allowed { allowed } else { other })
}

/// Maps a page of a file, shared and for writing, for as long as this process lives.
fn map(file: i32) -> Result<()> {
    const PAGE: usize = 4096;
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a new mapping, at a place that the kernel chooses; nobody uses it.
    match unsafe { libc::mmap(std::ptr::null_mut(), PAGE, protection, flags, file, 0) } {
        libc::MAP_FAILED => Err(calls::last_errno()),
        _ => Ok(()),
    }
}

/// Passes a descriptor to itself. The kernel says nothing where it withholds one.
fn receive(file: i32) -> Result<()> {
    let (to, from) =
        net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: the parent says that it is open, and nobody closes it.
    let file = [unsafe { BorrowedFd::borrow_raw(file) }];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = net::SendAncillaryBuffer::new(&mut space);
    control.push(net::SendAncillaryMessage::ScmRights(&file));
    net::sendmsg(&to, &[IoSlice::new(b"x")], &mut control, SendFlags::empty())?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = net::RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = net::RecvFlags::CMSG_CLOEXEC;
    net::recvmsg(&from, &mut [IoSliceMut::new(&mut byte)], &mut control, flags)?;
    match control.drain().next() {
        Some(_) => Ok(()),
        None => Err(Errno::ACCESS),
    }
}

/// Runs a file that is no program: what the kernel says of that comes after it was opened to be run.
fn execute(shelf: i32, name: &str, argument: Option<&CStr>) -> Result<()> {
    let name = CString::new(name.strip_prefix(SHELF).unwrap_or(name)).map_err(|_| Errno::INVAL)?;
    let argument = argument.map_or(std::ptr::null(), CStr::as_ptr);
    let words = [name.as_ptr(), argument, std::ptr::null()];
    let none: [*const libc::c_char; 1] = [std::ptr::null()];
    // SAFETY: the name ends in a zero and the lists in a null, and all of them live through the call.
    unsafe {
        libc::syscall(libc::SYS_execveat, shelf, name.as_ptr(), words.as_ptr(), none.as_ptr(), 0)
    };
    Err(calls::last_errno())
}

fn pid(whom: Whom) -> Result<Pid> {
    match whom {
        Whom::Own => Ok(process::getpid()),
        Whom::Outsider => process::getppid().ok_or(Errno::SRCH),
    }
}
