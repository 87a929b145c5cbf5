//! Whatever the events are, what is proposed is a policy that can be read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sandbox_userspace::learn::observe::observe;
use sandbox_userspace::learn::propose::{Place, propose};
use sandbox_userspace::learn::write::write;
use sandbox_userspace::policy::{Context, Policy, load_text};
use std::collections::BTreeSet;

fuzz_target!(|text: &str| {
    let context = Context {
        home: "/nonexistent/home".into(),
        workspace: "/nonexistent/home/w".into(),
        tmpdir: "/nonexistent/t".into(),
        terminal: None,
    };
    let (policy, except) = (Policy::default(), BTreeSet::new());
    let place = Place { policy: &policy, context: &context, include: &[], except: &except };
    let proposal = propose(&observe(text), &place).expect("the presets can be read");
    let written = write(None, &proposal).expect("a preset's text can be added to");
    assert!(load_text("proposed.toml", written.clone()).is_ok(), "{written}");
});
