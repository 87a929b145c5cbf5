//! The member: tries each attempt in a process of its own and says how it ended.

use super::{Act, Ended, Orders};
use crate::session::canary::calls::{self, last_errno};
use rustix::fs::{self, CWD, Mode, OFlags};
use rustix::io::{Errno, Result};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::net::{self, AddressFamily, SendFlags, SocketFlags, SocketType};
use rustix::process::{self, Pid, PidfdFlags, WaitOptions};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::ffi::CString;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, ExitCode, Stdio};

/// The hidden verb of the member. It harms nothing when somebody else starts it.
pub fn main() -> ExitCode {
    match converse() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sandbox: selftest: {error}");
            ExitCode::FAILURE
        }
    }
}

fn converse() -> std::io::Result<()> {
    let mut orders = String::new();
    std::io::stdin().read_to_string(&mut orders)?;
    let orders: Orders = serde_json::from_str(&orders)?;
    let temporary = std::env::var("TMPDIR").unwrap_or_else(|_| "/tmp".to_owned());
    for attempt in &orders.attempts {
        let mut line = serde_json::to_vec(&apart(&temporary, &attempt.act)?)?;
        line.push(b'\n');
        // Unbuffered: a child that is forked later would write what is left in a buffer once more.
        rustix::io::write(std::io::stdout(), &line)?;
    }
    std::io::stdout().flush()
}

/// Makes the attempt in a child, whose exit status is the error number.
fn apart(temporary: &str, act: &Act) -> std::io::Result<Ended> {
    // SAFETY: this process has one thread, so the child may do whatever this one may.
    match unsafe { libc::fork() } {
        0 => {
            let errno = Member { temporary }.perform(act).map_or_else(Errno::raw_os_error, |()| 0);
            // SAFETY: ends the child without running anything of the parent's.
            unsafe { libc::_exit(errno.min(254)) }
        }
        -1 => Err(std::io::Error::last_os_error()),
        child => {
            let pid = Pid::from_raw(child);
            let status = process::waitpid(pid, WaitOptions::empty())?;
            let status = status.and_then(|(_, status)| status.exit_status());
            // A child that was killed did not get through.
            let errno = status.unwrap_or(libc::EPERM);
            Ok(Ended { pid: child.unsigned_abs(), errno })
        }
    }
}

fn pid_of(number: i32) -> Result<Pid> {
    Pid::from_raw(number).ok_or(Errno::SRCH)
}

struct Member<'a> {
    temporary: &'a str,
}

