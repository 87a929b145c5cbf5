//! What is tried. None of it, got through, harms anything but decoys.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// One way. Paths are absolute, but that `TMPDIR/` at their beginning stands for the session's directory
/// for temporary files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// Opens for reading, and closes.
    Read(String),
    /// Opens, and reads one byte: some files of procfs ask only then.
    ReadByte(String),
    /// Opens with `O_PATH`, then that descriptor's link in procfs.
    Reopen(String),
    /// Makes a symbolic link `at`, opens it, removes it.
    Symlinked {
        /// The target.
        to: String,
        /// The link.
        at: String,
    },
    /// Opens by the handle that the kernel gives for it.
    Handle(String),
    /// Makes a second name and removes that again.
    Link(String, String),
    /// In a user and mount namespace of its own, binds the directory to `at` and opens the name there.
    Bound {
        /// What is bound.
        directory: String,
        /// Where.
        at: String,
        /// The name.
        name: String,
    },
    /// The same by a detached copy of the mount (`open_tree`), which no hook of mounts sees.
    Detached {
        /// What is copied.
        directory: String,
        /// The name.
        name: String,
    },
    /// In a process that has left its terminal and its group.
    Daemon(Box<Act>),
    /// Under another name of the process.
    Named(String, Box<Act>),
    /// Opens for writing, without writing.
    Write(String),
    /// Creates and leaves it.
    Create(String),
    /// Creates and removes.
    Passing(String),
    /// Makes a directory and removes it.
    PassingDirectory(String),
    /// Makes and removes an unnamed file in the directory.
    TmpFile(String),
    /// Empties by name.
    Truncate(String),
    /// Removes.
    Unlink(String),
    /// Renames.
    Rename(String, String),
    /// Makes a directory.
    Mkdir(String),
    /// Makes a FIFO.
    Fifo(String),
    /// Changes the mode to 0600.
    Chmod(String),
    /// Changes the owner to who it is.
    Chown(String),
    /// Sets the times to now.
    Times(String),
    /// Sets an extended attribute.
    Xattr(String),
    /// Sets no inode flags (`chattr`).
    Flags(String),
    /// Binds a unix socket there.
    Bind(String),
    /// Writes its own process id there, a `cgroup.procs`.
    Enter(String),
    /// Has a child born in the cgroup of that directory.
    CloneInto(String),
    /// Mounts a cgroup hierarchy of its own there, in namespaces of its own.
    OwnCgroups(String),
    /// Connects to a unix socket and says nothing.
    UnixStream(String),
    /// Sends a datagram to a unix socket.
    UnixDatagram(String),
    /// Connects to an abstract unix socket.
    Abstract(String),
    /// Listens and connects to itself there.
    OwnSocket(String),
    /// Becomes the program that these words name (`execve`): a file that is none of any format changes nothing.
    Execute(Vec<String>),
    /// Maps a file as the loader maps a program.
    Map(String),
    /// Creates a file that may be run, and leaves it.
    Program(String),
    /// Runs a program; its failure is a refusal.
    Run(Vec<String>),
    /// Signal 0.
    Signal(i32),
    /// Signal 0 by a pidfd.
    PidfdSignal(i32),
    /// `PTRACE_SEIZE`, which does not stop.
    Seize(i32),
    /// `process_vm_readv` of nothing.
    VmRead(i32),
    /// `pidfd_getfd` of standard input.
    GetFd(i32),
    /// Sets the nice value that it has.
    Nice(i32),
    /// Binds to the processors to which it is bound.
    Affinity(i32),
    /// Sets the limit that it has.
    Limit(i32),
    /// Asks for the first BPF map.
    BpfLook,
    /// Makes a BPF map.
    BpfMake,
    /// Counts its own clock.
    Perf,
    /// Asks for the size of the kernel's log.
    Log,
    /// Sets neither the time nor the zone.
    Clock,
    /// Loads a module of no bytes.
    Module,
    /// Mounts a file system type that does not exist.
    Mount(String),
    /// Makes a user namespace.
    UserNamespace,
    /// Connects by TCP without waiting.
    Tcp(SocketAddr),
    /// TCP Fast Open.
    FastOpen(SocketAddr),
    /// Sends a datagram.
    Udp(SocketAddr),
    /// Connects a datagram socket and sends.
    UdpConnected(SocketAddr),
    /// Makes a socket: family, type, protocol.
    Socket(i32, i32, i32),
    /// Signal 0 to itself.
    SignalSelf,
}

impl Act {
    /// Whether an error number means that the kernel's guards let it pass and something later did not.
    pub fn passed(&self, errno: i32) -> bool {
        match self {
            _ if errno == 0 => true,
            Self::Daemon(act) | Self::Named(_, act) => act.passed(errno),
            Self::Tcp(_) | Self::FastOpen(_) | Self::Udp(_) | Self::UdpConnected(_) => matches!(
                errno,
                libc::EINPROGRESS
                    | libc::ECONNREFUSED
                    | libc::ENETUNREACH
                    | libc::EHOSTUNREACH
                    | libc::ETIMEDOUT
            ),
            Self::UnixStream(_) | Self::UnixDatagram(_) | Self::Abstract(_) => {
                matches!(errno, libc::EAGAIN | libc::EPROTOTYPE)
            }
            Self::Mount(_) => errno == libc::ENODEV,
            Self::VmRead(_) => errno == libc::EFAULT,
            Self::Module | Self::Execute(_) => errno == libc::ENOEXEC,
            Self::BpfLook => errno == libc::ENOENT,
            Self::Enter(_) => errno == libc::EBUSY || errno == libc::EOPNOTSUPP,
            _ => false,
        }
    }
}
