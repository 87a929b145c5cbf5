//! TOML to rules. Everything that is wrong is found in one pass and reported with its place.

mod reader;

use super::audits::{self, AuditRule};
use super::check::words::Words;
use super::check::{self, Problem};
use super::diagnostic::{Diagnostic, PolicyError, checked};
use super::limits;
use super::rule::{
    AskRule, Direction, FileRule, Host, NameRule, NetRule, Origin, Policy, Sockets, VariableRule,
};
use super::source::{Place, Source};
use reader::{Reader, document, find};
use sandbox_common::Access;
use sandbox_common::path::RULES;
use sandbox_common::subject::Mode;
use std::sync::Arc;

/// The version of the language that this program reads.
const VERSION: &str = "1";

/// The keys of each table; tables are named by their own dotted key, the document by "".
pub(super) const KEYS: [(&str, &[&str]); 12] = [
    (
        "",
        &[
            "version",
            "extends",
            "except",
            "mode",
            "audit",
            "files",
            "network",
            "environment",
            "processes",
            "limits",
        ],
    ),
    ("files", &["read", "write", "delete", "attributes", "exec"]),
    ("files.read", &["default", "allow", "deny"]),
    ("files.write", &["allow", "deny"]),
    ("files.delete", &["allow", "deny"]),
    ("files.attributes", &["allow", "deny"]),
    ("files.exec", &["default", "allow", "deny", "ask"]),
    ("network", &["allow", "deny", "listen", "resolvers", "unix"]),
    ("network.unix", &["allow", "deny"]),
    ("processes", &["namespaces"]),
    ("limits", &limits::KEYS),
    ("environment", &["allow", "deny", "secrets"]),
];

/// The keys that are one of a few words, and these.
pub(super) const WORDS: [(&str, &[&str]); 4] = [
    ("mode", &["enforce", "audit"]),
    ("files.read.default", &["allow", "deny"]),
    ("files.exec.default", &["allow", "deny"]),
    ("environment.secrets", &["allow", "deny"]),
];

/// Reads a policy and the presets that it extends, these first.
pub(super) fn parse(source: Source) -> Result<Policy, PolicyError> {
    parse_after(source, 0)
}

/// The same; its rules are numbered from the one after `numbered`.
pub(super) fn parse_after(source: Source, numbered: u32) -> Result<Policy, PolicyError> {
    let source = Arc::new(source);
    let mut layers = Layers::default();
    layers.policy.numbered = numbered;
    excepted(&source, &mut Vec::new(), &mut layers.presets);
    layers.read(&source);
    layers.finish()
}

/// A policy and, behind it, the rules of one more text, with the presets that it extends.
pub(super) fn append(policy: Policy, source: Source) -> Result<Policy, PolicyError> {
    let count = policy.count();
    let source = Arc::new(source);
    let names = policy.sources.iter().filter_map(|source| source.name.strip_prefix("preset:"));
    let presets = names.map(str::to_owned).collect();
    let mut layers = Layers { policy, count, presets, ..Layers::default() };
    excepted(&source, &mut Vec::new(), &mut layers.presets);
    layers.read(&source);
    layers.finish()
}

/// A policy that has one more ceiling. Rules are numbered over both.
pub(super) fn limit(mut policy: Policy, source: Source) -> Result<Policy, PolicyError> {
    let source = Arc::new(source);
    let mut layers = Layers { count: policy.count(), ..Layers::default() };
    layers.policy.numbered = policy.numbered;
    excepted(&source, &mut Vec::new(), &mut layers.presets);
    layers.read(&source);
    let ceiling = layers.finish()?;
    if let Some((origin, _)) = ceiling.counting().next() {
        return Err(origin
            .place
            .error(
                "an amount in a layer that only narrows",
                "leave it out here; a policy of the user's own can count",
            )
            .into());
    }
    policy.numbered = ceiling.numbered;
    policy.ceilings.push(ceiling);
    Ok(policy)
}

