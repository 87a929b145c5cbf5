//! See `entry::import`.

#![no_main]

#[allow(dead_code, reason = "the other targets'")]
#[path = "../entry.rs"]
mod entry;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| entry::import(text));
