//! One operation, performed by system calls, and how it went.
//!
//! `kernel-tests probe serve` reads operations from its standard input, one JSON object a line,
//! performs each in a child of its own and answers with one line. The same program inside and
//! outside a session is a member and its harmless twin.

mod attributes;
mod descriptors;
mod files;
mod names;
mod network;
mod place;
mod process;
mod programs;
mod stage;
mod unix;
mod uring;

pub(crate) use attributes::Attribute;
pub(crate) use descriptors::{Use, send};
pub(crate) use files::deep_directory;
pub(crate) use place::Place;
pub(crate) use process::Identity;
pub(crate) use programs::SIGNALLED;
pub(crate) use stage::Step;
pub(crate) use unix::UnixName;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;
use std::net::SocketAddr;
use std::process::ExitCode;

/// What to do. Flags are the kernel's own numbers (`O_*`, `RENAME_*`, `S_IF*`).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
pub(crate) enum Operation {
    // files.rs
    /// `openat`; reads what can be read and gives it as `data`.
    Open {
        path: Place,
        flags: i32,
    },
    /// `openat2`.
    Openat2 {
        path: Place,
        flags: i32,
    },
    /// `open(O_PATH)`, then open `/proc/self/fd/N`.
    Reopen {
        path: Place,
        flags: i32,
    },
    /// Opens `name` below `depth` directories named `level` under `base`, descriptor by descriptor.
    OpenDeep {
        base: Place,
        level: String,
        depth: usize,
        name: String,
        flags: i32,
    },
    /// `open_tree(OPEN_TREE_CLONE)` of a directory, then opens a name in the detached mount.
    OpenTree {
        directory: Place,
        name: String,
        flags: i32,
    },
    /// `name_to_handle_at`, gives the handle as `data`.
    Handle {
        path: Place,
    },
    /// `open_by_handle_at` in the file system that `mount` lies in.
    OpenHandle {
        mount: Place,
        handle: Handle,
        flags: i32,
    },
    /// `IORING_OP_OPENAT`; `worker` forces a kernel worker thread.
    UringOpen {
        path: Place,
        flags: i32,
        worker: bool,
    },
    /// Opens, and writes the text.
    Write {
        path: Place,
        text: String,
        flags: i32,
    },
    /// `truncate(2)`.
    Truncate {
        path: Place,
        length: u64,
    },
    /// Memory and pipe files made by the caller, opened again through `/proc/self/fd`.
    OwnMemory {},

    // names.rs
    /// `open(O_CREAT | O_EXCL | O_WRONLY)`.
    Create {
        path: Place,
    },
    Mkdir {
        path: Place,
    },
    Rmdir {
        path: Place,
    },
    Unlink {
        path: Place,
    },
    Symlink {
        target: Place,
        path: Place,
    },
    Link {
        from: Place,
        to: Place,
    },
    /// `open(O_PATH)` of the source, then `linkat` of the descriptor.
    LinkDescriptor {
        from: Place,
        to: Place,
        through_proc: bool,
    },
    /// `O_TMPFILE` in `directory`, then `linkat` of it to `to`.
    LinkTemporary {
        directory: Place,
        to: Place,
        through_proc: bool,
    },
    Rename {
        from: Place,
        to: Place,
        flags: u32,
    },
    /// `IORING_OP_RENAMEAT`.
    UringRename {
        from: Place,
        to: Place,
    },
    /// `IORING_OP_UNLINKAT`.
    UringUnlink {
        path: Place,
    },
    /// Kind is `S_IF*`; device is major, minor.
    Mknod {
        path: Place,
        kind: u32,
        device: (u32, u32),
    },
    /// A unix socket bound to the path.
    BindSocket {
        path: Place,
    },
    Chmod {
        path: Place,
        mode: u32,
    },
    Chown {
        path: Place,
        uid: u32,
    },

    /// Empties a directory and removes it, as far as that goes; the first error counts.
    RemoveTree {
        path: Place,
    },

    // attributes.rs
    Change {
        path: Place,
        attribute: Attribute,
    },

