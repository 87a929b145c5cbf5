//! Rules to what the kernel gets.
//!
//! A rule names a path; the kernel knows places of superblocks. Each rule is put on the place of
//! its own path. Where a mount lies beneath that path, the rule holds for what is mounted there
//! too, unless the rule allows and the same place is closed by another path: then it stays closed,
//! so that a bind mount of a secret into the workspace opens nothing.

use super::compiled::{CompiledPolicy, Device, Rule, UnknownAccess};
use super::decide::Decision;
use super::diagnostic::{Diagnostic, PolicyError, Severity, checked};
use super::expand::{self, Context, Placed};
use super::fold;
use super::ports;
use super::rule::{Kind, Origin, Policy};
use super::trie::{Mark, Part, Trie};
use crate::kernel::mounts::{Components, Mount, MountTable, to_path};
use sandbox_common::Access;
use sandbox_common::path::{RULE_DEPTH, kernel_dev};
use std::collections::BTreeMap;
use std::path::Path;

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
    let mut tries = Tries::new(policy, table, placed);
    tries.put_rules(placed);
    tries.put_mounts();
    for Denial { dev, place, kind, part, rule } in former {
        let mark = Mark { allow: false, rule: *rule, crossing: false };
        tries.put(*dev, place, *kind, &[*part], mark);
    }
    tries.report_closed(placed);
    let unknown = tries.unknown();
    let Tries { by_dev, errors, warnings, .. } = tries;
    let warnings = checked(warnings, errors)?;

    let mut compiled = CompiledPolicy {
        devices: devices(context),
        rules: rules(policy),
        unknown,
        ..Default::default()
    };
    let mut last_id = 0;
    for (dev, trie) in by_dev {
        let root = trie.emit(&mut last_id, &mut compiled.edges);
        compiled.roots.push((dev, root));
    }
    compiled.folded = fold::folded(&compiled.edges);
    ports::compile(&policy.network, &mut compiled);
    Ok((compiled, warnings))
}

/// A place that a rule denies under some mount table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Denial {
    /// The superblock: `s_dev`, kernel encoding.
    pub dev: u32,
    place: Components,
    kind: Kind,
    part: Part,
    rule: u16,
}

/// The places that rules deny under a mount table.
pub fn denials(policy: &Policy, placed: &[Placed], table: &MountTable) -> Vec<Denial> {
    let mut found = Vec::new();
    for rule in placed.iter().filter(|rule| !rule.allow) {
        let Some((dev, place)) = table.locate(&rule.path) else { continue };
        found.extend(rule.scope.parts().iter().map(|part| Denial {
            dev,
            place: place.clone(),
            kind: rule.kind,
            part: *part,
            rule: rule.id,
        }));
    }
    let tries = Tries::new(policy, table, placed);
    for mount in table.visible() {
        for (kind, part) in kinds_and_parts() {
            if let Some((Mark { allow: false, rule, .. }, _)) =
                tries.paths.verdict(&mount.point, kind, part)
            {
                found.push(Denial { dev: mount.dev, place: mount.root.clone(), kind, part, rule });
            }
        }
    }
    found
}

/// The tries of all superblocks, being filled.
struct Tries<'a> {
    policy: &'a Policy,
    table: &'a MountTable,
    /// What the rules say of absolute paths.
    paths: Trie,
    /// By `s_dev`.
    by_dev: BTreeMap<u32, Trie>,
    errors: Vec<Diagnostic>,
    warnings: Vec<Diagnostic>,
}

impl<'a> Tries<'a> {
    fn new(policy: &'a Policy, table: &'a MountTable, placed: &[Placed]) -> Self {
        let mut paths = Trie::default();
        for rule in placed {
            let mark = Mark { allow: rule.allow, rule: rule.id, crossing: false };
            for part in rule.scope.parts() {
                paths.place(&rule.path, rule.kind, *part, mark);
            }
        }
        let by_dev = table.mounts().iter().map(|mount| (mount.dev, Trie::default())).collect();
        Self { policy, table, paths, by_dev, errors: Vec::new(), warnings: Vec::new() }
    }

    /// Puts every rule on its own place.
    fn put_rules(&mut self, placed: &[Placed]) {
        for rule in placed {
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
            self.put(dev, &place, rule.kind, rule.scope.parts(), mark);
        }
    }

    /// Puts what holds at the mount points on what is mounted there.
    fn put_mounts(&mut self) {
        let table = self.table;
        let mut allows = Vec::new();
        let mut defaults = Vec::new();
        for mount in table.visible() {
            for (kind, part) in kinds_and_parts() {
                match self.paths.verdict(&mount.point, kind, part) {
                    // The rule names the mount point: it is there already.
                    Some((_, depth)) if depth == mount.point.len() => {}
                    Some((mark, _)) => {
                        let mark = Mark { crossing: true, ..mark };
                        if mark.allow {
                            allows.push((mount, kind, part, mark));
                        } else {
                            self.put(mount.dev, &mount.root, kind, &[part], mark);
                        }
                    }
                    None if kind.default_allow() => {}
                    None => defaults.push((mount, kind, part)),
                }
            }
        }
        // Allows come when all denials are in place.
        for (mount, kind, part, mark) in allows {
            if self.may_open(mount, kind, part, mark.rule) {
                self.put(mount.dev, &mount.root, kind, &[part], mark);
            }
        }
        // A mount that no rule opens may show a part of one that was just opened.
        for (mount, kind, part) in defaults {
            let above = self.found(mount.dev, &mount.root, kind, part);
            if let Some(Mark { allow: true, crossing: true, rule }) = above {
                let closed = Mark { allow: false, rule: 0, crossing: true };
                self.put(mount.dev, &mount.root, kind, &[part], closed);
                let seen = to_path(&mount.point);
                let other =
                    table.views(mount.dev, &mount.root).find(|(view, _)| view.id != mount.id);
                let inside = other.map_or_else(|| seen.clone(), |(_, path)| to_path(&path));
                self.warn_closed(rule, kind, &inside, &seen, None);
            }
        }
    }

