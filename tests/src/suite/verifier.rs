//! How much of each program the verifier follows: what it does not follow it cannot refuse one day.
//!
//! A program that grew beyond the committed counts fails the test before it fails on somebody's
//! kernel, whose verifier gives up after a million. `cargo xtask bench --verifier --save` writes
//! them anew.

use crate::harness::{Ground, Policy, Session};
use anyhow::{Context as _, bail};
use libtest_mimic::{Completion, Failed, Trial};
use std::collections::BTreeMap;
use std::path::Path;

/// By series of the kernel and by program.
const BUDGET: &str = include_str!("../../../benches/verifier.json");
/// Percent that a program may grow.
const GROWTH: u32 = 10;
const REMEDY: &str = "where that is meant: cargo xtask bench --verifier --save";

pub(super) fn trials() -> Vec<Trial> {
    let test = || budget().map_err(|error| Failed::from(format!("{error:#}")));
    vec![Trial::ignorable_test("verifier::programs_stay_within_their_budget", test)]
}

fn budget() -> anyhow::Result<Completion> {
    let all: BTreeMap<String, BTreeMap<String, u32>> =
        serde_json::from_str(BUDGET).context("benches/verifier.json")?;
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let Some(budget) = all.iter().find(|(series, _)| is_of(&release, series)) else {
        let reason = format!("no counts for {}; {REMEDY}", release.trim());
        return Ok(Completion::ignored_with(reason));
    };
    let ground = Ground::new("verifier")?;
    let session = Session::start(&ground, &Policy::preset())?;
    let started = session.started()?;
    let pins = started["pins"].as_str().context("the started event names no pins")?;
    let engine =
        Path::new(pins).ancestors().nth(2).context("a session's pins lie in an engine's")?;
    let counts = sandbox_benches::verifier::counts(&engine.join("links"))?;
    session.finish()?;
    let problems = problems(budget.1, &counts);
    if problems.is_empty() {
        return Ok(Completion::Completed);
    }
    bail!("on {}:\n  - {}\n  {REMEDY}", budget.0, problems.join("\n  - "))
}

/// Whether a kernel's release is of a series: `6.1` is not that of `6.12.3`.
fn is_of(release: &str, series: &str) -> bool {
    let rest = release.strip_prefix(series);
    rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
}

/// What is wrong, one line a program.
fn problems(budget: &BTreeMap<String, u32>, counts: &BTreeMap<String, u32>) -> Vec<String> {
    let fault = |(name, &count): (&String, &u32)| match budget.get(name) {
        None => Some(format!("{name} is new: {count} instructions")),
        Some(&was) if u64::from(count) * 100 > u64::from(was) * u64::from(100 + GROWTH) => {
            Some(format!("{name} grew from {was} to {count} instructions"))
        }
        Some(_) => None,
    };
    let gone = budget.keys().filter(|name| !counts.contains_key(*name));
    let gone = gone.map(|name| format!("{name} is not attached any more"));
    counts.iter().filter_map(fault).chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_told() {
        let programs = |of: &[(&str, u32)]| {
            of.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        let budget = programs(&[("a", 100), ("b", 100), ("c", 100)]);
        let found = problems(&budget, &programs(&[("a", 110), ("b", 111), ("d", 1)]));
        assert_eq!(
            found,
            [
                "b grew from 100 to 111 instructions",
                "d is new: 1 instructions",
                "c is not attached any more"
            ]
        );
    }

    #[test]
    fn a_series_is_no_prefix() {
        assert!(is_of("6.1.0-57-cloud-amd64\n", "6.1"));
        assert!(!is_of("6.12.118+deb13", "6.1"));
        assert!(is_of("6.12.118+deb13", "6.12"));
    }
}
