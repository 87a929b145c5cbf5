//! The meaning of the language: one decision, straight from the rules.
//!
//! Tests hold the compiled policy to it, and the kernel to both.

use super::expand::{Context, Placed, by_variables};
use super::rule::{
    Defaults, Direction, Kind, NamePattern, NameRule, NetRule, Policy, Protocol, Scope, Step,
};
use ipnet::IpNet;
use sandbox_common::Access;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A verdict and what it rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether it is allowed.
    pub allow: bool,
    /// The rule that says so; 0 is the default.
    pub rule: u32,
}

/// Decides on an object by its absolute path, symbolic links resolved.
///
/// It is allowed where every layer allows it; the first ceiling that does not decides, then the policy's
/// own rules. In a layer, of the rules that cover it the one that matches at the deepest place decides; at
/// the same place a path that is spelled out, then deny, then the earlier rule.
pub fn path(rules: &[Placed], defaults: Defaults, kind: Kind, path: &[Vec<u8>]) -> Decision {
    path_across(rules, defaults, kind, path, &[])
}

/// The same where file systems are mounted at `points`: a pattern that allows does not reach across one
/// that lies beneath where the rule begins.
pub fn path_across(
    rules: &[Placed],
    defaults: Defaults,
    kind: Kind,
    path: &[Vec<u8>],
    points: &[&[Vec<u8>]],
) -> Decision {
    joined(&by_layer(rules, defaults, kind, path, points))
}

/// Decides on somebody else's unix socket by its path: it is reached where it may be written, for there a member
/// could put one of its own; else the rules about sockets decide.
pub fn socket(rules: &[Placed], defaults: Defaults, at: &[Vec<u8>]) -> Decision {
    let write = path(rules, defaults, Kind::Write, at);
    if write.allow { write } else { path(rules, defaults, Kind::Connect, at) }
}

/// What all layers say together.
fn joined(decisions: &[Decision]) -> Decision {
    let denial = decisions.iter().skip(1).find(|decision| !decision.allow);
    *denial.unwrap_or(&decisions[0])
}

/// What each layer says, by its number: the policy's own rules, then its ceilings.
pub fn by_layer(
    rules: &[Placed],
    defaults: Defaults,
    kind: Kind,
    path: &[Vec<u8>],
    points: &[&[Vec<u8>]],
) -> Vec<Decision> {
    deepest(rules, defaults, kind, (path, points), depth)
}

/// In each layer, of the rules that reach the path across the mount points, that decides which covers it
/// deepest.
fn deepest(
    rules: &[Placed],
    defaults: Defaults,
    kind: Kind,
    (path, points): (&[Vec<u8>], &[&[Vec<u8>]]),
    depth: impl Fn(&Placed, &[Vec<u8>]) -> Option<usize>,
) -> Vec<Decision> {
    let stops = |rule: &Placed| {
        let between = |point: &&[Vec<u8>]| path.starts_with(point) && !rule.path.starts_with(point);
        rule.allow && !rule.tail.is_empty() && points.iter().any(between)
    };
    let mut best = vec![None];
    for rule in rules {
        let layer = usize::from(rule.layer);
        best.resize(best.len().max(layer + 1), None);
        if !rule.speaks_of(kind) || stops(rule) {
            continue;
        }
        let Some(depth) = depth(rule, path) else { continue };
        // The default of a ceiling is a rule on `/` that any other one there beats.
        let key = (Reverse(depth), rule.id == 0, !rule.tail.is_empty(), rule.allow, rule.id);
        if best[layer].is_none_or(|known| key < known) {
            best[layer] = Some(key);
        }
    }
    let default = |layer| if layer == 0 { defaults.allow(kind) } else { true };
    let decision = |(layer, best): (usize, Option<_>)| match best {
        Some((_, _, _, allow, rule)) => Decision { allow, rule },
        None => Decision { allow: default(layer), rule: 0 },
    };
    best.into_iter().enumerate().map(decision).collect()
}

