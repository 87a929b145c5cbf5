//! `sandbox doctor` proves every class by a real denial and leaves nothing.

use crate::harness::{Ground, Traces, trial, trial_without_engine, verb};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use serde_json::Value;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("A31", "doctor::everything_is_enforced"),
    ("A33", "doctor::everything_is_enforced"),
    ("A35", "doctor::everything_is_enforced"),
    ("A43", "doctor::everything_is_enforced"),
    ("D6.100", "doctor::everything_is_enforced"),
    ("D1.23", "doctor::everything_is_enforced"),
];

pub(super) fn trials_without_engine() -> Vec<Trial> {
    vec![trial_without_engine("doctor::everything_is_enforced", enforced)]
}

pub(super) fn trials() -> Vec<Trial> {
    vec![trial("doctor::json_says_the_same", json)]
}

fn enforced() -> anyhow::Result<()> {
    let ground = Ground::new("doctor")?;
    let before = Traces::now()?;
    let finished = verb(&ground.papers("doctor"), &["doctor"])?;
    ensure!(finished.code() == Some(0), "{}", finished.report());
    ensure!(!finished.out.trim().is_empty(), "it says nothing: {}", finished.report());
    before.must_return()
}

/// Every value of `name`, at whatever depth.
fn values_of<'a>(name: &str, value: &'a Value, found: &mut Vec<&'a Value>) {
    match value {
        Value::Object(map) => {
            found.extend(map.get(name));
            map.values().for_each(|inner| values_of(name, inner, found));
        }
        Value::Array(list) => list.iter().for_each(|inner| values_of(name, inner, found)),
        _ => {}
    }
}

fn json() -> anyhow::Result<()> {
    let ground = Ground::new("doctor-json")?;
    let before = Traces::now()?;
    let finished = verb(&ground.papers("doctor"), &["doctor", "--json"])?;
    ensure!(finished.code() == Some(0), "{}", finished.report());
    let report: Value = serde_json::from_str(&finished.out)
        .with_context(|| format!("no JSON: {}", finished.report()))?;
    let mut verdicts = Vec::new();
    values_of("enforced", &report, &mut verdicts);
    // The report's own verdict and one for each class.
    ensure!(verdicts.len() > 1, "no class says whether it is enforced: {report:#}");
    ensure!(verdicts.iter().all(|verdict| **verdict == Value::Bool(true)), "{report:#}");
    before.must_return()
}
