//! What the canary tries, and how each attempt must end.

use sandbox_common::Access;
use sandbox_common::event::Hook;
use serde::{Deserialize, Serialize};
use std::ffi::CStr;
use std::fmt;

/// A class of rules; each is proved by at least one denial, and by a harmless twin that passes where
/// there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Class {
    /// Reading.
    #[serde(rename = "files.read")]
    FilesRead,
    /// Opening for writing; mapping and receiving what is open for it.
    #[serde(rename = "files.write")]
    FilesWrite,
    /// Making files, directories, symbolic links.
    #[serde(rename = "files.create")]
    FilesCreate,
    /// Removing files and directories.
    #[serde(rename = "files.delete")]
    FilesDelete,
    /// Renaming: within, out of and into a place.
    #[serde(rename = "files.rename")]
    FilesRename,
    /// Hard links.
    #[serde(rename = "files.link")]
    FilesLink,
    /// Truncating, by path and by descriptor.
    #[serde(rename = "files.truncate")]
    FilesTruncate,
    /// Mode, owner, times, extended attributes, flags.
    #[serde(rename = "files.attributes")]
    FilesAttributes,
    /// Running programs.
    #[serde(rename = "files.execute")]
    FilesExecute,
    /// TCP over IPv4.
    #[serde(rename = "network.v4")]
    NetworkV4,
    /// TCP and UDP over IPv6.
    #[serde(rename = "network.v6")]
    NetworkV6,
    /// IPv4 through an IPv6 socket.
    #[serde(rename = "network.mapped")]
    NetworkMapped,
    /// UDP over IPv4, connected and not.
    #[serde(rename = "network.udp")]
    NetworkUdp,
    /// Kinds of sockets.
    #[serde(rename = "network.sockets")]
    NetworkSockets,
    /// Unix sockets of others, by path and by abstract name.
    #[serde(rename = "network.unix")]
    NetworkUnix,
    /// Signals to other processes.
    #[serde(rename = "processes.signal")]
    ProcessesSignal,
    /// Looking into other processes, and tracing them.
    #[serde(rename = "processes.trace")]
    ProcessesTrace,
    /// Mounting.
    #[serde(rename = "mounts")]
    Mounts,
    /// BPF and the kernel's log.
    #[serde(rename = "kernel")]
    Kernel,
    /// Staying a member after leaving the cgroup, and not being born outside of it.
    #[serde(rename = "membership")]
    Membership,
}

impl Class {
    /// Every class, in the order of output.
    pub const ALL: &[Self] = &[
        Self::FilesRead,
        Self::FilesWrite,
        Self::FilesCreate,
        Self::FilesDelete,
        Self::FilesRename,
        Self::FilesLink,
        Self::FilesTruncate,
        Self::FilesAttributes,
        Self::FilesExecute,
        Self::NetworkV4,
        Self::NetworkV6,
        Self::NetworkMapped,
        Self::NetworkUdp,
        Self::NetworkSockets,
        Self::NetworkUnix,
        Self::ProcessesSignal,
        Self::ProcessesTrace,
        Self::Mounts,
        Self::Kernel,
        Self::Membership,
    ];
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// An address of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum To {
    /// `127.0.0.1`
    V4,
    /// `::1`
    V6,
    /// `::ffff:127.0.0.1`
    Mapped,
}

