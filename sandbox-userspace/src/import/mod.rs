//! Other tools' settings as a policy, with a list of what could not be said or is stricter.

mod claude;
mod codex;
mod cursor;
mod devcontainer;
mod gemini;
mod landrun;
mod srt;

use crate::policy::load_text;
use crate::sinks::escape::printable;
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;

/// Whose settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Tool {
    /// Claude Code: `settings.json`
    Claude,
    /// sandbox-runtime: `.srt-settings.json`
    Srt,
    /// Cursor: `sandbox.json`
    Cursor,
    /// Codex: `config.toml`
    Codex,
    /// Gemini CLI: `settings.json`
    Gemini,
    /// landrun: a command line, in a script or a systemd unit
    Landrun,
    /// Dev containers: `devcontainer.json`
    Devcontainer,
}

impl Tool {
    /// Every one.
    pub const ALL: [Self; 7] = [
        Self::Claude,
        Self::Srt,
        Self::Cursor,
        Self::Codex,
        Self::Gemini,
        Self::Landrun,
        Self::Devcontainer,
    ];
}

/// Something that the policy does not say, or says more strictly.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Loss {
    /// The key of the settings.
    pub key: String,
    /// Its value.
    pub value: String,
    /// Why.
    pub why: String,
}

/// A policy in the making.
#[derive(Debug, Default)]
pub struct Import {
    /// By list, the rules and where each comes from.
    rules: BTreeMap<&'static str, Vec<(String, String)>>,
    /// The rules that are there already.
    known: HashSet<(&'static str, String)>,
    /// Keys that are one word, and where each comes from.
    words: BTreeMap<&'static str, (&'static str, String)>,
    /// What was lost.
    pub losses: Vec<Loss>,
    /// The same.
    lost: HashSet<Loss>,
}

/// What every program needs to read so that it starts: where a tool shows nothing but what it lists.
const SYSTEM: &[&str] = &[
    "/usr/**",
    "/bin/**",
    "/sbin/**",
    "/lib/**",
    "/lib32/**",
    "/lib64/**",
    "/opt/**",
    "/etc/**",
    "/run/systemd/resolve/**",
    "/dev/**",
    "/proc/**",
    "/sys/**",
];
/// Variables that a program has in every environment.
const BASIC: &[&str] =
    &["PATH", "HOME", "USER", "LOGNAME", "SHELL", "PWD", "TERM", "LANG", "LC_ALL", "TZ"];
/// Why a network without limits is not imported.
const EVERY_HOST: &str = "every host: name those that are meant";

/// Reads settings: TOML of Codex, words of landrun, of all others JSON with comments.
pub fn read(tool: Tool, text: &str) -> Result<Import, String> {
    let mut import = Import::default();
    if tool == Tool::Landrun {
        landrun::read(text, &mut import)?;
        return Ok(import);
    }
    let value = match tool {
        Tool::Codex => toml::from_str::<Value>(text).map_err(|error| error.to_string())?,
        _ => jsonc_parser::parse_to_serde_value::<Value>(
            text,
            &jsonc_parser::ParseOptions::default(),
        )
        .map_err(|error| error.to_string())?,
    };
    if !value.is_object() {
        return Err("the settings are no object".to_owned());
    }
    match tool {
        Tool::Claude => claude::read(&value, &mut import),
        Tool::Srt => srt::read(&value, &mut import),
        Tool::Cursor => cursor::read(&value, &mut import),
        Tool::Codex => codex::read(&value, &mut import),
        Tool::Gemini => gemini::read(&value, &mut import),
        Tool::Devcontainer => devcontainer::read(&value, &mut import),
        Tool::Landrun => {}
    }
    Ok(import)
}

