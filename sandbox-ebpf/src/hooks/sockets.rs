//! Which sockets may be made, and where a member connects that was moved out of its cgroup.
//!
//! The cgroup programs judge by the cgroup that a socket was made in. A member that somebody moved
//! elsewhere makes no more network sockets, and its old ones are judged here by its label.

use crate::finish;
use crate::kernel::read;
use crate::kernel::socket::{Sock, Socket};
use crate::net::{self, AF_INET, AF_INET6, Address};
use crate::subject;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use sandbox_common::Access;
use sandbox_common::decide::{self, Decision};
use sandbox_common::event::{Hook, Reason};

/// `int security_socket_create(int family, int type, int protocol, int kern)`
#[lsm(hook = "socket_create")]
pub(crate) fn socket_create(ctx: LsmContext) -> i32 {
    let verdict: i32 = ctx.arg(4);
    if verdict != 0 {
        return verdict;
    }
    let Some(member) = subject::current() else { return 0 };
    let (family, kernel) = (ctx.arg::<u32>(0), ctx.arg::<i32>(3) != 0);
    let is_network = family == u32::from(AF_INET) || family == u32::from(AF_INET6);
    let decision = if is_network && !kernel && subject::by_cgroup().is_none() {
        Decision::deny(Reason::Moved, Access::CONNECT)
    } else {
        decide::socket(family, ctx.arg(1), ctx.arg(2), kernel)
    };
    finish::task(Hook::SocketCreate, &member, decision)
}

/// `int security_socket_connect(struct socket *sock, struct sockaddr *address, int addrlen)`: the
/// address is in kernel memory.
#[lsm(hook = "socket_connect")]
pub(crate) fn socket_connect(ctx: LsmContext) -> i32 {
    let verdict: i32 = ctx.arg(3);
    if verdict != 0 {
        return verdict;
    }
    // In its cgroup, the cgroup programs judge it.
    if subject::by_cgroup().is_some() {
        return 0;
    }
    let Some(member) = subject::current() else { return 0 };
    // At once and from its beginning: the verifier takes no other address of a structure that it
    // knows. System calls hold a whole `sockaddr_storage`.
    let Some([head, second, v6 @ ..]) = read::<[u32; 6]>(ctx.arg(1)) else {
        let decision = Decision::deny(Reason::Unreadable, Access::CONNECT);
        return finish::task(Hook::SocketConnect, &member, decision);
    };
    let head = head.to_ne_bytes();
    let family = u16::from_ne_bytes([head[0], head[1]]);
    let port = u16::from_ne_bytes([head[2], head[3]]);
    let address = match family {
        // struct sockaddr_in: family, port, address
        AF_INET => Address::v4(second),
        // struct sockaddr_in6: family, port, flow information, address
        AF_INET6 => Address::v6(v6),
        // AF_UNSPEC takes a connection away; the other families have no addresses of hosts.
        _ => return 0,
    };
    // No rule allows protocol 0.
    let protocol = Socket(ctx.arg(0)).sock().map_or(0, Sock::protocol);
    let decision = if member.fault != 0 {
        Decision { denied: Access::CONNECT.bits() as u16, rule: 0, reason: member.fault }
    } else {
        net::decide(&member, &address, protocol, port)
    };
    finish::net(Hook::SocketConnect, &member, decision, address.payload(protocol, port))
}