/// The presets that a text does without, and those that it extends. What is wrong with its lists is told
/// when it is read.
fn excepted(source: &Arc<Source>, seen: &mut Vec<String>, found: &mut Vec<String>) {
    let Ok(root) = document(source) else { return };
    let mut reader = Reader { source, diagnostics: Vec::new() };
    found.extend(reader.presets("except", &root).into_iter().map(|preset| preset.name));
    for preset in reader.presets("extends", &root) {
        if !seen.contains(&preset.name) {
            seen.push(preset.name.clone());
            excepted(&Arc::new(preset), seen, found);
        }
    }
}

/// The rules found so far, of all layers.
#[derive(Default)]
struct Layers {
    policy: Policy,
    /// How many rules there are, of all layers.
    count: usize,
    /// Names of the presets read so far, and of those that shall not be: two that extend the same
    /// third one have its rules once.
    presets: Vec<String>,
    diagnostics: Vec<Diagnostic>,
}

/// A string of a list.
struct Entry {
    text: String,
    place: Place,
}

impl Layers {
    /// Adds the presets that a text extends, then its own rules.
    fn read(&mut self, source: &Arc<Source>) {
        let root = &match document(source) {
            Ok(root) => root,
            Err(errors) => return self.diagnostics.extend(errors),
        };
        let mut reader = Reader { source, diagnostics: Vec::new() };
        reader.keys("", root);
        reader.version(root);
        let presets = reader.presets("extends", root);
        reader.presets("except", root);
        let rules = reader.rules(root);
        let read = reader.word(root, "files.read.default").map(|word| word == "allow");
        let execute = reader.word(root, "files.exec.default").map(|word| word == "allow");
        let secrets = reader.word(root, "environment.secrets").map(|word| word == "allow");
        let mode = reader.word(root, "mode");
        let lists = LIST_KEYS.into_iter().filter(|key| find(root, key).is_some());
        self.policy.said.extend(lists.chain(mode.map(|_| "mode")));
        let namespaces = reader.namespaces(root);
        let limits = reader.limits(root);
        let servers = reader.resolvers(root);
        let mut found = reader.diagnostics;
        for preset in presets {
            if !self.presets.contains(&preset.name) {
                self.presets.push(preset.name.clone());
                self.read(&Arc::new(preset));
            }
        }
        self.policy.sources.push(Arc::clone(source));
        self.policy.limits = self.policy.limits.or(limits);
        self.policy.namespaces = namespaces.or(self.policy.namespaces);
        self.policy.resolvers.extend(servers);
        let defaults = &mut self.policy.defaults;
        defaults.read = read.unwrap_or(defaults.read);
        defaults.execute = execute.unwrap_or(defaults.execute);
        let policy = &mut self.policy;
        policy.secrets = secrets.unwrap_or(policy.secrets);
        policy.mode = match mode {
            Some("audit") => Mode::Audit,
            Some(_) => Mode::Enforce,
            None => policy.mode,
        };
        for (key, entry) in rules {
            if let Err(diagnostic) = self.add(key, entry) {
                found.push(diagnostic);
            }
        }
        found.sort_by_key(|diagnostic| {
            diagnostic.position.as_ref().map(|position| (position.line, position.column))
        });
        self.diagnostics.extend(found);
    }

