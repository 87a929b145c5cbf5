//! Only sockets that the address rules can judge exist for a member.

use crate::harness::{Bystander, Denial, Ground, Policy, Runner, Session, Why, trial};
use crate::probe::{Operation, SocketKind, SocketWay, kinds_of, socket_kinds};
use anyhow::Context as _;
use libtest_mimic::Trial;

pub(super) const ROWS: &[(&str, &str)] = &[
    ("A63", "sockets::every_kind_in_every_way"),
    ("A72", "sockets::every_kind_in_every_way"),
    ("A73", "sockets::raw_packet_and_unknown_kinds_are_refused"),
    ("A74", "sockets::raw_packet_and_unknown_kinds_are_refused"),
    ("A75", "sockets::every_kind_in_every_way"),
    ("A76", "sockets::raw_packet_and_unknown_kinds_are_refused"),
    ("A77", "sockets::raw_packet_and_unknown_kinds_are_refused"),
    ("A78", "sockets::raw_packet_and_unknown_kinds_are_refused"),
    ("A79", "sockets::raw_packet_and_unknown_kinds_are_refused"),
    ("A80", "sockets::raw_packet_and_unknown_kinds_are_refused"),
    ("A83", "sockets::inherited_streams_reach_nothing_else"),
    ("D3.51", "sockets::every_kind_in_every_way"),
    ("D3.52", "sockets::every_kind_in_every_way"),
    ("D3.54", "sockets::every_kind_in_every_way"),
    ("D3.55", "sockets::every_kind_in_every_way"),
    ("D3.56", "sockets::inherited_streams_reach_nothing_else"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("sockets::raw_packet_and_unknown_kinds_are_refused", refused),
        trial("sockets::ordinary_kinds_work", ordinary),
        trial("sockets::every_kind_in_every_way", table),
        trial("sockets::inherited_streams_reach_nothing_else", inherited),
    ]
}

/// `IPPROTO_UDPLITE`, linux/in.h.
const UDPLITE: i32 = 136;
const SOCK_STREAM: i32 = libc::SOCK_STREAM;
const SOCK_DGRAM: i32 = libc::SOCK_DGRAM;

fn socket(domain: i32, kind: i32, protocol: i32) -> Operation {
    Operation::Socket { domain, kind, protocol }
}

fn refused() -> anyhow::Result<()> {
    let ground = Ground::new("sockets")?;
    let mut session = Session::start(&ground, &Policy::preset().connect("127.0.0.1"))?;
    let mut bystander = Bystander::new()?;
    let all = libc::ETH_P_ALL.to_be() >> 16;
    // The last word: an administrator's kernel surely has it, so the bystander must get it.
    for (name, operation, common) in [
        ("raw ICMP", socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP), true),
        ("raw IP", socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW), true),
        ("raw ICMPv6", socket(libc::AF_INET6, libc::SOCK_RAW, libc::IPPROTO_ICMPV6), true),
        ("packet", socket(libc::AF_PACKET, libc::SOCK_RAW, all), false),
        ("cooked packet", socket(libc::AF_PACKET, SOCK_DGRAM, all), false),
        ("ping", socket(libc::AF_INET, SOCK_DGRAM, libc::IPPROTO_ICMP), false),
        ("SCTP", socket(libc::AF_INET, SOCK_STREAM, libc::IPPROTO_SCTP), false),
        (
            "SCTP, many to one",
            socket(libc::AF_INET, libc::SOCK_SEQPACKET, libc::IPPROTO_SCTP),
            false,
        ),
        ("UDP-Lite", socket(libc::AF_INET, SOCK_DGRAM, UDPLITE), false),
        ("vsock", socket(libc::AF_VSOCK, SOCK_STREAM, 0), false),
        ("AF_ALG", socket(libc::AF_ALG, libc::SOCK_SEQPACKET, 0), false),
        ("AF_KEY", socket(libc::AF_KEY, libc::SOCK_RAW, 2), false),
        ("netfilter", socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_NETFILTER), false),
    ] {
        let denial = Denial::by(&["socket_create"])
            .any_object()
            .because(Why::Reason(&["socket_kind"]))
            .error(libc::EPERM)
            .or_error(libc::EACCES);
        session.refused(name, &operation, &denial)?;
        let answer = bystander.perform(&operation)?;
        if common && answer.errno != 0 {
            session.problem(format!("{name}: a bystander was hindered: {answer}"));
        }
    }
    session.finish()
}

