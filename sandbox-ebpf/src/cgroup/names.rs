//! Questions about names: whatever server a member asks, the session's resolver answers.
//!
//! It cannot tell: what comes back, and whom it is connected to, looks as if it were the server.

use super::{address4, address6, replace};
use crate::maps::{ASKED, RESOLVERS};
use crate::net::Address;
use crate::subject::Member;
use aya_ebpf::helpers::generated::bpf_get_socket_cookie;
use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use sandbox_common::net::Asked;

/// Where name servers are asked, in network byte order.
pub(super) const DOMAIN: u16 = 53_u16.to_be();

/// Leads what is meant for a name server at `address` to the session's resolver. False where it has none.
///
/// `v6`: of the program, which may write no other kind of address.
#[inline(always)]
pub(super) fn lead(ctx: &SockAddrContext, member: &Member, address: &Address, v6: bool) -> bool {
    // SAFETY: entries are only added and removed whole, and a reader is under RCU.
    let Some(resolver) = (unsafe { RESOLVERS.get(member.subject.session) }) else { return false };
    let port = resolver.port;
    // Where there is no memory to remember it, answers come from the resolver's own address.
    let asked = Asked { address: address.0, ports: [DOMAIN, port] };
    let _ = ASKED.insert(cookie(ctx), asked, 0);
    replace(ctx, &home(address), port, v6);
    true
}

/// Whether a member's resolver listens there. The port is in network byte order.
#[inline(always)]
pub(super) fn is_resolver(member: &Member, address: &Address, port: u16) -> bool {
    // SAFETY: as above.
    match unsafe { RESOLVERS.get(member.subject.session) } {
        Some(resolver) => resolver.port == port && is_home(address),
        None => false,
    }
}

/// Where the resolver listens: loopback, of the same kind as the server's address.
#[inline(always)]
fn home(address: &Address) -> Address {
    if address.is_v4() { Address::v4(0).reached() } else { Address::v6([0; 4]).reached() }
}

#[inline(always)]
fn is_home(address: &Address) -> bool {
    home(address).0 == address.0
}

#[inline(always)]
pub(super) fn cookie(ctx: &SockAddrContext) -> u64 {
    // SAFETY: the helper takes the program's context.
    unsafe { bpf_get_socket_cookie(ctx.sock_addr.cast()) }
}

/// recvfrom(2) and recvmsg(2) of UDP over IPv4: where the datagram came from.
#[cgroup_sock_addr(recvmsg4)]
pub(crate) fn recvmsg4(ctx: SockAddrContext) -> i32 {
    restore(&ctx, &address4(&ctx), false)
}

/// The same over IPv6, and of IPv4 through an IPv6 socket.
#[cgroup_sock_addr(recvmsg6)]
pub(crate) fn recvmsg6(ctx: SockAddrContext) -> i32 {
    restore(&ctx, &address6(&ctx), true)
}

/// getpeername(2) over IPv4: whom the socket is connected to.
#[cgroup_sock_addr(getpeername4)]
pub(crate) fn getpeername4(ctx: SockAddrContext) -> i32 {
    restore(&ctx, &address4(&ctx), false)
}

/// The same over IPv6.
#[cgroup_sock_addr(getpeername6)]
pub(crate) fn getpeername6(ctx: SockAddrContext) -> i32 {
    restore(&ctx, &address6(&ctx), true)
}

/// Puts the server that was asked in the place of the resolver.
#[inline(always)]
fn restore(ctx: &SockAddrContext, address: &Address, v6: bool) -> i32 {
    if !is_home(address) {
        return 1;
    }
    // SAFETY: entries are replaced whole, and a reader is under RCU.
    let Some(asked) = (unsafe { ASKED.get(cookie(ctx)) }) else { return 1 };
    let (server, [server_port, port]) = (Address(asked.address), asked.ports);
    // SAFETY: the verifier checks each access to the context.
    if unsafe { (*ctx.sock_addr).user_port } as u16 == port && server.is_v4() == address.is_v4() {
        replace(ctx, &server, server_port, v6);
    }
    1
}
