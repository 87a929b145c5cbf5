//! `bench`: counts instructions inside a machine that `cargo xtask bench` boots.
//!
//! `bench machine` leads: it makes the places, starts sessions and hands, tells the hands what to
//! do and prints what they counted. `bench serve` is a hand: it does one thing after another and
//! counts. As everyone who is compared is such a hand, they differ in nothing but what they are:
//! in no session, a member, a bystander, or confined by Landlock.

mod guest;

use anyhow::{Result, bail};
use std::process::ExitCode;

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[String]) -> Result<()> {
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["machine", options @ ..] => guest::machine(options),
        ["verifier"] => guest::verifier(),
        ["serve"] => guest::serve(None),
        ["serve", "--landlock", place] => guest::serve(Some(place.as_ref())),
        _ => bail!("this program is started by `cargo xtask bench`, not by hand"),
    }
}
