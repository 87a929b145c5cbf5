//! Names that the agent chose, made harmless for a terminal.

use std::fmt::Write as _;

/// The text with everything escaped that a terminal would not print as itself: control
/// characters, direction marks, line separators, bytes that are not UTF-8; and the backslash, so
/// that two names never look alike.
pub fn printable(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '\'' | '"' => text.push(char),
                _ => text.extend(char.escape_debug()),
            }
        }
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// The text itself where it is UTF-8, else as [`printable`]; for JSON, which escapes by itself.
pub fn text(bytes: &[u8]) -> String {
    std::str::from_utf8(bytes).map_or_else(|_| printable(bytes), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        for (bytes, expected) in [
            (&b"/tmp/a b'c\"d"[..], "/tmp/a b'c\"d"),
            ("/tmp/grüße-日本".as_bytes(), "/tmp/grüße-日本"),
            (b"a\x1b[2J\x07\n\r\tb", "a\\u{1b}[2J\\u{7}\\n\\r\\tb"),
            (b"\x7f\xc2\x9b31m", "\\u{7f}\\u{9b}31m"),
            ("x\u{202e}txt.exe\u{2028}\u{200b}".as_bytes(), "x\\u{202e}txt.exe\\u{2028}\\u{200b}"),
            (b"\xff\x9b0m\xe2\x82", "\\xff\\x9b0m\\xe2\\x82"),
            (b"back\\x1b", "back\\\\x1b"),
        ] {
            assert_eq!(printable(bytes), expected);
        }
    }

    #[test]
    fn utf8_is_left_to_json() {
        assert_eq!(text(b"a\x1b\\"), "a\x1b\\");
        assert_eq!(text(b"a\xff"), "a\\xff");
    }
}
