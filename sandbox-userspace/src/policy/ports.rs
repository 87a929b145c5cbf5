//! Network rules for the kernel: address prefixes, and the port sets that they lead to.

use super::compiled::{CompiledPolicy, PortEntry, Prefix};
use super::decide;
use super::rule::{Direction, NetRule, Policy, Protocol};
use ipnet::IpNet;
use sandbox_common::net::LISTEN;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::RangeInclusive;

/// Ports, and who says what of them.
pub(super) type Ports = Vec<(u16, RangeInclusive<u16>, Owner)>;

/// Whose a port is: a rule, or 0 for a reserved address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) rule: u32,
    pub(super) allow: bool,
    /// The rule that wants the names checked that TLS asks for; 0: none.
    pub(super) check: u32,
}

/// What is said of ports at one prefix, or of one name.
pub(super) struct Said<'a> {
    pub(super) direction: Direction,
    pub(super) protocols: &'a [Protocol],
    pub(super) ports: RangeInclusive<u16>,
    pub(super) owner: Owner,
}

/// Fills in the network part of a policy, as all its layers allow.
///
/// The kernel looks at the longest prefix only, so each prefix repeats what the shorter ones that
/// cover it say.
pub(super) fn compile(policy: &Policy, compiled: &mut CompiledPolicy) {
    let layers: Vec<Layer<'_>> =
        [policy].into_iter().chain(&policy.ceilings).map(Layer::new).collect();
    let mut nets: BTreeSet<IpNet> = decide::reserved().collect();
    nets.extend(layers.iter().flat_map(|layer| layer.nets.keys()));
    // In this order a prefix comes after every one that covers it, with none between that does not.
    let mut covering: Vec<IpNet> = Vec::new();
    for (set, net) in (0..).zip(nets) {
        while covering.last().is_some_and(|above| !above.contains(&net)) {
            covering.pop();
        }
        covering.push(net);
        let mut tables = layers.iter().zip([true].into_iter().chain(std::iter::repeat(false)));
        let own = tables.next().map(|(layer, own)| layer.table(&covering, own));
        let ceilings = tables.map(|(layer, own)| Ceiling {
            closes: layer.closes,
            ports: layer.table(&covering, own),
        });
        let ports = meet(&own.unwrap_or_default(), &ceilings.collect::<Vec<_>>());
        compiled.ports.extend(entries(set, &ports));
        let bits = net.prefix_len();
        match net {
            IpNet::V4(net) => compiled.net4.push(Prefix { address: net.network(), bits, set }),
            IpNet::V6(net) => compiled.net6.push(Prefix { address: net.network(), bits, set }),
        }
    }
}

/// What one layer says of addresses.
struct Layer<'a> {
    nets: BTreeMap<IpNet, Vec<&'a NetRule>>,
    /// Whether it leaves out what it does not list: to connect to, to listen at.
    closes: [bool; 2],
}

impl<'a> Layer<'a> {
    fn new(policy: &'a Policy) -> Self {
        let mut nets: BTreeMap<IpNet, Vec<&NetRule>> = BTreeMap::new();
        for rule in &policy.network {
            nets.entry(rule.target.net).or_default().push(rule);
        }
        Self { nets, closes: [Direction::Out, Direction::In].map(|way| policy.closes(way)) }
    }

    /// What it says of ports in a prefix, by those that cover it from the shortest to itself.
    fn table(&self, covering: &[IpNet], own: bool) -> Ports {
        let reserved: HashSet<IpNet> = decide::reserved().collect();
        // What counts more comes last and paints over what was before.
        paint(covering.iter().flat_map(|net| {
            let rules = self.nets.get(net).map(Vec::as_slice).unwrap_or_default();
            let of = |allow| rules.iter().rev().filter(move |rule| rule.allow == allow);
            let reserved = (reserved.contains(net) && (own || self.closes[0])).then_some(RESERVED);
            reserved.into_iter().chain(of(true).chain(of(false)).map(|rule| said(rule)))
        }))
    }
}

/// What a ceiling says.
pub(super) struct Ceiling {
    /// Whether it leaves out what it does not list: to connect to, to listen at.
    pub(super) closes: [bool; 2],
    pub(super) ports: Ports,
}

