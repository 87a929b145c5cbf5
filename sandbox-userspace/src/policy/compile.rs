//! Rules to what the kernel gets.
//!
//! A rule names a path; the kernel knows places of superblocks. Each rule is put on the place of
//! its own path. Where a mount lies beneath that path, the rule holds for what is mounted there
//! too, unless the rule allows and the same place is closed by another path: then it stays closed,
//! so that a bind mount of a secret into the workspace opens nothing. Patterns that allow never
//! reach across a mount point.

use super::compiled::{CompiledPolicy, Device, Rule};
use super::diagnostic::{Diagnostic, PolicyError, checked};
use super::expand::{self, Context, Placed};
use super::names;
use super::patterns::anchor::{self, Anchored};
use super::patterns::{self, Compiled};
use super::ports;
use super::rule::{Direction, Kind, Policy};
use super::source::Counter;
use super::trie::{Mark, Part};
use super::tries::{Tries, kinds_and_parts, origins};
use super::{abstracts, asks, audits, ceiling, fold, server_names};
use crate::kernel::mounts::{Components, MountTable, to_path};
use ipnet::IpNet;
use sandbox_common::Access;
use sandbox_common::path::kernel_dev;
use sandbox_common::subject::{ASKS, COUNTS, NAMESPACES, SERVER_NAMES};
use std::collections::HashSet;
use std::time::Instant;

/// Character devices that every session may open (Documentation/admin-guide/devices.txt): null,
/// zero, full, random, urandom, tty, ptmx.
const DEVICES: [(u32, u32); 7] = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)];

/// Compiles a policy for a session that sees the file systems as `table` says.
///
/// Returns warnings too: rules that do less than they say.
pub fn compile(
    policy: &Policy,
    context: &Context,
    table: &MountTable,
) -> Result<(CompiledPolicy, Vec<Diagnostic>), PolicyError> {
    let placed = expand::expand(policy, context)?;
    compile_placed(policy, context, &placed, table, &[])
}

