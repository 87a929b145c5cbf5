//! One policy out of several: allowed is what every layer allows.
//!
//! Each layer is put on the places of every superblock by itself. Where any of them says something of a
//! place, it is asked what all of them say there, and that is what the joined trie says. A pattern that
//! denies holds whoever wrote it. One that allows would open, by lying deeper, what another layer closes
//! above: so it holds only from places that the other layers allow, and `barriers` end it where they do
//! not.

use super::decide;
use super::diagnostic::Diagnostic;
use super::expand::Placed;
use super::patterns::Barrier;
use super::patterns::anchor::{Anchored, residues};
use super::rule::Kind;
use super::trie::{Mark, Part, Trie, Walk};
use super::tries::{Tries, kinds_and_parts};
use crate::kernel::mounts::{Components, to_path};
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Most places of other layers that one allowing pattern is held against.
const PLACES: usize = 256;

/// The tries of all superblocks that say what the layers say together. `layers` are the ceilings' and, last,
/// the policy's own.
pub(super) fn tries(layers: &[Tries<'_>]) -> BTreeMap<u32, Trie> {
    let devs: BTreeSet<u32> =
        layers.iter().flat_map(|layer| layer.by_dev.keys().copied()).collect();
    let join = |dev: u32| {
        let mut joined = Trie::default();
        let tries = layers.iter().map(|layer| layer.by_dev.get(&dev));
        let mut waiting = vec![(Components::new(), Walk::new(tries))];
        while let Some((place, walk)) = waiting.pop() {
            for (kind, part) in kinds_and_parts() {
                if let Some(mark) = together(layers, dev, &place, &walk, kind, part) {
                    joined.place(&place, kind.access(), &[part], mark);
                }
            }
            for (name, child) in walk.children() {
                waiting.push(([place.as_slice(), std::slice::from_ref(name)].concat(), child));
            }
        }
        (dev, joined)
    };
    devs.into_iter().map(join).collect()
}

/// What all layers say of a place of which one of them says something.
fn together(
    layers: &[Tries<'_>],
    dev: u32,
    place: &[Vec<u8>],
    walk: &Walk<'_>,
    kind: Kind,
    part: Part,
) -> Option<Mark> {
    if !walk.speaks(kind, part) {
        return None;
    }
    let marks = walk.marks(kind, part);
    let said = layers.iter().enumerate().map(|(index, layer)| {
        let spoken = marks[index].map(|mark| (mark.allow, mark.rule));
        spoken.unwrap_or_else(|| {
            let above = walk.inherited(index, kind);
            verdict(layer, dev, place, kind, part, above)
        })
    });
    let said: Vec<(bool, u32)> = said.collect();
    let (allow, rule) = said.iter().find(|(allow, _)| !allow).or(said.last())?;
    Some(Mark { allow: *allow, rule: *rule, crossing: false })
}

/// What a layer says of a place by its patterns, by what it says of the places `above`, or by default.
fn verdict(
    layer: &Tries<'_>,
    dev: u32,
    place: &[Vec<u8>],
    kind: Kind,
    part: Part,
    above: Option<(Mark, usize)>,
) -> (bool, u32) {
    let depth = |rule: &Placed| match part {
        Part::Own => decide::depth(rule, place),
        Part::Below => decide::matched(rule, place),
    };
    let patterns = layer.anchored.iter().filter(|of| of.dev == dev && of.rule.speaks_of(kind));
    let deepest = patterns
        .filter_map(|of| Some((depth(&of.rule)?, !of.rule.allow, std::cmp::Reverse(of.rule.id))))
        .max();
    match (deepest, above) {
        (Some((depth, deny, id)), above) if above.is_none_or(|(_, above)| above < depth) => {
            (!deny, id.0)
        }
        (_, Some((mark, _))) => (mark.allow, mark.rule),
        (_, None) => (layer.defaults.allow(kind), 0),
    }
}

/// The patterns of all layers that hold beside each other.
pub(super) struct Patterns {
    pub(super) anchored: Vec<Anchored>,
    /// Where those that allow end.
    pub(super) barriers: Vec<Barrier>,
    pub(super) warnings: Vec<Diagnostic>,
}

/// See [`Patterns`]. `layers` as for [`tries`].
pub(super) fn patterns(layers: &[Tries<'_>], anchored: &[Anchored]) -> Patterns {
    let mut barriers = HashSet::new();
    let mut found = Patterns { anchored: Vec::new(), barriers: Vec::new(), warnings: Vec::new() };
    let (allowing, denying): (Vec<_>, Vec<_>) = anchored.iter().partition(|of| of.rule.allow);
    // The others may close one kind and not another.
    let allowing: Vec<Anchored> = allowing
        .into_iter()
        .flat_map(|of| {
            Kind::of(of.rule.access).map(|kind| Anchored {
                dev: of.dev,
                rule: Placed { access: kind.access(), ..of.rule.clone() },
            })
        })
        .collect();
    let keeps: Vec<Vec<Anchored>> = allowing
        .iter()
        .map(|pattern| {
            let others = layers.iter().filter(|tries| tries.layer != pattern.rule.layer);
            let kind = Kind::of(pattern.rule.access).next();
            kind.map_or_else(Vec::new, |kind| {
                keep(&others.collect::<Vec<_>>(), pattern, kind, &mut barriers)
            })
        })
        .collect();
    // Rules that do not hold in all superblocks hold in those that are named.
    let parted: HashSet<&Placed> = allowing
        .iter()
        .zip(&keeps)
        .filter(|(pattern, kept)| kept.as_slice() != std::slice::from_ref(*pattern))
        .map(|(pattern, _)| &pattern.rule)
        .collect();
    let mut rules: BTreeMap<u32, (&Anchored, bool)> = BTreeMap::new();
    for (pattern, kept) in allowing.iter().zip(&keeps) {
        rules.entry(pattern.rule.id).or_insert((pattern, false)).1 |= !kept.is_empty();
        found.anchored.extend(kept.iter().cloned().map(|mut kept| {
            kept.rule.everywhere &= !parted.contains(&pattern.rule);
            kept
        }));
    }
    let nothing = rules.into_values().filter(|(pattern, kept)| !kept && pattern.rule.layer == 0);
    found.warnings.extend(nothing.filter_map(|(pattern, _)| warning(layers, pattern)));
    found.anchored.extend(denying.into_iter().cloned());
    found.barriers = barriers.into_iter().collect();
    found
}

/// The places from which an allowing pattern holds: its own, or those beneath that all others open.
fn keep(
    others: &[&Tries<'_>],
    pattern: &Anchored,
    kind: Kind,
    barriers: &mut HashSet<Barrier>,
) -> Vec<Anchored> {
    let Anchored { dev, rule } = pattern;
    let opens = |place: &[Vec<u8>]| {
        others.iter().all(|layer| {
            let above = match layer.by_dev.get(dev) {
                Some(trie) => trie.verdict(place, kind, Part::Below),
                None => layer.everywhere(kind),
            };
            verdict(layer, *dev, place, kind, Part::Below, above).0
        })
    };
    let mut beneath: Vec<(u16, Components, bool)> = Vec::new();
    for layer in others {
        let said = layer.by_dev.get(dev).map(|trie| trie.said_beneath(&rule.path, kind));
        let said = said.into_iter().flatten();
        let reached = said.filter(|(place, _)| !residues(rule, place).is_empty());
        beneath.extend(reached.map(|(place, allow)| (layer.layer, place, allow)));
        if beneath.len() > PLACES {
            return Vec::new();
        }
    }
    let mut kept = Vec::new();
    if opens(&rule.path) {
        kept.push(pattern.clone());
    } else {
        let opened: BTreeSet<&Components> =
            beneath.iter().filter(|(_, _, allow)| *allow).map(|(_, place, _)| place).collect();
        for place in opened.into_iter().filter(|place| opens(place)) {
            for (rest, tail) in
                residues(rule, place).into_iter().filter(|(_, tail)| !tail.is_empty())
            {
                let path = [place.as_slice(), rest].concat();
                let tail = tail.to_vec();
                let rule = Placed { path, tail, everywhere: false, ..rule.clone() };
                kept.push(Anchored { dev: *dev, rule });
            }
        }
    }
    if !kept.is_empty() {
        let closed = beneath.into_iter().filter(|(_, _, allow)| !allow);
        barriers.extend(closed.map(|(layer, path, _)| Barrier { dev: *dev, layer, kind, path }));
    }
    kept
}

fn warning(layers: &[Tries<'_>], pattern: &Anchored) -> Option<Diagnostic> {
    let origin = layers.iter().find_map(|layer| layer.origin(pattern.rule.id))?;
    let mut diagnostic = origin.place.error(
        format!(
            "the pattern opens nothing: another layer closes `{}` or too many places in it",
            to_path(&pattern.rule.path).display()
        ),
        "spell out the places that are meant, or have the administrator's policy open them",
    );
    diagnostic.severity = super::diagnostic::Severity::Warning;
    Some(diagnostic)
}