/// What remains of a policy's own ports beneath its ceilings. What it denies itself is denied by it; else the
/// first ceiling that does not allow a port decides.
pub(super) fn meet(own: &Ports, ceilings: &[Ceiling]) -> Ports {
    if ceilings.is_empty() {
        return own.clone();
    }
    let tables = || std::iter::once(own).chain(ceilings.iter().map(|ceiling| &ceiling.ports));
    let protocols: BTreeSet<u16> = tables().flatten().map(|(protocol, ..)| *protocol).collect();
    let mut met = Ports::new();
    for protocol in protocols {
        let of = |table: &Ports, port: u16| {
            let found =
                table.iter().find(|(of, ports, _)| *of == protocol && ports.contains(&port));
            found.map(|(.., owner)| *owner)
        };
        let ranges = tables().flatten().filter(|(of, ..)| *of == protocol);
        let mut cuts: BTreeSet<u16> = ranges
            .flat_map(|(_, ports, _)| [Some(*ports.start()), ports.end().checked_add(1)])
            .flatten()
            .collect();
        cuts.insert(0);
        let ends = cuts.iter().skip(1).map(|next| next - 1).chain([u16::MAX]);
        for (first, last) in cuts.iter().copied().zip(ends) {
            let mine = of(own, first);
            let denial = ceilings.iter().find_map(|ceiling| match of(&ceiling.ports, first) {
                Some(Owner { allow: true, .. }) => None,
                None if !ceiling.closes[usize::from(protocol & LISTEN != 0)] => None,
                denial => Some(denial),
            });
            // Whoever wants names to be checked has it.
            let check = || {
                let checks = ceilings.iter().filter_map(|ceiling| of(&ceiling.ports, first));
                checks.map(|owner| owner.check).find(|check| *check != 0).unwrap_or_default()
            };
            let owner = match mine {
                Some(Owner { allow: false, .. }) => mine,
                _ => denial.unwrap_or_else(|| {
                    mine.map(|owner| Owner {
                        check: if owner.check == 0 { check() } else { owner.check },
                        ..owner
                    })
                }),
            };
            if let Some(owner) = owner {
                met.push((protocol, first..=last, owner));
            }
        }
    }
    met
}

const RESERVED: Said<'_> = Said {
    direction: Direction::Out,
    protocols: &[Protocol::Tcp, Protocol::Udp],
    ports: 0..=u16::MAX,
    owner: Owner { rule: 0, allow: false, check: 0 },
};

fn said(rule: &NetRule) -> Said<'_> {
    Said {
        direction: rule.direction,
        protocols: rule.target.protocols,
        ports: rule.target.ports.clone(),
        owner: Owner { rule: rule.origin.id, allow: rule.allow, check: 0 },
    }
}

/// Disjoint port ranges with who decides in each: of those who speak of a port the last.
pub(super) fn paint<'a>(said: impl Iterator<Item = Said<'a>>) -> Ports {
    // Per protocol: where a range begins, and whose it is up to the next beginning.
    let mut painted: BTreeMap<u16, BTreeMap<u16, Option<Owner>>> = BTreeMap::new();
    for Said { direction, protocols, ports, owner } in said {
        let (low, high) = (*ports.start(), *ports.end());
        for protocol in protocols {
            let key = *protocol as u16 | direction as u16;
            let ranges = painted.entry(key).or_insert_with(|| BTreeMap::from([(0, None)]));
            if let Some(next) = high.checked_add(1) {
                let owner = ranges.range(..=next).next_back().and_then(|(_, owner)| *owner);
                ranges.insert(next, owner);
            }
            let within: Vec<u16> = ranges.range(low..=high).map(|(start, _)| *start).collect();
            for start in within {
                ranges.remove(&start);
            }
            ranges.insert(low, Some(owner));
        }
    }
    let mut ports = Ports::new();
    for (protocol, ranges) in painted {
        let ends = ranges.keys().skip(1).map(|next| next - 1).chain([u16::MAX]);
        for ((start, owner), end) in ranges.iter().zip(ends) {
            if let Some(owner) = owner {
                ports.push((protocol, *start..=end, *owner));
            }
        }
    }
    ports
}

