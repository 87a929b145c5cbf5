//! The rules of a changed policy on the machine as it is now.

use crate::policy::expand::{Context, Placed, expand};
use crate::policy::names::{self, Named, Names, Opening};
use crate::policy::rule::{AskRule, Kind, NameRule, NetRule, Policy, Protocol};
use crate::policy::{PolicyError, asks, decide, worktree};
use std::collections::{HashMap, HashSet};

/// What is in force, and for whom.
pub(super) struct Present<'a> {
    pub(super) context: &'a Context,
    pub(super) policy: &'a Policy,
    pub(super) placed: &'a [Placed],
    /// The agent's user.
    pub(super) user: u32,
}

/// What a rule says and where it stands.
type Key = (&'static str, String, String);

impl Present<'_> {
    /// Ties the next policy to this machine. Rules that the present one has keep the paths that they
    /// have: the agent may have changed symbolic links since. A grant opens the very place that it names;
    /// `grants` are the numbers of their rules, and `new` is one of which it is asked that it does.
    pub(super) fn tie(
        &self,
        next: Policy,
        grants: &HashSet<u32>,
        new: Option<u32>,
    ) -> Result<(Policy, Vec<Placed>), String> {
        let fail = |error: PolicyError| error.to_string();
        let (policy, _) = worktree::extend(next, self.context, self.user).map_err(fail)?;
        let fresh = expand(&policy, self.context).map_err(fail)?;
        let before = keys(self.policy);
        let mut known = HashMap::<&Key, Vec<&Placed>>::new();
        for rule in self.placed {
            if let Some(key) = before.get(&rule.id) {
                known.entry(key).or_default().push(rule);
            }
        }
        let now = keys(&policy);
        let mut tied = Vec::with_capacity(fresh.len());
        let mut done = HashSet::new();
        for rule in &fresh {
            match now.get(&rule.id).and_then(|key| known.get(key)) {
                Some(before) if done.insert(rule.id) => {
                    let (id, layer) = (rule.id, rule.layer);
                    tied.extend(before.iter().map(|&of| Placed { id, layer, ..of.clone() }));
                }
                Some(_) => {}
                None => tied.push(rule.clone()),
            }
        }
        let granted: Vec<Placed> =
            tied.iter().filter(|rule| grants.contains(&rule.id)).cloned().collect();
        let is_opened = |rule: &Placed| {
            let same =
                |grant: &Placed| grant.access.contains(rule.access) && grant.path == rule.path;
            rule.layer == 0 && !rule.allow && rule.tail.is_empty() && granted.iter().any(same)
        };
        tied.retain(|rule| !is_opened(rule));
        if let Some(new) = new {
            opens(&policy, &tied, new)?;
        }
        Ok((policy, tied))
    }
}

fn keys(policy: &Policy) -> HashMap<u32, Key> {
    let key = |origin: &crate::policy::rule::Origin| {
        (origin.key, origin.text.clone(), origin.place.source.name.clone())
    };
    policy.origins().map(|origin| (origin.id, key(origin))).collect()
}

/// Whether a rule opens what it names.
fn opens(policy: &Policy, placed: &[Placed], id: u32) -> Result<(), String> {
    let text = policy.origin(id).map_or("", |origin| origin.text.as_str());
    for rule in placed.iter().filter(|rule| rule.id == id) {
        for kind in Kind::of(rule.access) {
            let said = decide::path(placed, policy.defaults, kind, &rule.path);
            if !said.allow {
                return Err(refusal(policy, said.rule, text));
            }
        }
    }
    for granted in policy.asks.iter().filter(|rule| rule.origin.id == id) {
        let asks = |rule: &AskRule| !rule.granted && rule.words == granted.words;
        if !policy.layers().flat_map(|layer| &layer.asks).any(asks) {
            let rules: Vec<String> =
                asks::asking(policy).map(|rule| format!("\"{}\"", rule.words.join(" "))).collect();
            return Err(match rules.as_slice() {
                [] => format!("no rule asks about \"{text}\", nor about any other program"),
                rules => format!("no rule asks about \"{text}\", but about {}", rules.join(", ")),
            });
        }
    }
    for NetRule { target, .. } in policy.network.iter().filter(|rule| rule.origin.id == id) {
        for protocol in target.protocols {
            let said = decide::reach(policy, *protocol, target.net.addr(), *target.ports.start());
            if !said.allow {
                return Err(refusal(policy, said.rule, text));
            }
        }
    }
    let names = Names::new(names::layers(policy));
    for rule in policy.names.iter().filter(|rule| rule.origin.id == id) {
        let NameRule { pattern, ports, protocols, .. } = rule;
        // What a star covers is judged by one of it.
        let name =
            if pattern.beneath { format!("_.{}", pattern.name) } else { pattern.name.clone() };
        let (open, by) = match names.decide(&name) {
            Named::Open(open) => (open, 0),
            Named::Denied(by) => (Vec::new(), by),
            Named::Unknown => (Vec::new(), 0),
        };
        let is_open = |protocol: &Protocol| {
            let of = |open: &Opening| {
                open.protocol == *protocol as u16 && open.ports.contains(ports.start())
            };
            open.iter().any(of)
        };
        if !protocols.iter().all(is_open) {
            return Err(refusal(policy, by, text));
        }
    }
    Ok(())
}

/// Why a grant would open nothing.
fn refusal(policy: &Policy, rule: u32, text: &str) -> String {
    match policy.origin(rule) {
        Some(origin) => {
            let source = &origin.place.source;
            let line = source.position(origin.place.span.clone()).line;
            format!(
                "\"{text}\" stays closed by {} \"{}\" ({}:{line}, {})",
                origin.key, origin.text, source.name, source.layer
            )
        }
        None => format!("\"{text}\" stays closed: a layer above does not list it"),
    }
}
