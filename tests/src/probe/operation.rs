//! What the hand can be asked to do.

use super::{Act, Attribute, Call, LookupWay, Place, SocketWay, Surface, UnixName, Use, Whom};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

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
    /// Sends before and after something is there, by one connection.
    TcpAcross {
        address: SocketAddr,
        until: Place,
    },
    TcpFastOpen {
        address: SocketAddr,
    },
    UringTcp {
        address: SocketAddr,
    },
    // hello.rs
    /// Connects and sends these parts, each by itself; waits until the other side has heard them where `answered`.
    Hello {
        address: SocketAddr,
        parts: Vec<Vec<u8>>,
        way: HelloWay,
        answered: bool,
    },
    Udp {
        address: SocketAddr,
        way: UdpWay,
    },
    /// Sends a datagram to one after the other, from one socket, and tells what comes ([`Heard`]) until [`ENOUGH`].
    Hear {
        to: Vec<SocketAddr>,
    },
    /// Asks for the address again and again, in threads that end with the process.
    Hammer {
        address: SocketAddr,
        threads: u8,
    },
    Socket {
        domain: i32,
        kind: i32,
        protocol: i32,
    },

    // kinds.rs
    /// Every kind of socket; `data` are those that were made.
    SocketTable {
        way: SocketWay,
    },

    // names.rs
    /// In some threads, until something is there: renames from one directory into another, which takes both to
    /// be open, and opens a file of each for writing. Counts what succeeded.
    Between {
        one: Place,
        other: Place,
        until: Place,
        threads: usize,
    },

    // lookup.rs
    /// Asks a name server for records of a type.
    Lookup {
        server: SocketAddr,
        name: String,
        kind: u16,
        way: LookupWay,
    },
    /// Sends a name server what is no question.
    LookupGarbage {
        server: SocketAddr,
    },

    // listen.rs
    Bind {
        address: SocketAddr,
        udp: bool,
    },
    /// Binds unless `unbound`, and listens.
    Listen {
        address: SocketAddr,
        unbound: bool,
    },
    /// Listens at `at` and connects there by the address `to`.
    OwnTcp {
        at: IpAddr,
        to: IpAddr,
    },
    /// Leaves a process behind that listens; its port is `data`.
    ListenOn {
        ip: IpAddr,
    },
    /// Asks itself by UDP and gets an answer.
    OwnUdp {
        at: IpAddr,
    },
    /// Listens, stops listening, and connects to whoever is there.
    AfterOwn {
        address: SocketAddr,
    },
    /// Connected UDP whose packets take the way by `via`.
    Routed {
        address: SocketAddr,
        via: IpAddr,
    },
    /// `connect` with `AF_UNSPEC` of a descriptor that was there from the beginning.
    DisconnectInherited {
        number: i32,
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
    /// A child that becomes a program with these arguments.
    Start {
        path: Place,
        words: Vec<String>,
        by: Call,
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
    /// Becomes an ordinary user, then.
    As {
        uid: u32,
        then: Box<Operation>,
    },
    /// Lets itself open only what lies beneath (Landlock), then.
    Landlocked {
        beneath: Place,
        then: Box<Operation>,
    },
    /// Calls itself something else (`PR_SET_NAME`), then.
    Named {
        name: String,
        then: Box<Operation>,
    },
    /// `open` by the 32-bit system call (`int 0x80`).
    OldOpen {
        path: Place,
        flags: i32,
    },
    /// `openat` in a ring whose requests a kernel thread picks up (`IORING_SETUP_SQPOLL`).
    UringPolled {
        path: Place,
        flags: i32,
    },
    /// Opens so often; refused where every time was. `data` is how often it was not.
    Flood {
        path: Place,
        flags: i32,
        times: u32,
    },
    /// Makes so many files, ten to a directory, opens each again and removes all. `data` is how often one was
    /// opened.
    Many {
        directory: Place,
        files: u32,
    },
    /// Everybody forks until nobody can, and whoever was born opens the path. `data` counts who was `born`, who
    /// was `refused` another child, and who `opened` the path.
    Bomb {
        path: Place,
    },
    /// Opens the path and connects to the address again and again with so many milliseconds in between, until
    /// `stop` exists, but once at the least. `data` counts the tries that were `refused` and those that got
    /// `through`, as does one that fails in another way than by a refusal.
    Siege {
        path: Place,
        address: SocketAddr,
        stop: Place,
        pause: u64,
    },
    /// Runs a program with arguments; refused where its status is not 0.
    Run {
        words: Vec<String>,
    },

    /// `mount(2)` of a new file system with these options, then.
    Mounted {
        kind: String,
        at: Place,
        options: String,
        then: Box<Operation>,
    },
    /// `fsopen`, `fsconfig` of each of these, `FSCONFIG_CMD_CREATE` and `fsmount`.
    FsMounted {
        kind: String,
        options: Vec<(String, String)>,
    },
    /// `umount2`, with `MNT_DETACH` where `lazy`.
    Unmount {
        path: Place,
        lazy: bool,
    },

    // outsider.rs
    /// To another process.
    Other {
        whom: Whom,
        act: Act,
    },

    // surface.rs
    Reach {
        surface: Surface,
    },
    /// Leaves a process behind that sleeps; its pid is `data`.
    Leftover {},
}

/// The datagram that says that no more come.
pub(crate) const ENOUGH: &[u8] = b"enough";

/// A datagram that came.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Heard {
    pub(crate) from: SocketAddr,
    /// In bytes.
    pub(crate) length: usize,
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

/// How what a connection begins with is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HelloWay {
    Write,
    /// With the first segment of all, by `MSG_FASTOPEN` without a cookie.
    FastOpen,
    /// The first part by a connection of its own, the rest by another one of the same socket.
    Again,
    /// `MSG_OOB`
    Urgent,
    /// `MSG_ZEROCOPY`
    ZeroCopy,
    /// `IORING_OP_SEND`
    Uring,
    /// Out of a file.
    Sendfile,
    /// Out of a pipe.
    Splice,
}

