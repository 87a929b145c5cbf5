//! Why something is allowed or denied, and what would turn it.
//!
//! The verdict is that of the compiled policy, which is what the kernel has. What would turn it is tried:
//! the changed policy is compiled and asked again.

use super::check::path::spelled_out;
use super::decide::{self, Decision};
use super::diagnostic::PolicyError;
use super::expand::{Context, Placed, expand};
use super::names::{self, Names};
use super::resolve::Resolver;
use super::rule::{Kind, Origin, Policy, Protocol};
use super::source::Source;
use super::walk::{Walker, decision};
use super::{abstracts, asks, check, compile_placed, parse};
use crate::kernel::mounts::{Components, MountTable, to_components, to_path};
use sandbox_common::ask::WORDS;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// An object by its absolute path, symbolic links resolved.
    Path(Components),
    /// An address.
    Address(IpAddr, u16),
    /// Whatever address a name stands for, in lower case and without a dot at its end.
    Name(String, u16),
    /// A unix socket by its abstract name.
    Abstract(Vec<u8>),
    /// A program, as it is called, and its arguments.
    Command(Vec<String>),
}

/// What would be done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// An access of `[files]` or `[network.unix]`.
    File(Kind),
    /// Connecting and sending.
    Reach(Protocol),
    /// Running it, as far as a person is asked first; whether its file may be run is another question.
    Run,
}

/// A rule as an explanation names it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Named {
    /// `files.read.deny`.
    pub key: &'static str,
    /// As written.
    pub text: String,
    /// Who says so: `managed`, `user`, `preset` …
    pub layer: &'static str,
    /// The file, or `preset:NAME`.
    pub file: String,
    /// From 1.
    pub line: u32,
}

impl Named {
    /// Of a rule.
    pub fn of(origin: &Origin) -> Self {
        Self {
            key: origin.key,
            text: origin.text.clone(),
            layer: origin.place.source.layer,
            file: origin.place.source.name.clone(),
            line: origin.place.source.position(origin.place.span.clone()).line,
        }
    }
}

/// What would turn a verdict; tried, so that it does.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(tag = "do", rename_all = "lowercase")]
pub enum Change {
    /// Add an entry to a list of the user's policy.
    Add {
        /// The list.
        key: &'static str,
        /// The entry.
        text: String,
    },
    /// Take a rule away.
    Remove {
        /// The rule.
        rule: Named,
        /// The preset that it is part of, which `except` leaves out.
        preset: Option<String>,
    },
    /// Nothing that the user's policy could say: a layer above denies it.
    Above {
        /// The rule; `None` where the layer's list does not name the object.
        rule: Option<Named>,
        /// The layer.
        layer: &'static str,
    },
    /// Several rules together, or something that is no rule.
    None,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Answer {
    /// Whether it is allowed.
    pub allow: bool,
    /// What says so; `None` is the default.
    pub rule: Option<Named>,
    /// What would turn it.
    pub change: Change,
    /// Another path to the same object, where it is that one which is closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_path: Option<PathBuf>,
    /// Of a name that may be reached: whether TLS has to ask for an allowed name at its addresses. Else whatever other
    /// name has the same address can be reached there too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sni: Option<bool>,
}

/// A policy on this machine, ready to be asked.
pub struct Asked<'a> {
    policy: &'a Policy,
    context: &'a Context,
    table: &'a MountTable,
    placed: Vec<Placed>,
    compiled: super::compiled::CompiledPolicy,
}

impl<'a> Asked<'a> {
    /// Compiles it.
    pub fn new(
        policy: &'a Policy,
        context: &'a Context,
        table: &'a MountTable,
    ) -> Result<Self, PolicyError> {
        let placed = expand(policy, context)?;
        let (compiled, _) = compile_placed(policy, context, &placed, table, &[])?;
        Ok(Self { policy, context, table, placed, compiled })
    }

    /// The path that a path leads to by symbolic links, as far as it exists.
    pub fn resolve(path: &Path) -> io::Result<Components> {
        let resolved = Resolver::default().resolve(&to_components(path), true)?;
        Ok(resolved.path)
    }

    /// What the kernel would say.
    pub fn decide(&self, object: &Object, wish: Wish) -> Decision {
        match (object, wish) {
            (Object::Path(path), Wish::File(kind)) => self.file(path, kind),
            (Object::Address(address, port), Wish::Reach(protocol)) => {
                decide::reach(self.policy, protocol, *address, *port)
            }
            (Object::Name(name, port), Wish::Reach(protocol)) => {
                reach_by_name(self.policy, protocol, name, *port)
            }
            (Object::Abstract(name), Wish::File(Kind::Connect)) => {
                abstracts::decide(self.policy, self.context, name)
            }
            (Object::Command(words), Wish::Run) => {
                let rule = asks::meet(self.policy, words);
                Decision { allow: rule.is_none(), rule: rule.unwrap_or(0) }
            }
            // No object of the one kind has the other's accesses.
            _ => Decision { allow: false, rule: 0 },
        }
    }

