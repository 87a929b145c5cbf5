//! One text, key by key: what each must be, and what is said where it is not.

use super::{Entry, KEYS, LISTS, RuleKey, VERSION, WORDS};
use crate::policy::check::{self, nearest};
use crate::policy::diagnostic::Diagnostic;
use crate::policy::limits::{self, Limits};
use crate::policy::source::{Place, Source};
use crate::policy::{json, preset};
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::Arc;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// One text, being read.
pub(super) struct Reader<'a> {
    pub(super) source: &'a Arc<Source>,
    pub(super) diagnostics: Vec<Diagnostic>,
}

impl Reader<'_> {
    pub(super) fn error(
        &mut self,
        span: Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.diagnostics.push(self.source.error(span, message, help));
    }

    /// Reports keys that are not known in the table `name` and in those beneath.
    pub(super) fn keys(&mut self, name: &str, table: &DeTable<'_>) {
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

    pub(super) fn version(&mut self, root: &DeTable<'_>) {
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
    pub(super) fn presets(&mut self, key: &str, root: &DeTable<'_>) -> Vec<Source> {
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
    pub(super) fn word(&mut self, root: &DeTable<'_>, key: &str) -> Option<&'static str> {
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
    pub(super) fn namespaces(&mut self, root: &DeTable<'_>) -> Option<bool> {
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
    pub(super) fn limits(&mut self, root: &DeTable<'_>) -> Limits {
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
    pub(super) fn resolvers(&mut self, root: &DeTable<'_>) -> Vec<SocketAddr> {
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
    pub(super) fn rules(&mut self, root: &DeTable<'_>) -> Vec<(RuleKey, Entry)> {
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
    pub(super) fn strings(&mut self, key: &str, value: &Spanned<DeValue<'_>>) -> Vec<Entry> {
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
pub(super) fn document(source: &Source) -> Result<DeTable<'_>, Vec<Diagnostic>> {
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
pub(super) fn find<'a, 'i>(root: &'a DeTable<'i>, key: &str) -> Option<&'a Spanned<DeValue<'i>>> {
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
