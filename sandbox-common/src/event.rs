//! What happened: the records on the ring.
//!
//! A record is a [`Header`] and, by its `kind`, one payload. A reader that does not know a kind
//! skips the record; the ring delimits records.

use crate::net::AbstractName;

/// Version of the record format; a reader refuses others.
pub const VERSION: u8 = 2;
/// Most bytes of path text in a record.
pub const PATH_BYTES: usize = 2048;
/// Room for the name that is being appended when the text is full: the kernel side writes it before
/// it knows its length.
pub const PATH_SLACK: usize = 256;

/// Bytes of a session's ring of denials, and of that of notes: a power of two and whole pages.
pub const RING_BYTES: u32 = 512 << 10;

/// First part of every record.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Header {
    /// [`VERSION`].
    pub version: u8,
    /// A [`Kind`].
    pub kind: u8,
    /// A [`Hook`].
    pub hook: u8,
    /// A [`Reason`].
    pub reason: u8,
    /// What was attempted and not allowed, or what was done: [`Access`](crate::Access) bits.
    pub access: u32,
    /// Session number.
    pub session: u32,
    /// Rule that decided; 0 is the default.
    pub rule: u32,
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    pub time: u64,
    /// The session's cgroup id.
    pub cgroup: u64,
    /// Process id (the kernel's tgid) in the initial pid namespace.
    pub pid: u32,
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// Real user id in the initial user namespace.
    pub uid: u32,
    /// The session's [`Mode`](crate::subject::Mode): in `Audit` the operation went on.
    pub mode: u32,
    /// The thread's name, zero-terminated.
    pub comm: [u8; 16],
}

/// An object in a file system. `len` bytes of names follow: the path from the superblock's root,
/// *innermost component first*, each zero-terminated.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct PathPayload {
    /// `super_block.s_dev`, kernel encoding.
    pub dev: u32,
    /// `inode.i_rdev`, kernel encoding, where the object is a device; else 0.
    pub rdev: u32,
    /// `inode.i_mode`; 0 where the object does not exist yet.
    pub mode: u32,
    /// Bytes of names, at most [`PATH_BYTES`].
    pub len: u32,
    /// 1 where the outermost components are missing.
    pub truncated: u32,
    /// Zero.
    pub pad: u32,
}

/// Another process.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct ProcessPayload {
    /// Its process id (the kernel's tgid) in the initial pid namespace.
    pub pid: u32,
    /// What was asked for: the signal's number, or the kernel's `PTRACE_MODE_*` bits.
    pub request: u32,
    /// Its main thread's name, zero-terminated.
    pub comm: [u8; 16],
}

/// A record of kind [`Kind::Process`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct ProcessEvent {
    /// First part.
    pub header: Header,
    /// The other process.
    pub process: ProcessPayload,
}

/// Bytes of a cgroup's path in a [`MovedPayload`], with the zero that ends it.
pub const MOVED_BYTES: usize = 256;

/// A member that was moved to another cgroup.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct MovedPayload {
    /// Its process id (the kernel's tgid) in the initial pid namespace.
    pub pid: u32,
    /// Zero.
    pub pad: u32,
    /// Its main thread's name, zero-terminated.
    pub comm: [u8; 16],
    /// Where it is now: the path from its hierarchy's root, zero-terminated, perhaps cut.
    pub to: [u8; MOVED_BYTES],
}

/// A record of kind [`Kind::Moved`]. Its header is about who moved it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct MovedEvent {
    /// First part.
    pub header: Header,
    /// The member.
    pub moved: MovedPayload,
}

/// An address.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct NetPayload {
    /// `AF_INET` or `AF_INET6`, of the address (an IPv4-mapped one is `AF_INET`).
    pub family: u16,
    /// Native byte order.
    pub port: u16,
    /// `IPPROTO_*`.
    pub protocol: u16,
    /// Zero.
    pub pad: u16,
    /// Network byte order; an IPv4 address is in the first four bytes.
    pub address: [u8; 16],
}

/// Most bytes of a server name in a [`ServerPayload`], rounded up.
pub const SERVER_BYTES: usize = 256;

/// An address, and the name that TLS asked for there.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct ServerPayload {
    /// The address.
    pub net: NetPayload,
    /// Bytes of the name; 0 where it is not known.
    pub len: u32,
    /// Zero.
    pub pad: u32,
    /// The name, in lower case, with whatever behind it.
    pub name: [u8; SERVER_BYTES],
}

/// A record of kind [`Kind::Server`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct ServerEvent {
    /// First part.
    pub header: Header,
    /// The address and the name.
    pub server: ServerPayload,
}

