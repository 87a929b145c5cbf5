//! Where a socket connects or sends to.
//!
//! These run for the cgroup that the *socket* was made in. 1 lets the call go on, 0 fails it with
//! EPERM.

use crate::finish;
use crate::maps::{NET4, NET6, PORTS};
use crate::subject::{self, Member};
use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::maps::lpm_trie::Key;
use aya_ebpf::programs::SockAddrContext;
use sandbox_common::Access;
use sandbox_common::decide::Decision;
use sandbox_common::event::{Hook, NetPayload, Reason};
use sandbox_common::net::{NET_PREFIX, Net4, Net6, PORT_PREFIX, Port, PortRule};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// connect(2) of an IPv4 socket, `MSG_FASTOPEN` and MPTCP's subflows included.
#[cgroup_sock_addr(connect4)]
pub(crate) fn connect4(ctx: SockAddrContext) -> i32 {
    judge(Hook::Connect4, &ctx, address4(&ctx))
}

/// connect(2) of an IPv6 socket, to IPv4-mapped addresses too.
#[cgroup_sock_addr(connect6)]
pub(crate) fn connect6(ctx: SockAddrContext) -> i32 {
    judge(Hook::Connect6, &ctx, address6(&ctx))
}

/// UDP's sendto(2), sendmsg(2) and sendmmsg(2) to an IPv4 address, of an IPv6 socket too.
#[cgroup_sock_addr(sendmsg4)]
pub(crate) fn sendmsg4(ctx: SockAddrContext) -> i32 {
    judge(Hook::Sendmsg4, &ctx, address4(&ctx))
}

/// UDP's sendto(2), sendmsg(2) and sendmmsg(2) to an IPv6 address.
#[cgroup_sock_addr(sendmsg6)]
pub(crate) fn sendmsg6(ctx: SockAddrContext) -> i32 {
    judge(Hook::Sendmsg6, &ctx, address6(&ctx))
}

/// An address in network byte order and its family.
struct Address {
    family: u16,
    bytes: [u8; 16],
}

#[inline(always)]
fn address4(ctx: &SockAddrContext) -> Address {
    // SAFETY: the verifier checks each access to the context.
    let word = unsafe { (*ctx.sock_addr).user_ip4 };
    Address { family: AF_INET, bytes: words([word, 0, 0, 0]) }
}

#[inline(always)]
fn address6(ctx: &SockAddrContext) -> Address {
    let from: *const bpf_sock_addr = ctx.sock_addr;
    // SAFETY: the verifier checks each access; the context must be read word by word.
    let [a, b, c, d] = unsafe {
        let ip = (&raw const (*from).user_ip6).cast::<u32>();
        [
            ip.read_volatile(),
            ip.add(1).read_volatile(),
            ip.add(2).read_volatile(),
            ip.add(3).read_volatile(),
        ]
    };
    if a == 0 && b == 0 && c == 0xffff_u32.to_be() {
        return Address { family: AF_INET, bytes: words([d, 0, 0, 0]) };
    }
    Address { family: AF_INET6, bytes: words([a, b, c, d]) }
}

/// The bytes of words that are in network byte order.
#[inline(always)]
fn words([a, b, c, d]: [u32; 4]) -> [u8; 16] {
    let ([a, b, c, d], mut bytes) = ([a, b, c, d].map(u32::to_ne_bytes), [0; 16]);
    bytes[..4].copy_from_slice(&a);
    bytes[4..8].copy_from_slice(&b);
    bytes[8..12].copy_from_slice(&c);
    bytes[12..].copy_from_slice(&d);
    bytes
}

#[inline(always)]
fn judge(hook: Hook, ctx: &SockAddrContext, address: Address) -> i32 {
    // A socket of this session in the hands of an outsider: not a member's doing.
    let Some(member) = subject::by_cgroup() else { return 1 };
    // SAFETY: the verifier checks each access to the context.
    let (port, protocol) =
        unsafe { ((*ctx.sock_addr).user_port as u16, (*ctx.sock_addr).protocol as u16) };
    let decision = decide(&member, &address, protocol, port);
    let payload = NetPayload {
        family: address.family,
        port: u16::from_be(port),
        protocol,
        pad: 0,
        address: address.bytes,
    };
    finish::net(hook, &member, decision, payload)
}

/// `port` is in network byte order.
#[inline(always)]
fn decide(member: &Member, address: &Address, protocol: u16, port: u16) -> Decision {
    let slot = member.subject.slot;
    let set = if address.family == AF_INET {
        let [a, b, c, d, ..] = address.bytes;
        NET4.get(&Key::new(NET_PREFIX + 32, Net4 { slot, address: [a, b, c, d] }))
    } else {
        NET6.get(&Key::new(NET_PREFIX + 128, Net6 { slot, address: address.bytes }))
    };
    let rule = match set {
        Some(set) => {
            let key = Port { set: *set, protocol, port: port.to_ne_bytes() };
            PORTS.get(&Key::new(PORT_PREFIX + 16, key))
        }
        None => None,
    };
    match rule {
        Some(PortRule { allow: 1, .. }) => Decision::ALLOW,
        Some(PortRule { rule, .. }) => {
            Decision { denied: Access::CONNECT.bits(), rule: *rule, reason: Reason::Rule as u16 }
        }
        None => Decision::deny(Reason::Default, Access::CONNECT),
    }
}