    fn file(&self, path: &Components, kind: Kind) -> Decision {
        let Some((dev, place)) = self.table.locate(path) else { return self.said(path, kind) };
        let rights = Walker::new(&self.compiled).walk(dev, &place, false);
        let Some(rights) = rights else { return self.said(path, kind) };
        let write = decision(rights, Kind::Write);
        // See `decide::socket`.
        if kind == Kind::Connect && write.allow { write } else { decision(rights, kind) }
    }

    /// What the rules say of a path, whatever is mounted.
    fn said(&self, path: &[Vec<u8>], kind: Kind) -> Decision {
        let (rules, defaults) = (&self.placed, self.policy.defaults);
        match kind {
            Kind::Connect => decide::socket(rules, defaults, path),
            _ => decide::path(rules, defaults, kind, path),
        }
    }

    /// The answer with its reason and what would turn it.
    pub fn explain(&self, object: &Object, wish: Wish) -> Answer {
        let Decision { allow, rule } = self.decide(object, wish);
        let origin = self.policy.origin(rule);
        let by_path = match (object, wish) {
            (Object::Path(path), Wish::File(kind)) if !allow => self.other_path(path, kind),
            _ => None,
        };
        let change = self.change(object, wish, allow, origin);
        // Of several that deny, the layer above counts.
        let rule = match &change {
            Change::Above { rule, .. } => rule.clone(),
            _ => origin.map(Named::of),
        };
        let sni = match (object, wish) {
            (Object::Name(name, port), Wish::Reach(protocol)) if allow => {
                Some(is_checked(self.policy, protocol, name, *port))
            }
            _ => None,
        };
        Answer { allow, rule, change, by_path, sni }
    }

    /// The path by which an object is closed that is open by its own.
    fn other_path(&self, path: &Components, kind: Kind) -> Option<PathBuf> {
        let allows = |path: &[Vec<u8>]| self.said(path, kind).allow;
        if !allows(path) {
            return None;
        }
        let (dev, place) = self.table.locate(path)?;
        let other = self.table.views(dev, &place).map(|(_, path)| path).find(|path| !allows(path));
        other.map(|path| to_path(&path))
    }

    fn change(&self, object: &Object, wish: Wish, allow: bool, rule: Option<&Origin>) -> Change {
        if !allow && let Some(above) = self.above(object, wish) {
            return above;
        }
        let add = Self::entry(object, wish, !allow);
        if let Some((key, text)) = add
            && self.turned(self.with(key, &text).as_ref(), object, wish, allow)
        {
            return Change::Add { key, text };
        }
        let Some(origin) = rule else { return Change::None };
        let source = &origin.place.source;
        let preset = source.name.strip_prefix("preset:").map(str::to_owned);
        let removed = Change::Remove { rule: Named::of(origin), preset: preset.clone() };
        let one = self.without(|rule| rule.id == origin.id);
        let all = || self.without(|rule| Arc::ptr_eq(&rule.place.source, source));
        if self.turned(Some(&one), object, wish, allow)
            || preset.is_some() && self.turned(Some(&all()), object, wish, allow)
        {
            return removed;
        }
        Change::None
    }

    /// The layer above the user's policy that denies.
    fn above(&self, object: &Object, wish: Wish) -> Option<Change> {
        let denies = |ceiling: &Policy| match (object, wish) {
            (Object::Path(path), Wish::File(kind)) => {
                let layer = self.policy.ceilings.iter().position(|of| std::ptr::eq(of, ceiling))?;
                let said = decide::by_layer(&self.placed, self.policy.defaults, kind, path, &[]);
                said.get(layer + 1).filter(|said| !said.allow).map(|said| said.rule)
            }
            (Object::Address(address, port), Wish::Reach(protocol)) => {
                let alone = Policy { ceilings: vec![ceiling.clone()], ..self.policy.clone() };
                let own = Policy { ceilings: Vec::new(), ..self.policy.clone() };
                let of = |policy| decide::reach(policy, protocol, *address, *port);
                (of(&own).allow && !of(&alone).allow).then_some(0)
            }
            (Object::Name(name, port), Wish::Reach(protocol)) => {
                let alone = Policy { ceilings: vec![ceiling.clone()], ..self.policy.clone() };
                let own = Policy { ceilings: Vec::new(), ..self.policy.clone() };
                let of = |policy| reach_by_name(policy, protocol, name, *port);
                (of(&own).allow && !of(&alone).allow).then_some(0)
            }
            (Object::Abstract(name), Wish::File(Kind::Connect)) => {
                let alone = Policy { ceilings: vec![ceiling.clone()], ..self.policy.clone() };
                let own = Policy { ceilings: Vec::new(), ..self.policy.clone() };
                let (own, met) = (
                    abstracts::decide(&own, self.context, name),
                    abstracts::decide(&alone, self.context, name),
                );
                (own.allow && !met.allow).then_some(met.rule)
            }
            _ => None,
        };
        let found = self.policy.ceilings.iter().find_map(|ceiling| {
            let rule = denies(ceiling)?;
            Some((ceiling.sources.last()?.layer, rule))
        });
        let (layer, rule) = found?;
        Some(Change::Above { rule: self.policy.origin(rule).map(Named::of), layer })
    }