/// A record of kind [`Kind::Unix`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct UnixEvent {
    /// First part.
    pub header: Header,
    /// The name of the other socket.
    pub name: AbstractName,
}

/// A record of kind [`Kind::Path`] at its longest; the ring holds only the bytes in use.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct PathEvent {
    /// First part.
    pub header: Header,
    /// The object.
    pub path: PathPayload,
    /// The names.
    pub names: [u8; PATH_BYTES + PATH_SLACK],
}

/// A record of kind [`Kind::Net`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct NetEvent {
    /// First part.
    pub header: Header,
    /// The address.
    pub net: NetPayload,
}

/// Numbers that have names: the enum, and the fallible way back from the wire.
macro_rules! names {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $number:literal $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum $name { $($(#[$doc])* $variant = $number,)* }
        impl $name {
            /// Every variant, by number.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];
            /// The variant of a number from a record.
            pub const fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$variant),)* _ => None }
            }
            /// The name in output.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

names! {
    /// Which payload follows the header.
    Kind {
        /// [`PathPayload`].
        Path = 1 "path",
        /// [`NetPayload`].
        Net = 2 "net",
        /// Nothing.
        Task = 3 "task",
        /// [`ProcessPayload`].
        Process = 4 "process",
        /// [`MovedPayload`]; nothing was denied.
        Moved = 5 "moved",
        /// [`AbstractName`].
        Unix = 6 "unix",
        /// [`ServerPayload`].
        Server = 7 "server",
    }
}

names! {
    /// Where the kernel asked.
    Hook {
        /// `security_file_open`.
        FileOpen = 1 "file_open",
        /// `security_path_mknod`: create, mknod, bind of a unix socket.
        PathMknod = 2 "path_mknod",
        /// `security_path_mkdir`.
        PathMkdir = 3 "path_mkdir",
        /// `security_path_symlink`.
        PathSymlink = 4 "path_symlink",
        /// `security_path_link`.
        PathLink = 5 "path_link",
        /// `security_path_unlink`.
        PathUnlink = 6 "path_unlink",
        /// `security_path_rmdir`.
        PathRmdir = 7 "path_rmdir",
        /// `security_path_rename`.
        PathRename = 8 "path_rename",
        /// `security_path_truncate`.
        PathTruncate = 9 "path_truncate",
        /// `security_file_truncate`, 6.2 and later.
        FileTruncate = 10 "file_truncate",
        /// `security_task_alloc`.
        TaskAlloc = 11 "task_alloc",
        /// `BPF_CGROUP_INET4_CONNECT`.
        Connect4 = 12 "connect4",
        /// `BPF_CGROUP_INET6_CONNECT`.
        Connect6 = 13 "connect6",
        /// `BPF_CGROUP_UDP4_SENDMSG`.
        Sendmsg4 = 14 "sendmsg4",
        /// `BPF_CGROUP_UDP6_SENDMSG`.
        Sendmsg6 = 15 "sendmsg6",
        /// `security_socket_create`.
        SocketCreate = 16 "socket_create",
        /// `security_path_chmod`.
        PathChmod = 17 "path_chmod",
        /// `security_path_chown`.
        PathChown = 18 "path_chown",
        /// `security_file_ioctl`.
        FileIoctl = 19 "file_ioctl",
        /// `security_ptrace_access_check`.
        PtraceAccessCheck = 20 "ptrace_access_check",
        /// `security_ptrace_traceme`.
        PtraceTraceme = 21 "ptrace_traceme",
        /// `security_task_kill`.
        TaskKill = 22 "task_kill",
        /// `security_task_setnice`.
        TaskSetnice = 23 "task_setnice",
        /// `security_task_setioprio`.
        TaskSetioprio = 24 "task_setioprio",
        /// `security_task_setscheduler`.
        TaskSetscheduler = 25 "task_setscheduler",
        /// `security_task_setrlimit`.
        TaskSetrlimit = 26 "task_setrlimit",
        /// `security_task_movememory`.
        TaskMovememory = 27 "task_movememory",
        /// `security_task_setpgid`.
        TaskSetpgid = 28 "task_setpgid",
        /// `security_sb_mount`.
        SbMount = 29 "sb_mount",
        /// `security_sb_remount`.
        SbRemount = 30 "sb_remount",
        /// `security_sb_kern_mount`.
        SbKernMount = 31 "sb_kern_mount",
        /// `security_sb_umount`.
        SbUmount = 32 "sb_umount",
        /// `security_sb_pivotroot`.
        SbPivotroot = 33 "sb_pivotroot",
        /// `security_move_mount`.
        MoveMount = 34 "move_mount",
        /// `security_create_user_ns`.
        UsernsCreate = 35 "userns_create",
        /// `security_bpf`.
        Bpf = 36 "bpf",
        /// `security_perf_event_open`.
        PerfEventOpen = 37 "perf_event_open",
        /// `security_kernel_module_request`.
        KernelModuleRequest = 38 "kernel_module_request",
        /// `security_kernel_load_data`.
        KernelLoadData = 39 "kernel_load_data",
        /// `security_kernel_read_file`.
        KernelReadFile = 40 "kernel_read_file",
        /// `security_syslog`.
        Syslog = 41 "syslog",
        /// `security_settime64`.
        Settime = 42 "settime",
        /// `security_socket_connect`.
        SocketConnect = 43 "socket_connect",
        /// `security_file_ioctl_compat`, 6.8 and later: of 32-bit programs.
        FileIoctlCompat = 44 "file_ioctl_compat",
        /// `security_unix_stream_connect`.
        UnixStreamConnect = 45 "unix_stream_connect",
        /// `security_unix_may_send`.
        UnixMaySend = 46 "unix_may_send",
        /// `security_socket_post_create`: marks the session's own sockets, denies only for want of
        /// memory.
        SocketPostCreate = 47 "socket_post_create",
        /// `security_inode_setattr`: times.
        InodeSetattr = 48 "inode_setattr",
        /// `security_inode_setxattr`; before 6.2 ACLs too.
        InodeSetxattr = 49 "inode_setxattr",
        /// `security_inode_removexattr`; before 6.2 ACLs too.
        InodeRemovexattr = 50 "inode_removexattr",
        /// `security_inode_set_acl`, 6.2 and later.
        InodeSetAcl = 51 "inode_set_acl",
        /// `security_inode_remove_acl`, 6.2 and later.
        InodeRemoveAcl = 52 "inode_remove_acl",
        /// `security_inode_file_setattr`, 6.17 and later.
        InodeFileSetattr = 53 "inode_file_setattr",
        /// `security_mmap_file`: shared writable and executable mappings.
        MmapFile = 54 "mmap_file",
        /// `security_file_mprotect`: a mapping that becomes one of those.
        FileMprotect = 55 "file_mprotect",
        /// `security_file_receive`: a descriptor passed over a socket or taken by `pidfd_getfd`.
        FileReceive = 56 "file_receive",
        /// `security_uring_override_creds`: an `io_uring` request under a registered personality.
        UringOverrideCreds = 57 "uring_override_creds",
        /// `security_inode_follow_link`: a symbolic link whose own name is closed.
        InodeFollowLink = 85 "inode_follow_link",
        /// `security_file_send_sigiotask`: a signal that the kernel sends for a descriptor (`F_SETOWN`).
        FileSendSigiotask = 80 "file_send_sigiotask",
        /// `security_key_alloc`: notes the session's own keys, denies only for want of memory.
        KeyAlloc = 81 "key_alloc",
        /// `security_key_permission`: a key of the kernel's keyrings.
        KeyPermission = 82 "key_permission",
        /// `security_quotactl`.
        Quotactl = 83 "quotactl",
        /// `security_fs_context_parse_param`: what a file system that is to be mounted is told.
        FsContextParseParam = 84 "fs_context_parse_param",
        /// `security_bprm_creds_for_exec`: a program that is about to run, with its arguments.
        BprmCredsForExec = 86 "bprm_creds_for_exec",
        /// `security_bprm_check`: a program that is to run, and the interpreter of a script after it. It denies nothing.
        BprmCheckSecurity = 91 "bprm_check_security",
        /// `BPF_CGROUP_INET4_BIND`.
        Bind4 = 58 "bind4",
        /// `BPF_CGROUP_INET6_BIND`.
        Bind6 = 59 "bind6",
        /// `security_socket_listen`.
        SocketListen = 60 "socket_listen",
        /// `BPF_CGROUP_INET_EGRESS`: a packet of a member's socket. It tells of no process.
        Egress = 61 "egress",
        /// `BPF_CGROUP_UDP4_RECVMSG`: whose answer it is.
        Recvmsg4 = 62 "recvmsg4",
        /// `BPF_CGROUP_UDP6_RECVMSG`.
        Recvmsg6 = 63 "recvmsg6",
        /// `BPF_CGROUP_INET4_GETPEERNAME`: whom it is connected to.
        Getpeername4 = 64 "getpeername4",
        /// `BPF_CGROUP_INET6_GETPEERNAME`.
        Getpeername6 = 65 "getpeername6",
        /// `BPF_CGROUP_INET_INGRESS`: a datagram for a member's socket. It tells of no process.
        Ingress = 67 "ingress",
        /// The session's resolver, which refused a name; no record of the kernel has it.
        Resolver = 66 "resolver",
        /// The tracepoint of that name: a member was moved to another cgroup. It denies nothing.
        CgroupAttachTask = 90 "cgroup_attach_task",
    }
}

names! {
    /// Why it was denied; or that it was not.
    Reason {
        /// It was allowed, and the policy has such noted (`audit`).
        Allowed = 40 "allowed",
        /// A rule says so; `rule` names it.
        Rule = 1 "rule",
        /// No rule allows it and the default does not.
        Default = 2 "default",
        /// The file system is none that the policy knows.
        UnknownFilesystem = 3 "unknown_filesystem",
        /// The device is not on the list.
        Device = 4 "device",
        /// The object has no place: its chain of parents does not end at its file system's root.
        Disconnected = 5 "disconnected",
        /// More than [`WALK_DEPTH`](crate::path::WALK_DEPTH) components deep.
        TooDeep = 6 "too_deep",
        /// The place it would get grants what its present place does not.
        Gain = 7 "gain",
        /// A rule names a place beneath; moving it would move what the rule protects, and a link would lead past it.
        RuleBeneath = 8 "rule_beneath",
        /// A child asked to be born in another cgroup (`CLONE_INTO_CGROUP`).
        IntoCgroup = 9 "into_cgroup",
        /// The kernel had no memory for the walk.
        NoMemory = 10 "no_memory",
        /// A kernel object could not be read.
        Unreadable = 11 "unreadable",
        /// The task belongs to a session that has ended.
        SessionEnded = 12 "session_ended",
        /// Sockets of this family, type or protocol are not allowed.
        SocketKind = 13 "socket_kind",
        /// The other process is not of the session.
        Outsider = 14 "outsider",
        /// No session may do this.
        Never = 15 "never",
        /// The member was moved out of its session's cgroup, where its sockets cannot be judged.
        Moved = 16 "moved",
        /// The unix socket at the other end has no name at all and is not of the session.
        Foreign = 17 "foreign",
        /// The directory compares names without regard to case, and this one cannot be told from
        /// another that rules speak of.
        CaseInsensitive = 18 "case_insensitive",
        /// A link-local, metadata or broadcast address that no rule names for itself.
        Reserved = 19 "reserved_address",
        /// The packet takes another way than to its destination, or is of a kind that cannot be judged.
        Packet = 20 "packet",
        /// A name was asked for so long ago that its address may be another's by now.
        Expired = 21 "expired",
        /// As many bytes have passed as the rule lets pass.
        Spent = 22 "spent",
        /// A person is to be asked first, says `rule`.
        Asked = 26 "asked",
        /// TLS asks for a name that no rule allows at this port, for what is no name, or for several.
        ServerName = 30 "server_name",
        /// TLS asks for no name.
        NoServerName = 31 "no_server_name",
        /// What the connection begins with is not what TLS begins with, or nothing that can be judged.
        NotTls = 32 "not_tls",
        /// The first message of TLS is not whole in the first packet and in one record.
        SplitHello = 33 "split_hello",
        /// What TLS begins with lies in memory that the program can change until it has left the machine.
        Changeable = 35 "changeable",
        /// The rule checks server names, which only those of TLS over TCP can be.
        NotTcp = 34 "not_tcp",
    }
}

impl Reason {
    /// Reasons that are none of the policy's: something could not be judged, so it was denied.
    pub const FAULTS: [Self; 5] =
        [Self::Disconnected, Self::TooDeep, Self::NoMemory, Self::Unreadable, Self::SessionEnded];
}

/// Kinds of faults per hook in map `FAULTS`.
const FAULT_KINDS: u32 = 32;
/// Entries of map `FAULTS`: how often each hook denied for each reason of [`Reason::FAULTS`].
pub const FAULT_COUNTERS: u32 = 256 * FAULT_KINDS;

/// Index in map `FAULTS` of a hook and a reason; `None` where the reason is no fault.
#[inline(always)]
pub const fn fault_counter(hook: u8, reason: u16) -> Option<u32> {
    let mut at = 0;
    while at < Reason::FAULTS.len() {
        if reason == Reason::FAULTS[at] as u16 {
            return Some(hook as u32 * FAULT_KINDS + reason as u32);
        }
        at += 1;
    }
    None
}

#[cfg(feature = "user")]
crate::pod!(
    Header,
    PathPayload,
    NetPayload,
    PathEvent,
    NetEvent,
    ServerPayload,
    ServerEvent,
    UnixEvent,
    ProcessPayload,
    ProcessEvent,
    MovedPayload,
    MovedEvent
);
