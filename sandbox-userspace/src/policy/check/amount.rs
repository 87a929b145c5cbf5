//! Amounts of bytes behind an address or a name: `… max 50MB`, `… count`.

use super::Problem;

/// Names of units and how many bytes each is.
const UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

/// What counts without a limit.
pub const UNLIMITED: u64 = u64::MAX;

/// An entry of `network.allow` without its amount, and the most bytes that may pass; `None` where none is counted.
pub fn split(text: &str) -> Result<(&str, Option<u64>), Problem> {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    match words.as_slice() {
        [what, "count"] => Ok((*what, Some(UNLIMITED))),
        [what, "max", amount] => Ok((*what, Some(bytes(amount)?))),
        [_, word, ..] => Err(Problem::new(
            format!("`{word}` behind an address"),
            "write ` max 50MB` to let no more than that pass, or ` count` to count only",
        )),
        _ => Ok((text, None)),
    }
}

fn bytes(text: &str) -> Result<u64, Problem> {
    let unit = UNITS.iter().find_map(|(name, size)| Some((text.strip_suffix(name)?, *size)));
    let amount = unit.and_then(|(digits, size)| {
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse::<u64>().ok().filter(|_| plain)?.checked_mul(size)
    });
    amount.filter(|amount| (1..UNLIMITED).contains(amount)).ok_or_else(|| {
        Problem::new(
            format!("`{text}` is no amount"),
            "write a whole number of B, KB, MB, GB, KiB, MiB or GiB, such as `50MB`",
        )
    })
}

/// An amount for people.
pub fn shown(bytes: u64) -> String {
    let unit = [("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)];
    match unit.iter().find(|(_, size)| bytes >= *size) {
        Some((name, size)) => format!("{}.{} {name}", bytes / size, bytes % size * 10 / size),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_amounts() {
        assert_eq!(split("a:1"), Ok(("a:1", None)));
        assert_eq!(split("a:1 max 50MB"), Ok(("a:1", Some(50_000_000))));
        assert_eq!(split("a:1  max  2KiB"), Ok(("a:1", Some(2048))));
        assert_eq!(split("a:1 count"), Ok(("a:1", Some(UNLIMITED))));
        for (text, message) in [
            ("a:1 max 0B", "`0B` is no amount"),
            ("a:1 max 5", "`5` is no amount"),
            ("a:1 max MB", "`MB` is no amount"),
            ("a:1 max -1B", "`-1B` is no amount"),
            ("a:1 max 99999999999GB", "is no amount"),
            ("a:1 most 5B", "`most` behind an address"),
            ("a:1 max", "`max` behind an address"),
            ("a:1 max 5B x", "`max` behind an address"),
        ] {
            let problem = split(text).expect_err(text);
            assert!(problem.message.contains(message), "{text}: {problem:?}");
        }
    }

    #[test]
    fn shows_amounts() {
        for (bytes, text) in
            [(0, "0 bytes"), (999, "999 bytes"), (1_000, "1.0 kB"), (1_960_000, "1.9 MB")]
        {
            assert_eq!(shown(bytes), text);
        }
    }
}