/// Decides whether a symbolic link at `path` is followed.
///
/// Not where a rule closes for reading what lies at or beneath that name, and no rule names anything
/// deeper. Where mounts lie see [`path_across`].
pub fn following(
    rules: &[Placed],
    defaults: Defaults,
    path: &[Vec<u8>],
    points: &[&[Vec<u8>]],
) -> Decision {
    let deeper = |rule: &Placed| rule.path.len() > path.len() && rule.path.starts_with(path);
    // Of what lies in it, as if it were a directory.
    let decision = joined(&deepest(rules, defaults, Kind::Read, (path, points), matched));
    let closed = !decision.allow && decision.rule != 0 && !rules.iter().any(deeper);
    Decision { allow: !closed, rule: decision.rule }
}

/// How deep the deepest place lies by which a rule covers an object: the object itself, or one above.
pub fn depth(rule: &Placed, path: &[Vec<u8>]) -> Option<usize> {
    match rule.scope {
        Scope::Tree => matched(rule, path),
        Scope::Beneath => matched(rule, path.split_last()?.1),
    }
}

/// How deep the deepest place lies that a rule names, of an object and those above it.
pub(super) fn matched(rule: &Placed, path: &[Vec<u8>]) -> Option<usize> {
    let rest = path.strip_prefix(rule.path.as_slice())?;
    (0..=rest.len())
        .rev()
        .find(|depth| matches(&rule.tail, &rest[..*depth]))
        .map(|depth| rule.path.len() + depth)
}

/// Whether steps make up just these names.
pub fn matches(steps: &[Step], names: &[Vec<u8>]) -> bool {
    let Some((step, steps)) = steps.split_first() else { return names.is_empty() };
    match (step, names.split_first()) {
        (Step::Deep, _) => (0..=names.len()).any(|skipped| matches(steps, &names[skipped..])),
        (Step::Any, Some((_, names))) => matches(steps, names),
        (Step::Name(glob), Some((name, names))) => glob.matches(name) && matches(steps, names),
        (_, None) => false,
    }
}

/// Decides on an address: it is allowed where every layer allows it.
pub fn reach(policy: &Policy, protocol: Protocol, to: IpAddr, port: u16) -> Decision {
    match meet(policy, Direction::Out, protocol, to, port) {
        Reach::Rule { allow, rule } => Decision { allow, rule },
        Reach::Reserved | Reach::Default => Decision { allow: false, rule: 0 },
    }
}

/// Decides on an address by all layers. What the policy itself denies is denied by it; else the first ceiling
/// that does not allow it decides.
pub fn meet(
    policy: &Policy,
    direction: Direction,
    protocol: Protocol,
    to: IpAddr,
    port: u16,
) -> Reach {
    let own = address(&policy.network, direction, protocol, to, port);
    if matches!(own, Reach::Rule { allow: false, .. } | Reach::Reserved) {
        return own;
    }
    let denial = policy.ceilings.iter().find_map(|ceiling| {
        // One without a list says nothing of what its rules do not speak of, reserved or not.
        let closes = ceiling.closes(direction);
        match by_rules(&ceiling.network, closes, direction, protocol, to, port) {
            Reach::Rule { allow: true, .. } => None,
            Reach::Default if !closes => None,
            denial => Some(denial),
        }
    });
    denial.unwrap_or(own)
}

/// A verdict on an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// A rule says so.
    Rule {
        /// Its verdict.
        allow: bool,
        /// The rule.
        rule: u32,
    },
    /// Denied: a [reserved](RESERVED) address that no rule names for itself.
    Reserved,
    /// Denied: no rule speaks of it.
    Default,
}