    fn add(&mut self, key: RuleKey, entry: Entry) -> Result<(), Diagnostic> {
        let Entry { text, place } = entry;
        self.count += 1;
        let id = self.policy.numbered.checked_add(1).filter(|_| self.count <= RULES);
        let Some(id) = id else {
            // One diagnostic is enough: the rest of the rules is beyond the limit too.
            if self.count > RULES + 1 {
                return Ok(());
            }
            return Err(place.error(
                format!("more than {RULES} rules"),
                "name directories instead of the files in them, or extend fewer presets",
            ));
        };
        self.policy.numbered = id;
        let fail = |problem: Problem| place.error(problem.message, problem.help);
        match key {
            RuleKey::Files(key, access, allow) => {
                let sockets = match access {
                    Access::CONNECT => check::unix::parse(&text),
                    _ => check::path::parse(&text).map(Sockets::Paths),
                };
                let (patterns, abstract_name, service) = match sockets.map_err(fail)? {
                    Sockets::Paths(patterns) => (patterns, None, None),
                    Sockets::Abstract(name) => (Vec::new(), Some(name), None),
                    Sockets::Service(service) => (Vec::new(), None, Some(service)),
                };
                let origin = Origin { id, key, text, place };
                let rule = FileRule { origin, access, allow, patterns, abstract_name, service };
                self.policy.files.push(rule);
            }
            RuleKey::Network(key, direction, allow) => {
                let Words { what, sni, max } = match direction {
                    Direction::Out if allow => check::words::split(&text).map_err(fail)?,
                    _ => Words { what: &text, sni: false, max: None },
                };
                let host = match direction {
                    Direction::Out => check::address::parse_host(what),
                    Direction::In => check::address::parse_own(what).map(Host::Net),
                };
                let host = host.map_err(fail)?;
                if sni {
                    check::words::is_checkable(what, &host).map_err(fail)?;
                }
                let origin = Origin { id, key, text, place };
                match host {
                    Host::Net(target) => {
                        let rule = NetRule { origin, direction, allow, target, max };
                        self.policy.network.push(rule);
                    }
                    Host::Name(pattern, ports, protocols) => self.policy.names.push(NameRule {
                        origin,
                        allow,
                        pattern,
                        ports,
                        protocols,
                        max,
                        sni,
                    }),
                }
            }
            RuleKey::Ask(key) => {
                let words = check::program::parse(&text).map_err(fail)?;
                let origin = Origin { id, key, text, place };
                self.policy.asks.push(AskRule { origin, words, granted: false });
            }
            RuleKey::Audit(key) => {
                let class = audits::parse(&text).map_err(fail)?;
                let origin = Origin { id, key, text, place };
                self.policy.audits.push(AuditRule { origin, class });
            }
            RuleKey::Variable(key, allow) => {
                let name = check::variable::parse(&text).map_err(fail)?;
                let origin = Origin { id, key, text, place };
                self.policy.variables.push(VariableRule { origin, allow, name });
            }
        }
        Ok(())
    }

    fn finish(self) -> Result<Policy, PolicyError> {
        checked(self.policy, self.diagnostics)
    }
}

/// The list that a rule stands in.
#[derive(Clone, Copy)]
enum RuleKey {
    Files(&'static str, Access, bool),
    Ask(&'static str),
    Network(&'static str, Direction, bool),
    Variable(&'static str, bool),
    Audit(&'static str),
}

/// The lists of rules.
const LISTS: [RuleKey; 19] = [
    RuleKey::Audit(audits::KEY),
    RuleKey::Files("files.read.allow", Access::READ, true),
    RuleKey::Files("files.read.deny", Access::READ, false),
    RuleKey::Files("files.write.allow", Access::WRITES, true),
    RuleKey::Files("files.write.deny", Access::WRITES, false),
    RuleKey::Files("files.delete.allow", Access::DELETE, true),
    RuleKey::Files("files.delete.deny", Access::DELETE, false),
    RuleKey::Files("files.attributes.allow", Access::ATTRIBUTES, true),
    RuleKey::Files("files.attributes.deny", Access::ATTRIBUTES, false),
    RuleKey::Files("files.exec.allow", Access::EXECUTE, true),
    RuleKey::Files("files.exec.deny", Access::EXECUTE, false),
    RuleKey::Ask("files.exec.ask"),
    RuleKey::Network("network.allow", Direction::Out, true),
    RuleKey::Network("network.deny", Direction::Out, false),
    RuleKey::Network("network.listen", Direction::In, true),
    RuleKey::Files("network.unix.allow", Access::CONNECT, true),
    RuleKey::Files("network.unix.deny", Access::CONNECT, false),
    RuleKey::Variable("environment.allow", true),
    RuleKey::Variable("environment.deny", false),
];

/// The keys of the lists of rules.
pub const LIST_KEYS: [&str; LISTS.len()] = {
    let mut keys = [""; LISTS.len()];
    let mut at = 0;
    while at < keys.len() {
        keys[at] = LISTS[at].name();
        at += 1;
    }
    keys
};

impl RuleKey {
    const fn name(self) -> &'static str {
        match self {
            Self::Files(name, ..)
            | Self::Ask(name)
            | Self::Audit(name)
            | Self::Network(name, ..)
            | Self::Variable(name, _) => name,
        }
    }
}
