//! What comes by UDP: it counts for the rule by which a datagram would go where it comes from.
//!
//! Nothing is judged here but amounts. Where no rule opens the sender's address (others send to what the session
//! listens at, its resolver answers), nothing counts. Attached to sessions that have, or had, rules that count.

use super::count;
use super::packet::{ETH_P_IP, ETH_P_IPV6, HOP_BY_HOP, at};
use crate::finish;
use crate::net::{self, Address, TCP, UDP};
use crate::session;
use crate::subject::Member;
use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::macros::cgroup_skb;
use aya_ebpf::programs::SkBuffContext;
use sandbox_common::Access;
use sandbox_common::decide::Decision;
use sandbox_common::event::Reason;

/// Extension headers that the kernel passes over and leaves in place (linux/in6.h, net/ipv6.h). Whoever sends chooses
/// them.
const ROUTING: u16 = 43;
const FRAGMENT: u16 = 44;
const DESTINATION: u16 = 60;
/// Most of them. The kernel's own senders use three at most.
const EXTENSIONS: usize = 8;

/// Bytes of UDP's header.
const HEADER: u32 = 8;

/// Where it comes from, its protocol, and where the header of that begins.
struct Packet {
    from: Address,
    protocol: u16,
    offset: usize,
}

/// Every IP packet for a socket of the session. 1 lets it come, 0 drops it.
#[cgroup_skb(ingress)]
pub(crate) fn ingress(ctx: SkBuffContext) -> i32 {
    i32::from(judge(&ctx))
}

#[inline(always)]
fn judge(ctx: &SkBuffContext) -> bool {
    let skb: *mut __sk_buff = ctx.skb.skb;
    // SAFETY: the verifier checks each access to the context.
    let (kind, length) = unsafe { ((*skb).protocol, (*skb).len) };
    let first = match kind {
        ETH_P_IP => at::<9, u8>(ctx),
        ETH_P_IPV6 => at::<6, u8>(ctx),
        _ => None,
    };
    // That knows itself what it received.
    if first.is_some_and(|protocol| u16::from(protocol) == TCP) {
        return true;
    }
    let session = session::owner();
    let member = session.member();
    if !count::some(&member) {
        return true;
    }
    let packet = match kind {
        ETH_P_IP => v4(ctx),
        ETH_P_IPV6 => v6(ctx),
        _ => None,
    };
    let Some(Packet { from, protocol, offset }) = packet else { return unreadable(&member, None) };
    if protocol != UDP {
        return true;
    }
    let Ok(port) = ctx.load::<u16>(offset) else { return unreadable(&member, Some(&from)) };
    let decision = net::reach((&member, session.generation()), &from, UDP, port, true);
    let data = length.saturating_sub(offset as u32).saturating_sub(HEADER);
    let decision = count::receive(&member, decision, data.into());
    decision.allowed() || finish::received(&member, decision, from.payload(UDP, port))
}

/// What cannot be counted does not come, where something is counted.
#[inline(always)]
fn unreadable(member: &Member, from: Option<&Address>) -> bool {
    let denied = Decision::deny(Reason::Unreadable, Access::CONNECT);
    let from = from.copied().unwrap_or(Address::v4(0));
    finish::received(member, denied, from.payload(UDP, 0))
}

#[inline(always)]
fn v4(ctx: &SkBuffContext) -> Option<Packet> {
    let [first, _, third, from, _] = at::<0, [u32; 5]>(ctx)?;
    let protocol = u16::from(third.to_ne_bytes()[1]);
    let offset = usize::from(first.to_ne_bytes()[0] & 15) * 4;
    Some(Packet { from: Address::v4(from), protocol, offset })
}

#[inline(always)]
fn v6(ctx: &SkBuffContext) -> Option<Packet> {
    let words = at::<0, [u32; 10]>(ctx)?;
    let mut next = u16::from(words[1].to_ne_bytes()[2]);
    let mut offset = 40;
    for _ in 0..EXTENSIONS {
        if !is_extension(next) {
            break;
        }
        let [following, length] = ctx.load::<[u8; 2]>(offset).ok()?;
        // The length of the header of fragments is zero.
        let length = if next == FRAGMENT { 0 } else { usize::from(length) };
        next = u16::from(following);
        offset += (length + 1) * 8;
    }
    let from = Address::v6([words[2], words[3], words[4], words[5]]);
    (!is_extension(next)).then_some(Packet { from, protocol: next, offset })
}

#[inline(always)]
fn is_extension(protocol: u16) -> bool {
    matches!(protocol, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION)
}
