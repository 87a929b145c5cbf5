//! Which sockets may be made.

use crate::finish;
use crate::subject;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use sandbox_common::decide;
use sandbox_common::event::Hook;

/// `int security_socket_create(int family, int type, int protocol, int kern)`
#[lsm(hook = "socket_create")]
pub(crate) fn socket_create(ctx: LsmContext) -> i32 {
    let verdict: i32 = ctx.arg(4);
    if verdict != 0 {
        return verdict;
    }
    let Some(member) = subject::current() else { return 0 };
    let kernel = ctx.arg::<i32>(3) != 0;
    let decision = decide::socket(ctx.arg(0), ctx.arg(1), ctx.arg(2), kernel);
    finish::task(Hook::SocketCreate, &member, decision)
}
