//! Where to: the verdict on an address.

use crate::maps::{NET4, NET6, PORTS};
use crate::subject::Member;
use aya_ebpf::maps::lpm_trie::Key;
use sandbox_common::Access;
use sandbox_common::decide::Decision;
use sandbox_common::event::{NetPayload, Reason};
use sandbox_common::net::{NET_PREFIX, Net4, Net6, PORT_PREFIX, Port, PortRule};

pub(crate) const AF_INET: u16 = 2;
pub(crate) const AF_INET6: u16 = 10;

/// An address in network byte order and its family; an IPv4-mapped one is IPv4.
pub(crate) struct Address {
    pub(crate) family: u16,
    pub(crate) bytes: [u8; 16],
}

impl Address {
    /// From a word in network byte order.
    #[inline(always)]
    pub(crate) fn v4(word: u32) -> Self {
        Self { family: AF_INET, bytes: words([word, 0, 0, 0]) }
    }

    /// From words in network byte order.
    #[inline(always)]
    pub(crate) fn v6([a, b, c, d]: [u32; 4]) -> Self {
        if a == 0 && b == 0 && c == 0xffff_u32.to_be() {
            return Self::v4(d);
        }
        Self { family: AF_INET6, bytes: words([a, b, c, d]) }
    }

    /// For the event. `port` is in network byte order.
    #[inline(always)]
    pub(crate) fn payload(&self, protocol: u16, port: u16) -> NetPayload {
        let port = u16::from_be(port);
        NetPayload { family: self.family, port, protocol, pad: 0, address: self.bytes }
    }
}

/// The bytes of words that are in network byte order.
#[inline(always)]
fn words([a, b, c, d]: [u32; 4]) -> [u8; 16] {
    let ([a, b, c, d], mut bytes) = ([a, b, c, d].map(u32::to_ne_bytes), [0; 16]);
    bytes[..4].copy_from_slice(&a);
    bytes[4..8].copy_from_slice(&b);
    bytes[8..12].copy_from_slice(&c);
    bytes[12..].copy_from_slice(&d);
    bytes
}

/// May the member reach the address? `port` is in network byte order.
#[inline(always)]
pub(crate) fn decide(member: &Member, address: &Address, protocol: u16, port: u16) -> Decision {
    let slot = member.subject.slot;
    let set = if address.family == AF_INET {
        let [a, b, c, d, ..] = address.bytes;
        NET4.get(Key::new(NET_PREFIX + 32, Net4 { slot, address: [a, b, c, d] }))
    } else {
        NET6.get(Key::new(NET_PREFIX + 128, Net6 { slot, address: address.bytes }))
    };
    let rule = match set {
        Some(set) => {
            let key = Port { set: *set, protocol, port: port.to_ne_bytes() };
            PORTS.get(Key::new(PORT_PREFIX + 16, key))
        }
        None => None,
    };
    match rule {
        Some(PortRule { allow: 1, .. }) => Decision::ALLOW,
        Some(PortRule { rule, .. }) => Decision {
            denied: Access::CONNECT.bits() as u16,
            rule: *rule,
            reason: Reason::Rule as u16,
        },
        None => Decision::deny(Reason::Default, Access::CONNECT),
    }
}