impl Member<'_> {
    /// A path as the kernel gets it.
    fn at(&self, path: &str) -> String {
        match path.strip_prefix("TMPDIR/") {
            Some(rest) => format!("{}/{rest}", self.temporary),
            None => path.to_owned(),
        }
    }

    fn text(&self, path: &str) -> Result<CString> {
        CString::new(self.at(path)).map_err(|_| Errno::INVAL)
    }

    fn perform(&self, act: &Act) -> Result<()> {
        match act {
            Act::Tcp(_) | Act::FastOpen(_) | Act::Udp(_) | Act::UdpConnected(_) => Self::reach(act),
            Act::Signal(_)
            | Act::PidfdSignal(_)
            | Act::Seize(_)
            | Act::VmRead(_)
            | Act::GetFd(_)
            | Act::Nice(_)
            | Act::Affinity(_)
            | Act::Limit(_) => Self::touch(act),
            _ => self.read(act),
        }
    }

    fn read(&self, act: &Act) -> Result<()> {
        let mode = Mode::RUSR | Mode::WUSR;
        let read = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        match act {
            Act::Read(path) => fs::open(self.at(path), read, mode).map(drop),
            Act::ReadByte(path) => {
                let file = fs::open(self.at(path), read, mode)?;
                rustix::io::read(&file, &mut [0_u8; 1][..]).map(drop)
            }
            Act::Reopen(path) => {
                let file = fs::open(self.at(path), OFlags::PATH, mode)?;
                fs::open(format!("/proc/self/fd/{}", file.as_raw_fd()), read, mode).map(drop)
            }
            Act::Symlinked { to, at } => {
                fs::symlink(self.at(to), self.at(at))?;
                let opened = fs::open(self.at(at), read, mode).map(drop);
                fs::unlink(self.at(at))?;
                opened
            }
            Act::Handle(path) => self.by_handle(path),
            Act::Execute(words) => self.become_program(words),
            Act::Map(path) => {
                let file = fs::open(self.at(path), read, mode)?;
                calls::map_program(file.as_fd())
            }
            Act::Link(from, to) => {
                fs::link(self.at(from), self.at(to))?;
                fs::unlink(self.at(to))
            }
            Act::Bound { directory, at, name } => {
                apart_from_all()?;
                rustix::mount::mount_bind(self.at(directory), self.at(at))?;
                fs::open(format!("{}/{name}", self.at(at)), read, mode).map(drop)
            }
            Act::Detached { directory, name } => {
                apart_from_all()?;
                let flags = rustix::mount::OpenTreeFlags::OPEN_TREE_CLONE;
                let tree = rustix::mount::open_tree(CWD, self.at(directory), flags)?;
                fs::openat(&tree, name.as_str(), read, mode).map(drop)
            }
            other => self.change(other),
        }
    }

    fn change(&self, act: &Act) -> Result<()> {
        let mode = Mode::RUSR | Mode::WUSR;
        let read = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        match act {
            Act::Write(path) => {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
                fs::open(self.at(path), flags, mode).map(drop)
            }
            Act::Create(path) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                fs::open(self.at(path), flags, mode).map(drop)
            }
            Act::Passing(path) => {
                self.change(&Act::Create(path.clone()))?;
                fs::unlink(self.at(path))
            }
            Act::PassingDirectory(path) => {
                fs::mkdir(self.at(path), Mode::RWXU)?;
                fs::rmdir(self.at(path))
            }
            Act::Program(path) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                let file = fs::open(self.at(path), flags, Mode::RWXU)?;
                rustix::io::write(&file, b"of no format").map(drop)
            }
            Act::TmpFile(path) => {
                fs::open(self.at(path), OFlags::WRONLY | OFlags::TMPFILE, mode).map(drop)
            }
            Act::Truncate(path) => calls::truncate(self.at(path).as_ref()),
            Act::Unlink(path) => fs::unlink(self.at(path)),
            Act::Rename(from, to) => fs::rename(self.at(from), self.at(to)),
            Act::Mkdir(path) => fs::mkdir(self.at(path), Mode::RWXU),
            Act::Fifo(path) => fs::mknodat(CWD, self.at(path), fs::FileType::Fifo, mode, 0),
            Act::Chmod(path) => fs::chmod(self.at(path), mode),
            Act::Chown(path) => fs::chown(self.at(path), Some(process::getuid()), None),
            Act::Times(path) => {
                let now = fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW };
                let times = fs::Timestamps { last_access: now, last_modification: now };
                fs::utimensat(CWD, self.at(path), &times, fs::AtFlags::empty())
            }
            Act::Xattr(path) => {
                let flags = fs::XattrFlags::empty();
                fs::setxattr(self.at(path), "user.sandbox", b"selftest", flags)
            }
            Act::Flags(path) => {
                let file = fs::open(self.at(path), read, mode)?;
                fs::ioctl_setflags(&file, fs::IFlags::empty())
            }
            Act::Bind(path) => {
                let socket = net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
                net::bind(&socket, &net::SocketAddrUnix::new(self.at(path))?)
            }
            Act::OwnSocket(path) => {
                let listener = UnixListener::bind(self.at(path)).map_err(|error| errno(&error))?;
                UnixStream::connect(self.at(path)).map_err(|error| errno(&error))?;
                drop(listener);
                fs::unlink(self.at(path))
            }
            other => self.leave(other),
        }
    }

    fn leave(&self, act: &Act) -> Result<()> {
        let mode = Mode::RUSR | Mode::WUSR;
        match act {
            Act::OwnCgroups(at) => {
                apart_from_all()?;
                // SAFETY: this process has one thread and shares no descriptors by it.
                unsafe { unshare_unsafe(UnshareFlags::NEWCGROUP) }?;
                let (at, flags) = (self.at(at), rustix::mount::MountFlags::empty());
                rustix::mount::mount("cgroup2", at.as_str(), "cgroup2", flags, None)?;
                fs::open(format!("{at}/cgroup.procs"), OFlags::WRONLY, mode).map(drop)
            }
            Act::Daemon(act) => {
                process::setsid()?;
                self.perform(act)
            }
            Act::Named(name, act) => {
                let name = CString::new(name.as_str()).map_err(|_| Errno::INVAL)?;
                rustix::thread::set_name(&name)?;
                self.perform(act)
            }
            Act::Enter(path) => {
                let file = fs::open(self.at(path), OFlags::WRONLY, mode)?;
                rustix::io::write(&file, b"0").map(drop)
            }
            Act::CloneInto(path) => calls::clone_into(self.at(path).as_ref()),
            Act::UnixStream(path) => {
                let flags = SocketFlags::NONBLOCK;
                let family = AddressFamily::UNIX;
                let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
                net::connect(&socket, &net::SocketAddrUnix::new(self.at(path))?)
            }
            Act::UnixDatagram(path) => {
                let socket = net::socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
                let to = net::SocketAddrUnix::new(self.at(path))?;
                net::sendto(&socket, b"selftest", SendFlags::DONTWAIT, &to).map(drop)
            }
            Act::Abstract(name) => {
                let socket = net::socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
                let to = net::SocketAddrUnix::new_abstract_name(name.as_bytes())?;
                net::connect(&socket, &to)
            }
            Act::Run(words) => run(words),
            Act::Mount(at) => rustix::mount::mount(
                "none",
                self.at(at),
                "sandbox-selftest",
                rustix::mount::MountFlags::empty(),
                None::<&std::ffi::CStr>,
            ),
            other => Self::kernel(other),
        }
    }

    fn kernel(act: &Act) -> Result<()> {
        match act {
            Act::BpfLook => calls::bpf(),
            Act::BpfMake => bpf_make(),
            Act::Perf => perf(),
            Act::Log => calls::log(),
            Act::Clock => {
                // SAFETY: neither time nor zone is given, so nothing is read and nothing set.
                let answer = unsafe { libc::settimeofday(std::ptr::null(), std::ptr::null()) };
                told(answer.into())
            }
            // SAFETY: of no bytes nothing is read.
            Act::Module => told(unsafe {
                libc::syscall(libc::SYS_init_module, std::ptr::null::<u8>(), 0, c"".as_ptr())
            }),
            // SAFETY: this process has one thread.
            Act::UserNamespace => unsafe { unshare_unsafe(UnshareFlags::NEWUSER) },
            // SAFETY: numbers only; the descriptor is nobody else's.
            Act::Socket(family, kind, protocol) => unsafe {
                let socket = libc::socket(*family, *kind | libc::SOCK_CLOEXEC, *protocol);
                told(socket.into())?;
                drop(OwnedFd::from_raw_fd(socket));
                Ok(())
            },
            Act::SignalSelf => process::test_kill_process(process::getpid()),
            _ => Err(Errno::NOSYS),
        }
    }

    /// Acts on another process.
    fn touch(act: &Act) -> Result<()> {
        match *act {
            Act::Signal(pid) => process::test_kill_process(pid_of(pid)?),
            Act::PidfdSignal(pid) => {
                let pidfd = process::pidfd_open(pid_of(pid)?, PidfdFlags::empty())?;
                // SAFETY: numbers and no pointer but a null.
                told(unsafe {
                    let none = std::ptr::null::<u8>();
                    libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), 0, none, 0)
                })
            }
            Act::Seize(pid) => calls::seize(pid_of(pid)?),
            Act::VmRead(pid) => {
                let mut byte = 0_u8;
                let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
                let there =
                    libc::iovec { iov_base: std::ptr::without_provenance_mut(1), iov_len: 1 };
                // SAFETY: one byte of this process is written at most.
                told(unsafe {
                    libc::process_vm_readv(pid, &raw const here, 1, &raw const there, 1, 0)
                } as i64)
            }
            Act::GetFd(pid) => {
                let pidfd = process::pidfd_open(pid_of(pid)?, PidfdFlags::empty())?;
                let flags = process::PidfdGetfdFlags::empty();
                process::pidfd_getfd(&pidfd, 0, flags).map(drop)
            }
            Act::Nice(pid) => {
                let now = process::getpriority_process(Some(pid_of(pid)?))?;
                process::setpriority_process(Some(pid_of(pid)?), now)
            }
            Act::Affinity(pid) => {
                let now = rustix::thread::sched_getaffinity(Some(pid_of(pid)?))?;
                rustix::thread::sched_setaffinity(Some(pid_of(pid)?), &now)
            }
            Act::Limit(pid) => {
                let limit = process::getrlimit(process::Resource::Nofile);
                process::prlimit(Some(pid_of(pid)?), process::Resource::Nofile, limit).map(drop)
            }
            _ => Err(Errno::NOSYS),
        }
    }

    fn reach(act: &Act) -> Result<()> {
        let socket = |to: &SocketAddr, kind| {
            let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            net::socket_with(family, kind, SocketFlags::NONBLOCK, None)
        };
        match act {
            Act::Tcp(to) => net::connect(socket(to, SocketType::STREAM)?, to),
            Act::FastOpen(to) => {
                let flags = SendFlags::from_bits_retain(libc::MSG_FASTOPEN.cast_unsigned());
                net::sendto(socket(to, SocketType::STREAM)?, b"x", flags, to).map(drop)
            }
            Act::Udp(to) => {
                let socket = socket(to, SocketType::DGRAM)?;
                net::sendto(&socket, b"x", SendFlags::empty(), to).map(drop)
            }
            Act::UdpConnected(to) => {
                let socket = socket(to, SocketType::DGRAM)?;
                net::connect(&socket, to)?;
                net::send(&socket, b"x", SendFlags::empty()).map(drop)
            }
            _ => Err(Errno::NOSYS),
        }
    }

    fn become_program(&self, words: &[String]) -> Result<()> {
        let words: Vec<_> = words.iter().map(|word| self.text(word)).collect::<Result<_>>()?;
        let program = words.first().ok_or(Errno::INVAL)?;
        let ends = || std::iter::once(std::ptr::null());
        let list: Vec<_> = words.iter().map(|word| word.as_ptr()).chain(ends()).collect();
        let none: Vec<_> = ends().collect();
        // SAFETY: the words end in zeros and the lists in nulls, and all of them live through the call.
        unsafe { libc::execve(program.as_ptr(), list.as_ptr(), none.as_ptr()) };
        Err(last_errno())
    }

    /// `name_to_handle_at`, then `open_by_handle_at` by the root directory.
    fn by_handle(&self, path: &str) -> Result<()> {
        /// `struct file_handle` with room for `MAX_HANDLE_SZ` bytes.
        #[repr(C)]
        struct Handle {
            bytes: u32,
            kind: i32,
            opaque: [u8; 128],
        }
        let path = self.text(path)?;
        let mut handle = Handle { bytes: 128, kind: 0, opaque: [0; 128] };
        let mut mount = 0_i32;
        let (at, to, id) = (libc::AT_FDCWD, &raw mut handle, &raw mut mount);
        // SAFETY: the path ends in a zero, the handle has as much room as it says, all lives on.
        told(unsafe { libc::syscall(libc::SYS_name_to_handle_at, at, path.as_ptr(), to, id, 0) })?;
        let of = std::path::Path::new(std::ffi::OsStr::new(path.to_str().unwrap_or("/")));
        let beside = fs::open(of.parent().unwrap_or(of), OFlags::RDONLY, Mode::empty())?;
        let (beside, flags) = (beside.as_fd().as_raw_fd(), libc::O_RDONLY);
        // SAFETY: the handle lives through the call; the descriptor is nobody else's.
        let opened = unsafe { libc::syscall(libc::SYS_open_by_handle_at, beside, to, flags) };
        told(opened)
    }
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// What a system call says by a negative answer.
fn told(answer: i64) -> Result<()> {
    if answer < 0 { Err(last_errno()) } else { Ok(()) }
}