    /// The entry that speaks of just this object.
    fn entry(object: &Object, wish: Wish, allow: bool) -> Option<(&'static str, String)> {
        match (object, wish) {
            (Object::Path(path), Wish::File(kind)) => {
                let text = to_path(path).to_str().map(spelled_out)?;
                let key = match (kind, allow) {
                    (Kind::Read, true) => "files.read.allow",
                    (Kind::Read, false) => "files.read.deny",
                    (Kind::Write, true) => "files.write.allow",
                    (Kind::Write, false) => "files.write.deny",
                    (Kind::Delete, true) => "files.delete.allow",
                    (Kind::Delete, false) => "files.delete.deny",
                    (Kind::Attributes, true) => "files.attributes.allow",
                    (Kind::Attributes, false) => "files.attributes.deny",
                    (Kind::Execute, true) => "files.exec.allow",
                    (Kind::Execute, false) => "files.exec.deny",
                    (Kind::Connect, true) => "network.unix.allow",
                    (Kind::Connect, false) => "network.unix.deny",
                };
                Some((key, text))
            }
            (Object::Address(address, port), Wish::Reach(protocol)) if allow => {
                let protocol = match protocol {
                    Protocol::Tcp => "tcp",
                    Protocol::Udp => "udp",
                };
                let address = match address.to_canonical() {
                    IpAddr::V4(address) => address.to_string(),
                    IpAddr::V6(address) => format!("[{address}]"),
                };
                Some(("network.allow", format!("{address}:{port}/{protocol}")))
            }
            (Object::Name(name, port), Wish::Reach(protocol)) => {
                let protocol = if protocol == Protocol::Tcp { "tcp" } else { "udp" };
                let key = if allow { "network.allow" } else { "network.deny" };
                Some((key, format!("{name}:{port}/{protocol}")))
            }
            (Object::Abstract(name), Wish::File(Kind::Connect)) => {
                let key = if allow { "network.unix.allow" } else { "network.unix.deny" };
                Some((key, check::unix::spelled_out(name)))
            }
            (Object::Command(words), Wish::Run) if !allow => {
                let (program, behind) = words.split_first()?;
                let name = program.rsplit('/').next()?;
                let words = [name].into_iter().chain(behind.iter().map(String::as_str));
                let text = words.take(WORDS + 1).collect::<Vec<_>>().join(" ");
                check::program::parse(&text).is_ok().then_some(("files.exec.ask", text))
            }
            _ => None,
        }
    }

    /// The policy with one more entry.
    fn with(&self, key: &'static str, text: &str) -> Option<Policy> {
        let text = format!("version = 1\n{key} = [{}]\n", toml::Value::from(text));
        parse::append(self.policy.clone(), Source::new("change", "user", text)).ok()
    }

    /// The policy without some of its own rules.
    fn without(&self, some: impl Fn(&Origin) -> bool) -> Policy {
        let mut policy = self.policy.clone();
        policy.files.retain(|rule| !some(&rule.origin));
        policy.asks.retain(|rule| !some(&rule.origin));
        policy.network.retain(|rule| !some(&rule.origin));
        policy.names.retain(|rule| !some(&rule.origin));
        policy
    }

    fn turned(&self, policy: Option<&Policy>, object: &Object, wish: Wish, allow: bool) -> bool {
        let Some(policy) = policy else { return false };
        // A rule that is left out leaves a gap in the numbers, which only events mind.
        let asked = expand(policy, self.context).and_then(|placed| {
            let compiled = compile_placed(policy, self.context, &placed, self.table, &[])?.0;
            Ok(Asked { policy, context: self.context, table: self.table, placed, compiled })
        });
        asked.is_ok_and(|asked| asked.decide(object, wish).allow != allow)
    }
}

/// Whether the resolver opens a port of the addresses that a name stands for.
fn reach_by_name(policy: &Policy, protocol: Protocol, name: &str, port: u16) -> Decision {
    let denied = |rule| Decision { allow: false, rule };
    match Names::new(names::layers(policy)).decide(name) {
        names::Named::Open(open) => open
            .iter()
            .find(|open| open.protocol == protocol as u16 && open.ports.contains(&port))
            .map_or(denied(0), |open| {
                if open.opens() {
                    Decision { allow: true, rule: open.rule }
                } else {
                    denied(open.check)
                }
            }),
        names::Named::Denied(rule) => denied(rule),
        names::Named::Unknown => denied(0),
    }
}

/// Whether the name that TLS asks for is checked at a port of the addresses that a name stands for.
fn is_checked(policy: &Policy, protocol: Protocol, name: &str, port: u16) -> bool {
    let names::Named::Open(open) = Names::new(names::layers(policy)).decide(name) else {
        return false;
    };
    let of_port =
        |open: &&names::Opening| open.protocol == protocol as u16 && open.ports.contains(&port);
    open.iter().find(of_port).is_some_and(|open| open.check != 0)
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
