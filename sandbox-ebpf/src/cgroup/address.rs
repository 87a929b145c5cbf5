//! Where a socket connects or sends to.
//!
//! These run for the cgroup that the *socket* was made in. 1 lets the call go on, 0 fails it with
//! EPERM.

use crate::finish;
use crate::maps::{OWNER, SUBJECTS};
use crate::net::{self, Address};
use crate::subject::{self, Member};
use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::macros::cgroup_sock_addr;
use aya_ebpf::programs::SockAddrContext;
use sandbox_common::Access;
use sandbox_common::decide::Decision;
use sandbox_common::event::{Hook, Reason};

/// connect(2) of an IPv4 socket, `MSG_FASTOPEN` and MPTCP's subflows included.
#[cgroup_sock_addr(connect4)]
pub(crate) fn connect4(ctx: SockAddrContext) -> i32 {
    judge(Hook::Connect4, &ctx, &address4(&ctx))
}

/// connect(2) of an IPv6 socket, to IPv4-mapped addresses too.
#[cgroup_sock_addr(connect6)]
pub(crate) fn connect6(ctx: SockAddrContext) -> i32 {
    judge(Hook::Connect6, &ctx, &address6(&ctx))
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
fn address4(ctx: &SockAddrContext) -> Address {
    // SAFETY: the verifier checks each access to the context.
    Address::v4(unsafe { (*ctx.sock_addr).user_ip4 })
}

#[inline(always)]
fn address6(ctx: &SockAddrContext) -> Address {
    let from: *const bpf_sock_addr = ctx.sock_addr;
    // SAFETY: the verifier checks each access; the context must be read word by word.
    Address::v6(unsafe {
        let ip = (&raw const (*from).user_ip6).cast::<u32>();
        [
            ip.read_volatile(),
            ip.add(1).read_volatile(),
            ip.add(2).read_volatile(),
            ip.add(3).read_volatile(),
        ]
    })
}

#[inline(always)]
fn judge(hook: Hook, ctx: &SockAddrContext, address: &Address) -> i32 {
    // SAFETY: the verifier checks each access to the context.
    let (port, protocol) =
        unsafe { ((*ctx.sock_addr).user_port as u16, (*ctx.sock_addr).protocol as u16) };
    let (member, decision) = match subject::by_cgroup() {
        Some(member) => {
            let decision = net::decide(&member, address, protocol, port);
            (member, decision)
        }
        // A socket of this session in the hands of a task outside its cgroup. Whose task that is
        // cannot be told here (task storage takes 6.18), and it may be a member that was moved.
        None => (owner(), Decision::deny(Reason::Moved, Access::CONNECT)),
    };
    let errno = finish::net(hook, &member, decision, address.payload(protocol, port));
    i32::from(errno == 0)
}

/// The session whose cgroup this program is attached to.
#[inline(always)]
fn owner() -> Member {
    // SAFETY: the kernel makes the value when it attaches the program; user space writes it once.
    let cgroup = unsafe { *OWNER.get_ptr_mut() };
    // SAFETY: entries are only added and removed whole, and a reader is under RCU.
    match unsafe { SUBJECTS.get(cgroup) } {
        Some(subject) => Member::of(cgroup, subject),
        None => Member::UNKNOWN,
    }
}