fn entries(set: u32, ports: &Ports) -> impl Iterator<Item = PortEntry> {
    ports.iter().flat_map(move |(protocol, range, Owner { rule, allow, .. })| {
        prefixes(range.clone()).map(move |(port, bits)| PortEntry {
            set,
            protocol: *protocol,
            port,
            bits,
            rule: *rule,
            allow: *allow,
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
pub(super) mod tests {
    use super::*;
    use crate::policy::decide::Reach;
    use crate::policy::load_text;
    use proptest::prelude::*;
    use std::fmt::Write as _;
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
    pub(in crate::policy) fn lookup(
        policy: &CompiledPolicy,
        protocol: u16,
        address: IpAddr,
        port: u16,
    ) -> Reach {
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
                && entry.protocol == protocol
                && u32::from(entry.port ^ port) >> (16 - u32::from(entry.bits)) == 0
        });
        found.max_by_key(|entry| entry.bits).map_or(Reach::Default, |entry| match entry.rule {
            0 => Reach::Reserved,
            rule => Reach::Rule { allow: entry.allow, rule },
        })
    }

    fn written(lists: [&[String]; 3]) -> Policy {
        let [allow, deny, listen] = lists;
        let text = format!(
            "version = 1\n[network]\nallow = {allow:?}\ndeny = {deny:?}\nlisten = {listen:?}\n"
        );
        load_text("p", text).unwrap()
    }

    #[test]
    fn a_longer_prefix_repeats_the_shorter_ones() {
        let rules = ["10.0.0.0/8:80", "10.1.0.0/16:443/tcp", "11.0.0.0/8:1", "[::]/0:80"];
        let mut policy = CompiledPolicy::default();
        compile(&written([&rules.map(String::from), &[], &[]]), &mut policy);
        let allowed = |protocol, address: &str, port| {
            lookup(&policy, protocol as u16, address.parse().unwrap(), port)
        };
        let by = |rule| match rule {
            0 => Reach::Default,
            rule => Reach::Rule { allow: true, rule },
        };
        assert_eq!(allowed(Protocol::Tcp, "10.1.2.3", 80), by(1));
        assert_eq!(allowed(Protocol::Tcp, "10.1.2.3", 443), by(2));
        assert_eq!(allowed(Protocol::Udp, "10.1.2.3", 443), by(0));
        assert_eq!(allowed(Protocol::Tcp, "10.2.2.3", 443), by(0));
        assert_eq!(allowed(Protocol::Tcp, "11.1.2.3", 80), by(0));
        assert_eq!(allowed(Protocol::Tcp, "12.1.2.3", 80), by(0));
        assert_eq!(allowed(Protocol::Tcp, "::1", 80), by(4));
    }

    #[test]
    fn of_port_ranges_that_overlap_each_port_has_its_rule() {
        let allow = ["10.0.0.1:80-90", "10.0.0.1:85-100/tcp"].map(String::from);
        let deny = ["10.0.0.1:88-89".to_owned()];
        let mut policy = CompiledPolicy::default();
        compile(&written([&allow, &deny, &[]]), &mut policy);
        for (port, tcp, udp) in [
            (79, None, None),
            (80, Some((true, 1)), Some((true, 1))),
            (87, Some((true, 1)), Some((true, 1))),
            (88, Some((false, 3)), Some((false, 3))),
            (90, Some((true, 1)), Some((true, 1))),
            (91, Some((true, 2)), None),
            (100, Some((true, 2)), None),
            (101, None, None),
        ] {
            for (protocol, said) in [(Protocol::Tcp, tcp), (Protocol::Udp, udp)] {
                let said = said.map_or(Reach::Default, |(allow, rule)| Reach::Rule { allow, rule });
                let address = "10.0.0.1".parse().unwrap();
                assert_eq!(lookup(&policy, protocol as u16, address, port), said, "{port}");
            }
        }
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

    pub(in crate::policy) fn target() -> impl Strategy<Value = IpAddr> {
        prop_oneof![
            4 => (0u8..3, 0u8..4, 0u8..3).prop_map(|(a, b, c)| IpAddr::from([10, a, b, c])),
            4 => (0u16..3, 0u16..4, 0u16..3)
                .prop_map(|(a, b, c)| IpAddr::from([0xfd00, a, b, 0, 0, 0, 0, c])),
            1 => Just([169, 254, 169, 254].into()),
            1 => Just([169, 254, 1, 1].into()),
            1 => Just([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254].into()),
        ]
    }

    pub(in crate::policy) fn wide() -> impl Strategy<Value = String> {
        const NETS: &[&str] =
            &["0.0.0.0/0", "[::]/0", "169.254.0.0/16", "169.254.169.254:1-50", "10.0.0.0/8"];
        prop_oneof![3 => rule(), 1 => proptest::sample::select(NETS).prop_map(String::from)]
    }

    proptest! {
        #[test]
        fn lookups_agree_with_the_rules(
            allow in proptest::collection::vec(wide(), 0..12),
            deny in proptest::collection::vec(wide(), 0..6),
            listen in proptest::collection::vec(rule(), 0..4),
            above in proptest::option::of(proptest::collection::vec(wide(), 0..6)),
            forbidden in proptest::collection::vec(wide(), 0..2),
            targets in proptest::collection::vec((target(), 0u16..90, any::<[bool; 2]>()), 20),
        ) {
            let mut rules = written([&allow, &deny, &listen]);
            let mut text = format!("version = 1\n[network]\ndeny = {forbidden:?}\n");
            if let Some(above) = &above {
                writeln!(text, "allow = {above:?}").unwrap();
            }
            rules.ceilings.push(load_text("above", text).unwrap());
            let mut policy = CompiledPolicy::default();
            compile(&rules, &mut policy);
            for (address, port, [tcp, own]) in targets {
                let protocol = if tcp { Protocol::Tcp } else { Protocol::Udp };
                let direction = if own { Direction::In } else { Direction::Out };
                prop_assert_eq!(
                    lookup(&policy, protocol as u16 | direction as u16, address, port),
                    decide::meet(&rules, direction, protocol, address, port),
                    "{} {:?} {:?} {:?} {:?} {:?}", address, &allow, &deny, &listen, &above, &forbidden
                );
            }
        }
    }
}
