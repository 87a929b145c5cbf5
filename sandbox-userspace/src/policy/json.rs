//! The same language in JSON: the document as TOML would have it, so that one reader does for both.

use super::diagnostic::Diagnostic;
use super::source::Source;
use jsonc_parser::ast::{ObjectProp, Value};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The key by which editors find the schema; it says nothing of the policy.
const SCHEMA: &str = "$schema";

/// JSON as it is, but for comments.
const OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_loose_object_property_names: false,
    allow_trailing_commas: false,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// Whether a text is JSON. No TOML begins so.
pub(super) fn is(text: &str) -> bool {
    text.trim_start_matches('\u{feff}').trim_start().starts_with(['{', '/'])
}

/// Reads a document.
pub(super) fn table(source: &Source) -> Result<DeTable<'_>, Vec<Diagnostic>> {
    let text = source.text();
    let collect = CollectOptions::default();
    let parsed = parse_to_ast(text, &collect, &OPTIONS).map_err(|error| {
        let range = error.range();
        let message = error.kind().to_string();
        vec![source.error(range.start..range.end, message, "the file is not JSON")]
    })?;
    let mut reader = Reader { source, diagnostics: Vec::new() };
    match parsed.value {
        Some(Value::Object(object)) => {
            let table = reader.table(object.properties, true);
            if reader.diagnostics.is_empty() { Ok(table) } else { Err(reader.diagnostics) }
        }
        _ => Err(vec![source.error(
            0..text.len(),
            "the document is no object",
            "write `{ \"version\": 1 }` and the rules beside it",
        )]),
    }
}

struct Reader<'a> {
    source: &'a Source,
    diagnostics: Vec<Diagnostic>,
}

impl<'a> Reader<'a> {
    fn error(&mut self, span: Range<usize>, message: impl Into<String>, help: &str) {
        self.diagnostics.push(self.source.error(span, message, help));
    }

    fn table(&mut self, properties: Vec<ObjectProp<'a>>, top: bool) -> DeTable<'a> {
        let mut table = DeTable::new();
        for property in properties {
            let span = span(&property.name);
            let key = property.name.into_string();
            if top && key == SCHEMA {
                continue;
            }
            let Some(value) = self.value(property.value) else { continue };
            if table.contains_key(key.as_str()) {
                self.error(span, format!("duplicate key `{key}`"), "remove one of them");
                continue;
            }
            table.insert(Spanned::new(span, key.into()), value);
        }
        table
    }

    /// A value; `None` where it has none, which was told.
    fn value(&mut self, value: Value<'a>) -> Option<Spanned<DeValue<'a>>> {
        let span = span(&value);
        let read = match value {
            Value::StringLit(text) => DeValue::String(text.value),
            Value::BooleanLit(truth) => DeValue::Boolean(truth.value),
            Value::NumberLit(number) => {
                let Ok(number) = DeValue::parse(number.value) else {
                    self.error(span, "a number that is not supported", "write it in digits");
                    return None;
                };
                number.into_inner()
            }
            Value::Array(array) => {
                let elements = array.elements.into_iter();
                DeValue::Array(elements.filter_map(|element| self.value(element)).collect())
            }
            Value::Object(object) => DeValue::Table(self.table(object.properties, false)),
            Value::NullKeyword(_) => {
                self.error(span, "`null` says nothing", "remove the key or the entry");
                return None;
            }
        };
        Some(Spanned::new(span, read))
    }
}

fn span(node: &impl Ranged) -> Range<usize> {
    node.start()..node.end()
}
