//! The tries of all superblocks, being filled with rules: by their own places, by the mounts beneath
//! them, and closed where another path to the same place is.

use super::decide::{self, Decision};
use super::diagnostic::{Diagnostic, Severity};
use super::expand::Placed;
use super::patterns::anchor::Anchored;
use super::rule::{Defaults, Kind, Origin, Policy};
use super::trie::{Mark, Part, Trie};
use crate::kernel::mounts::{Components, Mount, MountTable, to_path};
use sandbox_common::Access;
use sandbox_common::path::{Inherited, RULE_DEPTH, Root};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// The tries of all superblocks, being filled.
pub(super) struct Tries<'a> {
    pub(super) layer: u16,
    placed: Vec<&'a Placed>,
    pub(super) defaults: Defaults,
    table: &'a MountTable,
    /// What the rules say of absolute paths.
    paths: Trie,
    /// The patterns among the rules that deny.
    denying: Vec<&'a Placed>,
    pub(super) anchored: Vec<&'a Anchored>,
    /// By `s_dev`.
    pub(super) by_dev: BTreeMap<u32, Trie>,
    /// By id.
    origins: Vec<&'a Origin>,
    pub(super) errors: Vec<Diagnostic>,
    pub(super) warnings: Vec<Diagnostic>,
    /// By rule, those that are among them.
    warned: HashSet<(u32, String)>,
    /// By rule, the paths of which it is said already that they stay closed for writing.
    unwritable: HashSet<(u32, PathBuf)>,
}

impl<'a> Tries<'a> {
    /// Those of one layer, still without its rules.
    pub(super) fn new(
        policy: &'a Policy,
        layer: u16,
        table: &'a MountTable,
        placed: &'a [Placed],
        anchored: &'a [Anchored],
    ) -> Self {
        let defaults = if layer == 0 { policy.defaults } else { Defaults::OPEN };
        let placed: Vec<&Placed> = placed.iter().filter(|rule| rule.layer == layer).collect();
        let mut paths = Trie::default();
        for rule in placed.iter().filter(|rule| rule.tail.is_empty()) {
            let mark = Mark { allow: rule.allow, rule: rule.id, crossing: false };
            paths.place(&rule.path, rule.access, rule.scope.parts(), mark);
        }
        let by_dev = table.mounts().iter().map(|mount| (mount.dev, Trie::default())).collect();
        let denying = placed.iter().copied();
        let denying = denying.filter(|rule| !rule.allow && !rule.tail.is_empty()).collect();
        let anchored = anchored.iter().filter(|anchored| anchored.rule.layer == layer).collect();
        Self {
            layer,
            placed,
            defaults,
            table,
            paths,
            denying,
            anchored,
            by_dev,
            origins: origins(policy),
            errors: Vec::new(),
            warnings: Vec::new(),
            warned: HashSet::new(),
            unwritable: HashSet::new(),
        }
    }

    /// Puts every rule on its own place.
    pub(super) fn put_rules(&mut self) {
        for rule in self.placed.clone().into_iter().filter(|rule| rule.tail.is_empty()) {
            let Some((dev, place)) = self.table.locate(&rule.path) else {
                let path = to_path(&rule.path);
                self.error(
                    rule.id,
                    format!("no mount holds `{}`", path.display()),
                    "run the session where / is a mount point",
                );
                continue;
            };
            let mark = Mark { allow: rule.allow, rule: rule.id, crossing: false };
            self.put(dev, &place, rule.access, rule.scope.parts(), mark);
        }
    }

    /// Puts what holds at the mount points on what is mounted there.
    pub(super) fn put_mounts(&mut self) {
        let table = self.table;
        let mut allows = Vec::new();
        let mut defaults = Vec::new();
        for mount in table.visible() {
            for (kind, part) in kinds_and_parts() {
                match self.said(&mount.point, kind, part) {
                    // The rule names the mount point: it is there already.
                    Some(mark) if !mark.crossing => {}
                    Some(mark) => {
                        if mark.allow {
                            allows.push((mount, kind, part, mark));
                        } else {
                            self.put(mount.dev, &mount.root, kind.access(), &[part], mark);
                        }
                    }
                    None if self.defaults.allow(kind) => {}
                    None => defaults.push((mount, kind, part)),
                }
            }
        }
        // Allows come when all denials are in place.
        for (mount, kind, part, mark) in allows {
            if self.may_open(mount, kind, part, mark.rule) {
                self.put(mount.dev, &mount.root, kind.access(), &[part], mark);
            }
        }
        // A mount that no rule opens may show a part of one that was just opened.
        for (mount, kind, part) in defaults {
            let above = self.found(mount.dev, &mount.root, kind, part);
            if let Some((Mark { allow: true, crossing: true, rule }, _)) = above {
                let closed = Mark { allow: false, rule: 0, crossing: true };
                self.put(mount.dev, &mount.root, kind.access(), &[part], closed);
                let seen = to_path(&mount.point);
                let other =
                    table.views(mount.dev, &mount.root).find(|(view, _)| view.id != mount.id);
                let inside = other.map_or_else(|| seen.clone(), |(_, path)| to_path(&path));
                self.warn_closed(rule, kind, &inside, &seen, None);
            }
        }
    }