/// One system call, or a few that belong together. Names are relative to the canary's directory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Act {
    Read(&'static str),
    Write(&'static str),
    Create(&'static str),
    Mkdir(&'static str),
    Symlink(&'static str),
    Unlink(&'static str),
    Rmdir(&'static str),
    Rename(&'static str, &'static str),
    Link(&'static str, &'static str),
    Truncate(&'static str),
    /// Of the file whose descriptor was inherited.
    TruncateInherited,
    Chmod(&'static str),
    Chown(&'static str),
    /// Sets times.
    Touch(&'static str),
    /// Sets an extended attribute.
    Mark(&'static str),
    /// Maps the file whose descriptor was inherited, shared and for writing.
    MapInherited,
    /// Passes that descriptor to itself.
    ReceiveInherited,
    TcpConnect(To, Port),
    UdpConnect(To, Port),
    UdpSend(To, Port),
    RawSocket,
    /// Connects to a stream socket.
    UnixConnect(&'static str),
    /// Sends to a datagram socket.
    UnixSend(&'static str),
    /// Sends to a datagram socket with an abstract name.
    AbstractSend(Port),
    /// Makes a UDP socket.
    Socket,
    /// Runs the file of that name on the shelf, which is no program.
    Execute(&'static str),
    /// The same with an argument.
    ExecuteWith(&'static str, &'static CStr),
    /// Sets the inode's flags.
    Chattr(&'static str),
    /// Signal 0, which only asks.
    Signal(Whom),
    /// Opens and reads the environment in procfs.
    Environment(Whom),
    /// Begins to trace its parent.
    Seize,
    /// Of a file system type that does not exist.
    Mount,
    /// Asks for the first map.
    Bpf,
    /// Asks for the size of the kernel's log.
    Log,
    /// `clone3(CLONE_INTO_CGROUP)` to the cgroup above.
    CloneInto,
}

/// A process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whom {
    /// The canary itself.
    Own,
    /// Its parent, which is no member.
    Outsider,
}

/// Which of two ports, or of two abstract names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Port {
    /// The policy allows it.
    Allowed,
    /// No rule speaks of it.
    Other,
}

/// A denial that must be seen, and the event that must tell of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Denial {
    /// The event is from one of these.
    pub(super) hooks: &'static [Hook],
    /// At least one of these was not allowed.
    pub(super) access: Access,
    /// The rule; `None` where more than one may be named.
    pub(super) rule: Option<u32>,
    /// The event names one of these; nothing of them may have changed.
    pub(super) objects: &'static [&'static str],
}

/// One attempt.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    /// What it is called, unique.
    pub(super) name: &'static str,
    pub(super) class: Class,
    pub(super) act: Act,
    /// `None`: it must pass.
    pub(super) denial: Option<Denial>,
    /// Made after the canary was moved to another cgroup.
    pub(super) moved: bool,
}

/// The rule that denies reading `secret`.
pub(super) const READ_RULE: u32 = 1;
/// The rule that allows writing beneath `w`.
pub(super) const WRITE_RULE: u32 = 2;
/// The rule that allows the one port.
pub(super) const NET_RULE: u32 = 3;
/// The rule that denies running [`CLOSED`].
pub(super) const EXEC_RULE: u32 = 4;
/// The rule that asks before [`OPEN`] runs with [`ASKED`] behind it.
pub(super) const ASK_RULE: u32 = 5;
/// What a person would be asked about.
pub(super) const ASKED: &CStr = c"asked";
/// Where no rule decided.
const DEFAULT: Option<u32> = Some(0);

/// The file that must not be read.
pub(super) const SECRET: &str = "secret";
/// The directory beneath which all may be written.
pub(super) const WITHIN: &str = "w";
/// The file whose descriptor the canary inherits.
pub(super) const INHERITED: &str = "ftruncate";
/// Before the names of what lies on the shelf, a file system that exists for the canary alone.
pub(super) const SHELF: &str = "shelf/";
/// The file there that may be run.
pub(super) const OPEN: &str = "shelf/open";
/// The file there that may not.
pub(super) const CLOSED: &str = "shelf/closed";
/// Files that exist in the canary's directory and in `w`.
pub(super) const FILES: &[&str] =
    &[SECRET, INHERITED, "open", "unlink", "rename", "cross", "link", "truncate", "chmod", "chown"];
/// Unix sockets, a listening stream and a datagram one, that are bound in both places.
pub(super) const SOCKETS: [&str; 2] = ["stream", "datagram"];
/// The directory that exists in both places.
pub(super) const DIRECTORY: &str = "rmdir";

const fn pass(name: &'static str, class: Class, act: Act) -> Attempt {
    Attempt { name, class, act, denial: None, moved: false }
}

const fn deny(
    name: &'static str,
    class: Class,
    act: Act,
    hooks: &'static [Hook],
    access: Access,
    rule: Option<u32>,
    objects: &'static [&'static str],
) -> Attempt {
    Attempt {
        name,
        class,
        act,
        denial: Some(Denial { hooks, access, rule, objects }),
        moved: false,
    }
}

const fn moved(attempt: Attempt) -> Attempt {
    Attempt { moved: true, ..attempt }
}

const CONNECT: &[Hook] = &[Hook::Connect4, Hook::Connect6];
/// The kernel hands a mapped address of an unconnected send to the IPv4 side.
const SEND: &[Hook] = &[Hook::Sendmsg4, Hook::Sendmsg6];
const TRUNCATE: &[Hook] = &[Hook::FileTruncate, Hook::PathTruncate];
const MOVES: Access = Access::CREATE.union(Access::DELETE);

/// Every attempt, in the order in which they are made. None depends on another's outcome.
#[rustfmt::skip]
pub(super) const ATTEMPTS: &[Attempt] = {
    use Class::{
        FilesAttributes, FilesCreate, FilesExecute, FilesLink, FilesRead, FilesDelete, FilesRename,
        FilesTruncate, FilesWrite, Kernel, Membership, Mounts, NetworkMapped, NetworkSockets,
        NetworkUdp, NetworkUnix, NetworkV4, NetworkV6, ProcessesSignal, ProcessesTrace,
    };
    use Port::{Allowed, Other};
    &[
        pass("read", FilesRead, Act::Read("open")),
        deny("read denied", FilesRead, Act::Read(SECRET), &[Hook::FileOpen], Access::READ, Some(READ_RULE), &[SECRET]),
        pass("write within", FilesWrite, Act::Write("w/open")),
        deny("write outside", FilesWrite, Act::Write("open"), &[Hook::FileOpen], Access::WRITE, DEFAULT, &["open"]),
        pass("create within", FilesCreate, Act::Create("w/new")),
        deny("create outside", FilesCreate, Act::Create("new"), &[Hook::PathMknod], Access::CREATE, DEFAULT, &["new"]),
        pass("mkdir within", FilesCreate, Act::Mkdir("w/newdir")),
        deny("mkdir outside", FilesCreate, Act::Mkdir("newdir"), &[Hook::PathMkdir], Access::CREATE, DEFAULT, &["newdir"]),
        pass("symlink within", FilesCreate, Act::Symlink("w/newlink")),
        deny("symlink outside", FilesCreate, Act::Symlink("newlink"), &[Hook::PathSymlink], Access::CREATE, DEFAULT, &["newlink"]),
        pass("unlink within", FilesDelete, Act::Unlink("w/unlink")),
        deny("unlink outside", FilesDelete, Act::Unlink("unlink"), &[Hook::PathUnlink], Access::DELETE, DEFAULT, &["unlink"]),
        pass("rmdir within", FilesDelete, Act::Rmdir("w/rmdir")),
        deny("rmdir outside", FilesDelete, Act::Rmdir("rmdir"), &[Hook::PathRmdir], Access::DELETE, DEFAULT, &["rmdir"]),
        pass("rename within", FilesRename, Act::Rename("w/rename", "w/renamed")),
        deny("rename outside", FilesRename, Act::Rename("rename", "renamed"), &[Hook::PathRename], MOVES, DEFAULT, &["rename", "renamed"]),
        deny("rename out", FilesRename, Act::Rename("w/cross", "out"), &[Hook::PathRename], MOVES, None, &["w/cross", "out"]),
        deny("rename in", FilesRename, Act::Rename("cross", "w/in"), &[Hook::PathRename], MOVES, None, &["cross", "w/in"]),
        pass("link within", FilesLink, Act::Link("w/link", "w/linked")),
        deny("link of a denied file", FilesLink, Act::Link(SECRET, "w/leak"), &[Hook::PathLink], Access::empty(), None, &[SECRET, "w/leak"]),
        deny("link outside", FilesLink, Act::Link("link", "linked"), &[Hook::PathLink], Access::empty(), None, &["link", "linked"]),
        pass("truncate within", FilesTruncate, Act::Truncate("w/truncate")),
        deny("truncate outside", FilesTruncate, Act::Truncate("truncate"), &[Hook::PathTruncate], Access::WRITE, DEFAULT, &["truncate"]),
        deny("truncate an inherited file", FilesTruncate, Act::TruncateInherited, TRUNCATE, Access::WRITE, DEFAULT, &[INHERITED]),
        pass("chmod within", FilesAttributes, Act::Chmod("w/chmod")),
        deny("chmod outside", FilesAttributes, Act::Chmod("chmod"), &[Hook::PathChmod], Access::ATTRIBUTES, DEFAULT, &["chmod"]),
        pass("chown within", FilesAttributes, Act::Chown("w/chown")),
        deny("chown outside", FilesAttributes, Act::Chown("chown"), &[Hook::PathChown], Access::ATTRIBUTES, DEFAULT, &["chown"]),
        pass("times within", FilesAttributes, Act::Touch("w/chmod")),
        deny("times outside", FilesAttributes, Act::Touch("chmod"), &[Hook::InodeSetattr], Access::ATTRIBUTES, DEFAULT, &["chmod"]),
        deny("extended attribute outside", FilesAttributes, Act::Mark("chmod"), &[Hook::InodeSetxattr], Access::ATTRIBUTES, DEFAULT, &["chmod"]),
        deny("map an inherited file", FilesWrite, Act::MapInherited, &[Hook::MmapFile], Access::WRITE, DEFAULT, &[INHERITED]),
        deny("receive a descriptor", FilesWrite, Act::ReceiveInherited, &[Hook::FileReceive], Access::WRITE, DEFAULT, &[INHERITED]),
        pass("tcp4 allowed", NetworkV4, Act::TcpConnect(To::V4, Allowed)),
        deny("tcp4 connect", NetworkV4, Act::TcpConnect(To::V4, Other), &[Hook::Connect4], Access::CONNECT, DEFAULT, &[]),
        pass("tcp6 allowed", NetworkV6, Act::TcpConnect(To::V6, Allowed)),
        deny("tcp6 connect", NetworkV6, Act::TcpConnect(To::V6, Other), &[Hook::Connect6], Access::CONNECT, DEFAULT, &[]),
        pass("udp6 allowed", NetworkV6, Act::UdpSend(To::V6, Allowed)),
        deny("udp6 connect", NetworkV6, Act::UdpConnect(To::V6, Other), &[Hook::Connect6], Access::CONNECT, DEFAULT, &[]),
        deny("udp6 send", NetworkV6, Act::UdpSend(To::V6, Other), &[Hook::Sendmsg6], Access::CONNECT, DEFAULT, &[]),
        pass("mapped tcp allowed", NetworkMapped, Act::TcpConnect(To::Mapped, Allowed)),
        deny("mapped tcp connect", NetworkMapped, Act::TcpConnect(To::Mapped, Other), CONNECT, Access::CONNECT, DEFAULT, &[]),
        pass("mapped udp allowed", NetworkMapped, Act::UdpSend(To::Mapped, Allowed)),
        deny("mapped udp connect", NetworkMapped, Act::UdpConnect(To::Mapped, Other), CONNECT, Access::CONNECT, DEFAULT, &[]),
        deny("mapped udp send", NetworkMapped, Act::UdpSend(To::Mapped, Other), SEND, Access::CONNECT, DEFAULT, &[]),
        pass("udp connect allowed", NetworkUdp, Act::UdpConnect(To::V4, Allowed)),
        pass("udp send allowed", NetworkUdp, Act::UdpSend(To::V4, Allowed)),
        deny("udp connect", NetworkUdp, Act::UdpConnect(To::V4, Other), &[Hook::Connect4], Access::CONNECT, DEFAULT, &[]),
        deny("udp send", NetworkUdp, Act::UdpSend(To::V4, Other), &[Hook::Sendmsg4], Access::CONNECT, DEFAULT, &[]),
        pass("udp socket", NetworkSockets, Act::Socket),
        deny("raw socket", NetworkSockets, Act::RawSocket, &[Hook::SocketCreate], Access::CONNECT, DEFAULT, &[]),
        pass("unix connect within", NetworkUnix, Act::UnixConnect("w/stream")),
        deny("unix connect", NetworkUnix, Act::UnixConnect("stream"), &[Hook::UnixStreamConnect], Access::CONNECT, DEFAULT, &["stream"]),
        pass("unix send within", NetworkUnix, Act::UnixSend("w/datagram")),
        deny("unix send", NetworkUnix, Act::UnixSend("datagram"), &[Hook::UnixMaySend], Access::CONNECT, DEFAULT, &["datagram"]),
        pass("abstract send allowed", NetworkUnix, Act::AbstractSend(Allowed)),
        deny("abstract send", NetworkUnix, Act::AbstractSend(Other), &[Hook::UnixMaySend], Access::CONNECT, DEFAULT, &[]),
        deny("chattr outside", FilesAttributes, Act::Chattr("chmod"), &[Hook::FileIoctl], Access::ATTRIBUTES, DEFAULT, &["chmod"]),
        pass("run", FilesExecute, Act::Execute(OPEN)),
        deny("run denied", FilesExecute, Act::Execute(CLOSED), &[Hook::FileOpen], Access::EXECUTE, Some(EXEC_RULE), &[CLOSED]),
        pass("run with other words", FilesExecute, Act::ExecuteWith(OPEN, c"other")),
        deny("run what is asked about", FilesExecute, Act::ExecuteWith(OPEN, ASKED), &[Hook::BprmCredsForExec], Access::EXECUTE, Some(ASK_RULE), &[OPEN]),
        pass("signal own process", ProcessesSignal, Act::Signal(Whom::Own)),
        deny("signal another process", ProcessesSignal, Act::Signal(Whom::Outsider), &[Hook::TaskKill], Access::SIGNAL, DEFAULT, &[]),
        pass("read own environment", ProcessesTrace, Act::Environment(Whom::Own)),
        deny("read another's environment", ProcessesTrace, Act::Environment(Whom::Outsider), &[Hook::PtraceAccessCheck], Access::TRACE, DEFAULT, &[]),
        deny("trace another process", ProcessesTrace, Act::Seize, &[Hook::PtraceAccessCheck], Access::TRACE, DEFAULT, &[]),
        deny("mount", Mounts, Act::Mount, &[Hook::SbMount], Access::MOUNT, DEFAULT, &[]),
        deny("bpf", Kernel, Act::Bpf, &[Hook::Bpf], Access::KERNEL, DEFAULT, &[]),
        deny("kernel log", Kernel, Act::Log, &[Hook::Syslog], Access::KERNEL, DEFAULT, &[]),
        deny("be born outside", Membership, Act::CloneInto, &[Hook::TaskAlloc], Access::empty(), None, &[]),
        moved(pass("read after leaving", Membership, Act::Read("open"))),
        moved(deny("read denied after leaving", Membership, Act::Read(SECRET), &[Hook::FileOpen], Access::READ, Some(READ_RULE), &[SECRET])),
        moved(deny("socket after leaving", Membership, Act::Socket, &[Hook::SocketCreate], Access::CONNECT, DEFAULT, &[])),
        moved(deny("create outside after leaving", Membership, Act::Create("strayed"), &[Hook::PathMknod], Access::CREATE, DEFAULT, &["strayed"])),
    ]
};

/// What the parent tells the canary, one line of JSON on its standard input. A second, empty line
/// follows when it has been moved to another cgroup.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    /// The directory.
    pub(super) dir: std::path::PathBuf,
    /// A cgroup that is not its own.
    pub(super) cgroup: std::path::PathBuf,
    /// Descriptor of [`INHERITED`], open for reading and writing.
    pub(super) inherited: i32,
    /// Descriptor of the shelf's directory.
    pub(super) shelf: i32,
    /// Ports of `127.0.0.1`: allowed, other.
    pub(super) v4: (u16, u16),
    /// Ports of `::1`.
    pub(super) v6: (u16, u16),
    /// Abstract names, without the leading zero: allowed, other.
    pub(super) names: (Vec<u8>, Vec<u8>),
}

/// What the canary answers, one line of JSON for the attempts before the move, one for those after.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Answer {
    /// Name of the thread.
    pub(super) comm: String,
    /// Attempt and error number; 0: it passed.
    pub(super) results: Vec<(String, i32)>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_a_denial_and_names_are_unique() {
        for class in Class::ALL {
            let of = ATTEMPTS.iter().filter(|attempt| attempt.class == *class);
            assert!(of.clone().any(|attempt| attempt.denial.is_some()), "{class}");
            // These no session may do, so there is no twin.
            if !matches!(class, Class::Mounts | Class::Kernel) {
                assert!(of.clone().any(|attempt| attempt.denial.is_none()), "{class}");
            }
        }
        let names: std::collections::HashSet<_> = ATTEMPTS.iter().map(|a| a.name).collect();
        assert_eq!(names.len(), ATTEMPTS.len());
    }
}