    // descriptors.rs
    /// Uses a descriptor of its own.
    UseFile {
        path: Place,
        flags: i32,
        usage: Use,
    },
    /// Uses a descriptor that the probe was started with.
    UseInherited {
        number: i32,
        usage: Use,
    },
    /// Uses a descriptor that a helper at this socket passes.
    UseReceived {
        from: UnixName,
        usage: Use,
    },
    /// Uses a descriptor of another process, by `pidfd_getfd`.
    UseTaken {
        pid: i32,
        number: i32,
        usage: Use,
    },
    /// Passes a file, memory and sockets to itself.
    PassOwn {
        path: Place,
        flags: i32,
    },
    /// `IORING_OP_OPENAT` under a registered personality.
    UringPersonality {
        path: Place,
        flags: i32,
    },

    // network.rs
    Tcp {
        address: SocketAddr,
    },
    TcpFastOpen {
        address: SocketAddr,
    },
    UringTcp {
        address: SocketAddr,
    },
    Udp {
        address: SocketAddr,
        way: UdpWay,
    },
    Socket {
        domain: i32,
        kind: i32,
        protocol: i32,
    },

    // unix.rs
    /// Connects a stream socket and sends.
    UnixStream {
        to: UnixName,
    },
    /// Sends a datagram without connecting.
    UnixDatagram {
        to: UnixName,
    },
    /// Connects a datagram socket and sends.
    UnixConnected {
        to: UnixName,
    },
    /// Listens, and connects to itself from a child.
    UnixOwn {
        at: UnixName,
    },

    // process.rs
    /// Who the serving process is.
    Identity {},
    /// `execve`, or `execveat` of an `O_PATH` descriptor.
    Execute {
        path: Place,
        descriptor: bool,
    },
    /// Copies the probe to memory and runs the operation there, by `execveat` of the descriptor.
    ExecuteMemory {
        then: Box<Operation>,
    },
    /// Dumps core.
    Crash {},
    Fork {
        then: Box<Operation>,
    },
    /// Fork twice, `setsid`, ignore `SIGHUP`, wait until the parent is gone.
    Daemon {
        then: Box<Operation>,
    },
    Thread {
        then: Box<Operation>,
    },
    /// `clone(CLONE_VM | CLONE_VFORK)`; the child opens the path.
    VforkOpen {
        path: Place,
    },
    /// `clone3(CLONE_INTO_CGROUP)` with a descriptor opened for reading.
    IntoCgroup {
        cgroup: Place,
    },
    Chroot {
        root: Place,
        then: Box<Operation>,
    },
    /// `unshare(CLONE_NEWNS)`, in a user namespace of its own if `user`, bind mounts, then.
    Namespace {
        user: bool,
        binds: Vec<(Place, Place)>,
        then: Box<Operation>,
    },
    /// Leaves a process behind that sleeps; its pid is `data`.
    Leftover {},
}

/// How a datagram is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UdpWay {
    /// `connect`, then `send`.
    Connect,
    Sendto,
    /// `sendto` with `sa_family = AF_UNSPEC`.
    SendtoUnspecified,
    /// `sendto` with an IPv4 address on an IPv6 socket.
    SendtoOldAddress,
    Sendmsg,
    Sendmmsg,
}

/// A file handle of `name_to_handle_at`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Handle {
    pub(crate) kind: i32,
    pub(crate) bytes: Vec<u8>,
}

/// How an operation went.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// Name of the operation.
    pub(crate) op: String,
    /// The process that performed it: what an event must name.
    pub(crate) pid: i32,
    /// 0, or the error of the system call that failed.
    pub(crate) errno: i32,
    /// The system call that failed; empty on success.
    #[serde(default)]
    pub(crate) stage: String,
    /// What the operation brought.
    #[serde(default)]
    pub(crate) data: Value,
}

impl Answer {
    fn new(op: &str, outcome: Outcome) -> Self {
        let (errno, stage, data) = match outcome {
            Ok(data) => (0, "", data),
            Err(failure) => (failure.errno.raw_os_error(), failure.stage, Value::Null),
        };
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        Self { op: op.to_owned(), pid, errno, stage: stage.to_owned(), data }
    }

    /// The text that the operation read.
    pub(crate) fn text(&self) -> &str {
        self.data.as_str().unwrap_or_default()
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.errno == 0 {
            write!(f, "succeeded, data {}", self.data)
        } else {
            let error = std::io::Error::from_raw_os_error(self.errno);
            write!(f, "{} failed: {error}", self.stage)
        }
    }
}

