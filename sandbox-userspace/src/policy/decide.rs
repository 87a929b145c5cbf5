//! The meaning of the language: one decision, straight from the rules.
//!
//! Tests hold the compiled policy to it, and the kernel to both.

use super::expand::Placed;
use super::rule::{Kind, NetRule, Protocol, Scope};
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
/// Of the rules that cover it the one on the deepest place decides; at the same place deny wins.
pub fn path(rules: &[Placed], kind: Kind, path: &[Vec<u8>]) -> Decision {
    rules
        .iter()
        .filter(|rule| rule.kind == kind && path.starts_with(&rule.path))
        .filter(|rule| rule.scope == Scope::Tree || rule.path.len() < path.len())
        .min_by_key(|rule| (Reverse(rule.path.len()), rule.allow, rule.id))
        .map_or(Decision { allow: kind.default_allow(), rule: 0 }, |rule| Decision {
            allow: rule.allow,
            rule: rule.id,
        })
}

/// Decides on an address. An IPv4-mapped IPv6 address is the IPv4 address.
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
