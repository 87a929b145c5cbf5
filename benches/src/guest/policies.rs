//! The policies of the sessions.

use super::ground::{dotenv, key, place, secret};
use super::operations::{NEW, OPEN_PORT, SHUT_PORT};
use sandbox_benches::Policy;
use std::path::PathBuf;

/// A policy file's text, and a file that it must refuse to have opened.
pub(crate) fn text(policy: Policy) -> (String, PathBuf) {
    let network = format!("[network]\nallow = [\"127.0.0.1:{OPEN_PORT}\"]\n");
    let write = "write.allow = [\"${WORKSPACE}/**\"]";
    let preset = "version = 1\nextends = [\"default\"]\n";
    match policy {
        Policy::Default => (format!("{preset}{network}"), key()),
        Policy::Patterns => {
            let deny = r#"read.deny = ["**/.env", "**/*.pem", "**/id_*"]"#;
            (format!("{preset}[files]\n{deny}\n{network}"), dotenv())
        }
        Policy::Prefixes(count) => {
            // Halves of networks of 256 addresses, so that they do not make up larger ones.
            let networks = (256..256 + count.saturating_sub(1)).map(|number| {
                format!("    \"127.{}.{}.0/25:{OPEN_PORT}\",\n", number >> 8, number & 255)
            });
            let networks = networks.collect::<Vec<_>>().concat();
            let own = format!("    \"127.0.0.1:{OPEN_PORT}\",\n    \"{NEW}/16:{OPEN_PORT}\",\n");
            (format!("{preset}[network]\nallow = [\n{networks}{own}]\n"), key())
        }
        Policy::Rules(count) => {
            // One each for writing and for the network.
            let places = (0..count.saturating_sub(3)).map(place);
            let places = std::iter::once(secret()).chain(places);
            let deny: Vec<_> =
                places.map(|place| format!("    \"{}\",\n", place.display())).collect();
            let deny = deny.concat();
            let files = format!("[files]\nread.deny = [\n{deny}]\n{write}\n");
            (format!("version = 1\n{files}{network}"), secret())
        }
    }
}

const _: () = assert!(OPEN_PORT != SHUT_PORT);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_as_many_rules_as_said() {
        for count in [10, 10_000] {
            let (text, _) = text(Policy::Rules(count));
            let denied = text.lines().filter(|line| line.starts_with("    \"")).count();
            assert_eq!(denied + 2, usize::try_from(count).expect("small"));
        }
        for count in [10, 64_000] {
            let (text, _) = text(Policy::Prefixes(count));
            let networks = text.lines().filter(|line| line.contains('/') && line.contains(':'));
            assert_eq!(networks.count(), usize::try_from(count).expect("small"));
        }
    }
}
