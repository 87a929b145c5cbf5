//! Network rules for the kernel: address prefixes, and the port sets that they lead to.

use super::compiled::{CompiledPolicy, PortEntry, Prefix};
use super::rule::{NetRule, Protocol};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Ports and the rule that speaks of them.
type Ports = Vec<(Protocol, RangeInclusive<u16>, u32)>;

/// Fills in the network part of a policy.
///
/// The kernel looks at the longest prefix only, so each prefix repeats what the shorter ones that
/// cover it allow. No two port sets are alike: each has a rule of its own.
pub(super) fn compile(rules: &[NetRule], policy: &mut CompiledPolicy) {
    let mut nets: BTreeMap<IpNet, Vec<&NetRule>> = BTreeMap::new();
    for rule in rules {
        nets.entry(rule.target.net).or_default().push(rule);
    }
    // In this order a prefix comes after every one that covers it, with none between that does not.
    let mut covering: Vec<IpNet> = Vec::new();
    for (set, net) in (0..).zip(nets.keys()) {
        while covering.last().is_some_and(|above| !above.contains(net)) {
            covering.pop();
        }
        covering.push(*net);
        // The most specific last, and of its rules the first: later ones paint over earlier ones.
        let order = covering.iter().flat_map(|net| nets[net].iter().rev().copied());
        policy.ports.extend(entries(set, &paint(order)));
        let bits = net.prefix_len();
        match net {
            IpNet::V4(net) => policy.net4.push(Prefix { address: net.network(), bits, set }),
            IpNet::V6(net) => policy.net6.push(Prefix { address: net.network(), bits, set }),
        }
    }
}

/// Disjoint port ranges with the rule that decides in each; of the rules that name a port the last
/// decides.
fn paint<'a>(rules: impl Iterator<Item = &'a NetRule>) -> Ports {
    // Per protocol: where a range begins, and whose it is up to the next beginning.
    let mut painted: BTreeMap<Protocol, BTreeMap<u16, Option<u32>>> = BTreeMap::new();
    for rule in rules {
        let (low, high) = (*rule.target.ports.start(), *rule.target.ports.end());
        for protocol in rule.target.protocols {
            let ranges = painted.entry(*protocol).or_insert_with(|| BTreeMap::from([(0, None)]));
            if let Some(next) = high.checked_add(1) {
                let owner = ranges.range(..=next).next_back().and_then(|(_, owner)| *owner);
                ranges.insert(next, owner);
            }
            let within: Vec<u16> = ranges.range(low..=high).map(|(start, _)| *start).collect();
            for start in within {
                ranges.remove(&start);
            }
            ranges.insert(low, Some(rule.origin.id));
        }
    }
    let mut ports = Ports::new();
    for (protocol, ranges) in painted {
        let ends = ranges.keys().skip(1).map(|next| next - 1).chain([u16::MAX]);
        for ((start, owner), end) in ranges.iter().zip(ends) {
            if let Some(rule) = owner {
                ports.push((protocol, *start..=end, *rule));
            }
        }
    }
    ports
}

fn entries(set: u32, ports: &Ports) -> impl Iterator<Item = PortEntry> {
    ports.iter().flat_map(move |(protocol, range, rule)| {
        prefixes(range.clone()).map(move |(port, bits)| PortEntry {
            set,
            protocol: *protocol as u8,
            port,
            bits,
            rule: *rule,
            allow: true,
        })
    })
}

