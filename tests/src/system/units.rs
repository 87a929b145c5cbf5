//! Inside systemd's scopes and services.

use super::machine::Worker;
use crate::harness::{Denial, Policy, Runner, Traces, capture, trial};
use anyhow::ensure;
use libtest_mimic::Trial;
use std::process::Command;

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("units::inside_a_scope", || inside("scope", &["--scope", "--quiet"])),
        trial("units::inside_a_service", || inside("service", &["--wait", "--pipe", "--quiet"])),
    ]
}

fn inside(name: &str, options: &[&str]) -> anyhow::Result<()> {
    let worker = Worker::root(name)?;
    let before = Traces::places()?;
    let runner = worker.runner(&Policy::preset())?;
    let script = "echo works > file && cat file; cat ~/.ssh/id_ed25519 && exit 9; exit 3";
    let finished =
        capture(&mut through(&runner, options, script), &worker.ground.papers("session"), "")?;
    ensure!(finished.code() == Some(3), "the command's status was 3: {}", finished.report());
    ensure!(finished.out.contains("works"), "{}", finished.report());
    runner.told(&Denial::read(&worker.key).of_key())?;
    before.must_return()
}

/// `systemd-run options sandbox run … -- bash -c script`.
fn through(runner: &Runner, options: &[&str], script: &str) -> Command {
    let inner = runner.command(&["bash", "-c", script]);
    let mut command = Command::new("systemd-run");
    command.args(options).arg("--working-directory").arg(runner.workspace.path());
    command.arg(format!("--setenv=HOME={}", runner.home));
    command.arg("--").arg(inner.get_program()).args(inner.get_args()).current_dir("/");
    command
}
