//! Whatever bytes a member sends to its name server, it gets an answer or none.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    sandbox_userspace::dns::judge_any(bytes);
});
