//! How much: what passes by the rules that count.
//!
//! A datagram counts for the rule that lets it pass, a connection for the one that let it begin. What TCP received
//! is read off its socket whenever it sends, and it sends for whatever it receives: no program has to look at what
//! comes in. What comes by UDP is looked at (`ingress`), and counts for the rule by which a datagram would go where
//! it comes from.

use super::connection;
use crate::counter;
use crate::maps::COUNTS;
use crate::net::TCP;
use crate::subject::Member;
use aya_ebpf::bindings::{__sk_buff, BPF_SK_STORAGE_GET_F_CREATE, bpf_sock};
use aya_ebpf::helpers::generated::bpf_tcp_sock;
use sandbox_common::Access;
use sandbox_common::decide::Decision;
use sandbox_common::event::Reason;
use sandbox_common::net::{Connection, Count, CountKey};
use sandbox_common::subject::COUNTS as SOME_COUNT;

/// Whether something may begin by the rule of a decision that allows it.
#[inline(always)]
pub(super) fn check(member: &Member, decision: Decision) -> Decision {
    match entry(member, decision) {
        Some((key, count)) if is_spent(count) => spent(key.rule),
        _ => decision,
    }
}

/// The same for a datagram, or for the first segment of a connection, which count from now on.
#[inline(always)]
pub(super) fn begin(
    skb: *mut __sk_buff,
    member: &Member,
    protocol: u16,
    decision: Decision,
) -> Decision {
    let Some((key, count)) = entry(member, decision) else { return decision };
    if is_spent(count) {
        return spent(key.rule);
    }
    if protocol == TCP {
        let Some(socket) = connection::socket(skb) else {
            return Decision::deny(Reason::Unreadable, Access::CONNECT);
        };
        let connection = connection::of(socket, BPF_SK_STORAGE_GET_F_CREATE);
        if connection.is_null() {
            return Decision::deny(Reason::NoMemory, Access::CONNECT);
        }
        // SAFETY: not null, and the verifier knows its size.
        unsafe { *connection = Connection { key, received: 0, check: 0, refused: 0 } };
    }
    add_sent(skb, count);
    decision
}

/// Counts a segment of a connection that goes on. The rule, where it may not any more.
#[inline(always)]
pub(super) fn go_on(
    skb: *mut __sk_buff,
    socket: *mut bpf_sock,
    counted: &mut Connection,
) -> Option<u32> {
    if counted.key.rule == 0 {
        return None;
    }
    let count = COUNTS.get_ptr_mut(counted.key)?;
    add_sent(skb, count);
    // SAFETY: the verifier checks that the socket is one.
    let tcp = unsafe { bpf_tcp_sock(socket) };
    if !tcp.is_null() {
        // SAFETY: not null, and the verifier checks the access.
        let received = unsafe { (*tcp).bytes_received };
        let more = received.wrapping_sub(counted.received);
        counted.received = received;
        // SAFETY: a map's value.
        unsafe { counter::add(&raw mut (*count).received, more) };
    }
    if is_spent(count) { Some(counted.key.rule) } else { None }
}

/// Whether anything is counted.
#[inline(always)]
pub(super) fn some(member: &Member) -> bool {
    member.subject.permits & SOME_COUNT != 0
}

/// Counts the data of a datagram that came from where the decision lets one go.
#[inline(always)]
pub(super) fn receive(member: &Member, decision: Decision, bytes: u64) -> Decision {
    let Some((key, count)) = entry(member, decision) else { return Decision::ALLOW };
    if is_spent(count) {
        return spent(key.rule);
    }
    // SAFETY: a map's value.
    unsafe { counter::add(&raw mut (*count).received, bytes) };
    Decision::ALLOW
}

/// For the rule that `go_on` gave.
#[inline(always)]
pub(super) fn spent(rule: u32) -> Decision {
    Decision { rule, ..Decision::deny(Reason::Spent, Access::CONNECT) }
}

#[inline(always)]
fn entry(member: &Member, decision: Decision) -> Option<(CountKey, *mut Count)> {
    if !some(member) || !decision.allowed() {
        return None;
    }
    let key = CountKey { session: member.subject.session, rule: decision.rule };
    COUNTS.get_ptr_mut(key).map(|count| (key, count))
}

#[inline(always)]
fn is_spent(count: *mut Count) -> bool {
    // SAFETY: a map's value; numbers that others add to meanwhile.
    unsafe { (*count).is_spent() }
}

#[inline(always)]
fn add_sent(skb: *mut __sk_buff, count: *mut Count) {
    // SAFETY: the verifier checks the access to the context; the other as above.
    unsafe {
        counter::add(&raw mut (*count).sent, u64::from((*skb).len));
    }
}
