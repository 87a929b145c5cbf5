//! Policies that ship inside the program.

use super::source::Source;

/// Their names, as `extends` takes them. The first holds where no policy is named.
pub const NAMES: [&str; 3] = ["default", "caches", "persistence"];

/// The layer of their rules.
pub const LAYER: &str = "preset";

/// The text of a preset.
pub fn source(name: &str) -> Option<Source> {
    let text = match name {
        "default" => include_str!("presets/default.toml"),
        "caches" => include_str!("presets/caches.toml"),
        "persistence" => include_str!("presets/persistence.toml"),
        _ => return None,
    };
    Some(Source::new(format!("preset:{name}"), LAYER, text.to_owned()))
}
