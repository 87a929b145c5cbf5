//! What is fuzzed: everything that reads what somebody else wrote. Of `fuzz_targets`, and of the host test that mutates
//! examples.

use sandbox_userspace::import::{Tool, read};
use sandbox_userspace::learn::observe::observe;
use sandbox_userspace::learn::propose::{Place, propose};
use sandbox_userspace::learn::write::write;
use sandbox_userspace::policy::services::Surroundings;
use sandbox_userspace::policy::{Context, Policy, check, load_text};
use std::collections::BTreeSet;

/// Any text is a policy or an error with a place, and so is what a rule, an address or a name is made of.
pub(crate) fn policy(text: &str) {
    for text in [text.to_owned(), format!("version = 1\n{text}")] {
        if let Err(error) = load_text("fuzz.toml", text) {
            let _ = error.to_string();
        }
    }
    let _ = check::path::parse(text);
    let _ = check::address::parse_host(text);
    let _ = check::unix::parse(text);
}

/// Whatever the settings of another tool are, what is imported is a policy that can be read.
pub(crate) fn import(text: &str) {
    for tool in Tool::ALL {
        if let Ok(import) = read(tool, text) {
            let policy = import.policy(&["persistence"]);
            assert!(load_text("imported.toml", policy.clone()).is_ok(), "{tool:?}\n{policy}");
        }
    }
}

/// Whatever the events are, what is proposed is a policy that can be read.
pub(crate) fn learn(text: &str) {
    let context = Context {
        home: "/nonexistent/home".into(),
        workspace: "/nonexistent/home/w".into(),
        tmpdir: "/nonexistent/t".into(),
        terminal: None,
        surroundings: Surroundings::default(),
    };
    let (policy, except) = (Policy::default(), BTreeSet::new());
    let place = Place { policy: &policy, context: &context, include: &[], except: &except };
    let proposal = propose(&observe(text), &place).expect("the presets can be read");
    let written = write(None, &proposal).expect("a preset's text can be added to");
    assert!(load_text("proposed.toml", written.clone()).is_ok(), "{written}");
}

/// Whatever bytes a member sends to its name server, it gets an answer or none.
pub(crate) fn names(bytes: &[u8]) {
    sandbox_userspace::dns::judge_any(bytes);
}

/// Whatever bytes a member sends at first, they ask for a name of a host, or for none that is let pass.
pub(crate) fn hello(bytes: &[u8]) {
    if let Ok(name) = sandbox_userspace::policy::server_names::asked_for(bytes) {
        let lower = bytes.to_ascii_lowercase();
        assert!(lower.windows(name.len()).any(|part| part == name.as_bytes()), "{name}");
        assert!(name.split('.').all(|label| !label.is_empty()), "{name}");
        // Without its last byte it is not whole, or what is read ends before it.
        let _ = sandbox_userspace::policy::server_names::asked_for(&bytes[..bytes.len() - 1]);
    }
}
