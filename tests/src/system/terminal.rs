//! In a terminal: job control, the terminal's own state, nobody else's terminal.

use super::machine::Worker;
use crate::harness::{Policy, capture, trial};
use anyhow::ensure;
use libtest_mimic::Trial;
use std::process::Command;

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("terminal::interactive_shell", interactive),
        trial("terminal::dialogue_works_without_a_session", control),
    ]
}

/// Plays the person at the keyboard; says on its standard output what went wrong.
const DIALOGUE: &str = include_str!("dialogue.py");

fn converse(worker: &Worker, stranger: &str, command: &Command) -> anyhow::Result<()> {
    let mut python = Command::new("python3");
    python.args(["-c", DIALOGUE, stranger]).arg(command.get_program()).args(command.get_args());
    python.current_dir(worker.ground.workspace().path()).env("HOME", &worker.home);
    python.env("LC_ALL", "C").env("TERM", "dumb");
    let papers = worker.ground.papers("dialogue");
    std::fs::create_dir_all(&papers)?;
    let finished = capture(&mut python, &papers, "")?;
    ensure!(finished.code() == Some(0), "{}", finished.report());
    Ok(())
}

fn interactive() -> anyhow::Result<()> {
    let worker = Worker::root("terminal")?;
    let runner = worker.runner(&Policy::preset())?;
    converse(&worker, "refused", &runner.command(&["bash", "--norc", "--noediting", "-i"]))
}

/// The dialogue itself is sound.
fn control() -> anyhow::Result<()> {
    let worker = Worker::root("terminal-control")?;
    let mut command = Command::new("bash");
    command.args(["--norc", "--noediting", "-i"]);
    converse(&worker, "allowed", &command)
}
