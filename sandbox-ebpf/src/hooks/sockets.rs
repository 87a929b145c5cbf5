//! Which sockets may be made and listen, and where those connect that the cgroup programs do not see.
//!
//! The cgroup programs judge by the cgroup that a socket was made in. A member that somebody moved
//! elsewhere makes no more network sockets; its old ones, and those that it inherited, are judged here
//! by its label.

use crate::finish;
use crate::kernel::read;
use crate::kernel::socket::Socket;
use crate::kernel::task::{self, Current};
use crate::net::{self, AF_INET, AF_INET6, Address};
use crate::session;
use crate::subject::{self, Member};
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
    let decision = if is_network && !kernel && !is_at_home(&member) {
        Decision::deny(Reason::Moved, Access::CONNECT)
    } else {
        decide::socket(family, ctx.arg(1), ctx.arg(2), kernel)
    };
    finish::task(Hook::SocketCreate, &member, decision)
}

/// Whether the programs of the member's own session judge the sockets that it makes.
#[inline(always)]
fn is_at_home(member: &Member) -> bool {
    session::of_current().is_some_and(|session| session.member().cgroup == member.cgroup)
}

/// In which generation its label has the slot; 0: in none.
#[inline(always)]
fn generation(member: &Member) -> u64 {
    member.generation().unwrap_or(0)
}

/// `int security_socket_connect(struct socket *sock, struct sockaddr *address, int addrlen)`: the
/// address is in kernel memory.
#[lsm(hook = "socket_connect")]
pub(crate) fn socket_connect(ctx: LsmContext) -> i32 {
    let verdict: i32 = ctx.arg(3);
    if verdict != 0 {
        return verdict;
    }
    let Some(sock) = Socket(ctx.arg(0)).sock() else { return 0 };
    let family = sock.family();
    if family != AF_INET && family != AF_INET6 {
        return 0;
    }
    // In its cgroup, and with a socket that was made there, the cgroup programs judge it.
    let is_of_own_cgroup = sock.is_of_own_cgroup();
    // A task without a label is a member by its cgroup only.
    if is_of_own_cgroup
        && (!Current::task().has_storage() || session::is_above(task::own_cgroup_id()))
    {
        return 0;
    }
    if let Some(session) = session::of_current()
        && (is_of_own_cgroup || sock.is_of_cgroup(session.member().cgroup))
    {
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
    let port = u16::from_ne_bytes([head[2], head[3]]);
    let address = match u16::from_ne_bytes([head[0], head[1]]) {
        // struct sockaddr_in: family, port, address
        AF_INET => Address::v4(second),
        // struct sockaddr_in6: family, port, flow information, address
        AF_INET6 => Address::v6(v6),
        // AF_UNSPEC would make a connection that somebody else made into a socket for any other.
        _ => {
            let decision = Decision::deny(Reason::Foreign, Access::CONNECT);
            return finish::task(Hook::SocketConnect, &member, decision);
        }
    };
    let protocol = sock.protocol();
    let decision = if member.fault != 0 {
        Decision { denied: Access::CONNECT.bits() as u16, rule: 0, reason: member.fault }
    } else {
        net::reach((&member, generation(&member)), &address, protocol, port, false)
    };
    finish::net(Hook::SocketConnect, &member, decision, address.payload(protocol, port))
}

/// `int security_socket_listen(struct socket *sock, int backlog)`: others may connect from now on.
#[lsm(hook = "socket_listen")]
pub(crate) fn socket_listen(ctx: LsmContext) -> i32 {
    let verdict: i32 = ctx.arg(2);
    if verdict != 0 {
        return verdict;
    }
    let Some(sock) = Socket(ctx.arg(0)).sock() else { return 0 };
    let family = sock.family();
    if family != AF_INET && family != AF_INET6 {
        return 0;
    }
    let Some(member) = subject::current() else { return 0 };
    let Some((address, port)) = sock.bound() else {
        let decision = Decision::deny(Reason::Unreadable, Access::LISTEN);
        return finish::task(Hook::SocketListen, &member, decision);
    };
    let protocol = sock.protocol();
    let decision = if member.fault != 0 {
        Decision { denied: Access::LISTEN.bits() as u16, rule: 0, reason: member.fault }
    } else if address.is_loopback() {
        return 0;
    } else {
        net::listen((&member, generation(&member)), &address, protocol, port)
    };
    finish::net(Hook::SocketListen, &member, decision, address.payload(protocol, port))
}
