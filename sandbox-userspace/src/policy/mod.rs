//! What a user writes, and what the kernel gets: source, parse, check, expand, compile.

mod abstracts;
pub mod asks;
pub mod audits;
mod ceiling;
pub mod check;
mod compile;
#[cfg(test)]
mod compile_properties;
#[cfg(test)]
mod compile_tests;
pub mod compiled;
pub mod decide;
pub mod diagnostic;
pub mod environment;
pub mod expand;
pub mod explain;
mod fold;
pub mod glob;
mod json;
pub mod layers;
#[cfg(test)]
mod layers_tests;
pub mod limits;
pub mod linked;
pub mod names;
mod parse;
#[cfg(test)]
mod parse_tests;
#[cfg(test)]
mod pattern_tests;
mod patterns;
pub mod ports;
pub mod preset;
mod resolve;
pub mod rule;
pub mod schema;
pub mod server_names;
pub mod services;
#[cfg(test)]
mod size_tests;
pub mod source;
mod trie;
mod tries;
pub mod trust;
pub mod walk;
pub mod workspace;
pub mod worktree;

pub use compile::{Denial, compile, compile_placed, denials};
pub use diagnostic::PolicyError;
pub use expand::Context;
pub use parse::LIST_KEYS;
pub use rule::Policy;

use diagnostic::Diagnostic;
use source::Source;
use std::path::Path;

/// The layer of a policy file that a user names.
const USER_LAYER: &str = "user";
/// The layer of a rule that a running session was given.
pub const GRANT_LAYER: &str = "grant";

/// Reads and checks a policy: a file, or a preset where no file has this name; without one, the preset
/// `default`.
pub fn load(path: Option<&Path>) -> Result<Policy, PolicyError> {
    let source = match path {
        Some(path) => match path.to_str().and_then(preset::source) {
            Some(preset) if !path.exists() => preset,
            _ => read(path)?,
        },
        None => preset::source(preset::NAMES[0]).ok_or_else(|| {
            Diagnostic::file("preset:default", "the preset is missing", "name a policy file")
        })?,
    };
    parse::parse(source)
}

/// As [`load`], of a policy that takes the place of another one: its rules have numbers of their own.
pub fn load_after(path: &Path, numbered: u32) -> Result<Policy, PolicyError> {
    match path.to_str().and_then(preset::source) {
        Some(preset) if !path.exists() => parse::parse_after(preset, numbered),
        _ => parse::parse_after(read(path)?, numbered),
    }
}

/// A policy with one more rule, which stands in `key`; `name` is what events call its text.
pub fn grant(policy: Policy, name: &str, key: &str, rule: &str) -> Result<Policy, PolicyError> {
    let text = |key: &str| format!("version = 1\n{key} = [{}]\n", toml::Value::from(rule));
    if key != asks::GRANTED {
        return parse::append(policy, Source::new(name, GRANT_LAYER, text(key)));
    }
    let asked = Source::new(name, GRANT_LAYER, text("files.exec.ask"));
    let mut policy = parse::append(policy, asked)?;
    if let Some(rule) = policy.asks.last_mut() {
        (rule.origin.key, rule.granted) = (asks::GRANTED, true);
    }
    Ok(policy)
}

/// Reads a preset; `None` where none has this name.
pub fn load_preset(name: &str) -> Option<Result<Policy, PolicyError>> {
    preset::source(name).map(parse::parse)
}

/// Reads and checks a policy that is already in memory; `name` is what messages call it.
pub fn load_text(name: &str, text: String) -> Result<Policy, PolicyError> {
    parse::parse(Source::new(name, USER_LAYER, text))
}

fn read(path: &Path) -> Result<Source, PolicyError> {
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| {
        Diagnostic::file(&name, format!("cannot read the policy: {error}"), "check the file's name")
    })?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Source::new(name, USER_LAYER, text)),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let text = String::from_utf8_lossy(error.as_bytes()).into_owned();
            let source = Source::new(name, USER_LAYER, text);
            Err(source.error(at..at + 1, "the file is not UTF-8", "save it as UTF-8").into())
        }
    }
}
