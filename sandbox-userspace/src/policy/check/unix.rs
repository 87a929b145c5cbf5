//! Unix sockets: a path, `@NAME` of the abstract name space, or the word of a service.

use super::super::rule::Sockets;
use super::super::services::{Service, words};
use super::{Problem, nearest, path};
use sandbox_common::net::ABSTRACT_NAME;

/// Reads an entry of `network.unix`.
pub fn parse(text: &str) -> Result<Sockets, Problem> {
    if let Some(name) = text.strip_prefix('@') {
        return abstract_name(name).map(Sockets::Abstract);
    }
    if let Some(service) = Service::of(text) {
        return Ok(Sockets::Service(service));
    }
    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !text.is_empty() && text.chars().all(word) {
        let words = words();
        let help = match nearest(text, &words) {
            Some(known) => format!("did you mean `{known}`?"),
            None => format!(
                "write a path, an abstract name with `@` before it, or one of `{}`",
                words.join("`, `")
            ),
        };
        return Err(Problem::new(format!("unknown service `{text}`"), help));
    }
    path::parse(text).map(Sockets::Paths)
}

/// Reads an abstract name, `\xNN` in it for any byte and `\\` for a backslash.
fn abstract_name(text: &str) -> Result<Vec<u8>, Problem> {
    let mut name = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['\\', '*', '?', '[', ']', '{', '}', '\0']) {
        name.extend(&rest.as_bytes()[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix(r"\\") {
            name.push(b'\\');
            rest = after;
            continue;
        }
        let digits = rest.strip_prefix(r"\x").and_then(|rest| rest.get(..2));
        let Some(byte) = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) else {
            let first = rest.chars().next().unwrap_or_default();
            return Err(Problem::new(
                format!("`{}` in an abstract name", first.escape_debug()),
                format!(
                    "names are spelled out; write `\\x{:02x}` where the name itself has it",
                    u32::from(first)
                ),
            ));
        };
        name.push(byte);
        rest = &rest[4..];
    }
    name.extend(rest.as_bytes());
    match name.len() {
        0 => Err(Problem::new("`@` without a name", "write the abstract name behind it")),
        1..=ABSTRACT_NAME => Ok(name),
        len => Err(Problem::new(
            format!("abstract name of {len} bytes"),
            format!("the kernel has none of more than {ABSTRACT_NAME}"),
        )),
    }
}

/// An abstract name as a policy writes it.
pub fn spelled_out(name: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = String::from("@");
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => text.push_str(r"\\"),
                '*' | '?' | '[' | ']' | '{' | '}' | '\0'..'\x20' | '\x7f' => {
                    // Writing to a string cannot fail.
                    let _ = write!(text, "\\x{:02x}", u32::from(character));
                }
                other => text.push(other),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_names_words_and_paths() {
        assert_eq!(parse("@a b/c"), Ok(Sockets::Abstract(b"a b/c".to_vec())));
        assert_eq!(parse(r"@\x00\\\xff"), Ok(Sockets::Abstract(b"\0\\\xff".to_vec())));
        assert!(matches!(parse("docker"), Ok(Sockets::Service(_))));
        assert!(matches!(parse("/run/docker.sock"), Ok(Sockets::Paths(_))));
        assert!(matches!(parse("~/x/**"), Ok(Sockets::Paths(_))));
    }

    #[test]
    fn refuses_what_is_none() {
        let long = format!("@{}", "a".repeat(ABSTRACT_NAME + 1));
        for (text, message, help) in [
            ("", "empty path", "name a file"),
            ("@", "without a name", "behind it"),
            (long.as_str(), "abstract name of 108 bytes", "more than 107"),
            ("@a*", "`*` in an abstract name", r"\x2a"),
            (r"@a\q", r"`\\` in an abstract name", r"\x5c"),
            (r"@a\x", r"`\\` in an abstract name", "spelled out"),
            (r"@a\x€", r"`\\` in an abstract name", "spelled out"),
            ("ssh-agnet", "unknown service", "did you mean `ssh-agent`?"),
            ("cups", "unknown service `cups`", "`docker`"),
            ("a/b", "relative path", "absolute"),
        ] {
            let problem = parse(text).expect_err(text);
            assert!(problem.message.contains(message), "{text}: {problem:?}");
            assert!(problem.help.contains(help), "{text}: {problem:?}");
        }
    }

    proptest! {
        #[test]
        fn any_name_can_be_spelled_out(name in proptest::collection::vec(any::<u8>(), 1..=ABSTRACT_NAME)) {
            prop_assert_eq!(parse(&spelled_out(&name)), Ok(Sockets::Abstract(name)));
        }
    }
}
