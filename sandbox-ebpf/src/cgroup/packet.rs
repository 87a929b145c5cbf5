//! What leaves: the last look, by the packet's own destination.
//!
//! Options of a socket send packets elsewhere than where it connected to (source routes, routing
//! headers), and loopback has other names. A TCP connection is judged by its first segment; what an
//! accepted one answers goes wherever it came from.

use super::hello::{self, Segment};
use super::{connection, count, names};
use crate::finish;
use crate::net::{self, Address, TCP, UDP};
use crate::peer::{self, End};
use crate::session;
use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::macros::cgroup_skb;
use aya_ebpf::programs::SkBuffContext;
use sandbox_common::Access;
use sandbox_common::decide::Decision;
use sandbox_common::event::Reason;
use sandbox_common::subject::SERVER_NAMES;

/// `linux/if_ether.h`
pub(super) const ETH_P_IP: u32 = 0x0800_u16.to_be() as u32;
pub(super) const ETH_P_IPV6: u32 = 0x86dd_u16.to_be() as u32;
/// The only extension header that the kernel adds by itself, to packets of more than 64 KiB.
pub(super) const HOP_BY_HOP: u16 = 0;
/// Of a TCP header's fourteenth byte.
pub(super) const SYN: u8 = 2;
pub(super) const ACK: u8 = 16;
/// linux/ip.h: a list of options ends, one without a length, loose and strict source routes.
const IPOPT_END: u8 = 0;
const IPOPT_NOOP: u8 = 1;
const IPOPT_LSRR: u8 = 131;
const IPOPT_SSRR: u8 = 137;

/// Bytes of a header without options.
const V4: usize = 20;
const V6: usize = 40;

/// Addresses, protocol, and where its header begins.
struct Packet {
    from: Address,
    to: Address,
    protocol: u16,
    offset: usize,
    /// Its options send it elsewhere.
    routed: bool,
}

/// Every IP packet of a socket of the session. 1 lets it go, 0 drops it.
#[cgroup_skb(egress)]
pub(crate) fn egress(ctx: SkBuffContext) -> i32 {
    i32::from(judge(&ctx))
}

#[inline(always)]
fn judge(ctx: &SkBuffContext) -> bool {
    let skb: *mut __sk_buff = ctx.skb.skb;
    // SAFETY: the verifier checks each access to the context.
    let kind = unsafe { (*skb).protocol };
    let packet = match kind {
        ETH_P_IP => v4(ctx),
        ETH_P_IPV6 => v6(ctx),
        _ => None,
    };
    let Some(Packet { from, to, protocol, offset, routed }) = packet else {
        return unreadable();
    };
    if routed {
        let denied = Decision::deny(Reason::Packet, Access::CONNECT);
        return finish::packet(&session::owner().member(), denied, to.payload(protocol, 0));
    }
    let header = match protocol {
        TCP => header::<[u16; 7]>(ctx, offset)
            .map(|[source, port, .., flags]| (source, port, flags.to_ne_bytes())),
        UDP => header::<[u16; 2]>(ctx, offset).map(|[source, port]| (source, port, [0, SYN])),
        // No socket that sends others can be made.
        _ => None,
    };
    let Some((source, port, flags)) = header else {
        let denied = Decision::deny(Reason::Packet, Access::CONNECT);
        return finish::packet(&session::owner().member(), denied, to.payload(protocol, 0));
    };
    let segment = Segment { offset: offset as u32, flags };
    if segment.begins() {
        let session = session::owner();
        let member = session.member();
        let decision = net::reach((&member, session.generation()), &to, protocol, port, true);
        let decision = count::begin(skb, &member, protocol, decision);
        if !decision.allowed() {
            let payload = to.payload(protocol, port);
            let (from, to) = (End { address: from, port: source }, End { address: to, port });
            if to.address.is_loopback()
                && (names::is_resolver(&member, &to.address, port)
                    || peer::is_fellow(skb.cast(), &member, protocol, &from, &to))
            {
                return true;
            }
            return finish::packet(&member, decision, payload);
        }
        if protocol != TCP || member.subject.permits & SERVER_NAMES == 0 {
            return true;
        }
        let check = net::checked_by(&member, &to, protocol, port, decision);
        if !hello::begin(skb, check) {
            let denied = hello::denied(check, Reason::NoMemory);
            return finish::packet(&member, denied, to.payload(protocol, port));
        }
        if check == 0 {
            return true;
        }
    }
    goes_on(ctx, segment, &to, port)
}

