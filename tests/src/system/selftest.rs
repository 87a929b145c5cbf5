//! `sandbox selftest` on a full system: nothing gets through, and it would say so.

use super::machine::Worker;
use crate::harness::{Finished, Policy, Traces, trial, verb};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use serde_json::Value;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("D3.47", "selftest::nothing_gets_through"),
    ("A4", "selftest::nothing_gets_through"),
    ("A6", "selftest::nothing_gets_through"),
    ("A45", "selftest::nothing_gets_through"),
    ("D5.87", "selftest::nothing_gets_through_from_a_nested_sandbox"),
    ("D6.95", "selftest::what_gets_through_is_told"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("selftest::nothing_gets_through", nothing),
        trial("selftest::nothing_gets_through_from_a_nested_sandbox", nested),
        trial("selftest::what_gets_through_is_told", something),
    ]
}

/// `sandbox selftest` in the worker's workspace.
fn attempt(worker: &Worker, policy: &str, words: &[&str]) -> anyhow::Result<(Finished, Value)> {
    let papers = worker.ground.papers("selftest");
    std::fs::create_dir_all(&papers)?;
    let file = papers.join("policy.toml");
    std::fs::write(&file, policy)?;
    let (file, workspace) = (file.display().to_string(), worker.ground.workspace().to_string());
    let mut all = vec!["selftest", "--json", "--policy", &file, "--workspace", &workspace];
    all.extend(words);
    let finished = verb(&papers, &all)?;
    let report = serde_json::from_str(&finished.out)
        .with_context(|| format!("no JSON: {}", finished.report()))?;
    Ok((finished, report))
}

/// Outcomes and what was told of the attempts whose name begins so.
fn outcomes<'a>(report: &'a Value, name: &str) -> Vec<(&'a str, bool)> {
    let lines = report["attempts"].as_array().map(Vec::as_slice).unwrap_or_default();
    let named = lines.iter().filter(|line| line["name"].as_str().unwrap_or("").starts_with(name));
    named.map(|line| (line["outcome"].as_str().unwrap_or(""), line["told"].is_string())).collect()
}

/// Each of these is refused by a hook, whoever asks, and an event tells of it.
const REFUSED: [&str; 22] = [
    "read /",
    "the same by `..`",
    "by /proc/self/root",
    "by O_PATH and reopening",
    "called dpkg",
    "by a second name",
    "create a file",
    "open for writing",
    "empty it",
    "change its mode",
    "bind a unix socket",
    "move a file over it",
    "ask /run/dbus/system_bus_socket",
    "signal another process",
    "look at BPF maps",
    "connect to 127.0.0.1",
    "fast open to 127.0.0.1",
    "send to 127.0.0.1",
    "connect to [::1]",
    "a packet socket",
    "connect to a unix socket",
    "connect to an abstract unix socket",
];

/// Nothing got through, and every twin worked.
fn held(finished: &Finished, report: &Value) -> anyhow::Result<()> {
    let bad: Vec<_> = report["attempts"]
        .as_array()
        .context("no attempts")?
        .iter()
        .filter(|line| ["got_through", "broken"].iter().any(|bad| line["outcome"] == *bad))
        .collect();
    ensure!(bad.is_empty(), "{bad:#?}");
    ensure!(finished.code() == Some(0) && report["passed"] == true, "{}", finished.report());
    for name in REFUSED {
        let found = outcomes(report, name);
        ensure!(found.first() == Some(&("refused", true)), "{name}: {found:?} in {report:#}");
    }
    Ok(())
}

/// The same from inside the bubblewrap that the agent itself starts where the policy permits namespaces.
fn nested() -> anyhow::Result<()> {
    let within = ["--", "bwrap", "--die-with-parent", "--unshare-user", "--unshare-ipc"];
    let within = [&within[..], &["--dev-bind", "/", "/"]].concat();
    let policy = Policy::preset().namespaces().write().text;
    for (worker, user) in [
        (Worker::root("selftest-nested-root")?, &[][..]),
        (Worker::dev("selftest-nested-dev")?, &["--user", "dev"][..]),
    ] {
        let words = [user, &within].concat();
        let (finished, report) = attempt(&worker, &policy, &words)?;
        held(&finished, &report).with_context(|| format!("{words:?}"))?;
        let mounts = ["by a bind mount", "by a detached mount"].map(|name| outcomes(&report, name));
        ensure!(mounts.iter().all(|found| *found == [("refused", true)]), "{words:?}: {mounts:?}");
    }
    // It is tried by way of the command: where that starts nobody, nothing is said to be refused.
    let worker = Worker::root("selftest-nested-none")?;
    let tried = attempt(&worker, &policy, &["--", "false"]);
    ensure!(tried.is_err(), "nobody tried, and yet: {tried:?}");
    Ok(())
}

fn nothing() -> anyhow::Result<()> {
    let runs_nothing = Policy::preset().with("files.exec.deny", "/tmp/**");
    for (worker, policy, words, of_programs) in [
        (Worker::root("selftest-root")?, Policy::preset(), &[][..], ("permitted", false)),
        (Worker::dev("selftest-dev")?, runs_nothing, &["--user", "dev"][..], ("refused", true)),
    ] {
        let before = Traces::now()?;
        let (finished, report) = attempt(&worker, &policy.write().text, words)?;
        held(&finished, &report).with_context(|| format!("{words:?}"))?;
        let found = outcomes(&report, "make a user namespace");
        ensure!(found == [("refused", true)], "{words:?}: {found:?}");
        // A decoy, one of its own making, and the twin.
        for name in ["run a program", "map one"] {
            let found = outcomes(&report, name);
            let expected = [of_programs, of_programs, ("works", false)];
            ensure!(found == expected, "{words:?}: {name}: {found:?} in {report:#}");
        }
        for name in ["systemd-run --quiet --scope", "busctl --system call"] {
            let found = outcomes(&report, name);
            ensure!(found.iter().all(|found| found.0 == "refused") && !found.is_empty(), "{name}");
        }
        before.must_return()?;
    }
    Ok(())
}

/// Where nothing is enforced it says so; what the policy permits is no failure.
fn something() -> anyhow::Result<()> {
    let worker = Worker::root("selftest-open")?;
    let audit = Policy::preset().write().text.replacen('\n', "\nmode = \"audit\"\n", 1);
    let (finished, report) = attempt(&worker, &audit, &[])?;
    ensure!(finished.code() == Some(1) && report["passed"] == false, "{}", finished.report());
    for name in ["read /", "create a file", "connect to 127.0.0.1", "signal another process"] {
        let found = outcomes(&report, name);
        ensure!(found.iter().any(|found| found.0 == "got_through"), "{name}: {found:?}");
    }
    let (finished, report) = attempt(&worker, &Policy::preset().namespaces().write().text, &[])?;
    ensure!(finished.code() == Some(0), "{}", finished.report());
    let found = outcomes(&report, "make a user namespace");
    ensure!(found == [("permitted", false)], "{found:?}");
    let inside = ["by a bind mount", "by a detached mount"].map(|name| outcomes(&report, name));
    ensure!(inside.iter().flatten().all(|found| *found == ("refused", true)), "{inside:?}");
    let broken = worker.ground.papers("broken.toml");
    std::fs::write(&broken, "version = 2")?;
    let words = ["selftest", "--policy", &broken.display().to_string()];
    let finished = verb(&worker.ground.papers("selftest"), &words)?;
    ensure!(finished.code() == Some(125), "{}", finished.report());
    Ok(())
}
