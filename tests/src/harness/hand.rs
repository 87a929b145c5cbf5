//! A serving probe, wherever it runs, and programs that run to their end.

use super::{PATIENCE, eventually};
use crate::probe::{Answer, Operation};
use anyhow::{Context as _, bail};
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Speaks to a `probe serve` over pipes.
#[derive(Debug)]
pub(crate) struct Hand {
    input: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Hand {
    /// Takes the pipes of a child that is, or leads to, a serving probe.
    pub(crate) fn of(child: &mut Child) -> anyhow::Result<Self> {
        let input = child.stdin.take();
        let output = child.stdout.take().context("the child has no standard output")?;
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { break };
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { input, answers })
    }

    pub(crate) fn perform(&mut self, operation: &Operation) -> anyhow::Result<Answer> {
        self.perform_within(operation, PATIENCE)
    }

    /// As `perform`, for what may take so long.
    pub(crate) fn perform_within(
        &mut self,
        operation: &Operation,
        patience: Duration,
    ) -> anyhow::Result<Answer> {
        let mut line = serde_json::to_string(operation)?;
        line.push('\n');
        let input = self.input.as_mut().context("the probe was dismissed")?;
        input.write_all(line.as_bytes()).context("sending an operation to the probe")?;
        let answer =
            self.answers.recv_timeout(patience).context("waiting for the probe's answer")?;
        serde_json::from_str(&answer).with_context(|| format!("the probe said {answer:?}"))
    }

    /// Ends the probe: its standard input closes.
    pub(crate) fn dismiss(&mut self) {
        self.input = None;
    }
}

/// The harmless twin of a member: the same program in no session.
#[derive(Debug)]
pub(crate) struct Bystander {
    child: Child,
    hand: Hand,
}

impl Bystander {
    /// A process of whom the test is about.
    pub(crate) fn new() -> anyhow::Result<Self> {
        Self::of_user(super::uid())
    }

    /// A process of this user.
    pub(crate) fn of_user(uid: u32) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["probe", "serve"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        if uid != 0 {
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn().context("starting the bystander")?;
        let hand = Hand::of(&mut child)?;
        Ok(Self { child, hand })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Whether it still does what it is told.
    pub(crate) fn is_well(&mut self) -> bool {
        self.hand.perform(&Operation::Identity {}).is_ok_and(|answer| answer.errno == 0)
    }

    pub(crate) fn perform(&mut self, operation: &Operation) -> anyhow::Result<Answer> {
        self.hand.perform(operation)
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.hand.dismiss();
        if !matches!(wait(&mut self.child, Duration::from_secs(5)), Ok(Some(_))) {
            // It is stuck in an operation; there is nothing better to do.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Waits for the end of a child; `None` where the patience ran out.
pub(crate) fn wait(child: &mut Child, patience: Duration) -> std::io::Result<Option<ExitStatus>> {
    eventually(patience, || child.try_wait().transpose()).transpose()
}

/// A program that has ended.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Finished {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// For messages.
    pub(crate) fn report(&self) -> String {
        format!("{}\n    stdout: {}\n    stderr: {}", self.status, self.out.trim(), self.err.trim())
    }
}

/// Runs a program to its end, its output in files of `papers` so that no pipe can fill or be held
/// open by what it leaves behind.
pub(crate) fn capture(
    command: &mut Command,
    papers: &Path,
    input: &str,
) -> anyhow::Result<Finished> {
    capture_within(command, papers, input, PATIENCE * 2)
}

/// As `capture`, for what may take so long.
pub(crate) fn capture_within(
    command: &mut Command,
    papers: &Path,
    input: &str,
    patience: Duration,
) -> anyhow::Result<Finished> {
    let [out, err, given] = ["stdout", "stderr", "stdin"].map(|name| papers.join(name));
    std::fs::write(&given, input)?;
    command.stdin(File::open(&given)?).stdout(File::create(&out)?).stderr(File::create(&err)?);
    let mut child = command.spawn().with_context(|| format!("starting {command:?}"))?;
    let text = |file: &Path| -> anyhow::Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(file)?).into_owned())
    };
    let Some(status) = wait(&mut child, patience)? else {
        child.kill()?;
        child.wait()?;
        bail!("{command:?} did not end\n    stderr: {}", text(&err)?);
    };
    Ok(Finished { status, out: text(&out)?, err: text(&err)? })
}