    /// Whether an allow rule above a mount point may open what is mounted there.
    fn may_open(&mut self, mount: &Mount, kind: Kind, part: Part, rule: u32) -> bool {
        let found = self.found(mount.dev, &mount.root, kind, part);
        let closed_by = match found {
            Some((mark, _)) if !mark.allow => Some(mark.rule),
            // A rule names the place itself, by another path.
            Some((Mark { crossing: false, .. }, _)) => return false,
            _ => self
                .anchored
                .iter()
                .filter(|anchored| anchored.dev == mount.dev && !anchored.rule.allow)
                .filter_map(|Anchored { rule, .. }| denied(rule, &mount.root, kind, part))
                .find(|(deny, _)| found.is_none_or(|(_, depth)| *deny > depth))
                .map(|(_, rule)| rule),
        };
        let seen: Vec<(Components, Decision)> = self
            .table
            .views(mount.dev, &mount.root)
            .filter(|(view, _)| view.id != mount.id)
            .map(|(_, path)| {
                let found = self.said(&path, kind, part);
                let decision = Decision {
                    allow: found.map_or(self.defaults.allow(kind), |mark| mark.allow),
                    rule: found.map_or(0, |mark| mark.rule),
                };
                (path, decision)
            })
            .collect();
        let closed = seen.iter().find(|(_, decision)| !decision.allow);
        if closed_by.is_none() && closed.is_none() {
            return true;
        }
        if part == Part::Below {
            let path = closed.map_or(mount.point.as_slice(), |(path, _)| path.as_slice());
            let by = closed_by.or(closed.map(|(_, decision)| decision.rule));
            self.warn_closed(rule, kind, &to_path(&mount.point), &to_path(path), by);
        }
        false
    }

    /// Warns of allow rules whose own place another rule closes by another path.
    pub(super) fn report_closed(&mut self) {
        for rule in self.placed.clone().into_iter().filter(|r| r.allow && r.tail.is_empty()) {
            let Some((dev, place)) = self.table.locate(&rule.path) else { continue };
            for kind in Kind::of(rule.access) {
                self.report_kind(rule, kind, dev, &place);
            }
        }
    }

    fn report_kind(&mut self, rule: &Placed, kind: Kind, dev: u32, place: &[Vec<u8>]) {
        let by_path = self.paths.verdict(&rule.path, kind, Part::Below);
        let by_place = self.found(dev, place, kind, Part::Below);
        let (Some((Mark { allow: true, .. }, _)), Some((Mark { allow: false, rule: by, .. }, _))) =
            (by_path, by_place)
        else {
            return;
        };
        let other = self.table.views(dev, place).map(|(_, path)| path).find(|path| {
            let found = self.paths.verdict(path, kind, Part::Below);
            found.is_some_and(|(mark, _)| !mark.allow)
        });
        let other = other.unwrap_or_else(|| rule.path.clone());
        self.warn_closed(rule.id, kind, &to_path(&rule.path), &to_path(&other), Some(by));
    }

    /// What the rules say of a path, patterns that allow left out. It is crossing unless a path that is
    /// spelled out names this very place.
    pub(super) fn said(&self, path: &[Vec<u8>], kind: Kind, part: Part) -> Option<Mark> {
        let literal = self.paths.verdict(path, kind, part);
        let pattern = self
            .denying
            .iter()
            .filter_map(|rule| denied(rule, path, kind, part))
            .min_by_key(|(depth, rule)| (Reverse(*depth), *rule));
        match (literal, pattern) {
            (Some((mark, depth)), pattern) if pattern.is_none_or(|(deny, _)| deny <= depth) => {
                Some(Mark { crossing: depth < path.len(), ..mark })
            }
            (_, Some((_, rule))) => Some(Mark { allow: false, rule, crossing: true }),
            _ => None,
        }
    }

    /// The root of superblocks that are mounted later, nobody knows where: what is denied everywhere
    /// is denied, and nothing is opened.
    pub(super) fn unknown(layers: &[Self], defaults: Defaults) -> Root {
        let mut rights = defaults.rights();
        for kind in Kind::ALL {
            let mut said = layers.iter().filter_map(|tries| tries.everywhere(kind));
            if let Some((Mark { rule, .. }, _)) = said.next() {
                rights.allow &= !kind.access().bits();
                rights.rules[kind as usize] = rule;
            }
        }
        Root {
            own: rights,
            pad: 0,
            below: Inherited { rights, unknown: 1, ..Inherited::default() },
        }
    }

