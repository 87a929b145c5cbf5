//! A kernel that does not ask BPF: to be booted with `lsm=` without `bpf`.

use crate::harness::{Ground, Policy, Runner, Traces, trial, verb};
use anyhow::ensure;
use libtest_mimic::Trial;

pub(super) fn trials() -> Vec<Trial> {
    let list = std::fs::read_to_string("/sys/kernel/security/lsm").unwrap_or_default();
    let here = list.trim().split(',').any(|lsm| lsm == "bpf");
    let only_without = |trial: Trial| trial.with_ignored_flag(here).with_kind("boot without bpf");
    vec![
        only_without(trial("lsm_without_bpf::run_refuses_with_the_boot_parameter", run)),
        only_without(trial("lsm_without_bpf::doctor_says_so", doctor)),
    ]
}

fn run() -> anyhow::Result<()> {
    let list = std::fs::read_to_string("/sys/kernel/security/lsm")?;
    let ground = Ground::new("no-lsm")?;
    let before = Traces::now()?;
    let mark = ground.workspace().join("started");
    let runner = Runner::new(&ground, &Policy::preset())?;
    let finished = runner.probe(&["touch", &mark.to_string()], "")?;
    ensure!(finished.code() == Some(125), "must end with 125: {}", finished.report());
    ensure!(!mark.path().exists(), "the command was started: {}", finished.report());
    // The parameter to copy: what is there already, but for what is always there, and bpf.
    let kept = list.trim().split(',').filter(|lsm| *lsm != "capability");
    let parameter = format!("lsm={},bpf", kept.collect::<Vec<_>>().join(","));
    ensure!(finished.err.contains(&parameter), "no {parameter:?}: {}", finished.report());
    before.must_return()
}

fn doctor() -> anyhow::Result<()> {
    let ground = Ground::new("no-lsm-doctor")?;
    let before = Traces::now()?;
    let finished = verb(&ground.papers("doctor"), &["doctor"])?;
    ensure!(!finished.status.success(), "{}", finished.report());
    let told = format!("{}{}", finished.out, finished.err);
    ensure!(told.contains("lsm="), "no boot parameter: {}", finished.report());
    before.must_return()
}
