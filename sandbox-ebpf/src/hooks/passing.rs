//! Descriptors that a member gets from somebody else.

use super::files::{open, opened_for};
use super::member;
use crate::finish;
use crate::kernel::socket::{Sock, Socket};
use crate::kernel::vfs::File;
use crate::maps::SOCKETS;
use crate::subject::Member;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use sandbox_common::Access;
use sandbox_common::decide::Decision;
use sandbox_common::event::{Hook, Reason};

/// `int security_file_receive(struct file *file)`: over a unix socket (`SCM_RIGHTS`), by `pidfd_getfd`
/// and by a seccomp supervisor. Judged as if it were opened now, for what it is open for.
#[lsm(hook = "file_receive")]
pub(crate) fn file_receive(ctx: LsmContext) -> i32 {
    let file = File(ctx.arg(0));
    member(&ctx, 1, Hook::FileReceive, |member, state| {
        // To be opened it must be opened again.
        if file.is_name() {
            return 0;
        }
        if let Some(socket) = Socket::of(file) {
            return finish::task(Hook::FileReceive, member, received(member, socket));
        }
        open(state, Hook::FileReceive, member, file, opened_for(file))
    })
}

/// A socket must have been made in the session: what it is connected to was judged only then.
#[inline(always)]
fn received(member: &Member, socket: Socket) -> Decision {
    if member.fault != 0 {
        return Decision { denied: Access::CONNECT.bits() as u16, rule: 0, reason: member.fault };
    }
    if socket.sock().is_some_and(|sock| is_own(member, sock)) {
        Decision::ALLOW
    } else {
        Decision::deny(Reason::Foreign, Access::CONNECT)
    }
}

#[inline(always)]
fn is_own(member: &Member, sock: Sock) -> bool {
    // SAFETY: a number, read under RCU.
    unsafe { SOCKETS.get(sock.address()) }.copied() == Some(member.cgroup)
        || sock.is_of_cgroup(member.cgroup)
}
