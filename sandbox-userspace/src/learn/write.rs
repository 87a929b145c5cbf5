//! A proposal written into the text of the present policy, whose own lines stay as they are.

use super::propose::Proposal;
use crate::policy::source::Source;
use crate::sinks::escape::printable;
use serde_json::Value as Json;
use toml_edit::{Array, DocumentMut, Item, Table, Value, value};

/// Why a policy's text cannot be added to.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// It is no TOML, and no JSON.
    #[error("cannot add to the policy {name}: {why}")]
    Text {
        /// What it is called.
        name: String,
        /// Why not.
        why: String,
    },
    /// A key of it is not what a policy has there.
    #[error("cannot add to the policy: `{0}` is something else there")]
    Key(String),
}

/// The text with the proposal added, a comment with its evidence before each rule. Of a preset, a new text
/// that extends it.
pub fn write(present: Option<&Source>, proposal: &Proposal) -> Result<String, WriteError> {
    let mut document = document(present)?;
    for name in &proposal.extends {
        array(&mut document, "extends")?.push(*name);
    }
    for rule in &proposal.rules {
        let mut entry = Value::from(rule.rule.as_str());
        let evidence = printable(rule.evidence.as_bytes());
        entry.decor_mut().set_prefix(format!("\n    # {evidence}\n    "));
        let array = array(&mut document, rule.key)?;
        array.push_formatted(entry);
        array.set_trailing_comma(true);
        array.set_trailing("\n");
    }
    Ok(document.to_string())
}

fn document(present: Option<&Source>) -> Result<DocumentMut, WriteError> {
    let extending = |name: &str| format!("version = 1\nextends = [{}]\n", toml::Value::from(name));
    let (name, text) = match present {
        None => ("default", extending("default")),
        Some(source) => match source.name.strip_prefix("preset:") {
            Some(name) => (source.name.as_str(), extending(name)),
            None => (source.name.as_str(), source.text().to_owned()),
        },
    };
    let fail = |why: String| WriteError::Text { name: name.to_owned(), why };
    let text = if text.trim_start().starts_with('{') {
        let options = jsonc_parser::ParseOptions::default();
        let mut json = jsonc_parser::parse_to_serde_value::<Json>(&text, &options)
            .map_err(|error| fail(error.to_string()))?;
        if let Some(object) = json.as_object_mut() {
            object.remove("$schema");
        }
        toml::to_string(&json).map_err(|error| fail(error.to_string()))?
    } else {
        text
    };
    text.parse::<DocumentMut>().map_err(|error| fail(error.to_string()))
}

/// The list at a dotted key, made where it is missing.
fn array<'a>(document: &'a mut DocumentMut, key: &str) -> Result<&'a mut Array, WriteError> {
    let other = || WriteError::Key(key.to_owned());
    let mut parts: Vec<&str> = key.split('.').collect();
    let last = parts.pop().ok_or_else(other)?;
    let mut table: &mut dyn toml_edit::TableLike = document.as_table_mut();
    for (depth, part) in parts.into_iter().enumerate() {
        let made = || {
            let mut made = Table::new();
            made.set_implicit(true);
            // `[files]` with `read.allow = …` in it, as policies are written.
            made.set_dotted(depth > 0);
            Item::Table(made)
        };
        table = table.entry(part).or_insert_with(made).as_table_like_mut().ok_or_else(other)?;
    }
    let item = table.entry(last).or_insert_with(|| value(Array::new()));
    item.as_array_mut().ok_or_else(other)
}