/// Addresses that a rule on a wider network does not open: those that are only good on one link, broadcast
/// and local multicast, and those under which clouds tell a machine its credentials.
pub const RESERVED: [&str; 13] = [
    // RFC 3927, RFC 4291: link-local.
    "169.254.0.0/16",
    "fe80::/10",
    // RFC 5771, RFC 4291: multicast on the link, and broadcast.
    "224.0.0.0/24",
    "255.255.255.255/32",
    "ff02::/16",
    // Metadata of AWS, Azure, Google, Oracle and others; AWS's credentials of containers and pods; AWS's
    // and Google's over IPv6; Alibaba's; Oracle's; Azure's of the host.
    "169.254.169.254/32",
    "169.254.170.2/32",
    "169.254.170.23/32",
    "fd00:ec2::254/128",
    "fd20:ce::254/128",
    "100.100.100.200/32",
    "192.0.0.192/32",
    "168.63.129.16/32",
];

/// [`RESERVED`].
pub fn reserved() -> impl Iterator<Item = IpNet> {
    RESERVED.iter().filter_map(|text| text.parse().ok())
}

/// Decides on an address. An IPv4-mapped IPv6 address is the IPv4 address; to connect to none
/// (`0.0.0.0`, `::`) is to connect to this machine. What the session itself listens at is not asked here.
///
/// Of the rules that cover it the one on the longest prefix decides; on the same one deny, then the earlier
/// rule, and last that the address is reserved.
pub fn address(
    rules: &[NetRule],
    direction: Direction,
    protocol: Protocol,
    address: IpAddr,
    port: u16,
) -> Reach {
    by_rules(rules, true, direction, protocol, address, port)
}

/// The same, with or without what is reserved.
fn by_rules(
    rules: &[NetRule],
    with_reserved: bool,
    direction: Direction,
    protocol: Protocol,
    address: IpAddr,
    port: u16,
) -> Reach {
    let with_reserved = with_reserved && direction == Direction::Out;
    let address = match address.to_canonical() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) if direction == Direction::Out => {
            Ipv4Addr::LOCALHOST.into()
        }
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) if direction == Direction::Out => {
            Ipv6Addr::LOCALHOST.into()
        }
        other => other,
    };
    let rules = rules.iter().filter(|rule| {
        rule.direction == direction
            && rule.target.net.contains(&address)
            && rule.target.ports.contains(&port)
            && rule.target.protocols.contains(&protocol)
    });
    let by_rule = rules.map(|NetRule { origin, allow, target, .. }| {
        let reach = Reach::Rule { allow: *allow, rule: origin.id };
        ((Reverse(target.net.prefix_len()), u8::from(*allow), origin.id), reach)
    });
    let reserved = reserved().filter(|net| with_reserved && net.contains(&address));
    let reserved = reserved.map(|net| ((Reverse(net.prefix_len()), 2, 0), Reach::Reserved));
    by_rule.chain(reserved).min_by_key(|(order, _)| *order).map_or(Reach::Default, |found| found.1)
}

/// Decides on a port of whatever address a name stands for; `name` is in lower case, without a dot at its
/// end. Rules about the address itself, and that it is reserved, come before this.
///
/// Of the rules that cover it the one on the longest name decides, the name itself being longer than any
/// star; on the same one deny, then the earlier rule.
pub fn name(rules: &[NameRule], name: &str, protocol: Protocol, port: u16) -> Reach {
    let covers = |rule: &&NameRule| {
        let NameRule { pattern, ports, protocols, .. } = rule;
        let matches = if pattern.beneath {
            name.strip_suffix(&pattern.name).is_some_and(|rest| rest.ends_with('.'))
        } else {
            name == pattern.name
        };
        matches && ports.contains(&port) && protocols.contains(&protocol)
    };
    let best = rules.iter().filter(covers).min_by_key(|rule| {
        let NamePattern { name, beneath } = &rule.pattern;
        (*beneath, Reverse(name.len()), rule.allow, rule.origin.id)
    });
    best.map_or(Reach::Default, |rule| Reach::Rule { allow: rule.allow, rule: rule.origin.id })
}