/// A file handle of `name_to_handle_at`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Handle {
    pub(crate) kind: i32,
    pub(crate) bytes: Vec<u8>,
}

impl Operation {
    /// The variant's name, for messages.
    pub(super) fn name(&self) -> &'static str {
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
            O::TcpAcross { .. } => "tcp_across",
            O::TcpFastOpen { .. } => "tcp_fast_open",
            O::UringTcp { .. } => "uring_tcp",
            O::Hello { .. } => "hello",
            O::Udp { .. } => "udp",
            O::Hear { .. } => "hear",
            O::Hammer { .. } => "hammer",
            O::Socket { .. } => "socket",
            O::SocketTable { .. } => "socket_table",
            O::Between { .. } => "between",
            O::Lookup { .. } => "lookup",
            O::LookupGarbage { .. } => "lookup_garbage",
            O::Bind { .. } => "bind",
            O::Listen { .. } => "listen",
            O::OwnTcp { .. } => "own_tcp",
            O::ListenOn { .. } => "listen_on",
            O::OwnUdp { .. } => "own_udp",
            O::AfterOwn { .. } => "after_own",
            O::Routed { .. } => "routed",
            O::DisconnectInherited { .. } => "disconnect_inherited",
            O::UnixStream { .. } => "unix_stream",
            O::UnixDatagram { .. } => "unix_datagram",
            O::UnixConnected { .. } => "unix_connected",
            O::UnixOwn { .. } => "unix_own",
            O::Identity {} => "identity",
            O::Execute { .. } => "execute",
            O::Start { .. } => "start",
            O::ExecuteMemory { .. } => "execute_memory",
            O::Crash {} => "crash",
            O::Fork { .. } => "fork",
            O::Daemon { .. } => "daemon",
            O::Thread { .. } => "thread",
            O::VforkOpen { .. } => "vfork_open",
            O::IntoCgroup { .. } => "into_cgroup",
            O::Chroot { .. } => "chroot",
            O::Namespace { .. } => "namespace",
            O::As { .. } => "as",
            O::Landlocked { .. } => "landlocked",
            O::Named { .. } => "named",
            O::OldOpen { .. } => "old_open",
            O::UringPolled { .. } => "uring_polled",
            O::Flood { .. } => "flood",
            O::Many { .. } => "many",
            O::Bomb { .. } => "bomb",
            O::Siege { .. } => "siege",
            O::Run { .. } => "run",
            O::Mounted { .. } => "mounted",
            O::FsMounted { .. } => "fs_mounted",
            O::Unmount { .. } => "unmount",
            O::Other { .. } => "other",
            O::Reach { .. } => "reach",
            O::Leftover {} => "leftover",
        }
    }
}
