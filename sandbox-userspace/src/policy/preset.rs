//! Policies that ship inside the program.

use super::source::Source;

/// The layer of their rules.
pub const LAYER: &str = "preset";

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        /// Their names, as `extends` takes them. The first holds where no policy is named.
        pub const NAMES: &[&str] = &[$($name),*];

        fn text(name: &str) -> Option<&'static str> {
            match name {
                $($name => Some(include_str!(concat!("presets/", $name, ".toml"))),)*
                _ => None,
            }
        }
    };
}

presets!(
    "default",
    "base",
    "credentials",
    "persistence",
    "toolchains",
    "irreversible",
    "strict",
    "offline",
    "ci",
    "claude-code",
    "codex",
    "gemini-cli",
    "cursor",
    "aider",
    "opencode",
    "agents",
    "claude-code-credentials",
    "codex-credentials",
    "gemini-cli-credentials",
    "cursor-credentials",
    "aider-credentials",
    "opencode-credentials",
);

/// The text of a preset.
pub fn source(name: &str) -> Option<Source> {
    text(name).map(|text| Source::new(format!("preset:{name}"), LAYER, text.to_owned()))
}
