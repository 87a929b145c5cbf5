//! Where a socket is bound: whether others may reach the session there.
//!
//! Loopback addresses are free, and so is a port that the kernel chooses (0): clients bind so. What
//! listens there is judged by `hooks::sockets::socket_listen`.

use super::{address4, address6, port_and_protocol};
use crate::finish;
use crate::net::{self, Address};
use crate::session;
use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use sandbox_common::Access;
use sandbox_common::decide::Decision;
use sandbox_common::event::{Hook, Reason};

/// bind(2) of an IPv4 socket.
#[cgroup_sock_addr(bind4)]
pub(crate) fn bind4(ctx: SockAddrContext) -> i32 {
    judge(Hook::Bind4, &ctx, &address4(&ctx))
}

/// bind(2) of an IPv6 socket, to IPv4-mapped addresses too.
#[cgroup_sock_addr(bind6)]
pub(crate) fn bind6(ctx: SockAddrContext) -> i32 {
    judge(Hook::Bind6, &ctx, &address6(&ctx))
}

#[inline(always)]
fn judge(hook: Hook, ctx: &SockAddrContext, address: &Address) -> i32 {
    let (port, protocol) = port_and_protocol(ctx);
    if port == 0 || address.is_loopback() {
        return 1;
    }
    let (session, decision) = match session::of_current() {
        Some(session) => {
            let member = (&session.member(), session.generation());
            let decision = net::listen(member, address, protocol, port);
            (session, decision)
        }
        None => (session::owner(), Decision::deny(Reason::Moved, Access::LISTEN)),
    };
    let errno = finish::net(hook, &session.member(), decision, address.payload(protocol, port));
    i32::from(errno == 0)
}
