//! The test's side of a member: the session that it is in, batches that it performs, what is told.

use super::round::Round;
use super::told::Told;
use crate::harness::{PATIENCE, probe_words, sandbox, wait};
use anyhow::{Context as _, bail, ensure};
use std::fs::File;
use std::io::{self, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Events that may be on their way when the next batch is sent: far fewer than a ring holds.
const BEHIND: usize = 500;

/// A probe in a session, which performs batches.
pub(crate) struct Hand {
    keeper: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    errors: PathBuf,
    events: File,
    /// What was read of the events file so far.
    told: Vec<u8>,
    lines: usize,
}

impl Hand {
    /// Starts the session of a round.
    pub(crate) fn of(round: &Round) -> anyhow::Result<Self> {
        let policy = round.ground.papers("policy.toml");
        std::fs::write(&policy, &round.policy).context("writing the policy")?;
        let (errors, events) = (round.ground.papers("stderr"), round.ground.papers("events"));
        let workspace = round.ground.workspace();
        File::create(&events)?;
        let mut command = Command::new(sandbox());
        command.args(["run", "--quiet", "--policy"]).arg(&policy).arg("--events").arg(&events);
        command.arg("--workspace").arg(workspace.path()).arg("--");
        command.args(probe_words(&["batches"])?).arg(workspace.path());
        let mut keeper = command
            .current_dir(workspace.path())
            .env("HOME", "/root")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&errors)?)
            .spawn()
            .with_context(|| format!("starting {command:?}"))?;
        let input = keeper.stdin.take();
        let output = BufReader::new(keeper.stdout.take().context("no standard output")?);
        let events = File::open(&events)?;
        Ok(Self { keeper, input, output, errors, events, told: Vec::new(), lines: 0 })
    }

    /// Gives it a batch to perform.
    pub(crate) fn send(&mut self, batch: &[u8]) -> anyhow::Result<()> {
        let input = self.input.as_mut().context("the member was dismissed")?;
        let length = u32::try_from(batch.len())?.to_le_bytes();
        let sent = input
            .write_all(&length)
            .and_then(|()| input.write_all(batch))
            .and_then(|()| input.flush());
        sent.or_else(|error| self.ended(&error))
    }

    /// The error numbers of the `count` operations of the batch that was sent, 0 for success.
    pub(crate) fn answers(&mut self, count: usize) -> anyhow::Result<Vec<i32>> {
        let mut answers = vec![0; count * 4];
        if let Err(error) = self.output.read_exact(&mut answers) {
            self.ended(&error)?;
        }
        let numbers = answers.chunks_exact(4);
        Ok(numbers.map(|n| i32::from_le_bytes([n[0], n[1], n[2], n[3]])).collect())
    }

    fn ended(&mut self, error: &io::Error) -> anyhow::Result<()> {
        let status = wait(&mut self.keeper, PATIENCE)?;
        bail!("the member ended ({status:?}): {error}\n{}", self.said());
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default()
    }

    /// Waits until nearly all of so many denials were told, so that none is lost on a machine on which
    /// whoever writes them down hardly ever runs.
    pub(crate) fn keep_up(&mut self, denials: usize) -> anyhow::Result<()> {
        let since = Instant::now();
        while self.lines + BEHIND < denials {
            let from = self.told.len();
            self.events.read_to_end(&mut self.told)?;
            self.lines += self.told[from..].split(|byte| *byte == b'\n').count() - 1;
            let lines = self.lines;
            ensure!(since.elapsed() < PATIENCE, "only {lines} events of {denials} denials came");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Ends the session; gives all that it told.
    pub(crate) fn finish(mut self) -> anyhow::Result<Vec<Told>> {
        self.input = None;
        // Detaching takes a grace period a hook, on a machine that may be starved.
        let status = wait(&mut self.keeper, PATIENCE * 5)?;
        ensure!(
            status.is_some_and(|status| status.success()),
            "`sandbox run` ended with {status:?}\n{}",
            self.said()
        );
        self.events.read_to_end(&mut self.told)?;
        let mut events = Vec::new();
        for line in self.told.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let event = serde_json::from_slice(line);
            let event =
                event.with_context(|| format!("an event is no JSON: {}", line.escape_ascii()))?;
            events.extend(Told::of(&event));
        }
        Ok(events)
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        self.input = None;
        if !matches!(wait(&mut self.keeper, PATIENCE), Ok(Some(_))) {
            // The test has failed already; the next one needs a free machine.
            let _ = self.keeper.kill();
            let _ = self.keeper.wait();
        }
    }
}
