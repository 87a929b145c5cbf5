//! Words behind an address or a name: `… sni`, `… max 50MB`, `… count`.

use super::super::rule::{Host, Protocol};
use super::Problem;
use super::amount::{self, UNLIMITED};
use sandbox_common::tls::SERVER_NAME;

/// An entry of `network.allow` in its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words<'a> {
    /// The address or name.
    pub what: &'a str,
    /// Whether the name that TLS asks for is checked.
    pub sni: bool,
    /// The most bytes that may pass; `None` where none is counted.
    pub max: Option<u64>,
}

/// Takes an entry apart.
pub fn split(text: &str) -> Result<Words<'_>, Problem> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    let Some((what, words)) = words.split_first() else {
        return Ok(Words { what: text, sni: false, max: None });
    };
    let (sni, words) = match words {
        ["sni", words @ ..] => (true, words),
        words => (false, words),
    };
    let max = match words {
        [] => None,
        ["count"] => Some(UNLIMITED),
        ["max", amount] => Some(amount::bytes(amount)?),
        [word, ..] => {
            return Err(Problem::new(
                format!("`{word}` behind an address"),
                "write ` max 50MB` to let no more than that pass, or ` count` to count only, and behind a name \
                 ` sni` before that, to have the names that TLS asks for checked",
            ));
        }
    };
    Ok(Words { what, sni, max })
}

/// Whether names that TLS asks for can be checked by an entry.
pub fn is_checkable(what: &str, host: &Host) -> Result<(), Problem> {
    let name = what.split([':', '/']).next().unwrap_or(what);
    match host {
        Host::Net(_) => Err(Problem::new(
            format!("`sni` behind the address `{what}`"),
            "write the name whose addresses are meant, such as `api.example.com:443 sni`, or leave `sni` out",
        )),
        Host::Name(.., [Protocol::Udp]) => Err(Problem::new(
            format!("`sni` behind `{what}`: names are checked in TLS over TCP only"),
            format!("write `{name}:443 sni`, by which UDP is refused, or leave `sni` out"),
        )),
        Host::Name(pattern, ..) if pattern.name.len() > SERVER_NAME => Err(Problem::new(
            format!("`sni` behind a name of {} bytes", pattern.name.len()),
            format!("a name that is checked has {SERVER_NAME} bytes at most: leave `sni` out"),
        )),
        Host::Name(..) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::load_text;

    #[test]
    fn reads_words() {
        let words = |what, sni, max| Ok(Words { what, sni, max });
        assert_eq!(split("a:1"), words("a:1", false, None));
        assert_eq!(split("a:1 max 50MB"), words("a:1", false, Some(50_000_000)));
        assert_eq!(split(" a:1  max  2KiB"), words("a:1", false, Some(2048)));
        assert_eq!(split("a:1 count"), words("a:1", false, Some(UNLIMITED)));
        assert_eq!(split("a:1 sni"), words("a:1", true, None));
        assert_eq!(split("a:1 sni max 5MB"), words("a:1", true, Some(5_000_000)));
        assert_eq!(split("a:1 sni count"), words("a:1", true, Some(UNLIMITED)));
        for (text, message) in [
            ("a:1 max 5", "`5` is no amount"),
            ("a:1 most 5B", "`most` behind an address"),
            ("a:1 max", "`max` behind an address"),
            ("a:1 max 5B x", "`max` behind an address"),
            ("a:1 max 5B sni", "`max` behind an address"),
            ("a:1 sni sni", "`sni` behind an address"),
            ("a:1 SNI", "`SNI` behind an address"),
        ] {
            let problem = split(text).expect_err(text);
            assert!(problem.message.contains(message), "{text}: {problem:?}");
        }
    }

    #[test]
    fn names_are_checked_behind_names() {
        let load = |key: &str, text: &str| {
            load_text("p", format!("version = 1\n{key} = [\"{text}\"]\n"))
                .map_err(|error| error.to_string())
        };
        let policy = load("network.allow", "*.example.com:443 sni max 5MB").unwrap();
        assert!(policy.names[0].sni && policy.names[0].max == Some(5_000_000));
        assert!(load("network.allow", "example.com:443/tcp sni").unwrap().names[0].sni);
        assert!(!load("network.allow", "example.com:443/tcp").unwrap().names[0].sni);
        let long = format!("{}.c sni", ["a".repeat(62).as_str(); 4].join("."));
        for (key, text, message, help) in [
            ("network.allow", "192.0.2.1:443 sni", "behind the address", "api.example.com:443 sni"),
            ("network.allow", "[2001:db8::1]:443 sni", "behind the address", "leave `sni` out"),
            ("network.allow", "example.com:443/udp sni", "over TCP only", "`example.com:443 sni`"),
            ("network.allow", &long, "a name of 253 bytes", "251 bytes at most"),
            ("network.deny", "example.com:443 sni", "443 sni", "1 to 65535"),
            ("network.listen", "127.0.0.1:443 sni", "443 sni", "1 to 65535"),
        ] {
            let told = load(key, text).expect_err(text);
            assert!(told.contains(message), "{text}: {told}");
            assert!(told.contains(help), "{text}: {told}");
        }
    }
}
