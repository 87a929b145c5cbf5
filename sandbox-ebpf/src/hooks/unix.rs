//! Unix sockets: whom a member talks to.
//!
//! A service of the machine that is asked over its socket (docker, systemd, an ssh-agent) acts outside
//! the session. So a member reaches the sockets of its own session, those in places that it may write,
//! and those that a rule names.

use crate::finish;
use crate::kernel::socket::{Sock, Socket};
use crate::maps::{ABSTRACT, SOCKETS};
use crate::notes;
use crate::path;
use crate::subject::{self, Member};
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use core::mem::MaybeUninit;
use sandbox_common::Access;
use sandbox_common::decide::{self, Decision};
use sandbox_common::event::{Hook, Reason};
use sandbox_common::net::AbstractKey;

const AF_UNIX: i32 = 1;

/// `int security_socket_post_create(struct socket *sock, int family, int type, int protocol, int
/// kern)`: notes whose a unix socket is, for every task, since addresses are used again.
#[lsm(hook = "socket_post_create")]
pub(crate) fn socket_post_create(ctx: LsmContext) -> i32 {
    let verdict: i32 = ctx.arg(5);
    if verdict != 0 {
        return verdict;
    }
    if ctx.arg::<i32>(1) != AF_UNIX {
        return 0;
    }
    let Some(sock) = Socket(ctx.arg(0)).sock() else { return 0 };
    let address = sock.address();
    let Some(member) = subject::current() else {
        // Nothing to remove is the common case.
        let _ = SOCKETS.remove(address);
        return 0;
    };
    if SOCKETS.insert(address, member.cgroup, 0).is_err() {
        let decision = Decision::deny(Reason::NoMemory, Access::CONNECT);
        return finish::task(Hook::SocketPostCreate, &member, decision);
    }
    0
}

/// `int security_unix_stream_connect(struct sock *sock, struct sock *other, struct sock *newsk)`
#[lsm(hook = "unix_stream_connect")]
pub(crate) fn unix_stream_connect(ctx: LsmContext) -> i32 {
    let verdict: i32 = ctx.arg(3);
    if verdict != 0 {
        return verdict;
    }
    let Some(member) = subject::current() else { return 0 };
    judge(Hook::UnixStreamConnect, &member, Sock(ctx.arg(1)))
}

/// `int security_unix_may_send(struct socket *sock, struct socket *other)`: connect(2) and every send
/// of a datagram socket.
#[lsm(hook = "unix_may_send")]
pub(crate) fn unix_may_send(ctx: LsmContext) -> i32 {
    let verdict: i32 = ctx.arg(2);
    if verdict != 0 {
        return verdict;
    }
    let Some(member) = subject::current() else { return 0 };
    let Some(other) = Socket(ctx.arg(1)).sock() else {
        let decision = Decision::deny(Reason::Unreadable, Access::CONNECT);
        return finish::task(Hook::UnixMaySend, &member, decision);
    };
    judge(Hook::UnixMaySend, &member, other)
}

#[inline(always)]
fn judge(hook: Hook, member: &Member, other: Sock) -> i32 {
    if member.fault != 0 {
        let decision =
            Decision { denied: Access::CONNECT.bits() as u16, rule: 0, reason: member.fault };
        return finish::task(hook, member, decision);
    }
    // SAFETY: a number, read under RCU.
    if unsafe { SOCKETS.get(other.address()) }.copied() == Some(member.cgroup) {
        return 0;
    }
    let Some(dentry) = other.unix_dentry() else {
        return hidden(hook, member, other);
    };
    let Some(state) = member.state() else {
        return finish::task(hook, member, Decision::deny(Reason::NoMemory, Access::CONNECT));
    };
    let place = path::place(state, member, dentry);
    let decision = decide::unix(place);
    if repeats(hook, member, decision, other) {
        return 0;
    }
    finish::path(hook, member, decision, dentry)
}

/// A socket without a path: by its abstract name. One that has none either is nobody's that a rule could mean.
#[inline(always)]
fn hidden(hook: Hook, member: &Member, other: Sock) -> i32 {
    let mut key = MaybeUninit::<AbstractKey>::uninit();
    // SAFETY: plain numbers. Word by word: left to the compiler it becomes a loop over bytes.
    let key = unsafe {
        for word in 0..size_of::<AbstractKey>() / 4 {
            key.as_mut_ptr().cast::<u32>().add(word).write_volatile(0);
        }
        key.assume_init_mut()
    };
    key.slot = member.subject.slot;
    if !other.abstract_name(&mut key.name) {
        return finish::task(hook, member, Decision::deny(Reason::Foreign, Access::CONNECT));
    }
    // SAFETY: entries are only added and removed whole, and a reader is under RCU.
    let rule = unsafe { ABSTRACT.get(key as &AbstractKey) };
    let decision = decide::address(rule, Access::CONNECT);
    if repeats(hook, member, decision, other) {
        return 0;
    }
    finish::unix(hook, member, decision, &key.name)
}

/// Whether it is one more allowed datagram, of which the first was noted.
#[inline(always)]
fn repeats(hook: Hook, member: &Member, decision: Decision, other: Sock) -> bool {
    matches!(hook, Hook::UnixMaySend)
        && decision.allowed()
        && notes::wants(member, Access::CONNECT)
        && !notes::is_first_to(other)
}
