//! Where a socket connects or sends to.
//!
//! 1 lets the call go on, 0 fails it with EPERM.

use super::{address4, address6, count, names, port_and_protocol};
use crate::finish;
use crate::net::{self, Address, UDP};
use crate::notes;
use crate::peer::{self, End};
use crate::session;
use crate::subject::Member;
use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use sandbox_common::Access;
use sandbox_common::decide::Decision;
use sandbox_common::event::{Hook, Reason};

/// connect(2) of an IPv4 socket, `MSG_FASTOPEN` and MPTCP's subflows included.
#[cgroup_sock_addr(connect4)]
pub(crate) fn connect4(ctx: SockAddrContext) -> i32 {
    connect(Hook::Connect4, &ctx, &address4(&ctx))
}

/// connect(2) of an IPv6 socket, to IPv4-mapped addresses too.
#[cgroup_sock_addr(connect6)]
pub(crate) fn connect6(ctx: SockAddrContext) -> i32 {
    connect(Hook::Connect6, &ctx, &address6(&ctx))
}

/// UDP's sendto(2), sendmsg(2) and sendmmsg(2) to an IPv4 address, of an IPv6 socket too.
#[cgroup_sock_addr(sendmsg4)]
pub(crate) fn sendmsg4(ctx: SockAddrContext) -> i32 {
    judge(Hook::Sendmsg4, &ctx, &address4(&ctx))
}

/// UDP's sendto(2), sendmsg(2) and sendmmsg(2) to an IPv6 address.
#[cgroup_sock_addr(sendmsg6)]
pub(crate) fn sendmsg6(ctx: SockAddrContext) -> i32 {
    judge(Hook::Sendmsg6, &ctx, &address6(&ctx))
}

#[inline(always)]
fn connect(hook: Hook, ctx: &SockAddrContext, address: &Address) -> i32 {
    // Resolvers ask so for the address that they would send from. Nothing can be sent there: `packet`.
    if port_and_protocol(ctx) == (0, UDP) {
        return 1;
    }
    judge(hook, ctx, address)
}

#[inline(always)]
fn judge(hook: Hook, ctx: &SockAddrContext, address: &Address) -> i32 {
    let (port, protocol) = port_and_protocol(ctx);
    let (session, decision) = match session::of_current() {
        Some(session) => {
            let member = session.member();
            let v6 = matches!(hook, Hook::Connect6 | Hook::Sendmsg6);
            if port == names::DOMAIN && names::lead(ctx, &member, address, v6) {
                return 1;
            }
            let decision =
                net::reach((&member, session.generation()), address, protocol, port, false);
            let mut decision = count::check(&member, decision);
            if !decision.allowed() && is_fellow(ctx, &member, address.reached(), protocol, port) {
                decision = Decision::ALLOW;
            }
            // Each connection is noted, and whom a socket sends to once.
            if matches!(hook, Hook::Sendmsg4 | Hook::Sendmsg6)
                && decision.allowed()
                && notes::wants(&member, Access::CONNECT)
                && !notes::is_first_of(names::cookie(ctx), address, protocol, port)
            {
                return 1;
            }
            (session, decision)
        }
        // A socket of this session in the hands of a task outside its cgroup. Whose task that is
        // cannot be told here (task storage takes 6.18), and it may be a member that was moved.
        None => (session::owner(), Decision::deny(Reason::Moved, Access::CONNECT)),
    };
    let errno = finish::net(hook, &session.member(), decision, address.payload(protocol, port));
    i32::from(errno == 0)
}

/// Whether a socket of the session, or its resolver, gets what is sent there.
#[inline(always)]
fn is_fellow(
    ctx: &SockAddrContext,
    member: &Member,
    address: Address,
    protocol: u16,
    port: u16,
) -> bool {
    if !address.is_loopback() {
        return false;
    }
    // A connected IPv6 socket sends to an IPv4 address as if it were not connected.
    if names::is_resolver(member, &address, port) {
        return true;
    }
    // A connected UDP socket is found only by both ends. A socket without an address sends from the
    // usual one.
    // SAFETY: the verifier checks each access to the context and to the socket.
    let source = unsafe { (*(*ctx.sock_addr).__bindgen_anon_1.sk).src_port } as u16;
    let from = End {
        address: if address.is_v4() { Address::v4(0).reached() } else { address },
        port: source.to_be(),
    };
    let to = End { address, port };
    peer::is_fellow(ctx.sock_addr.cast(), member, protocol, &from, &to)
}