/// What the layers of a policy say of abstract names of unix sockets, itself the first.
pub struct AbstractRules {
    layers: Vec<(bool, BTreeMap<Vec<u8>, Decision>)>,
}

impl AbstractRules {
    /// Of a policy. In one layer deny decides, then the earlier rule.
    pub fn new(policy: &Policy, context: &Context) -> Self {
        let layers = [policy].into_iter().chain(&policy.ceilings).zip(0..);
        let layer = |(policy, layer): (&Policy, u16)| {
            let mut said: BTreeMap<Vec<u8>, Decision> = BTreeMap::new();
            for rule in policy.files.iter().filter(|rule| rule.access == Access::CONNECT) {
                let of_service = rule.service.map(|service| {
                    let by_variables = by_variables(layer, rule.allow);
                    context.surroundings.sockets(service, by_variables).names
                });
                let names = rule.abstract_name.iter().chain(of_service.iter().flatten());
                for name in names {
                    let decision = Decision { allow: rule.allow, rule: rule.origin.id };
                    let known = said.entry(name.clone()).or_insert(decision);
                    if (decision.allow, decision.rule) < (known.allow, known.rule) {
                        *known = decision;
                    }
                }
            }
            (policy.ceiling_allows(Kind::Connect), said)
        };
        Self { layers: layers.map(layer).collect() }
    }

    /// The names that rules speak of, in order.
    pub fn names(&self) -> BTreeSet<&[u8]> {
        self.layers.iter().flat_map(|(_, said)| said.keys().map(Vec::as_slice)).collect()
    }

    /// Decides on a name: it is allowed where the policy names it and no ceiling closes it.
    pub fn decide(&self, name: &[u8]) -> Decision {
        let default = Decision { allow: false, rule: 0 };
        let Some(((_, own), ceilings)) = self.layers.split_first() else { return default };
        let own = own.get(name).copied().unwrap_or(default);
        if !own.allow {
            return own;
        }
        let closed = ceilings.iter().find_map(|(open, said)| match said.get(name) {
            Some(said) => (!said.allow).then_some(*said),
            None => (!open).then_some(default),
        });
        closed.unwrap_or(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::load_text;

    #[test]
    fn reserved_networks_are_networks() {
        assert_eq!(reserved().count(), RESERVED.len());
        assert!(reserved().all(|net| net.trunc() == net));
    }

    #[test]
    fn reserved_addresses_are_opened_by_name_only() {
        let text = "version = 1\nnetwork.allow = ['0.0.0.0/0', '[::]/0:80', '169.254.0.0/16:80', \
                    '100.100.100.200:80/tcp']\nnetwork.deny = ['10.0.0.0/8', '127.0.0.0/8:25']\n\
                    network.listen = ['0.0.0.0:80']\n";
        let rules = load_text("p", text.into()).unwrap().network;
        let of = |to: &str, port| {
            address(&rules, Direction::Out, Protocol::Tcp, to.parse().unwrap(), port)
        };
        let allowed = |rule| Reach::Rule { allow: true, rule };
        assert_eq!(of("192.0.2.1", 1), allowed(1));
        assert_eq!(of("169.254.7.7", 80), allowed(3));
        assert_eq!(of("169.254.7.7", 81), Reach::Reserved);
        assert_eq!(of("169.254.169.254", 80), Reach::Reserved);
        assert_eq!(of("::ffff:169.254.169.254", 80), Reach::Reserved);
        assert_eq!(of("100.100.100.200", 80), allowed(4));
        assert_eq!(of("fe80::1", 80), Reach::Reserved);
        assert_eq!(of("2001:db8::1", 81), Reach::Default);
        assert_eq!(of("10.1.1.1", 80), Reach::Rule { allow: false, rule: 5 });
        assert_eq!(of("0.0.0.0", 25), Reach::Rule { allow: false, rule: 6 });
        let own = address(&rules, Direction::In, Protocol::Udp, "192.0.2.1".parse().unwrap(), 80);
        assert_eq!(own, allowed(7));
    }
}
