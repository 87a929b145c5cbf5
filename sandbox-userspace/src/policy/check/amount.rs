//! Amounts of bytes: `50MB`.

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

/// Reads an amount.
pub(super) fn bytes(text: &str) -> Result<u64, Problem> {
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
        assert_eq!(bytes("50MB"), Ok(50_000_000));
        assert_eq!(bytes("2KiB"), Ok(2048));
        for text in ["0B", "5", "MB", "-1B", "99999999999GB", ""] {
            let problem = bytes(text).expect_err(text);
            assert!(problem.message.contains("is no amount"), "{text}: {problem:?}");
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