/// As [`compile`], for rules that were tied to their paths before, and with what they denied under former
/// mount tables.
///
/// A session whose mounts change keeps the paths that its rules had when it began: symbolic links are
/// not followed again, for the agent may have planted some since. What was closed when something was
/// mounted over it, or when its mount was taken away, stays closed: members may still reach it.
pub fn compile_placed(
    policy: &Policy,
    context: &Context,
    placed: &[Placed],
    table: &MountTable,
    former: &[Denial],
) -> Result<(CompiledPolicy, Vec<Diagnostic>), PolicyError> {
    let begin = Instant::now();
    let devs = former.iter().map(|denial| denial.dev);
    let (mut anchored, stopped) = anchor::anchor(placed, table, devs);
    let known: HashSet<Anchored> = anchored.iter().cloned().collect();
    anchored
        .extend(former.iter().filter_map(Denial::pattern).filter(|former| !known.contains(former)));
    let mut layers = Vec::with_capacity(policy.ceilings.len() + 1);
    // The policy's own layer is the last.
    for layer in (1..).take(policy.ceilings.len()).chain([0]) {
        let mut tries = Tries::new(policy, layer, table, placed, &anchored);
        tries.put_rules();
        tries.put_mounts();
        put_former(&mut tries, former);
        tries.report_closed();
        layers.push(tries);
    }
    let ceiling::Patterns { anchored: patterns, barriers, mut warnings } =
        ceiling::patterns(&layers, &anchored);
    let (patterns, errors) = automaton(policy, &patterns, &barriers);
    let unknown = Tries::unknown(&layers, policy.defaults);
    let by_dev = match layers.as_mut_slice() {
        [only] => std::mem::take(&mut only.by_dev),
        layers => ceiling::tries(layers),
    };
    let mut errors: Vec<Diagnostic> = errors.into_iter().collect();
    for mut tries in layers {
        if tries.layer == 0 {
            for stop in &stopped {
                tries.warn_stopped(stop.rule, &to_path(&stop.point));
            }
            warnings.append(&mut tries.warnings);
        }
        errors.append(&mut tries.errors);
    }
    let asks = asks::compile(policy).unwrap_or_else(|error| {
        errors.push(error);
        Vec::new()
    });
    let warnings = checked(warnings, errors)?;

    let mut compiled = CompiledPolicy {
        devices: devices(context),
        permits: audits::noted(policy) | if policy.permits_namespaces() { NAMESPACES } else { 0 },
        rules: rules(policy),
        roots: vec![(0, unknown)],
        ..Default::default()
    };
    let mut last_id = 0;
    for (dev, trie) in by_dev {
        let root = trie.emit(policy.defaults, &mut last_id, &mut compiled.edges);
        compiled.roots.push((dev, root));
    }
    compiled.folded = fold::folded(&compiled.edges);
    if let Some(Compiled { patterns, starts }) = patterns {
        for (dev, root) in &mut compiled.roots {
            root.below.pattern = starts.get(dev).copied().unwrap_or(0);
        }
        compiled.patterns = Some(patterns);
    }
    ports::compile(policy, &mut compiled);
    compiled.counts = policy.counting().map(|(origin, max)| (origin.id, max)).collect();
    if !compiled.counts.is_empty() {
        compiled.permits |= COUNTS;
    }
    if !asks.is_empty() {
        compiled.permits |= ASKS;
    }
    compiled.asks = asks;
    compiled.abstracts = abstracts::compile(policy, context);
    compiled.names = names::layers(policy);
    let layers = compiled.names.clone();
    server_names::compile(&layers, &mut compiled);
    if !compiled.server_names.is_empty() {
        compiled.permits |= SERVER_NAMES;
    }
    compiled.within = within(policy);
    compiled.resolvers.clone_from(&policy.resolvers);
    tracing::debug!(rules = compiled.rules.len(), elapsed = ?begin.elapsed(), "policy compiled");
    Ok((compiled, warnings))
}

/// The networks that a policy opens.
fn within(policy: &Policy) -> Vec<IpNet> {
    let opens = policy.network.iter().filter(|rule| rule.allow && rule.direction == Direction::Out);
    opens.map(|rule| rule.target.net).collect()
}

/// What was closed under former tables stays closed.
fn put_former(tries: &mut Tries<'_>, former: &[Denial]) {
    for Denial { dev, layer, what } in former {
        match what {
            What::Place { place, kind, part, rule } if *layer == tries.layer => {
                let mark = Mark { allow: false, rule: *rule, crossing: false };
                tries.put(*dev, place, kind.access(), &[*part], mark);
            }
            What::Place { .. } => {}
            What::Pattern(_) => {
                tries.by_dev.entry(*dev).or_default();
            }
        }
    }
}

/// The patterns for the kernel; on an error the first rule that does not fit is named.
fn automaton(
    policy: &Policy,
    anchored: &[Anchored],
    barriers: &[patterns::Barrier],
) -> (Option<Compiled>, Option<Diagnostic>) {
    let error = match patterns::compile(anchored, barriers) {
        Ok(compiled) => return (compiled, None),
        Err(error) => error,
    };
    let mut ids: Vec<u32> = anchored.iter().map(|anchored| anchored.rule.id).collect();
    ids.sort_unstable();
    ids.dedup();
    let first = ids.partition_point(|last| {
        let some = anchored.iter().filter(|anchored| anchored.rule.id <= *last);
        patterns::compile(&some.cloned().collect::<Vec<_>>(), barriers).is_ok()
    });
    let message = format!("the patterns up to this one are too much: {error}");
    let help = "join patterns into one rule with `{a,b}`, use fewer `**` in the middle of one, or \
                spell paths out";
    let rule = ids.get(first).and_then(|id| policy.origin(*id));
    let diagnostic = match rule {
        Some(origin) => origin.place.error(message, help),
        None => Diagnostic::file("policy", message, help),
    };
    (None, Some(diagnostic))
}

