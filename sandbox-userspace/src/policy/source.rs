//! The text of a policy, and places in it.

use super::diagnostic::{Diagnostic, Position, Severity};
use std::ops::Range;
use std::sync::Arc;

/// One policy file, or one preset.
#[derive(Debug, PartialEq, Eq)]
pub struct Source {
    /// The file as the user named it, or `preset:NAME`.
    pub name: String,
    /// The layer that its rules belong to: `preset`, `user`.
    pub layer: &'static str,
    text: String,
    /// Where each line begins.
    lines: Vec<usize>,
}

impl Source {
    /// A text and where it came from.
    pub fn new(name: impl Into<String>, layer: &'static str, text: String) -> Self {
        let behind = |(newline, _)| newline + 1;
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(behind)).collect();
        Self { name: name.into(), layer, text, lines }
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Where the bytes `span` lie. A span over several lines is cut at the end of its first; a
    /// span outside the text is taken for its end.
    pub fn position(&self, span: Range<usize>) -> Position {
        let text = self.text.as_str();
        let start = text.floor_char_boundary(span.start);
        let line = self.lines.partition_point(|begin| *begin <= start);
        let line_start = self.lines[line.saturating_sub(1)];
        let rest = &text[line_start..];
        let excerpt = rest.split('\n').next().unwrap_or(rest);
        let excerpt = excerpt.strip_suffix('\r').unwrap_or(excerpt);
        let from = (start - line_start).min(excerpt.len());
        let end = text.floor_char_boundary(span.end).max(start) - line_start;
        let marked = &excerpt[from..end.min(excerpt.len())];
        Position {
            line: number(line),
            column: number(excerpt[..from].chars().count() + 1),
            width: number(marked.chars().count().max(1)),
            excerpt: excerpt.to_owned(),
        }
    }

    /// A problem at the bytes `span`.
    pub fn error(
        &self,
        span: Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            message: message.into(),
            file: self.name.clone(),
            position: Some(self.position(span)),
            help: Some(help.into()),
        }
    }
}

/// Where a rule was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub source: Arc<Source>,
    /// Bytes of its text.
    pub span: Range<usize>,
}

impl Place {
    /// A problem with what was written here.
    pub fn error(&self, message: impl Into<String>, help: impl Into<String>) -> Diagnostic {
        self.source.error(self.span.clone(), message, help)
    }
}

/// Lines and columns of many places; those in the order of the text are found in one pass.
#[derive(Default)]
pub struct Counter<'a> {
    last: Option<(&'a Source, usize, u32, u32)>,
}

impl<'a> Counter<'a> {
    /// Where a place begins: line and column, from 1.
    pub fn find(&mut self, place: &'a Place) -> (u32, u32) {
        let source = place.source.as_ref();
        let start = source.text.floor_char_boundary(place.span.start);
        let line = source.lines.partition_point(|begin| *begin <= start);
        let line_start = source.lines[line.saturating_sub(1)];
        let line = number(line);
        let (from, before) = match self.last {
            Some((last, at, on, column))
                if std::ptr::eq(last, source) && on == line && at <= start =>
            {
                (at, column)
            }
            _ => (line_start, 1),
        };
        let column = before + number(source.text[from..start].chars().count());
        self.last = Some((source, start, line, column));
        (line, column)
    }
}

/// Texts are far smaller than 4 GiB; a number beyond that only misplaces a caret.
fn number(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::new("p.toml", "user", text.to_owned())
    }

    #[test]
    fn counts_characters_not_bytes() {
        let position = source("a = 1\nä = \"ö\"\r\n").position(11..15);
        assert_eq!((position.line, position.column, position.width), (2, 5, 3));
        assert_eq!(position.excerpt, "ä = \"ö\"");
    }

    #[test]
    fn the_end_of_the_text_is_a_place() {
        let position = source("a\n").position(9..12);
        assert_eq!((position.line, position.column, position.width), (2, 1, 1));
        assert_eq!(position.excerpt, "");
    }

    #[test]
    fn places_are_counted_in_any_order() {
        let text = "ä = ['ö', 'ü',\n'x', 'y']\n";
        let source = Arc::new(source(text));
        let places: Vec<Place> = ["'ö'", "'ü'", "'x'", "'y'", "'x'", "ä", "'ü'"]
            .map(|part| text.find(part).unwrap())
            .map(|at| Place { source: Arc::clone(&source), span: at..at + 1 })
            .into();
        let mut counter = Counter::default();
        for place in &places {
            let position = source.position(place.span.clone());
            assert_eq!(counter.find(place), (position.line, position.column));
        }
    }

    #[test]
    fn several_lines_are_cut_at_the_first() {
        let position = source("x = [\n 1,\n]").position(4..11);
        assert_eq!((position.line, position.column, position.width), (1, 5, 1));
    }
}
