//! The last step of every hook: report, and turn the decision into the kernel's number.

use crate::event;
use crate::kernel::task::Task;
use crate::kernel::vfs::{Dentry, DentryAddress};
use crate::notes;
use crate::own;
use crate::subject::Member;
use sandbox_common::Access;
use sandbox_common::decide::Decision;
use sandbox_common::event::{Hook, NetPayload, ServerEvent};
use sandbox_common::net::AbstractName;
use sandbox_common::subject::Mode;

const EPERM: i32 = 1;
const EACCES: i32 = 13;

/// Whether a denial fails the operation.
#[inline(always)]
fn enforces(member: &Member) -> bool {
    !matches!(Mode::of(member.subject.mode), Mode::Audit)
}

/// For a decision about an object.
#[inline(always)]
pub(crate) fn path(hook: Hook, member: &Member, decision: Decision, dentry: Dentry) -> i32 {
    object(hook, member, decision, notes::done(hook), dentry)
}

/// For a decision about a file that is to be used so.
#[inline(always)]
pub(crate) fn opened(
    hook: Hook,
    member: &Member,
    decision: Decision,
    wanted: Access,
    dentry: Dentry,
) -> i32 {
    object(hook, member, decision, notes::opened(hook, wanted), dentry)
}

/// For a decision about a rename, of which both names are noted.
#[inline(always)]
pub(crate) fn renamed(
    member: &Member,
    (decision, is_new): (Decision, bool),
    old: Dentry,
    new: Dentry,
) -> i32 {
    let hook = Hook::PathRename;
    let is_noted = notes::wants(member, Access::WRITES);
    let told = if is_new && !(is_noted && decision.allowed()) { new } else { old };
    let verdict = object(hook, member, decision, Access::DELETE, told);
    if is_noted
        && let Some(state) = member.state()
        && notes::is_note(state)
    {
        state.decision = notes::note(Access::CREATE);
        event::path(hook, state, new.address());
    }
    verdict
}

/// `done`: what is noted of it where it is allowed.
#[inline(always)]
fn object(hook: Hook, member: &Member, decision: Decision, done: Access, dentry: Dentry) -> i32 {
    let is_noted = notes::wants(member, done);
    if decision.allowed() && !is_noted {
        return 0;
    }
    let Some(state) = member.state() else {
        event::task(hook, member, decision);
        return if enforces(member) && !decision.allowed() { -EACCES } else { 0 };
    };
    // By way of memory that the verifier keeps no account of: it follows the making of an
    // event once, not once for every reason.
    state.decision = decision;
    if decision.allowed() || own::is_own(member.cgroup, state, dentry) {
        if !is_noted {
            return 0;
        }
        state.decision = notes::note(done);
    }
    if !event::path(hook, state, dentry.address()) {
        event::task(hook, member, state.decision);
    }
    if notes::is_note(state) || !enforces(member) { 0 } else { -EACCES }
}

/// For a decision about an object of which only the address is known, and which is nobody's own.
#[inline(always)]
pub(crate) fn path_at(
    hook: Hook,
    member: &Member,
    decision: Decision,
    dentry: DentryAddress,
) -> i32 {
    if decision.allowed() {
        return 0;
    }
    let told = match member.state() {
        Some(state) => {
            state.decision = decision;
            event::path(hook, state, dentry)
        }
        None => false,
    };
    if !told {
        event::task(hook, member, decision);
    }
    if enforces(member) { -EACCES } else { 0 }
}

/// For a decision about the task, or one without working memory to tell more.
#[inline(always)]
pub(crate) fn task(hook: Hook, member: &Member, decision: Decision) -> i32 {
    if decision.allowed() {
        return 0;
    }
    event::task(hook, member, decision);
    if enforces(member) { -EPERM } else { 0 }
}

/// For a decision about another process.
#[inline(always)]
pub(crate) fn process(
    hook: Hook,
    member: &Member,
    decision: Decision,
    task: Task,
    request: u32,
) -> i32 {
    if decision.allowed() {
        return 0;
    }
    event::process(hook, member, decision, task, request);
    if enforces(member) { -EPERM } else { 0 }
}

/// For a decision about an address.
#[inline(always)]
pub(crate) fn net(hook: Hook, member: &Member, decision: Decision, address: NetPayload) -> i32 {
    let done = notes::done(hook);
    let allowed = decision.allowed();
    if allowed && !notes::wants(member, done) {
        return 0;
    }
    event::net(hook, member, if allowed { notes::note(done) } else { decision }, address);
    if allowed || !enforces(member) { 0 } else { -EPERM }
}

/// For a decision about a unix socket with an abstract name.
#[inline(always)]
pub(crate) fn unix(hook: Hook, member: &Member, decision: Decision, name: &AbstractName) -> i32 {
    let done = notes::done(hook);
    let allowed = decision.allowed();
    if allowed && !notes::wants(member, done) {
        return 0;
    }
    event::unix(hook, member, if allowed { notes::note(done) } else { decision }, name);
    if allowed || !enforces(member) { 0 } else { -EPERM }
}

/// The same with what is known of the name that TLS asks for; `event` holds it, and is filled in.
#[inline(always)]
pub(crate) fn server(
    member: &Member,
    decision: Decision,
    address: NetPayload,
    event: &mut ServerEvent,
) -> bool {
    event::server(member, decision, address, event);
    !enforces(member)
}

/// For a decision about a packet, which may be sent at any time, by any task.
#[inline(always)]
pub(crate) fn packet(member: &Member, decision: Decision, address: NetPayload) -> bool {
    if decision.allowed() {
        return true;
    }
    event::packet(Hook::Egress, member, decision, address);
    !enforces(member)
}

/// The same about a datagram that came, for a denial.
#[inline(always)]
pub(crate) fn received(member: &Member, denial: Decision, address: NetPayload) -> bool {
    event::packet(Hook::Ingress, member, denial, address);
    !enforces(member)
}
