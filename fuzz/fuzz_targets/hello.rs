//! See `entry::hello`.

#![no_main]

#[allow(dead_code, reason = "the other targets'")]
#[path = "../entry.rs"]
mod entry;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| entry::hello(bytes));
