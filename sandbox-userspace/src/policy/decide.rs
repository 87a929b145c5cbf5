//! The meaning of the language: one decision, straight from the rules.
//!
//! Tests hold the compiled policy to it, and the kernel to both.

use super::expand::Placed;
use super::rule::{Defaults, Kind, NetRule, Policy, Protocol, Scope, Step};
use std::cmp::Reverse;
use std::net::IpAddr;

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
    let decisions = by_layer(rules, defaults, kind, path, points);
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
    let stops = |rule: &Placed| {
        let between = |point: &&[Vec<u8>]| path.starts_with(point) && !rule.path.starts_with(point);
        rule.allow && !rule.tail.is_empty() && points.iter().any(between)
    };
    let mut best = vec![None];
    for rule in rules {
        let layer = usize::from(rule.layer);
        best.resize(best.len().max(layer + 1), None);
        if rule.kind != kind || stops(rule) {
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
    let ceilings = policy.ceilings.iter().filter(|layer| layer.said.contains("network.allow"));
    let denial = ceilings
        .map(|ceiling| address(&ceiling.network, protocol, to, port))
        .find(|decision| !decision.allow);
    denial.unwrap_or_else(|| address(&policy.network, protocol, to, port))
}

/// Decides on an address by the rules of one layer. An IPv4-mapped IPv6 address is the IPv4 address.
///
/// Of the rules that cover it the one on the longest prefix decides, then the earlier one.
pub fn address(rules: &[NetRule], protocol: Protocol, address: IpAddr, port: u16) -> Decision {
    let address = address.to_canonical();
    rules
        .iter()
        .filter(|rule| {
            rule.target.net.contains(&address)
                && rule.target.ports.contains(&port)
                && rule.target.protocols.contains(&protocol)
        })
        .min_by_key(|rule| (Reverse(rule.target.net.prefix_len()), rule.origin.id))
        .map_or(Decision { allow: false, rule: 0 }, |rule| Decision {
            allow: true,
            rule: rule.origin.id,
        })
}
