//! Whatever the settings of another tool are, what is imported is a policy that can be read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sandbox_userspace::import::{Tool, read};
use sandbox_userspace::policy::load_text;

fuzz_target!(|text: &str| {
    for tool in Tool::ALL {
        if let Ok(import) = read(tool, text) {
            let policy = import.policy(&["persistence"]);
            assert!(load_text("imported.toml", policy.clone()).is_ok(), "{tool:?}\n{policy}");
        }
    }
});