    /// What is denied in superblocks that nobody knows.
    pub(super) fn everywhere(&self, kind: Kind) -> Option<(Mark, usize)> {
        self.paths.verdict(&[], kind, Part::Below).filter(|(mark, _)| !mark.allow)
    }

    pub(super) fn put(
        &mut self,
        dev: u32,
        place: &[Vec<u8>],
        access: Access,
        parts: &[Part],
        mark: Mark,
    ) {
        if place.len() > RULE_DEPTH {
            let shown = to_path(place);
            self.error(
                mark.rule,
                format!(
                    "the rule's place `{}` is {} components deep in its file system",
                    shown.display(),
                    place.len()
                ),
                format!("at most {RULE_DEPTH} are possible: name a directory above it"),
            );
            return;
        }
        self.by_dev.entry(dev).or_default().place(place, access, parts, mark);
    }

    fn found(&self, dev: u32, place: &[Vec<u8>], kind: Kind, part: Part) -> Option<(Mark, usize)> {
        self.by_dev.get(&dev).and_then(|trie| trie.verdict(place, kind, part))
    }

    pub(super) fn origin(&self, id: u32) -> Option<&'a Origin> {
        let found = self.origins.binary_search_by_key(&id, |origin| origin.id);
        found.ok().map(|index| self.origins[index])
    }

    pub(super) fn error(&mut self, rule: u32, message: String, help: impl Into<String>) {
        self.errors.push(match self.origin(rule) {
            Some(origin) => origin.place.error(message, help),
            None => Diagnostic::file("policy", message, help),
        });
    }

    /// An allow rule does not open `here`, because it is the same as `there`, which the rule `by`
    /// closes; no such rule is the default.
    fn warn_closed(&mut self, rule: u32, kind: Kind, here: &Path, there: &Path, by: Option<u32>) {
        let Some(origin) = self.origin(rule) else { return };
        // What closes writing closes the rest of it, of which one word is enough.
        let closed = (origin.id, here.to_path_buf());
        if matches!(kind, Kind::Delete | Kind::Attributes) && self.unwritable.contains(&closed) {
            return;
        }
        if kind == Kind::Write {
            self.unwritable.insert(closed);
        }
        let verb = kind.verb();
        let by = by.and_then(|id| self.origin(id)).map(|by| format!("{} \"{}\"", by.key, by.text));
        let reason = match by {
            // The path that the rule speaks of is hidden by a mount.
            Some(by) if here == there => format!("{by} closes the same place"),
            Some(by) => format!("it is the same as `{}`, which {by} closes", there.display()),
            None => {
                format!("it is the same as `{}`, which no rule allows to {verb}", there.display())
            }
        };
        let here = here.display();
        let message = format!("`{here}` stays closed to {verb}: {reason}");
        let help = format!("unmount `{here}`, or let a rule open the place by its other path");
        self.warn(origin, message, help);
    }

    /// A pattern that allows does not reach what is mounted at `point`.
    pub(super) fn warn_stopped(&mut self, rule: u32, point: &Path) {
        let Some(origin) = self.origin(rule) else { return };
        let point = point.display();
        let message = format!("the pattern opens nothing of what is mounted at `{point}`");
        self.warn(origin, message, format!("if that is meant to be open, name `{point}` itself"));
    }

    fn warn(&mut self, origin: &Origin, message: String, help: String) {
        if self.warned.insert((origin.id, message.clone())) {
            let mut diagnostic = origin.place.error(message, help);
            diagnostic.severity = Severity::Warning;
            self.warnings.push(diagnostic);
        }
    }
}

/// How deep the place lies by which a pattern denies what is at a path, or beneath it; and the rule.
fn denied(rule: &Placed, path: &[Vec<u8>], kind: Kind, part: Part) -> Option<(usize, u32)> {
    if !rule.speaks_of(kind) {
        return None;
    }
    let depth = match part {
        Part::Own => decide::depth(rule, path),
        Part::Below => decide::matched(rule, path),
    };
    Some((depth?, rule.id))
}

pub(super) fn kinds_and_parts() -> impl Iterator<Item = (Kind, Part)> {
    Kind::ALL.into_iter().flat_map(|kind| Part::ALL.map(|part| (kind, part)))
}

/// Of all rules, by id.
pub(super) fn origins(policy: &Policy) -> Vec<&Origin> {
    let mut origins: Vec<&Origin> = policy.origins().collect();
    origins.sort_by_key(|origin| origin.id);
    origins
}
