//! Problems of a policy, and how they are printed.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use std::fmt;

/// How bad a problem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The policy cannot be used.
    Error,
    /// The policy can be used and means something that its author may not expect.
    Warning,
}

/// Where in a file a problem lies.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Position {
    /// Line, from 1.
    pub line: u32,
    /// Column in characters, from 1.
    pub column: u32,
    /// Characters that are meant, at least 1.
    pub width: u32,
    /// The line's text.
    pub excerpt: String,
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// What is wrong.
    pub message: String,
    /// The file as the user named it, or `preset:NAME`.
    pub file: String,
    /// Where; `None` when the file as a whole is meant.
    #[serde(flatten)]
    pub position: Option<Position>,
    /// What to do about it.
    pub help: Option<String>,
}

impl Diagnostic {
    /// An error about a file as a whole.
    pub fn file(file: &str, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            message: message.into(),
            file: file.to_owned(),
            position: None,
            help: Some(help.into()),
        }
    }

    fn render(&self, renderer: &Renderer) -> String {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
        };
        let mut report = Vec::new();
        let title = level.primary_title(self.message.as_str());
        report.push(match &self.position {
            Some(position) => {
                let (start, end) = position.bytes();
                title.element(
                    Snippet::source(position.excerpt.as_str())
                        .line_start(usize::try_from(position.line).unwrap_or(usize::MAX))
                        .path(self.file.as_str())
                        .annotation(AnnotationKind::Primary.span(start..end)),
                )
            }
            None => title.element(annotate_snippets::Origin::path(self.file.as_str())),
        });
        if let Some(help) = &self.help {
            report.push(Group::with_title(Level::HELP.secondary_title(help.as_str())));
        }
        renderer.render(&report)
    }
}

impl Position {
    /// The marked part of the excerpt, in bytes.
    fn bytes(&self) -> (usize, usize) {
        let offset = |characters: u32| {
            let characters = usize::try_from(characters).unwrap_or(usize::MAX);
            self.excerpt.char_indices().nth(characters).map_or(self.excerpt.len(), |(at, _)| at)
        };
        let start = self.column.saturating_sub(1);
        (offset(start), offset(start.saturating_add(self.width)))
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(&Renderer::plain()))
    }
}

/// A policy that cannot be used: everything that is wrong with it, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PolicyError {
    /// At least one.
    pub diagnostics: Vec<Diagnostic>,
}

impl PolicyError {
    /// All diagnostics with terminal colours.
    pub fn coloured(&self) -> String {
        self.render(&Renderer::styled())
    }

    fn render(&self, renderer: &Renderer) -> String {
        let parts: Vec<String> = self.diagnostics.iter().map(|d| d.render(renderer)).collect();
        parts.join("\n\n")
    }
}

impl From<Diagnostic> for PolicyError {
    fn from(diagnostic: Diagnostic) -> Self {
        Self { diagnostics: vec![diagnostic] }
    }
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(&Renderer::plain()))
    }
}

impl std::error::Error for PolicyError {}

/// `Ok` when nothing was found.
pub(super) fn checked<T>(value: T, diagnostics: Vec<Diagnostic>) -> Result<T, PolicyError> {
    if diagnostics.is_empty() { Ok(value) } else { Err(PolicyError { diagnostics }) }
}