/// A user namespace, of which this process is root, and a mount namespace.
fn apart_from_all() -> Result<()> {
    let (uid, gid) = (process::getuid().as_raw(), process::getgid().as_raw());
    // SAFETY: this process has one thread.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) }?;
    for (file, text) in [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("0 {uid} 1")),
        ("/proc/self/gid_map", format!("0 {gid} 1")),
    ] {
        std::fs::write(file, text).map_err(|error| errno(&error))?;
    }
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
}

fn run(words: &[String]) -> Result<()> {
    let [program, arguments @ ..] = words else { return Err(Errno::INVAL) };
    let arguments = arguments
        .iter()
        .map(|word| if word == "OWN-PID" { std::process::id().to_string() } else { word.clone() });
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Errno::ACCESS),
        Err(error) => Err(errno(&error)),
    }
}

/// Makes an array of one number.
fn bpf_make() -> Result<()> {
    /// `BPF_MAP_CREATE`, `BPF_MAP_TYPE_ARRAY`: include/uapi/linux/bpf.h
    const MAP_CREATE: libc::c_long = 0;
    // `map_type`, `key_size`, `value_size`, `max_entries`, `map_flags` of `union bpf_attr`.
    let attr = [2_u32, 4, 4, 1, 0];
    // SAFETY: the attributes are as long as said and live through the call.
    let made =
        unsafe { libc::syscall(libc::SYS_bpf, MAP_CREATE, &raw const attr, size_of_val(&attr)) };
    told(made)
}

/// `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_CPU_CLOCK` of this process.
fn perf() -> Result<()> {
    // `PERF_ATTR_SIZE_VER0`: type, size, config, and five more words.
    let mut attr = [0_u64; 8];
    attr[0] = 1 | 64 << 32;
    // SAFETY: the attributes are as long as they say and live through the call.
    let opened = unsafe { libc::syscall(libc::SYS_perf_event_open, &raw const attr, 0, -1, -1, 0) };
    told(opened)
}