fn ordinary() -> anyhow::Result<()> {
    let ground = Ground::new("sockets-ordinary")?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let mut kinds = Vec::new();
    for domain in [libc::AF_INET, libc::AF_INET6] {
        for (kind, protocol) in [
            (SOCK_STREAM, 0),
            (SOCK_STREAM, libc::IPPROTO_TCP),
            (SOCK_DGRAM, 0),
            (SOCK_DGRAM, libc::IPPROTO_UDP),
        ] {
            let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
            kinds.extend([(domain, kind, protocol), (domain, kind | flags, protocol)]);
        }
    }
    for kind in [SOCK_STREAM, SOCK_DGRAM, libc::SOCK_SEQPACKET] {
        kinds.push((libc::AF_UNIX, kind, 0));
    }
    kinds.push((libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE));
    for (domain, kind, protocol) in kinds {
        session.allowed("ordinary socket", &socket(domain, kind, protocol))?;
    }
    session.finish()
}

/// What a member may make.
fn is_listed((family, kind, protocol): SocketKind) -> bool {
    /// `IPPROTO_MPTCP`, linux/in.h.
    const MPTCP: i32 = 262;
    match family {
        libc::AF_UNIX => true,
        libc::AF_INET | libc::AF_INET6 => match kind {
            SOCK_STREAM => matches!(protocol, 0 | libc::IPPROTO_TCP | MPTCP),
            SOCK_DGRAM => matches!(protocol, 0 | libc::IPPROTO_UDP),
            _ => false,
        },
        libc::AF_NETLINK => protocol == libc::NETLINK_ROUTE,
        _ => false,
    }
}

/// Families 0 to 45, every type, protocols: a member makes what is listed and the kernel has, no other.
fn table() -> anyhow::Result<()> {
    let ground = Ground::new("socket-table")?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let mut bystander = Bystander::new()?;
    for way in [SocketWay::Call, SocketWay::Uring, SocketWay::Compat, SocketWay::CompatCall] {
        let operation = Operation::SocketTable { way };
        let (free, bound) = (bystander.perform(&operation)?, session.perform(&operation)?);
        if free.errno == libc::ENOSYS && bound.errno == libc::ENOSYS {
            continue;
        }
        if free.errno != 0 || bound.errno != 0 {
            session.problem(format!("{way:?}: a bystander {free}, a member {bound}"));
            continue;
        }
        let (free, bound) = (kinds_of(&free.data), kinds_of(&bound.data));
        for kind in socket_kinds() {
            let expected = is_listed(kind) && free.contains(&kind);
            if bound.contains(&kind) != expected {
                let verb = if expected { "must" } else { "must not" };
                session.problem(format!("{way:?}: {kind:?} {verb} be made"));
            }
        }
        if !free.iter().any(|kind| !is_listed(*kind)) || !bound.iter().any(|kind| is_listed(*kind))
        {
            session.problem(format!("{way:?}: nothing was proved: {free:?}"));
        }
    }
    session.finish()
}

/// A socket among the standard streams was made outside, where no program of the session sees it.
fn inherited() -> anyhow::Result<()> {
    let ground = Ground::new("inherited-sockets")?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let connected = std::net::TcpStream::connect(listener.local_addr()?)?;
    let datagrams = std::net::UdpSocket::bind("127.0.0.1:0")?;
    for (name, socket) in [
        ("a listener", std::os::fd::OwnedFd::from(listener.try_clone()?)),
        ("datagrams", datagrams.into()),
    ] {
        let mut command = Runner::new(&ground, &Policy::preset())?.command(&["true"]);
        let output = command.stdin(socket).output().context("starting sandbox")?;
        let told = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(
            output.status.code() == Some(125)
                && told.contains("standard input is a network socket"),
            "{name} as standard input: {} {told}",
            output.status
        );
    }
    let errors = std::fs::File::from(std::os::fd::OwnedFd::from(connected));
    let mut session = Runner::new(&ground, &Policy::preset())?.errors(errors).open()?;
    let denial = Denial::by(&["socket_connect"]).task().because(Why::Reason(&["foreign"]));
    let attack = Operation::DisconnectInherited { number: 2 };
    session.refused("taking its connection away", &attack, &denial)?;
    session.finish()
}
