//! Other tools' settings as a policy, with a list of what could not be said or is stricter.

mod claude;
mod cursor;
mod srt;

use crate::policy::load_text;
use crate::sinks::escape::printable;
use serde_json::Value;
use std::collections::BTreeMap;
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
}

/// Something that the policy does not say, or says more strictly.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
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
    /// What was lost.
    pub losses: Vec<Loss>,
}

/// Reads settings; JSON with comments.
pub fn read(tool: Tool, text: &str) -> Result<Import, String> {
    let value =
        jsonc_parser::parse_to_serde_value::<Value>(text, &jsonc_parser::ParseOptions::default());
    let value = value.map_err(|error| error.to_string())?;
    if !value.is_object() {
        return Err("the settings are no object".to_owned());
    }
    let mut import = Import::default();
    match tool {
        Tool::Claude => claude::read(&value, &mut import),
        Tool::Srt => srt::read(&value, &mut import),
        Tool::Cursor => cursor::read(&value, &mut import),
    }
    Ok(import)
}

impl Import {
    /// A rule, if the language can say it; else it is lost.
    fn rule(&mut self, list: &'static str, rule: &str, key: &str, value: &str) {
        let text = format!("version = 1\n{list} = [{}]\n", toml::Value::from(rule));
        match load_text("import", text) {
            Ok(_) => {
                let rules = self.rules.entry(list).or_default();
                if !rules.iter().any(|(known, _)| known == rule) {
                    rules.push((rule.to_owned(), format!("{key}: {value}")));
                }
            }
            Err(error) => {
                let why = error.diagnostics.first().map(|problem| problem.message.clone());
                self.lose(key, value, &why.unwrap_or_default());
            }
        }
    }

    fn lose(&mut self, key: &str, value: &str, why: &str) {
        let loss = Loss { key: key.to_owned(), value: value.to_owned(), why: why.to_owned() };
        if !self.losses.contains(&loss) {
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
        "*" => import.lose(key, domain, "every host: name those that are meant"),
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
