//! TOML to rules. Everything that is wrong is found in one pass and reported with its place.

use super::check::{self, Problem, nearest};
use super::diagnostic::{Diagnostic, PolicyError, checked};
use super::preset;
use super::rule::{FileRule, Kind, NetRule, Origin, Policy};
use super::source::{Place, Source};
use sandbox_common::path::RULES;
use std::ops::Range;
use std::sync::Arc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The version of the language that this program reads.
const VERSION: &str = "1";

/// The keys of each table; tables are named by their own dotted key, the document by "".
const KEYS: [(&str, &[&str]); 7] = [
    ("", &["version", "extends", "except", "files", "network"]),
    ("files", &["read", "write", "exec"]),
    ("files.read", &["default", "allow", "deny"]),
    ("files.write", &["allow", "deny"]),
    ("files.exec", &["default", "allow", "deny"]),
    ("network", &["allow", "unix"]),
    ("network.unix", &["allow", "deny"]),
];

/// Reads a policy and the presets that it extends, these first.
pub(super) fn parse(source: Source) -> Result<Policy, PolicyError> {
    let mut layers = Layers::default();
    layers.read(&Arc::new(source));
    layers.finish()
}

/// A policy and, behind it, the rules of one more text.
pub(super) fn append(policy: Policy, source: Source) -> Result<Policy, PolicyError> {
    let count = policy.files.len() + policy.network.len();
    let mut layers = Layers { policy, count, ..Layers::default() };
    layers.read(&Arc::new(source));
    layers.finish()
}

/// The rules found so far, of all layers.
#[derive(Default)]
struct Layers {
    policy: Policy,
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
        let (document, errors) = DeTable::parse_recoverable(source.text());
        if !errors.is_empty() {
            self.diagnostics.extend(errors.iter().map(|error| {
                let span = error.span().unwrap_or_default();
                source.error(span, error.message(), "the file is not TOML: see https://toml.io")
            }));
            return;
        }
        let mut reader = Reader { source, diagnostics: Vec::new() };
        let root = document.get_ref();
        reader.keys("", root);
        reader.version(root);
        let presets = reader.presets("extends", root);
        let except = reader.presets("except", root);
        let rules = reader.rules(root);
        let read = reader.default(root, "read");
        let execute = reader.default(root, "exec");
        let mut found = reader.diagnostics;
        self.presets.extend(except.into_iter().map(|preset| preset.name));
        for preset in presets {
            if !self.presets.contains(&preset.name) {
                self.presets.push(preset.name.clone());
                self.read(&Arc::new(preset));
            }
        }
        let defaults = &mut self.policy.defaults;
        defaults.read = read.unwrap_or(defaults.read);
        defaults.execute = execute.unwrap_or(defaults.execute);
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
        let Some(id) = u32::try_from(self.count).ok().filter(|_| self.count <= RULES) else {
            // One diagnostic is enough: the rest of the rules is beyond the limit too.
            if self.count > RULES + 1 {
                return Ok(());
            }
            return Err(place.error(
                format!("more than {RULES} rules"),
                "name directories instead of the files in them, or extend fewer presets",
            ));
        };
        let fail = |problem: Problem| place.error(problem.message, problem.help);
        match key {
            RuleKey::Files(key, kind, allow) => {
                let patterns = check::path::parse(&text).map_err(fail)?;
                let origin = Origin { id, key, text, place };
                self.policy.files.push(FileRule { origin, kind, allow, patterns });
            }
            RuleKey::Network(key) => {
                let target = check::address::parse(&text).map_err(fail)?;
                let origin = Origin { id, key, text, place };
                self.policy.network.push(NetRule { origin, target });
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
    Network(&'static str),
}

/// The lists of rules.
const LISTS: [RuleKey; 9] = [
    RuleKey::Files("files.read.allow", Kind::Read, true),
    RuleKey::Files("files.read.deny", Kind::Read, false),
    RuleKey::Files("files.write.allow", Kind::Write, true),
    RuleKey::Files("files.write.deny", Kind::Write, false),
    RuleKey::Files("files.exec.allow", Kind::Execute, true),
    RuleKey::Files("files.exec.deny", Kind::Execute, false),
    RuleKey::Network("network.allow"),
    RuleKey::Files("network.unix.allow", Kind::Connect, true),
    RuleKey::Files("network.unix.deny", Kind::Connect, false),
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
            Self::Files(name, ..) | Self::Network(name) => name,
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
                    let help = match nearest(&text, &preset::NAMES) {
                        Some(known) => format!("did you mean `{known}`?"),
                        None => format!("known presets: `{}`", preset::NAMES.join("`, `")),
                    };
                    self.diagnostics.push(place.error(format!("unknown preset `{text}`"), help));
                }
            }
        }
        presets
    }

    /// What `files.KIND.default` says.
    fn default(&mut self, root: &DeTable<'_>, kind: &str) -> Option<bool> {
        let files = root.get("files")?.get_ref().as_table()?;
        let value = files.get(kind)?.get_ref().as_table()?.get("default")?;
        let said = match value.get_ref() {
            DeValue::String(text) => text.as_ref(),
            other => article(other),
        };
        match (value.get_ref(), said) {
            (DeValue::String(_), "allow") => Some(true),
            (DeValue::String(_), "deny") => Some(false),
            _ => {
                let message = format!("`files.{kind}.default` is `{said}`");
                self.error(value.span(), message, "write `\"allow\"` or `\"deny\"`");
                None
            }
        }
    }

    /// The entries of all lists, in the order of the text.
    fn rules(&mut self, root: &DeTable<'_>) -> Vec<(RuleKey, Entry)> {
        let mut rules = Vec::new();
        for list in LISTS {
            let Some((path, last)) = list.name().rsplit_once('.') else { continue };
            let table = path.split('.').try_fold(root, |table, key| {
                table.get(key).and_then(|value| value.get_ref().as_table())
            });
            if let Some(value) = table.and_then(|table| table.get(last)) {
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
