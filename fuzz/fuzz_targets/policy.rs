//! Any text is a policy or an error with a place, and so is what a rule, an address or a name is made of.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sandbox_userspace::policy::{check, load_text};

fuzz_target!(|text: &str| {
    let _ = load_text("fuzz.toml", text.to_owned());
    let _ = load_text("fuzz.toml", format!("version = 1\n{text}"));
    let _ = check::path::parse(text);
    let _ = check::address::parse_host(text);
});
