//! TOML to rules. Everything that is wrong is found in one pass and reported with its place.

use super::check::{self, Problem, nearest};
use super::diagnostic::{Diagnostic, PolicyError, checked};
use super::limits::{self, Limits};
use super::rule::{
    Direction, FileRule, Host, Kind, NameRule, NetRule, Origin, Policy, Sockets, VariableRule,
};
use super::source::{Place, Source};
use super::{json, preset};
use sandbox_common::path::RULES;
use sandbox_common::subject::Mode;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The version of the language that this program reads.
const VERSION: &str = "1";

/// The keys of each table; tables are named by their own dotted key, the document by "".
pub(super) const KEYS: [(&str, &[&str]); 10] = [
    (
        "",
        &[
            "version",
            "extends",
            "except",
            "mode",
            "files",
            "network",
            "environment",
            "processes",
            "limits",
        ],
    ),
    ("files", &["read", "write", "exec"]),
    ("files.read", &["default", "allow", "deny"]),
    ("files.write", &["allow", "deny"]),
    ("files.exec", &["default", "allow", "deny"]),
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
            RuleKey::Files(key, kind, allow) => {
                let sockets = match kind {
                    Kind::Connect => check::unix::parse(&text),
                    _ => check::path::parse(&text).map(Sockets::Paths),
                };
                let (patterns, abstract_name, service) = match sockets.map_err(fail)? {
                    Sockets::Paths(patterns) => (patterns, None, None),
                    Sockets::Abstract(name) => (Vec::new(), Some(name), None),
                    Sockets::Service(service) => (Vec::new(), None, Some(service)),
                };
                let origin = Origin { id, key, text, place };
                let rule = FileRule { origin, kind, allow, patterns, abstract_name, service };
                self.policy.files.push(rule);
            }
            RuleKey::Network(key, direction, allow) => {
                let (what, max) = match direction {
                    Direction::Out if allow => check::amount::split(&text).map_err(fail)?,
                    _ => (text.as_str(), None),
                };
                let host = match direction {
                    Direction::Out => check::address::parse_host(what),
                    Direction::In => check::address::parse_own(what).map(Host::Net),
                };
                let host = host.map_err(fail)?;
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
                    }),
                }
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
    Files(&'static str, Kind, bool),
    Network(&'static str, Direction, bool),
    Variable(&'static str, bool),
}

/// The lists of rules.
const LISTS: [RuleKey; 13] = [
    RuleKey::Files("files.read.allow", Kind::Read, true),
    RuleKey::Files("files.read.deny", Kind::Read, false),
    RuleKey::Files("files.write.allow", Kind::Write, true),
    RuleKey::Files("files.write.deny", Kind::Write, false),
    RuleKey::Files("files.exec.allow", Kind::Execute, true),
    RuleKey::Files("files.exec.deny", Kind::Execute, false),
    RuleKey::Network("network.allow", Direction::Out, true),
    RuleKey::Network("network.deny", Direction::Out, false),
    RuleKey::Network("network.listen", Direction::In, true),
    RuleKey::Files("network.unix.allow", Kind::Connect, true),
    RuleKey::Files("network.unix.deny", Kind::Connect, false),
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
            Self::Files(name, ..) | Self::Network(name, ..) | Self::Variable(name, _) => name,
        }
    }
}

/// One text, being read.
struct Reader<'a> {
    source: &'a Arc<Source>,
    diagnostics: Vec<Diagnostic>,
}

