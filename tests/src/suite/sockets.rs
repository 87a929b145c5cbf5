//! Only sockets that the address rules can judge exist for a member.

use crate::harness::{Bystander, Denial, Ground, Policy, Session, Why, trial};
use crate::probe::Operation;
use libtest_mimic::Trial;

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("sockets::raw_packet_and_unknown_kinds_are_refused", refused),
        trial("sockets::ordinary_kinds_work", ordinary),
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
