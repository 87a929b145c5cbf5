//! One JSON object a line.

use super::{Event, Level, Sink};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Writes every event as one line of JSON.
#[derive(Debug)]
pub struct Json<W> {
    to: W,
    errors_only: bool,
}

impl<W: Write> Json<W> {
    /// To a stream; only notices of errors where `errors_only`.
    pub const fn new(to: W, errors_only: bool) -> Self {
        Self { to, errors_only }
    }
}

impl Json<File> {
    /// To the end of a file, which is made for its owner alone where it is missing.
    pub fn append(path: &Path) -> io::Result<Self> {
        let to = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
        Ok(Self::new(to, false))
    }
}

impl<W: Write> Sink for Json<W> {
    fn write(&mut self, event: &Event) -> io::Result<()> {
        if self.errors_only && !matches!(event, Event::Notice(n) if n.level == Level::Error) {
            return Ok(());
        }
        let mut line = ascii_controls(&serde_json::to_string(event)?);
        line.push('\n');
        // In one piece: others may append to the same file or terminal.
        self.to.write_all(line.as_bytes())
    }
}

/// Escapes the characters that JSON permits and a terminal may obey. They can only stand inside
/// strings, where `\u` means the same.
fn ascii_controls(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for char in json.chars() {
        let harmless = char.is_ascii_graphic() || char == ' ' || char.escape_debug().count() == 1;
        if harmless || matches!(char, '"' | '\\') {
            text.push(char);
        } else {
            for unit in char.encode_utf16(&mut [0; 2]) {
                // Writing to a string cannot fail.
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::Notice;
    use super::*;

    fn line(message: &str) -> String {
        let mut json = Json::new(Vec::new(), false);
        let notice = Notice { level: Level::Info, message: message.into(), help: None };
        json.write(&Event::Notice(notice)).unwrap();
        String::from_utf8(json.to).unwrap()
    }

    #[test]
    fn lines_hold_no_control_characters_and_say_the_same() {
        let message = "a\u{1b}[1m\u{9b}\u{7f}\n\u{202e}\u{e0041}é\"\\";
        let line = line(message);
        assert!(line.ends_with("\"}\n"));
        assert!(!line.trim_end().chars().any(char::is_control), "{line}");
        assert!(line.contains("\\u202e") && line.contains("\\udb40\\udc41") && line.contains('é'));
        let back: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(back["message"], message);
    }

    #[test]
    fn quiet_lets_errors_through_only() {
        let mut json = Json::new(Vec::new(), true);
        for level in [Level::Info, Level::Warning, Level::Error] {
            let notice = Notice { level, message: "x".into(), help: None };
            json.write(&Event::Notice(notice)).unwrap();
        }
        let text = String::from_utf8(json.to).unwrap();
        assert_eq!(text, "{\"type\":\"notice\",\"level\":\"error\",\"message\":\"x\"}\n");
    }
}