impl Reader<'_> {
    fn error(&mut self, span: Range<usize>, message: impl Into<String>, help: impl Into<String>) {
        self.diagnostics.push(self.source.error(span, message, help));
    }

    /// Reports keys that are not known in the table `name` and in those beneath.
    fn keys(&mut self, name: &str, table: &DeTable<'_>) {
        let Some((_, known)) = KEYS.iter().find(|(table, _)| *table == name) else { return };
        for (key, value) in table {
            let word = key.get_ref().as_ref();
            let full = join(name, word);
            if !known.contains(&word) {
                self.error(
                    key.span(),
                    format!("unknown key `{word}`"),
                    key_help(name, word, known),
                );
            } else if KEYS.iter().any(|(table, _)| *table == full) {
                match value.get_ref() {
                    DeValue::Table(inner) => self.keys(&full, inner),
                    other => {
                        let message = format!("`{full}` is {}, not a table", article(other));
                        let help = format!("write `[{full}]` and its keys beneath");
                        self.error(value.span(), message, help);
                    }
                }
            }
        }
    }

    fn version(&mut self, root: &DeTable<'_>) {
        let help = format!("this program reads version {VERSION}: write `version = {VERSION}`");
        match root.get("version").map(|value| (value.span(), value.get_ref())) {
            None => self.error(0..0, "`version` is missing", format!("{help} as the first line")),
            Some((_, DeValue::Integer(number)))
                if number.as_str() == VERSION && number.radix() == 10 => {}
            Some((span, DeValue::Integer(number))) => {
                self.error(span, format!("version {number} is not supported"), help);
            }
            Some((span, other)) => {
                self.error(span, format!("`version` is {}, not a number", article(other)), help);
            }
        }
    }

    /// The presets that a list of the document names.
    fn presets(&mut self, key: &str, root: &DeTable<'_>) -> Vec<Source> {
        let Some(value) = root.get(key) else { return Vec::new() };
        let mut presets: Vec<Source> = Vec::new();
        for Entry { text, place } in self.strings(key, value) {
            match preset::source(&text) {
                Some(preset) if presets.contains(&preset) => self.diagnostics.push(
                    place.error(format!("preset `{text}` is named twice"), "remove one of them"),
                ),
                Some(preset) => presets.push(preset),
                None => {
                    let help = match nearest(&text, preset::NAMES) {
                        Some(known) => format!("did you mean `{known}`?"),
                        None => format!("known presets: `{}`", preset::NAMES.join("`, `")),
                    };
                    self.diagnostics.push(place.error(format!("unknown preset `{text}`"), help));
                }
            }
        }
        presets
    }

    /// What a key of [`WORDS`] says.
    fn word(&mut self, root: &DeTable<'_>, key: &str) -> Option<&'static str> {
        let (_, words) = WORDS.iter().find(|(known, _)| *known == key)?;
        let value = find(root, key)?;
        if let DeValue::String(text) = value.get_ref()
            && let Some(word) = words.iter().find(|word| *word == text)
        {
            return Some(word);
        }
        let said = match value.get_ref() {
            DeValue::String(text) => text.as_ref(),
            other => article(other),
        };
        let help = match nearest(said, words) {
            Some(near) => format!("did you mean `\"{near}\"`?"),
            None => format!("write `\"{}\"`", words.join("\"` or `\"")),
        };
        self.error(value.span(), format!("`{key}` is `{said}`"), help);
        None
    }

    /// What `processes.namespaces` says.
    fn namespaces(&mut self, root: &DeTable<'_>) -> Option<bool> {
        let value = root.get("processes")?.get_ref().as_table()?.get("namespaces")?;
        if let DeValue::Boolean(permitted) = value.get_ref() {
            return Some(*permitted);
        }
        let message =
            format!("`processes.namespaces` is {}, not a truth value", article(value.get_ref()));
        self.error(value.span(), message, "write `true` or `false`");
        None
    }

    /// What `[limits]` says.
    fn limits(&mut self, root: &DeTable<'_>) -> Limits {
        let mut limits = Limits::default();
        let Some(table) = root.get("limits").and_then(|table| table.get_ref().as_table()) else {
            return limits;
        };
        for key in limits::KEYS {
            let Some(value) = table.get(key) else { continue };
            let (field, parsed) = match (key, value.get_ref()) {
                ("pids", DeValue::Integer(number)) => {
                    // A number that is beyond all is beyond this one.
                    let digits = number.as_str().replace('_', "");
                    let number = i64::from_str_radix(&digits, number.radix()).unwrap_or(i64::MAX);
                    (&mut limits.pids, limits::pids(number))
                }
                ("memory", DeValue::String(text)) => (&mut limits.memory, limits::memory(text)),
                ("cpu", DeValue::String(text)) => (&mut limits.cpu, limits::cpu(text)),
                (_, other) => {
                    let kind = if key == "pids" { "a number" } else { "text" };
                    let message = format!("`limits.{key}` is {}, not {kind}", article(other));
                    self.error(value.span(), message, "see `[limits]` in docs/policy.md");
                    continue;
                }
            };
            match parsed {
                Ok(limit) => *field = Some(limit),
                Err(problem) => self.error(value.span(), problem.message, problem.help),
            }
        }
        limits
    }

    /// The name servers of `network.resolvers`.
    fn resolvers(&mut self, root: &DeTable<'_>) -> Vec<SocketAddr> {
        let network = root.get("network").and_then(|value| value.get_ref().as_table());
        let Some(value) = network.and_then(|table| table.get("resolvers")) else {
            return Vec::new();
        };
        let mut servers = Vec::new();
        for Entry { text, place } in self.strings("network.resolvers", value) {
            match check::address::parse_server(&text) {
                Ok(server) => servers.push(server),
                Err(problem) => {
                    self.diagnostics.push(place.error(problem.message, problem.help));
                }
            }
        }
        servers
    }

    /// The entries of all lists, in the order of the text.
    fn rules(&mut self, root: &DeTable<'_>) -> Vec<(RuleKey, Entry)> {
        let mut rules = Vec::new();
        for list in LISTS {
            if let Some(value) = find(root, list.name()) {
                let entries = self.strings(list.name(), value);
                rules.extend(entries.into_iter().map(|entry| (list, entry)));
            }
        }
        rules.sort_by_key(|(_, entry)| entry.place.span.start);
        rules
    }

    /// The strings of a list.
    fn strings(&mut self, key: &str, value: &Spanned<DeValue<'_>>) -> Vec<Entry> {
        let DeValue::Array(array) = value.get_ref() else {
            let help = match value.get_ref() {
                DeValue::String(text) => format!("write `[\"{text}\"]`"),
                _ => format!("write `{} = [\"…\"]`", key.rsplit('.').next().unwrap_or(key)),
            };
            let message = format!("`{key}` is {}, not a list", article(value.get_ref()));
            self.error(value.span(), message, help);
            return Vec::new();
        };
        let mut entries = Vec::with_capacity(array.len());
        for element in array {
            let span = element.span();
            match element.get_ref() {
                DeValue::String(text) => entries.push(Entry {
                    text: text.as_ref().to_owned(),
                    place: Place { source: Arc::clone(self.source), span },
                }),
                other => {
                    let message =
                        format!("an entry of `{key}` is {}, not a string", article(other));
                    self.error(span, message, "put it in quotes");
                }
            }
        }
        entries
    }
}

