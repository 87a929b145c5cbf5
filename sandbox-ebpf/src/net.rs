//! Where to: the verdict on an address.

use crate::kernel::task;
use crate::maps::{HOSTS, NAMES, NET4, NET6, PORTS};
use crate::recent;
use crate::subject::Member;
use aya_ebpf::maps::lpm_trie::Key;
use sandbox_common::Access;
use sandbox_common::decide::{self, Decision};
use sandbox_common::event::{NetPayload, Reason};
use sandbox_common::net::{
    LISTEN, NAMED_PREFIX, NET_PREFIX, NamedKey, Net4, Net6, PORT_PREFIX, Port,
};

pub(crate) const AF_INET: u16 = 2;
pub(crate) const AF_INET6: u16 = 10;
pub(crate) const TCP: u16 = 6;
pub(crate) const UDP: u16 = 17;

/// The third word of an IPv4-mapped IPv6 address.
const MAPPED: u32 = 0xffff_u32.to_be();
const LOCALHOST4: u32 = 0x7f00_0001_u32.to_be();
const LOCALHOST6: u32 = 1_u32.to_be();

/// An IPv6 address, or an IPv4 one in the form `::ffff:a.b.c.d`: words in network byte order.
#[derive(Clone, Copy)]
pub(crate) struct Address(pub(crate) [u32; 4]);

impl Address {
    /// From a word in network byte order.
    #[inline(always)]
    pub(crate) fn v4(word: u32) -> Self {
        Self([0, 0, MAPPED, word])
    }

    /// From words in network byte order.
    #[inline(always)]
    pub(crate) fn v6(words: [u32; 4]) -> Self {
        Self(words)
    }

    /// Whether it is IPv4.
    #[inline(always)]
    pub(crate) fn is_v4(&self) -> bool {
        let [a, b, c, _] = self.0;
        (a | b) == 0 && c == MAPPED
    }

    /// Where a connection to it goes: none is this machine.
    #[inline(always)]
    pub(crate) fn reached(self) -> Self {
        let [a, b, c, d] = self.0;
        if (a | b | d) != 0 {
            return self;
        }
        match c {
            MAPPED => Self::v4(LOCALHOST4),
            0 => Self([0, 0, 0, LOCALHOST6]),
            _ => self,
        }
    }

    /// Whether only this machine can be there.
    #[inline(always)]
    pub(crate) fn is_loopback(&self) -> bool {
        let [a, b, c, d] = self.0;
        if self.is_v4() { d.to_ne_bytes()[0] == 127 } else { (a | b | c) == 0 && d == LOCALHOST6 }
    }

    /// For the event. `port` is in network byte order.
    #[inline(always)]
    pub(crate) fn payload(&self, protocol: u16, port: u16) -> NetPayload {
        let port = u16::from_be(port);
        let (family, address) = if self.is_v4() {
            (AF_INET, bytes([self.0[3], 0, 0, 0]))
        } else {
            (AF_INET6, bytes(self.0))
        };
        NetPayload { family, port, protocol, pad: 0, address }
    }
}

/// The bytes of words that are in network byte order.
#[inline(always)]
fn bytes([a, b, c, d]: [u32; 4]) -> [u8; 16] {
    let ([a, b, c, d], mut bytes) = ([a, b, c, d].map(u32::to_ne_bytes), [0; 16]);
    bytes[..4].copy_from_slice(&a);
    bytes[4..8].copy_from_slice(&b);
    bytes[8..12].copy_from_slice(&c);
    bytes[12..].copy_from_slice(&d);
    bytes
}

/// May the member, who has its slot since a `generation` or later, reach the address? `port` is in network byte
/// order; `goes_on`: it is about something that may be under way.
#[inline(always)]
pub(crate) fn reach(
    (member, generation): (&Member, u64),
    address: &Address,
    protocol: u16,
    port: u16,
    goes_on: bool,
) -> Decision {
    let address = address.reached();
    let decision =
        look_up((member.subject.slot, generation), &address, protocol, port, Access::CONNECT);
    if decision.reason != Reason::Default as u16 {
        return decision;
    }
    let key = NamedKey {
        session: member.subject.session,
        address: bytes(address.0),
        protocol,
        port: port.to_ne_bytes(),
    };
    let now = task::boot_time();
    match NAMES.get(Key::new(NAMED_PREFIX + 16, key)) {
        // Names are checked in TLS over TCP only.
        Some(named) if protocol == UDP && named.checked_by(now) != 0 => Decision {
            denied: Access::CONNECT.bits() as u16,
            rule: named.check,
            reason: Reason::NotTcp as u16,
        },
        Some(named) if goes_on || named.until > now => {
            Decision { rule: named.rule, ..Decision::ALLOW }
        }
        Some(named) => Decision {
            denied: Access::CONNECT.bits() as u16,
            rule: named.rule,
            reason: Reason::Expired as u16,
        },
        None => decision,
    }
}

/// The rule that has the name checked that TLS asks for, of what `decision` allows to begin; 0: none.
#[inline(always)]
pub(crate) fn checked_by(
    member: &Member,
    address: &Address,
    protocol: u16,
    port: u16,
    decision: Decision,
) -> u32 {
    let key = NamedKey {
        session: member.subject.session,
        address: bytes(address.reached().0),
        protocol,
        port: port.to_ne_bytes(),
    };
    match NAMES.get(Key::new(NAMED_PREFIX + 16, key)) {
        // A rule about the address itself comes before those about names.
        Some(named) if named.rule == decision.rule => named.checked_by(task::boot_time()),
        _ => 0,
    }
}

/// May others reach the member at the address? `port` is in network byte order.
#[inline(always)]
pub(crate) fn listen(
    (member, generation): (&Member, u64),
    address: &Address,
    protocol: u16,
    port: u16,
) -> Decision {
    let slot = (member.subject.slot, generation);
    look_up(slot, address, protocol | LISTEN, port, Access::LISTEN)
}

#[inline(always)]
fn look_up(
    (slot, generation): (u32, u64),
    address: &Address,
    protocol: u16,
    port: u16,
    wanted: Access,
) -> Decision {
    let recent = recent::Key::new((slot, generation), address, protocol, port);
    if let Some(decision) = recent.look() {
        return decision;
    }
    let rule = match set(slot, address) {
        Some(set) => {
            let key = Port { slot, set, protocol, port: port.to_ne_bytes() };
            PORTS.get(Key::new(PORT_PREFIX + 16, key))
        }
        None => None,
    };
    let decision = decide::address(rule, wanted);
    recent.put(decision);
    decision
}

/// The port set of an address.
#[inline(always)]
fn set(slot: u32, address: &Address) -> Option<u32> {
    let key = Net6 { slot, address: bytes(address.0) };
    // SAFETY: a number, read under RCU.
    if let Some(set) = unsafe { HOSTS.get(key) } {
        return Some(*set);
    }
    if address.is_v4() {
        let key = Net4 { slot, address: address.0[3].to_ne_bytes() };
        NET4.get(Key::new(NET_PREFIX + 32, key)).copied()
    } else {
        NET6.get(Key::new(NET_PREFIX + 128, key)).copied()
    }
}