    /// Whether an allow rule above a mount point may open what is mounted there.
    fn may_open(&mut self, mount: &Mount, kind: Kind, part: Part, rule: u16) -> bool {
        let closed_by = match self.found(mount.dev, &mount.root, kind, part) {
            Some(mark) if !mark.allow => Some(mark.rule),
            // A rule names the place itself, by another path.
            Some(Mark { crossing: false, .. }) => return false,
            _ => None,
        };
        let seen: Vec<(Components, Decision)> = self
            .table
            .views(mount.dev, &mount.root)
            .filter(|(view, _)| view.id != mount.id)
            .map(|(_, path)| {
                let found = self.paths.verdict(&path, kind, part).map(|(mark, _)| mark);
                let decision = Decision {
                    allow: found.map_or(kind.default_allow(), |mark| mark.allow),
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
    fn report_closed(&mut self, placed: &[Placed]) {
        for rule in placed.iter().filter(|rule| rule.allow) {
            let Some((dev, place)) = self.table.locate(&rule.path) else { continue };
            let by_path = self.paths.verdict(&rule.path, rule.kind, Part::Below);
            let by_place = self.found(dev, &place, rule.kind, Part::Below);
            let (Some((Mark { allow: true, .. }, _)), Some(by)) = (by_path, by_place) else {
                continue;
            };
            if by.allow {
                continue;
            }
            let other = self.table.views(dev, &place).map(|(_, path)| path).find(|path| {
                let found = self.paths.verdict(path, rule.kind, Part::Below);
                found.is_some_and(|(mark, _)| !mark.allow)
            });
            let other = other.unwrap_or_else(|| rule.path.clone());
            let (here, there) = (to_path(&rule.path), to_path(&other));
            self.warn_closed(rule.id, rule.kind, &here, &there, Some(by.rule));
        }
    }

    /// What is allowed on a superblock that is mounted later, nobody knows where: what is read
    /// everywhere, and no write.
    fn unknown(&self) -> UnknownAccess {
        let read = self.paths.verdict(&[], Kind::Read, Part::Below);
        match read {
            Some((Mark { allow: false, .. }, _)) => UnknownAccess(Access::empty()),
            _ => UnknownAccess::default(),
        }
    }

    fn put(&mut self, dev: u32, place: &[Vec<u8>], kind: Kind, parts: &[Part], mark: Mark) {
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
        let trie = self.by_dev.entry(dev).or_default();
        for part in parts {
            trie.place(place, kind, *part, mark);
        }
    }

    fn found(&self, dev: u32, place: &[Vec<u8>], kind: Kind, part: Part) -> Option<Mark> {
        self.by_dev.get(&dev).and_then(|trie| trie.verdict(place, kind, part)).map(|(mark, _)| mark)
    }

    fn origin(&self, id: u16) -> Option<&'a Origin> {
        origins(self.policy).find(|origin| origin.id == id)
    }

    fn error(&mut self, rule: u16, message: String, help: impl Into<String>) {
        self.errors.push(match self.origin(rule) {
            Some(origin) => origin.place.error(message, help),
            None => Diagnostic::file("policy", message, help),
        });
    }

    /// An allow rule does not open `here`, because it is the same as `there`, which the rule `by`
    /// closes; no such rule is the default.
    fn warn_closed(&mut self, rule: u16, kind: Kind, here: &Path, there: &Path, by: Option<u16>) {
        let Some(origin) = self.origin(rule) else { return };
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
        let mut diagnostic = origin.place.error(message, help);
        diagnostic.severity = Severity::Warning;
        if !self.warnings.contains(&diagnostic) {
            self.warnings.push(diagnostic);
        }
    }
}

fn kinds_and_parts() -> impl Iterator<Item = (Kind, Part)> {
    Kind::ALL.into_iter().flat_map(|kind| Part::ALL.map(|part| (kind, part)))
}

fn origins(policy: &Policy) -> impl Iterator<Item = &Origin> {
    let files = policy.files.iter().map(|rule| &rule.origin);
    files.chain(policy.network.iter().map(|rule| &rule.origin))
}

fn rules(policy: &Policy) -> Vec<Rule> {
    let mut rules: Vec<Rule> = origins(policy)
        .map(|origin| {
            let source = &origin.place.source;
            let position = source.position(origin.place.span.clone());
            Rule {
                id: origin.id,
                key: origin.key.to_owned(),
                text: origin.text.clone(),
                layer: source.layer.to_owned(),
                file: source.name.clone(),
                line: position.line,
                column: position.column,
            }
        })
        .collect();
    rules.sort_by_key(|rule| rule.id);
    rules
}

fn devices(context: &Context) -> Vec<Device> {
    let common = DEVICES.iter().map(|(major, minor)| kernel_dev(*major, *minor));
    let mut devs: Vec<u32> = common.chain(context.terminal).collect();
    devs.sort_unstable();
    devs.dedup();
    let allow = Access::READ | Access::WRITE;
    devs.into_iter().map(|dev| Device { kind: libc::S_IFCHR, dev, allow }).collect()
}