/// The document of a text.
fn document(source: &Source) -> Result<DeTable<'_>, Vec<Diagnostic>> {
    if json::is(source.text()) {
        return json::table(source);
    }
    let (document, errors) = DeTable::parse_recoverable(source.text());
    if errors.is_empty() {
        return Ok(document.into_inner());
    }
    let tell = |error: &toml::de::Error| {
        let span = error.span().unwrap_or_default();
        source.error(span, error.message(), "the file is not TOML: see https://toml.io")
    };
    Err(errors.iter().map(tell).collect())
}

/// The value of a dotted key.
fn find<'a, 'i>(root: &'a DeTable<'i>, key: &str) -> Option<&'a Spanned<DeValue<'i>>> {
    let (tables, last) = key.rsplit_once('.').unwrap_or(("", key));
    let mut tables = tables.split('.').filter(|table| !table.is_empty());
    let table = tables
        .try_fold(root, |table, key| table.get(key).and_then(|value| value.get_ref().as_table()))?;
    table.get(last)
}

/// What to do about an unknown key.
fn key_help(table: &str, word: &str, known: &[&str]) -> String {
    if (table, word) == ("files.write", "default") {
        return "nothing may be written but what `files.write.allow` names".to_owned();
    }
    if let Some(near) = nearest(word, known) {
        return format!("did you mean `{near}`?");
    }
    let mut elsewhere = KEYS.iter().filter(|(_, keys)| keys.contains(&word));
    if let (Some((other, _)), None) = (elsewhere.next(), elsewhere.next())
        && !other.is_empty()
    {
        return format!("`{word}` belongs in `[{other}]`");
    }
    let place = if table.is_empty() { "here".to_owned() } else { format!("in `[{table}]`") };
    format!("known keys {place}: `{}`", known.join("`, `"))
}

fn join(table: &str, key: &str) -> String {
    if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") }
}

/// A value's type with its article.
fn article(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a fraction",
        DeValue::Boolean(_) => "a truth value",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
