//! What a policy says of names of hosts: which may be asked for, and what is opened at their addresses.

use super::ports::{self, Ceiling, Ports, Said};
use super::rule::{Direction, NameRule, Policy, Protocol};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::RangeInclusive;

/// A rule about names, as the resolver gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameEntry {
    /// The name in lower case, without a dot at its end.
    pub name: String,
    /// What lies beneath it is meant, and not itself.
    pub beneath: bool,
    /// Its verdict.
    pub allow: bool,
    /// The rule.
    pub rule: u32,
    /// First and last port.
    pub ports: (u16, u16),
    /// For TCP, for UDP.
    pub protocols: [bool; 2],
    /// The name that TLS asks for is checked.
    pub sni: bool,
}

impl From<&NameRule> for NameEntry {
    fn from(rule: &NameRule) -> Self {
        Self {
            name: rule.pattern.name.clone(),
            beneath: rule.pattern.beneath,
            allow: rule.allow,
            rule: rule.origin.id,
            ports: (*rule.ports.start(), *rule.ports.end()),
            protocols: [Protocol::Tcp, Protocol::Udp].map(|p| rule.protocols.contains(&p)),
            sni: rule.sni,
        }
    }
}

/// What a name opens at its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opening {
    /// `IPPROTO_TCP` or `IPPROTO_UDP`.
    pub protocol: u16,
    /// Ports.
    pub ports: RangeInclusive<u16>,
    /// The rule that opens them.
    pub rule: u32,
    /// The rule that wants the name checked that TLS asks for, of whatever layer; 0: none. UDP is refused by it.
    pub check: u32,
}

impl Opening {
    /// Whether anything may pass.
    pub fn opens(&self) -> bool {
        self.check == 0 || self.protocol != Protocol::Udp as u16
    }
}

/// What the policy says of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// It may be asked for.
    Open(Vec<Opening>),
    /// This rule denies it.
    Denied(u32),
    /// No rule speaks of it.
    Unknown,
}

/// What one layer says of names, as the resolver gets it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameLayer {
    /// Whether names that it does not list are left out.
    pub closes: bool,
    /// Its rules, in the order of their ids.
    pub entries: Vec<NameEntry>,
}

/// What a policy and its ceilings say of names, itself the first; nothing where it knows none.
pub fn layers(policy: &Policy) -> Vec<NameLayer> {
    if policy.names.is_empty() {
        return Vec::new();
    }
    let layer = |policy: &Policy| NameLayer {
        closes: policy.closes(Direction::Out),
        entries: policy.names.iter().map(Into::into).collect(),
    };
    [policy].into_iter().chain(&policy.ceilings).map(layer).collect()
}

/// The rules about names, to be asked: of the policy and of its ceilings.
#[derive(Debug, Default)]
pub struct Names {
    own: Layer,
    ceilings: Vec<(bool, Layer)>,
}

/// The rules of one layer.
#[derive(Debug, Default)]
struct Layer {
    entries: Vec<NameEntry>,
    /// By name: those about it, and those about what lies beneath.
    exact: HashMap<String, Vec<usize>>,
    beneath: HashMap<String, Vec<usize>>,
}

impl Names {
    /// From the layers of a policy, itself the first.
    pub fn new(layers: Vec<NameLayer>) -> Self {
        let mut layers = layers.into_iter().map(|layer| (layer.closes, Layer::new(layer.entries)));
        let own = layers.next().map(|(_, own)| own).unwrap_or_default();
        Self { own, ceilings: layers.collect() }
    }

    /// Of a name in lower case without a dot at its end. For each port the rule on the longest name decides,
    /// the name itself being longer than any star; on the same one deny, then the earlier rule. Every layer
    /// has to allow it.
    pub fn decide(&self, name: &str) -> Named {
        let own = self.own.ports(name);
        if own.is_empty() {
            return Named::Unknown;
        }
        let ceilings: Vec<Ceiling> = self
            .ceilings
            .iter()
            .map(|(closes, layer)| Ceiling { closes: [*closes; 2], ports: layer.ports(name) })
            .collect();
        let met = ports::meet(&own, &ceilings);
        let denied = met.iter().find(|(.., owner)| !owner.allow).map(|(.., owner)| owner.rule);
        let open: Vec<Opening> = met
            .into_iter()
            .filter(|(.., owner)| owner.allow)
            .map(|(protocol, ports, owner)| Opening {
                protocol,
                ports,
                rule: owner.rule,
                check: owner.check,
            })
            .collect();
        match denied {
            Some(rule) if open.is_empty() => Named::Denied(rule),
            None if open.is_empty() => Named::Unknown,
            _ => Named::Open(open),
        }
    }
}

impl Layer {
    fn new(entries: Vec<NameEntry>) -> Self {
        let mut layer = Self::default();
        for (index, entry) in entries.iter().enumerate() {
            let table = if entry.beneath { &mut layer.beneath } else { &mut layer.exact };
            table.entry(entry.name.clone()).or_default().push(index);
        }
        layer.entries = entries;
        layer
    }

