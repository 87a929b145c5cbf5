//! The kernel's keyrings: a member has the keys that its session made, and no others.
//!
//! Keys of the user and of its other processes (Kerberos tickets, passwords of network and encrypted file
//! systems) are reached by number, whoever they were made for.

use crate::finish;
use crate::maps::{OBJECTS, Object};
use crate::subject;
use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::generated::bpf_get_func_arg;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use sandbox_common::Access;
use sandbox_common::decide::Decision;
use sandbox_common::event::{Hook, Reason};

/// `int security_key_alloc(struct key *key, const struct cred *cred, unsigned long flags)`: notes whose a
/// key is, for every task, since addresses are used again.
#[lsm(hook = "key_alloc")]
pub(crate) fn key_alloc(ctx: LsmContext) -> i32 {
    let verdict: i32 = ctx.arg(3);
    if verdict != 0 {
        return verdict;
    }
    let key = Object::Key.at(ctx.arg::<*const u8>(0) as u64);
    let Some(member) = subject::current() else {
        // Nothing to remove is the common case.
        let _ = OBJECTS.remove(key);
        return 0;
    };
    if member.fault != 0 || OBJECTS.insert(key, member.cgroup, 0).is_err() {
        let reason = if member.fault != 0 { member.fault } else { Reason::NoMemory as u16 };
        let decision = Decision { denied: Access::KERNEL.bits() as u16, rule: 0, reason };
        return finish::task(Hook::KeyAlloc, &member, decision);
    }
    0
}

/// `int security_key_permission(key_ref_t key_ref, const struct cred *cred, enum key_need_perm
/// need_perm)`: the lowest bit of the reference says whether the caller possesses the key.
#[lsm(hook = "key_permission")]
pub(crate) fn key_permission(ctx: LsmContext) -> i32 {
    let verdict: i32 = ctx.arg(3);
    if verdict != 0 {
        return verdict;
    }
    let Some(member) = subject::current() else { return 0 };
    // By its number: the verifier takes no argument that points to a structure of which only the name is
    // known.
    let mut reference = 0u64;
    // SAFETY: writes the argument to `reference`.
    unsafe { bpf_get_func_arg(ctx.as_ptr(), 0, &raw mut reference) };
    let key = Object::Key.at(reference & !1);
    // SAFETY: a number, read under RCU.
    if member.fault == 0 && unsafe { OBJECTS.get(key) }.copied() == Some(member.cgroup) {
        return 0;
    }
    finish::task(Hook::KeyPermission, &member, Decision::deny(Reason::Outsider, Access::KERNEL))
}