/// A segment of a connection that was let begin, perhaps the first, of one that is to be checked.
#[inline(always)]
fn goes_on(ctx: &SkBuffContext, segment: Segment, to: &Address, port: u16) -> bool {
    let skb = ctx.skb.skb;
    let Some(socket) = connection::socket(skb) else { return true };
    let connection = connection::of(socket, 0);
    if connection.is_null() {
        return true;
    }
    // SAFETY: not null, and the verifier knows its size; the socket is locked while it sends.
    let connection = unsafe { &mut *connection };
    // What begins was counted.
    if !segment.begins()
        && let Some(rule) = count::go_on(skb, socket, connection)
    {
        let member = session::owner();
        return finish::packet(&member.member(), count::spent(rule), to.payload(TCP, port));
    }
    connection.check == 0 || hello::judge(ctx, socket, connection, segment, to, port)
}

#[inline(always)]
fn unreadable() -> bool {
    let denied = Decision::deny(Reason::Unreadable, Access::CONNECT);
    finish::packet(&session::owner().member(), denied, Address::v4(0).payload(0, 0))
}

/// What follows the packet's own header.
#[inline(always)]
fn header<T: Copy>(ctx: &SkBuffContext, offset: usize) -> Option<T> {
    match offset {
        V4 => at::<V4, T>(ctx),
        V6 => at::<V6, T>(ctx),
        _ => ctx.load(offset).ok(),
    }
}

/// Part of the packet: where it lies, if that is in what the socket buffer begins with, as headers do; or else by
/// the helper that finds all of a packet.
#[inline(always)]
pub(super) fn at<const OFFSET: usize, T: Copy>(ctx: &SkBuffContext) -> Option<T> {
    let skb = ctx.skb.skb;
    // SAFETY: the verifier checks each access to the context.
    let (data, end) = unsafe { ((*skb).data as usize, (*skb).data_end as usize) };
    if data + OFFSET + size_of::<T>() > end {
        return ctx.load(OFFSET).ok();
    }
    // SAFETY: the verifier knows that the packet is that long. Addresses and ports lie at multiples of their sizes.
    Some(unsafe { ((data + OFFSET) as *const T).read() })
}

#[inline(always)]
fn v4(ctx: &SkBuffContext) -> Option<Packet> {
    let [first, _, third, from, to] = at::<0, [u32; 5]>(ctx)?;
    let words = usize::from(first.to_ne_bytes()[0] & 15);
    let mut packet = Packet {
        from: Address::v4(from),
        to: Address::v4(to),
        protocol: u16::from(third.to_ne_bytes()[1]),
        offset: words * 4,
        routed: false,
    };
    if words > 5 {
        packet.routed = is_source_routed(ctx, packet.offset);
    }
    Some(packet)
}

/// Whether the options behind a header of IPv4 name a way. What cannot be read does.
#[inline(always)]
fn is_source_routed(ctx: &SkBuffContext, end: usize) -> bool {
    let mut at = 20;
    // 40 bytes hold no more.
    for _ in 0..40 {
        if at >= end || at >= 60 {
            return false;
        }
        match ctx.load::<u8>(at) {
            Ok(IPOPT_END) => return false,
            Ok(IPOPT_NOOP) => at += 1,
            Ok(IPOPT_LSRR | IPOPT_SSRR) | Err(_) => return true,
            Ok(_) => match ctx.load::<u8>(at + 1) {
                Ok(length) if length >= 2 => at += usize::from(length),
                _ => return true,
            },
        }
    }
    true
}

#[inline(always)]
fn v6(ctx: &SkBuffContext) -> Option<Packet> {
    let words = at::<0, [u32; 10]>(ctx)?;
    let mut next = u16::from(words[1].to_ne_bytes()[2]);
    let mut offset = V6;
    if next == HOP_BY_HOP {
        let [following, length] = ctx.load::<[u8; 2]>(offset).ok()?;
        next = u16::from(following);
        offset += (usize::from(length) + 1) * 8;
    }
    let from = Address::v6([words[2], words[3], words[4], words[5]]);
    let to = Address::v6([words[6], words[7], words[8], words[9]]);
    Some(Packet { from, to, protocol: next, offset, routed: false })
}