/// A system call that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    errno: Errno,
    stage: &'static str,
}

type Outcome = Result<Value, Failure>;

/// Names the system call of an error.
trait Stage<T> {
    fn stage(self, stage: &'static str) -> Result<T, Failure>;
}

impl<T> Stage<T> for Result<T, Errno> {
    fn stage(self, stage: &'static str) -> Result<T, Failure> {
        self.map_err(|errno| Failure { errno, stage })
    }
}

impl<T> Stage<T> for std::io::Result<T> {
    fn stage(self, stage: &'static str) -> Result<T, Failure> {
        self.map_err(|error| Failure {
            errno: Errno::from_io_error(&error).unwrap_or(Errno::IO),
            stage,
        })
    }
}

/// Performs the operation in this process, or in its children where the operation says so.
pub(crate) fn perform(operation: &Operation) -> Answer {
    use Operation as O;
    let name = operation.name();
    let outcome = match operation {
        O::Fork { then } => return process::in_child(name, || perform(then)),
        O::Daemon { then } => return process::daemon(name, then),
        O::Thread { then } => return process::thread(name, then),
        O::Chroot { root, then } => match process::chroot(root) {
            Ok(()) => return perform(then),
            Err(failure) => Err(failure),
        },
        O::Namespace { user, binds, then } => match process::namespace(*user, binds) {
            Ok(()) => return perform(then),
            Err(failure) => Err(failure),
        },
        O::ExecuteMemory { then } => return process::execute_memory(name, then),
        O::Crash {} => return process::crash(name),
        O::VforkOpen { path } => return process::vfork_open(name, path),
        O::Identity {} => process::identity(),
        O::Execute { path, descriptor } => return process::execute(name, path, *descriptor),
        O::IntoCgroup { cgroup } => process::into_cgroup(cgroup),
        O::Leftover {} => process::leftover(),
        O::Open { path, flags } => files::open(path, *flags),
        O::Openat2 { path, flags } => files::openat2(path, *flags),
        O::Reopen { path, flags } => files::reopen(path, *flags),
        O::OpenDeep { base, level, depth, name, flags } => {
            files::open_deep(base, level, *depth, name, *flags)
        }
        O::OpenTree { directory, name, flags } => files::open_tree(directory, name, *flags),
        O::Handle { path } => files::handle(path),
        O::OpenHandle { mount, handle, flags } => files::open_handle(mount, handle, *flags),
        O::UringOpen { path, flags, worker } => uring::open(path, *flags, *worker),
        O::Write { path, text, flags } => files::write(path, text, *flags),
        O::Truncate { path, length } => files::truncate(path, *length),
        O::OwnMemory {} => files::own_memory(),
        O::Create { path } => names::create(path),
        O::Mkdir { path } => names::mkdir(path),
        O::Rmdir { path } => names::rmdir(path),
        O::Unlink { path } => names::unlink(path),
        O::Symlink { target, path } => names::symlink(target, path),
        O::Link { from, to } => names::link(from, to),
        O::LinkDescriptor { from, to, through_proc } => {
            names::link_descriptor(from, to, *through_proc)
        }
        O::LinkTemporary { directory, to, through_proc } => {
            names::link_temporary(directory, to, *through_proc)
        }
        O::Rename { from, to, flags } => names::rename(from, to, *flags),
        O::UringRename { from, to } => uring::rename(from, to),
        O::UringUnlink { path } => uring::unlink(path),
        O::Mknod { path, kind, device } => names::mknod(path, *kind, *device),
        O::BindSocket { path } => names::bind_socket(path),
        O::Chmod { path, mode } => names::chmod(path, *mode),
        O::Chown { path, uid } => names::chown(path, *uid),
        O::RemoveTree { path } => names::remove_tree(path),
        O::Change { path, attribute } => attributes::change(path, *attribute),
        O::UseFile { path, flags, usage } => descriptors::of_file(path, *flags, *usage),
        O::UseInherited { number, usage } => descriptors::inherited(*number, *usage),
        O::UseReceived { from, usage } => descriptors::received(from, *usage),
        O::UseTaken { pid, number, usage } => descriptors::taken(*pid, *number, *usage),
        O::PassOwn { path, flags } => descriptors::passed(path, *flags),
        O::UringPersonality { path, flags } => uring::open_as_personality(path, *flags),
        O::Tcp { address } => network::tcp(*address),
        O::TcpFastOpen { address } => network::tcp_fast_open(*address),
        O::UringTcp { address } => uring::connect(*address),
        O::Udp { address, way } => network::udp(*address, *way),
        O::Socket { domain, kind, protocol } => network::socket(*domain, *kind, *protocol),
        O::UnixStream { to } => unix::stream(to),
        O::UnixDatagram { to } => unix::datagram(to),
        O::UnixConnected { to } => unix::connected(to),
        O::UnixOwn { at } => unix::own(at),
    };
    Answer::new(name, outcome)
}

impl Operation {
    /// The variant's name, for messages.
    fn name(&self) -> &'static str {
        use Operation as O;
        match self {
            O::Open { .. } => "open",
            O::Openat2 { .. } => "openat2",
            O::Reopen { .. } => "reopen",
            O::OpenDeep { .. } => "open_deep",
            O::OpenTree { .. } => "open_tree",
            O::Handle { .. } => "handle",
            O::OpenHandle { .. } => "open_handle",
            O::UringOpen { .. } => "uring_open",
            O::Write { .. } => "write",
            O::Truncate { .. } => "truncate",
            O::OwnMemory {} => "own_memory",
            O::Create { .. } => "create",
            O::Mkdir { .. } => "mkdir",
            O::Rmdir { .. } => "rmdir",
            O::Unlink { .. } => "unlink",
            O::Symlink { .. } => "symlink",
            O::Link { .. } => "link",
            O::LinkDescriptor { .. } => "link_descriptor",
            O::LinkTemporary { .. } => "link_temporary",
            O::Rename { .. } => "rename",
            O::UringRename { .. } => "uring_rename",
            O::UringUnlink { .. } => "uring_unlink",
            O::Mknod { .. } => "mknod",
            O::BindSocket { .. } => "bind_socket",
            O::Chmod { .. } => "chmod",
            O::Chown { .. } => "chown",
            O::RemoveTree { .. } => "remove_tree",
            O::Change { .. } => "change",
            O::UseFile { .. } => "use_file",
            O::UseInherited { .. } => "use_inherited",
            O::UseReceived { .. } => "use_received",
            O::UseTaken { .. } => "use_taken",
            O::PassOwn { .. } => "pass_own",
            O::UringPersonality { .. } => "uring_personality",
            O::Tcp { .. } => "tcp",
            O::TcpFastOpen { .. } => "tcp_fast_open",
            O::UringTcp { .. } => "uring_tcp",
            O::Udp { .. } => "udp",
            O::Socket { .. } => "socket",
            O::UnixStream { .. } => "unix_stream",
            O::UnixDatagram { .. } => "unix_datagram",
            O::UnixConnected { .. } => "unix_connected",
            O::UnixOwn { .. } => "unix_own",
            O::Identity {} => "identity",
            O::Execute { .. } => "execute",
            O::ExecuteMemory { .. } => "execute_memory",
            O::Crash {} => "crash",
            O::Fork { .. } => "fork",
            O::Daemon { .. } => "daemon",
            O::Thread { .. } => "thread",
            O::VforkOpen { .. } => "vfork_open",
            O::IntoCgroup { .. } => "into_cgroup",
            O::Chroot { .. } => "chroot",
            O::Namespace { .. } => "namespace",
            O::Leftover {} => "leftover",
        }
    }
}

/// What the command line asks for besides the suite: `probe …`, `stage …`, the tests
/// that can be run longer, and a list of what is tested.
pub(crate) fn command_line() -> Option<ExitCode> {
    let mut words = std::env::args().skip(1);
    let first = words.next();
    let rest: Vec<String> = words.collect();
    match first.as_deref() {
        Some("probe") => Some(programs::probe(&rest)),
        Some("stage") => Some(stage::main(&rest)),
        Some("coverage") => Some(crate::coverage::command()),
        Some("race") => Some(crate::race::command(&rest)),
        Some("differential") => Some(crate::differential::command(&rest)),
        _ => None,
    }
}
