//! The LSM hooks, one file a family. Each names its kernel prototype (`security/security.c`); the
//! last argument of every program is the verdict of the LSMs before it, which is honoured.

mod attributes;
mod directories;
mod files;
mod keys;
mod links;
mod mappings;
mod mounts;
mod moves;
mod names;
mod passing;
mod processes;
mod programs;
mod signals;
mod sockets;
mod superblocks;
mod surface;
mod tasks;
mod terminals;
mod unix;

use crate::finish;
use crate::kernel::vfs::Dentry;
use crate::path;
use crate::seat;
use crate::subject::{self, Member};
use aya_ebpf::programs::LsmContext;
use sandbox_common::Access;
use sandbox_common::decide::{self, Decision};
use sandbox_common::event::{Hook, Reason};
use sandbox_common::subject::TaskState;

/// Runs `judge` for a member; a bystander and an earlier denial pass through.
///
/// `previous` is the index of the earlier verdict among the hook's arguments.
#[inline(always)]
fn member(
    ctx: &LsmContext,
    previous: usize,
    hook: Hook,
    judge: impl FnOnce(&Member, &mut TaskState) -> i32,
) -> i32 {
    let verdict: i32 = ctx.arg(previous);
    if verdict != 0 {
        return verdict;
    }
    let Some(member) = subject::current() else { return 0 };
    match memory(hook, &member) {
        Ok(state) => judge(&member, state),
        Err(verdict) => verdict,
    }
}

/// A member's own memory, or what it hears for want of it.
#[inline(always)]
fn memory<'a>(hook: Hook, member: &Member) -> Result<&'a mut TaskState, i32> {
    member.state().ok_or_else(|| {
        finish::task(hook, member, Decision::deny(Reason::NoMemory, Access::empty()))
    })
}

/// The common case: one object, one access.
#[inline(always)]
fn object(ctx: &LsmContext, previous: usize, hook: Hook, dentry: Dentry, wanted: Access) -> i32 {
    let verdict: i32 = ctx.arg(previous);
    if verdict != 0 {
        return verdict;
    }
    let seat = seat::current();
    if let Some(seat) = seat
        && path::quick::permits(seat, dentry, dentry.inode(), || wanted)
    {
        return 0;
    }
    let Some(member) = subject::current() else { return 0 };
    if seat.is_none() && path::quick::permits_now(&member, dentry, dentry.inode(), wanted) {
        return 0;
    }
    let state = match memory(hook, &member) {
        Ok(state) => state,
        Err(verdict) => return verdict,
    };
    let place = path::place(state, &member, dentry);
    finish::path(hook, &member, decide::access(place, wanted), dentry)
}

/// What no session may do, whatever its policy.
#[inline(always)]
fn never(hook: Hook, access: Access) -> i32 {
    let Some(member) = subject::current() else { return 0 };
    finish::task(hook, &member, Decision::deny(Reason::Never, access))
}
