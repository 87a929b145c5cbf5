//! The grammars of rules: what a string in a policy may say.

pub mod address;
pub mod amount;
mod braces;
pub mod name;
pub mod path;
pub mod program;
pub mod unix;
pub mod variable;
pub mod words;

/// Why a string is no rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub help: String,
}

impl Problem {
    pub(super) fn new(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { message: message.into(), help: help.into() }
    }
}

/// The candidate that `word` most likely means.
pub(super) fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    candidates
        .iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), *candidate))
        .filter(|(distance, candidate)| *distance <= (candidate.len().max(word.len()) / 3).max(1))
        .min()
        .map(|(_, candidate)| candidate)
}