/// The fewest port prefixes (first port, bits) that make up a range.
pub fn prefixes(range: RangeInclusive<u16>) -> impl Iterator<Item = (u16, u8)> {
    let (mut next, end) = (u32::from(*range.start()), u32::from(*range.end()));
    std::iter::from_fn(move || {
        let first = u16::try_from(next).ok().filter(|_| next <= end)?;
        // The largest aligned block that begins here and does not pass the end.
        let aligned = next.trailing_zeros().min(16);
        let fits = (end - next + 1).ilog2();
        let free = aligned.min(fits);
        next += 1 << free;
        Some((first, u8::try_from(16 - free).unwrap_or(16)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::decide::{self, Decision};
    use crate::policy::load_text;
    use proptest::prelude::*;
    use std::net::IpAddr;

    #[test]
    fn ranges_are_few_prefixes() {
        let of = |range| prefixes(range).collect::<Vec<_>>();
        assert_eq!(of(0..=u16::MAX), [(0, 0)]);
        assert_eq!(of(443..=443), [(443, 16)]);
        assert_eq!(of(8000..=8010), [(8000, 13), (8008, 15), (8010, 16)]);
        assert_eq!(of(1..=u16::MAX).len(), 16);
        assert_eq!(of(u16::MAX..=u16::MAX), [(u16::MAX, 16)]);
    }

    proptest! {
        #[test]
        fn prefixes_make_up_the_range(a in any::<u16>(), b in any::<u16>()) {
            let range = a.min(b)..=a.max(b);
            let mut next = u32::from(*range.start());
            for (first, bits) in prefixes(range.clone()) {
                prop_assert_eq!(u32::from(first), next);
                let size = 1u32 << (16 - bits);
                prop_assert_eq!(next % size, 0);
                next += size;
            }
            prop_assert_eq!(next, u32::from(*range.end()) + 1);
        }
    }

    /// Looks an address up as the kernel does: longest address prefix, then longest port prefix.
    fn lookup(policy: &CompiledPolicy, protocol: Protocol, address: IpAddr, port: u16) -> Decision {
        fn longest<A: Copy>(
            prefixes: &[Prefix<A>],
            covers: impl Fn(&Prefix<A>) -> bool,
        ) -> Option<u32> {
            let found = prefixes.iter().filter(|prefix| covers(prefix));
            found.max_by_key(|prefix| prefix.bits).map(|prefix| prefix.set)
        }
        let set = match address {
            IpAddr::V4(address) => longest(&policy.net4, |prefix| {
                let shift = 32 - u32::from(prefix.bits);
                let differ = prefix.address.to_bits() ^ address.to_bits();
                differ.checked_shr(shift).unwrap_or(0) == 0
            }),
            IpAddr::V6(address) => longest(&policy.net6, |prefix| {
                let shift = 128 - u32::from(prefix.bits);
                let differ = prefix.address.to_bits() ^ address.to_bits();
                differ.checked_shr(shift).unwrap_or(0) == 0
            }),
        };
        let found = policy.ports.iter().filter(|entry| {
            Some(entry.set) == set
                && entry.protocol == protocol as u8
                && u32::from(entry.port ^ port) >> (16 - u32::from(entry.bits)) == 0
        });
        found.max_by_key(|entry| entry.bits).map_or(Decision { allow: false, rule: 0 }, |entry| {
            Decision { allow: entry.allow, rule: entry.rule }
        })
    }

    fn compiled(allow: &[String]) -> (Vec<NetRule>, CompiledPolicy) {
        let text = format!("version = 1\nnetwork.allow = {allow:?}\n");
        let rules = load_text("p", text).unwrap().network;
        let mut policy = CompiledPolicy::default();
        compile(&rules, &mut policy);
        (rules, policy)
    }

    #[test]
    fn a_longer_prefix_repeats_the_shorter_ones() {
        let rules = ["10.0.0.0/8:80", "10.1.0.0/16:443/tcp", "11.0.0.0/8:1", "[::]/0:80"];
        let (_, policy) = compiled(&rules.map(String::from));
        let allowed = |protocol, address: &str, port| {
            lookup(&policy, protocol, address.parse().unwrap(), port)
        };
        let by = |rule| Decision { allow: rule != 0, rule };
        assert_eq!(allowed(Protocol::Tcp, "10.1.2.3", 80), by(1));
        assert_eq!(allowed(Protocol::Tcp, "10.1.2.3", 443), by(2));
        assert_eq!(allowed(Protocol::Udp, "10.1.2.3", 443), by(0));
        assert_eq!(allowed(Protocol::Tcp, "10.2.2.3", 443), by(0));
        assert_eq!(allowed(Protocol::Tcp, "11.1.2.3", 80), by(0));
        assert_eq!(allowed(Protocol::Tcp, "12.1.2.3", 80), by(0));
        assert_eq!(allowed(Protocol::Tcp, "::1", 80), by(4));
    }

    fn rule() -> impl Strategy<Value = String> {
        let v4 = (0u8..3, 0u8..4, 0u8..=32).prop_map(|(a, b, bits)| {
            let net = ipnet::Ipv4Net::new([10, a, b, 1].into(), bits).unwrap().trunc();
            net.to_string()
        });
        let v6 = (0u16..3, 0u16..4, 0u8..=128).prop_map(|(a, b, bits)| {
            let net = ipnet::Ipv6Net::new([0xfd00, a, b, 0, 0, 0, 0, 1].into(), bits).unwrap();
            format!("[{}]/{bits}", net.trunc().addr())
        });
        let ports = prop_oneof![
            Just(String::new()),
            (1u16..40).prop_map(|port| format!(":{port}")),
            (1u16..40, 0u16..40).prop_map(|(low, more)| format!(":{low}-{}", low + more)),
        ];
        let protocol = prop_oneof![Just(""), Just("/tcp"), Just("/udp")];
        (prop_oneof![v4, v6], ports, protocol)
            .prop_map(|(net, ports, protocol)| format!("{net}{ports}{protocol}"))
    }

    fn target() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            (0u8..3, 0u8..4, 0u8..3).prop_map(|(a, b, c)| IpAddr::from([10, a, b, c])),
            (0u16..3, 0u16..4, 0u16..3)
                .prop_map(|(a, b, c)| IpAddr::from([0xfd00, a, b, 0, 0, 0, 0, c])),
        ]
    }

    proptest! {
        #[test]
        fn lookups_agree_with_the_rules(
            allow in proptest::collection::vec(rule(), 0..12),
            targets in proptest::collection::vec((target(), 0u16..90, any::<bool>()), 20),
        ) {
            let (rules, policy) = compiled(&allow);
            for (address, port, tcp) in targets {
                let protocol = if tcp { Protocol::Tcp } else { Protocol::Udp };
                prop_assert_eq!(
                    lookup(&policy, protocol, address, port),
                    decide::address(&rules, protocol, address, port),
                    "{} {:?}", address, &allow
                );
            }
        }
    }
}