impl Import {
    /// A rule, if the language can say it; else it is lost.
    fn rule(&mut self, list: &'static str, rule: &str, key: &str, value: &str) {
        if self.known.contains(&(list, rule.to_owned())) {
            return;
        }
        let text = format!("version = 1\n{list} = [{}]\n", toml::Value::from(rule));
        match load_text("import", text) {
            Ok(_) => {
                self.known.insert((list, rule.to_owned()));
                let rules = self.rules.entry(list).or_default();
                rules.push((rule.to_owned(), format!("{key}: {value}")));
            }
            Err(error) => {
                let why = error.diagnostics.first().map(|problem| problem.message.clone());
                self.lose(key, value, &why.unwrap_or_default());
            }
        }
    }

    /// A key of ours that is one word: `files.read.default`.
    fn word(&mut self, name: &'static str, word: &'static str, key: &str, value: &str) {
        self.words.insert(name, (word, format!("{key}: {value}")));
    }

    /// Nothing is read but what is listed, and what programs need so that they start.
    fn only_listed(&mut self, key: &str, value: &str) {
        self.word("files.read.default", "deny", key, value);
        for place in SYSTEM {
            self.rule("files.read.allow", place, key, value);
        }
        self.rule("files.read.allow", "${TMPDIR}", "always", "the session's own");
    }

    /// No variable but these, and those that every program has.
    fn only_basic_variables(&mut self, key: &str, value: &str) {
        self.rule("environment.deny", "*", key, value);
        for name in BASIC {
            self.rule("environment.allow", name, key, value);
        }
    }

    fn lose(&mut self, key: &str, value: &str, why: &str) {
        let loss = Loss { key: key.to_owned(), value: value.to_owned(), why: why.to_owned() };
        if self.lost.insert(loss.clone()) {
            self.losses.push(loss);
        }
    }

    /// Keys that nobody looks at are lost, and told of.
    fn unknown(&mut self, at: &str, object: &Value, known: &[&str]) {
        let keys = object.as_object().into_iter().flatten();
        for (key, value) in keys.filter(|(key, _)| !known.contains(&key.as_str())) {
            let at = if at.is_empty() { key.clone() } else { format!("{at}.{key}") };
            self.lose(&at, &value.to_string(), "this program has nothing like it");
        }
    }

    /// The policy as a file's text, each rule with where it comes from.
    pub fn policy(&self, extends: &[&str]) -> String {
        let mut text = String::from("version = 1\n");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "extends = {extends:?}\n");
        for (key, (word, from)) in &self.words {
            let _ = writeln!(text, "{key} = \"{word}\" # {}", printable(from.as_bytes()));
        }
        for (list, rules) in &self.rules {
            let _ = writeln!(text, "{list} = [");
            for (rule, from) in rules {
                let from = printable(from.as_bytes());
                let _ = writeln!(text, "    {}, # {from}", toml::Value::from(rule.as_str()));
            }
            text.push_str("]\n");
        }
        text
    }
}

/// The strings of a list; what is no string is lost.
fn strings(object: &Value, at: &str, import: &mut Import) -> Vec<String> {
    let value = at.split('.').try_fold(object, |value, key| value.get(key));
    let Some(value) = value else { return Vec::new() };
    let Some(list) = value.as_array() else {
        import.lose(at, &value.to_string(), "this is no list");
        return Vec::new();
    };
    let mut found = Vec::new();
    for entry in list {
        match entry.as_str() {
            Some(text) => found.push(text.to_owned()),
            None => import.lose(at, &entry.to_string(), "this is no text"),
        }
    }
    found
}

/// A domain as a rule, in the grammar that these tools share: a name, or `*.` and a name.
fn domain(list: &'static str, key: &str, domain: &str, import: &mut Import) {
    match domain {
        "*" => import.lose(key, domain, EVERY_HOST),
        "localhost" => {
            import.rule(list, "127.0.0.0/8", key, domain);
            import.rule(list, "[::1]", key, domain);
        }
        name if name.contains(':') => import.rule(list, name, key, domain),
        // Their proxies speak to these two.
        name => {
            for port in [443, 80] {
                import.rule(list, &format!("{name}:{port}/tcp"), key, domain);
            }
        }
    }
}

#[cfg(test)]
mod tests;