/// What a rule denies under some mount table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Denial {
    /// The superblock: `s_dev`, kernel encoding.
    pub dev: u32,
    /// Whose rule it is, as in [`Placed::layer`].
    layer: u16,
    what: What,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum What {
    Place { place: Components, kind: Kind, part: Part, rule: u32 },
    Pattern(Placed),
}

impl Denial {
    /// The rule.
    pub const fn rule(&self) -> u32 {
        match &self.what {
            What::Place { rule, .. } => *rule,
            What::Pattern(placed) => placed.id,
        }
    }

    /// The same by the number that the rule has in another policy.
    #[must_use]
    pub fn of_rule(mut self, id: u32) -> Self {
        match &mut self.what {
            What::Place { rule, .. } => *rule = id,
            What::Pattern(placed) => placed.id = id,
        }
        self
    }

    /// Whether it is about just this place.
    pub fn is_of(&self, of: u32, at: &[Vec<u8>], of_kind: Kind) -> bool {
        match &self.what {
            What::Place { place, kind, .. } => {
                self.dev == of && place == at && *kind == of_kind && self.layer == 0
            }
            What::Pattern(_) => false,
        }
    }

    fn pattern(&self) -> Option<Anchored> {
        match &self.what {
            What::Place { .. } => None,
            What::Pattern(rule) => Some(Anchored { dev: self.dev, rule: rule.clone() }),
        }
    }
}

/// What rules deny under a mount table. Patterns that hold everywhere are not among it: they do anyway.
pub fn denials(policy: &Policy, placed: &[Placed], table: &MountTable) -> Vec<Denial> {
    let (anchored, _) = anchor::anchor(placed, table, []);
    let mut found = Vec::new();
    for rule in placed.iter().filter(|rule| !rule.allow && rule.tail.is_empty()) {
        let Some((dev, place)) = table.locate(&rule.path) else { continue };
        for kind in Kind::of(rule.access) {
            found.extend(rule.scope.parts().iter().map(|part| Denial {
                dev,
                layer: rule.layer,
                what: What::Place { place: place.clone(), kind, part: *part, rule: rule.id },
            }));
        }
    }
    for layer in (0..).take(policy.ceilings.len() + 1) {
        let tries = Tries::new(policy, layer, table, placed, &anchored);
        for mount in table.visible() {
            for (kind, part) in kinds_and_parts() {
                if let Some(Mark { allow: false, rule, .. }) = tries.said(&mount.point, kind, part)
                {
                    let place = mount.root.clone();
                    let what = What::Place { place, kind, part, rule };
                    found.push(Denial { dev: mount.dev, layer, what });
                }
            }
        }
    }
    let patterns = anchored.iter().filter(|of| !of.rule.allow && !of.rule.everywhere);
    let patterns = patterns.map(|of| Denial {
        dev: of.dev,
        layer: of.rule.layer,
        what: What::Pattern(of.rule.clone()),
    });
    found.extend(patterns);
    found
}

fn rules(policy: &Policy) -> Vec<Rule> {
    let mut counter = Counter::default();
    origins(policy)
        .into_iter()
        .map(|origin| {
            let (line, column) = counter.find(&origin.place);
            Rule {
                id: origin.id,
                key: origin.key.to_owned(),
                text: origin.text.clone(),
                layer: origin.place.source.layer.to_owned(),
                file: origin.place.source.name.clone(),
                line,
                column,
            }
        })
        .collect()
}

fn devices(context: &Context) -> Vec<Device> {
    let common = DEVICES.iter().map(|(major, minor)| kernel_dev(*major, *minor));
    let mut devs: Vec<u32> = common.chain(context.terminal).collect();
    devs.sort_unstable();
    devs.dedup();
    let allow = Access::READ | Access::WRITE;
    devs.into_iter().map(|dev| Device { kind: libc::S_IFCHR, dev, allow }).collect()
}
