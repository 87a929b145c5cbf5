//! Names of hosts: `NAME[:PORT[-PORT]][/tcp|/udp]`, where a name may begin with `*.`.

use super::super::rule::NamePattern;
use super::Problem;
use sandbox_common::tls::is_of_names;

/// Most bytes of a name without its last dot, RFC 1035.
const LONGEST: usize = 253;

/// Whether an entry's host is meant as a name: an address has no letter outside brackets.
pub(super) fn is_name(host: &str) -> bool {
    host.starts_with('*') || host.chars().any(|c| c.is_alphabetic() || c == '_')
}

/// Reads a name.
pub(super) fn parse(text: &str) -> Result<NamePattern, Problem> {
    let (rest, beneath) = match text.strip_prefix("*.") {
        Some(rest) => (rest, true),
        None => (text, false),
    };
    if rest.contains('*') || rest.is_empty() {
        return Err(Problem::new(
            format!("`{text}`: a star stands for the first labels of a name only"),
            "write `*.example.com` for everything beneath that name",
        ));
    }
    let dotted = rest.strip_suffix('.').unwrap_or(rest);
    let name = ascii(dotted)
        .ok_or_else(|| no_name(text, "is no name that IDNA (UTS 46) has a form in ASCII for"))?;
    if name.len() > LONGEST {
        return Err(no_name(text, &format!("has {} bytes", name.len())));
    }
    for label in name.split('.') {
        if label.is_empty() {
            return Err(no_name(text, "has two dots in a row, or one at its beginning"));
        }
        if label.len() > 63 {
            return Err(no_name(text, &format!("has a label of {} bytes", label.len())));
        }
        if !label.bytes().all(is_of_names) {
            return Err(no_name(text, &format!("has a label `{}`", label.escape_default())));
        }
    }
    if beneath && !is_registrable(&name) {
        return Err(Problem::new(
            format!("`{text}` covers names of more than one owner"),
            "name a domain that can be registered, such as `*.example.com`",
        ));
    }
    Ok(NamePattern { name, beneath })
}

/// Lower case, and with A-labels in the place of others.
fn ascii(text: &str) -> Option<String> {
    if text.is_ascii() {
        return Some(text.to_ascii_lowercase());
    }
    idna::domain_to_ascii(text).ok()
}

/// Whether somebody in particular owns what lies beneath a name: it is no public suffix.
fn is_registrable(name: &str) -> bool {
    psl::domain(name.as_bytes()).is_some()
}

fn no_name(text: &str, what: &str) -> Problem {
    Problem::new(
        format!("`{}` {what}", text.escape_default()),
        "write a name such as `api.example.com`: labels of at most 63 letters, digits, `-` and `_`, at \
         most 253 bytes in all",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_their_form_on_the_wire() {
        for (text, name, beneath) in [
            ("api.example.com", "api.example.com", false),
            ("API.Example.COM.", "api.example.com", false),
            ("*.example.co.uk", "example.co.uk", true),
            ("*.a.b.example.com", "a.b.example.com", true),
            ("_imap._tcp.example.com", "_imap._tcp.example.com", false),
            ("münchen.example", "xn--mnchen-3ya.example", false),
            ("MÜNCHEN.example", "xn--mnchen-3ya.example", false),
            ("xn--mnchen-3ya.example", "xn--mnchen-3ya.example", false),
            ("münchen.example.", "xn--mnchen-3ya.example", false),
            ("*.münchen.example", "xn--mnchen-3ya.example", true),
            ("registry", "registry", false),
        ] {
            assert_eq!(parse(text).unwrap(), NamePattern { name: name.into(), beneath }, "{text}");
        }
    }

    #[test]
    fn a_name_of_253_bytes_is_the_longest() {
        let labels = "a.".repeat(124);
        for (text, fits) in [
            (format!("{labels}aaaaa"), true),
            (format!("{labels}aaaaa."), true),
            (format!("*.{labels}aaaaa"), true),
            (format!("{labels}aaaaaa"), false),
            (format!("*.{labels}aaaaaa"), false),
            // Shorter than that before it has its form on the wire.
            (format!("{labels}é"), false),
        ] {
            match parse(&text) {
                Ok(pattern) => assert!(fits && pattern.name.len() == 253, "{text}"),
                Err(problem) => assert!(!fits && problem.message.contains("bytes"), "{problem:?}"),
            }
        }
    }

    #[test]
    fn what_is_no_name_is_refused_with_the_reason() {
        let long = format!("{}.com", "a.".repeat(125) + "b");
        assert_eq!(long.len(), 255);
        for (text, part) in [
            ("*.com", "more than one owner"),
            ("*.co.uk", "more than one owner"),
            ("*.github.io", "more than one owner"),
            ("*", "first labels"),
            ("*.", "first labels"),
            ("a.*.com", "first labels"),
            ("*x.example.com", "first labels"),
            ("foo..bar", "two dots"),
            (".foo.bar", "two dots"),
            ("foo.bar..", "two dots"),
            ("a\0.example.com", "has a label"),
            ("a b.example.com", "has a label"),
            ("a\u{ad}\u{ad}.\u{200b}.com", "two dots"),
            ("mün chen.example", "has a label"),
            ("mün\0chen.example", "has a label"),
            (&long, "255 bytes"),
            (&format!("{}.com", "a".repeat(64)), "label of 64"),
        ] {
            let problem = parse(text).expect_err(text);
            assert!(problem.message.contains(part), "{text}: {problem:?}");
        }
    }
}