    /// What it says of the ports of a name.
    fn ports(&self, name: &str) -> Ports {
        // From the shortest to the longest: what counts more comes last.
        let dots = name.match_indices('.').map(|(dot, _)| &name[dot + 1..]);
        let above: Vec<&Vec<usize>> = dots.filter_map(|name| self.beneath.get(name)).collect();
        let levels = above.into_iter().rev().chain(self.exact.get(name));
        let rules = levels.flat_map(|level| {
            let of = |allow| {
                let rules = level.iter().rev().map(|index| &self.entries[*index]);
                rules.filter(move |rule| rule.allow == allow)
            };
            of(true).chain(of(false))
        });
        ports::paint(rules.map(|rule| Said {
            direction: Direction::Out,
            protocols: match rule.protocols {
                [true, false] => &[Protocol::Tcp],
                [false, true] => &[Protocol::Udp],
                _ => &[Protocol::Tcp, Protocol::Udp],
            },
            ports: rule.ports.0..=rule.ports.1,
            owner: ports::Owner {
                rule: rule.rule,
                allow: rule.allow,
                check: if rule.sni && rule.allow { rule.rule } else { 0 },
            },
        }))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::policy::decide::{self, Reach};
    use crate::policy::load_text;
    use proptest::prelude::*;

    fn rules(allow: &[String], deny: &[String]) -> Vec<NameRule> {
        let text = format!("version = 1\nnetwork.allow = {allow:?}\nnetwork.deny = {deny:?}\n");
        load_text("p", text).unwrap().names
    }

    fn names(rules: &[NameRule]) -> Names {
        let entries = rules.iter().map(NameEntry::from).collect();
        Names::new(vec![NameLayer { closes: true, entries }])
    }

    #[test]
    fn the_longest_name_decides() {
        let allow = ["*.example.com:443/tcp", "db.example.com:5432", "a.b.example.com"];
        let deny = ["*.b.example.com", "db.example.com:443"];
        let names = names(&rules(&allow.map(String::from), &deny.map(String::from)));
        let open =
            |protocol, low, high, rule| Opening { protocol, ports: low..=high, rule, check: 0 };
        assert_eq!(names.decide("www.example.com"), Named::Open(vec![open(6, 443, 443, 1)]));
        assert_eq!(names.decide("example.com"), Named::Unknown);
        assert_eq!(names.decide("xexample.com"), Named::Unknown);
        assert_eq!(names.decide("x.b.example.com"), Named::Denied(4));
        assert_eq!(
            names.decide("db.example.com"),
            Named::Open(vec![open(6, 5432, 5432, 2), open(17, 5432, 5432, 2)])
        );
        let all = vec![open(6, 0, u16::MAX, 3), open(17, 0, u16::MAX, 3)];
        assert_eq!(names.decide("a.b.example.com"), Named::Open(all));
        assert_eq!(names.decide("com"), Named::Unknown);
        assert_eq!(names.decide(""), Named::Unknown);
    }

    #[test]
    fn every_layer_has_to_allow_a_name() {
        let layer = |allow: &[&str], deny: &[&str], closes| {
            let text = |list: &[&str]| list.iter().map(ToString::to_string).collect::<Vec<_>>();
            let rules = rules(&text(allow), &text(deny));
            NameLayer { closes, entries: rules.iter().map(NameEntry::from).collect() }
        };
        let own = || layer(&["a.example.com:443/tcp", "*.example.org"], &[], true);
        let under = |ceiling| Names::new(vec![own(), ceiling]);
        let is_open = |names: &Names, name: &str| matches!(names.decide(name), Named::Open(_));
        let listed = under(layer(&["*.example.com:443"], &[], true));
        assert!(is_open(&listed, "a.example.com") && !is_open(&listed, "b.example.org"));
        let other_port = under(layer(&["*.example.com:80"], &[], true));
        assert_eq!(other_port.decide("a.example.com"), Named::Unknown);
        let denies = under(layer(&[], &["b.example.org"], false));
        assert!(is_open(&denies, "c.example.org") && is_open(&denies, "a.example.com"));
        assert_eq!(denies.decide("b.example.org"), Named::Denied(1));
        assert_eq!(under(layer(&[], &[], true)).decide("a.example.com"), Named::Unknown);
    }

    pub(in crate::policy) fn entry() -> impl Strategy<Value = String> {
        let name = proptest::sample::select(
            &["*.example.com", "a.example.com", "*.a.example.com", "b.a.example.com", "c.org"][..],
        );
        let ports =
            prop_oneof![Just(""), Just(":80"), Just(":79-90"), Just(":443/tcp"), Just("/udp")];
        (name, ports).prop_map(|(name, ports)| format!("{name}{ports}"))
    }

    proptest! {
        #[test]
        fn openings_agree_with_the_rules(
            allow in proptest::collection::vec(entry(), 0..6),
            deny in proptest::collection::vec(entry(), 0..4),
        ) {
            let rules = rules(&allow, &deny);
            let names = names(&rules);
            for name in ["example.com", "a.example.com", "b.a.example.com", "x.y.a.example.com", "c.org"] {
                let open = match names.decide(name) {
                    Named::Open(open) => open,
                    _ => Vec::new(),
                };
                for (protocol, port) in [
                    (Protocol::Tcp, 80), (Protocol::Udp, 80), (Protocol::Tcp, 443), (Protocol::Tcp, 0),
                    (Protocol::Udp, 90), (Protocol::Udp, 91),
                ] {
                    let found = open.iter().find(|open| {
                        open.protocol == protocol as u16 && open.ports.contains(&port)
                    });
                    let expected = match decide::name(&rules, name, protocol, port) {
                        Reach::Rule { allow: true, rule } => Some(rule),
                        _ => None,
                    };
                    prop_assert_eq!(found.map(|open| open.rule), expected, "{} {}", name, port);
                }
            }
        }
    }
}
