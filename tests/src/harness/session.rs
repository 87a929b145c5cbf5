//! Sessions: how they are started, spoken to, judged and ended.

use super::denial::Denial;
use super::events::{Events, list};
use super::ground::{Ground, HOME};
use super::hand::{Finished, Hand, capture, wait};
use super::policy::{Policy, Written};
use super::who::{DEV, home, is_root};
use super::{PATIENCE, eventually};
use crate::probe::{Answer, Identity, Operation, Place};
use anyhow::{Context as _, bail};
use serde_json::Value;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The program under test.
pub(crate) fn sandbox() -> PathBuf {
    if let Some(named) = std::env::var_os("SANDBOX") {
        return named.into();
    }
    let usual = ["/usr/local/bin/sandbox", "/usr/bin/sandbox", "/bin/sandbox"].map(PathBuf::from);
    let fallback = PathBuf::from("sandbox");
    usual.into_iter().find(|path| path.exists()).unwrap_or(fallback)
}

/// Starts commands under one policy in one workspace.
#[derive(Debug)]
pub(crate) struct Runner {
    pub(crate) policy: PathBuf,
    pub(crate) written: Written,
    pub(crate) workspace: Place,
    pub(crate) events: Events,
    events_file: PathBuf,
    papers: PathBuf,
    arguments: Vec<String>,
    variables: Vec<(&'static str, String)>,
    program: PathBuf,
    pub(crate) home: String,
    stderr: Option<File>,
}

impl Runner {
    pub(crate) fn new(ground: &Ground, policy: &Policy) -> anyhow::Result<Self> {
        Self::named(ground, policy, "session")
    }

    /// As `new`, for a second session on the same ground.
    pub(crate) fn named(ground: &Ground, policy: &Policy, name: &str) -> anyhow::Result<Self> {
        let papers = ground.papers(name);
        std::fs::create_dir_all(&papers)?;
        let (file, written) = (papers.join("policy.toml"), policy.write());
        std::fs::write(&file, &written.text).context("writing the policy")?;
        let events_file = papers.join("events.jsonl");
        Ok(Self {
            policy: file,
            written,
            workspace: ground.workspace(),
            events: Events::new(&events_file),
            events_file,
            papers,
            arguments: Vec::new(),
            variables: Vec::new(),
            program: sandbox(),
            home: home().to_owned(),
            stderr: None,
        })
    }

    /// More options for `sandbox run`.
    pub(crate) fn options(mut self, options: &[&str]) -> Self {
        self.arguments.extend(options.iter().map(ToString::to_string));
        self
    }

    /// A variable of whoever starts the session.
    pub(crate) fn variable(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    /// The standard error of an opened session, instead of a file of its own.
    pub(crate) fn errors(mut self, stderr: File) -> Self {
        self.stderr = Some(stderr);
        self
    }

    /// Another build of the program.
    pub(crate) fn with_program(self, program: &Path) -> Self {
        Self { program: program.to_owned(), ..self }
    }

    /// `sandbox run … -- words`.
    pub(crate) fn command<S: AsRef<std::ffi::OsStr>>(&self, words: &[S]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("run")
            .arg("--policy")
            .arg(&self.policy)
            .arg("--workspace")
            .arg(self.workspace.path())
            .arg("--events")
            .arg(&self.events_file)
            .arg("--quiet")
            .args((!is_root()).then_some(["--user", DEV]).into_iter().flatten())
            .args(&self.arguments)
            .arg("--")
            .args(words)
            .current_dir(self.workspace.path())
            .env("HOME", &self.home)
            .envs(self.variables.iter().map(|(name, value)| (*name, value)));
        command
    }

    /// Runs a command in a session of its own, to its end.
    pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(&self, words: &[S]) -> anyhow::Result<Finished> {
        capture(&mut self.command(words), &self.papers, "")
    }

    /// `probe` with these words, in a session of its own.
    pub(crate) fn probe(&self, words: &[&str], input: &str) -> anyhow::Result<Finished> {
        let mut command = self.command(&probe_words(words)?);
        capture(&mut command, &self.papers, input)
    }

    /// Fails unless an event is as the denial says, whichever process it was.
    pub(crate) fn told(&self, denial: &Denial) -> anyhow::Result<()> {
        let denials = || self.events.all().into_iter().filter(|event| event["type"] == "denial");
        let faults = |event: &Value| denial.faults(event, &self.policy, &self.written.rules);
        if denials().any(|event| faults(&event).is_empty()) {
            return Ok(());
        }
        let near = denials().min_by_key(|event| faults(event).len());
        let near =
            near.map(|event| format!("the nearest: {}\n      {event}", faults(&event).join("; ")));
        let near = near.unwrap_or_else(|| "there is no denial at all".to_owned());
        bail!("no event tells of {denial:?}\n    {near}\n    last events:\n{}", self.events.tail(8))
    }

    /// Starts a session whose agent is a serving probe.
    pub(crate) fn open(mut self) -> anyhow::Result<Session> {
        let mut command = self.command(&probe_words(&["serve"])?);
        let errors = self.papers.join("serve.stderr");
        let mut keeper = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(match self.stderr.take() {
                Some(file) => file,
                None => File::create(&errors)?,
            })
            .spawn()
            .with_context(|| format!("starting {command:?}"))?;
        let hand = Hand::of(&mut keeper)?;
        let mut session = Session {
            keeper,
            hand,
            adopted: None,
            runner: self,
            errors,
            problems: Vec::new(),
            identity: None,
        };
        let answer = session.hand.perform(&Operation::Identity {});
        let identity = answer.and_then(|answer| {
            serde_json::from_value(answer.data).context("the probe does not say who it is")
        });
        match identity {
            Ok(identity) => session.identity = Some(identity),
            Err(error) => {
                let status = wait(&mut session.keeper, Duration::from_secs(5))?;
                let status = status.map_or("still runs".to_owned(), |status| status.to_string());
                bail!(
                    "`sandbox run` did not start the probe: {error:#}; it {status}\n{}",
                    session.papers()
                );
            }
        }
        Ok(session)
    }
}

/// The command line of a probe.
pub(crate) fn probe_words(words: &[&str]) -> anyhow::Result<Vec<String>> {
    let program = std::env::current_exe()?.to_string_lossy().into_owned();
    let words = words.iter().map(ToString::to_string);
    Ok([program, "probe".to_owned()].into_iter().chain(words).collect())
}

/// A running session and what was found wrong with it so far.
#[derive(Debug)]
pub(crate) struct Session {
    keeper: Child,
    hand: Hand,
    /// A process that was put into the session from outside, and is asked in the agent's place.
    adopted: Option<(Child, Hand)>,
    runner: Runner,
    errors: PathBuf,
    problems: Vec<String>,
    identity: Option<Identity>,
}

impl Session {
    /// A session under the policy, in the ground's workspace.
    pub(crate) fn start(ground: &Ground, policy: &Policy) -> anyhow::Result<Self> {
        Runner::new(ground, policy)?.open()
    }

    pub(crate) fn identity(&self) -> anyhow::Result<&Identity> {
        self.identity.as_ref().context("the probe never said who it is")
    }

    pub(crate) fn keeper(&mut self) -> &mut Child {
        &mut self.keeper
    }

    pub(crate) fn events(&self) -> &Events {
        &self.runner.events
    }

    /// The file of its policy, as events name it.
    pub(crate) fn runner_file(&self) -> String {
        self.runner.policy.to_string_lossy().into_owned()
    }

    /// The `started` event.
    pub(crate) fn started(&self) -> anyhow::Result<Value> {
        let event = self.events().state("started", PATIENCE);
        event.with_context(|| format!("no event says that the session started\n{}", self.papers()))
    }

    pub(crate) fn id(&self) -> anyhow::Result<String> {
        let event = self.started()?;
        Ok(event["session"].as_str().context("the started event names no session")?.to_owned())
    }

    /// Lets the member perform an operation, without judging.
    pub(crate) fn perform(&mut self, operation: &Operation) -> anyhow::Result<Answer> {
        self.perform_within(operation, PATIENCE)
    }

    /// As `perform`, for what may take so long.
    pub(crate) fn perform_within(
        &mut self,
        operation: &Operation,
        patience: Duration,
    ) -> anyhow::Result<Answer> {
        let papers = self.papers();
        let hand = self.adopted.as_mut().map_or(&mut self.hand, |(_, hand)| hand);
        hand.perform_within(operation, patience).with_context(|| format!("{operation:?}\n{papers}"))
    }

    /// From now on a process of root's is asked that has all capabilities, because an administrator put
    /// it into the session's cgroup instead of having `sandbox run` start it.
    pub(crate) fn adopt(&mut self) -> anyhow::Result<()> {
        let cgroup = self.cgroup()?;
        let mut child = Command::new(std::env::current_exe()?)
            .args(["probe", "serve"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let hand = Hand::of(&mut child)?;
        std::fs::write(cgroup.join("cgroup.procs"), child.id().to_string())
            .context("putting a process into the session")?;
        self.adopted = Some((child, hand));
        Ok(())
    }

    /// Directory of the session's cgroup.
    pub(crate) fn cgroup(&self) -> anyhow::Result<PathBuf> {
        let event = self.started()?;
        Ok(event["cgroup"].as_str().context("the started event names no cgroup")?.into())
    }

    pub(crate) fn problem(&mut self, text: impl Into<String>) {
        self.problems.push(text.into());
    }

    /// The operation must succeed, and nothing be reported as denied.
    pub(crate) fn allowed(&mut self, name: &str, operation: &Operation) -> anyhow::Result<Answer> {
        let answer = self.perform(operation)?;
        if answer.errno != 0 {
            // The event may come a little later; or there is none, where somebody else refused.
            let denials = || Some(self.events().denials_of(answer.pid)).filter(|d| !d.is_empty());
            let denials = eventually(Duration::from_secs(3), denials).unwrap_or_default();
            let events = list(&denials);
            self.problem(format!(
                "{name}: must be allowed, but {answer}\n    {operation:?}\n{events}"
            ));
        }
        Ok(answer)
    }

    /// The operation must fail, and an event must say why.
    pub(crate) fn refused(
        &mut self,
        name: &str,
        operation: &Operation,
        denial: &Denial,
    ) -> anyhow::Result<Answer> {
        let answer = self.perform(operation)?;
        if !denial.errors.contains(&answer.errno) {
            let errors = &denial.errors;
            self.problem(format!(
                "{name}: must be refused with errno {errors:?}, but {answer}\n    {operation:?}"
            ));
            return Ok(answer);
        }
        if denial.told {
            self.explained(name, answer.pid, denial);
        }
        Ok(answer)
    }

    /// An event of the process must be as the denial says. The ring is read by another process, so
    /// it may come a little later.
    pub(crate) fn explained(&mut self, name: &str, pid: i32, denial: &Denial) {
        let (policy, rules) = (self.runner.policy.clone(), self.runner.written.rules.clone());
        let events = self.runner.events.clone();
        let right = |event: &Value| denial.faults(event, &policy, &rules).is_empty();
        let patience = Duration::from_secs(30);
        if eventually(patience, || events.denials_of(pid).iter().any(right).then_some(())).is_some()
        {
            return;
        }
        let found = events.denials_of(pid);
        if found.is_empty() {
            self.problem(format!(
                "{name}: refused, but no event of pid {pid} tells\n{}",
                self.papers()
            ));
        }
        // It may have come just now.
        if found.iter().any(right) {
            return;
        }
        for event in found {
            let faults = denial.faults(&event, &policy, &rules).join("; ");
            self.problem(format!("{name}: the event is wrong: {faults}\n      {event}"));
        }
    }

    /// Ends the agent and waits for `sandbox run`; then the test passes if there was no problem.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        self.release();
        self.hand.dismiss();
        match wait(&mut self.keeper, PATIENCE)? {
            Some(status) if status.success() => {}
            Some(status) => {
                let papers = self.papers();
                self.problem(format!(
                    "`sandbox run` ended with {status} after its agent's 0\n{papers}"
                ));
            }
            None => {
                let papers = self.papers();
                self.problem(format!("`sandbox run` does not end after its agent\n{papers}"));
            }
        }
        let broken: Vec<_> =
            self.events().all().into_iter().filter(|event| event.get("broken").is_some()).collect();
        if !broken.is_empty() {
            self.problem(format!(
                "the events file holds lines that are no JSON\n{}",
                list(&broken)
            ));
        }
        self.verdict()
    }

    /// Closes the probe's input without waiting for `sandbox run`, which is gone.
    pub(crate) fn abandon(mut self) -> anyhow::Result<()> {
        self.hand.dismiss();
        self.verdict()
    }

    /// Ends the adopted process, if there is one.
    fn release(&mut self) {
        if let Some((mut child, mut hand)) = self.adopted.take() {
            hand.dismiss();
            if !matches!(wait(&mut child, Duration::from_secs(10)), Ok(Some(_))) {
                // It is stuck in an operation; there is nothing better to do.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    fn verdict(&mut self) -> anyhow::Result<()> {
        let problems = std::mem::take(&mut self.problems);
        if problems.is_empty() {
            return Ok(());
        }
        bail!("{} problem(s)\n  - {}", problems.len(), problems.join("\n  - "))
    }

    /// What the session has written so far, for messages.
    pub(crate) fn papers(&self) -> String {
        let errors = std::fs::read(&self.errors).unwrap_or_default();
        let errors = String::from_utf8_lossy(&errors);
        let policy = indent(&self.runner.written.text);
        let events = self.events().tail(8);
        format!("    policy:\n{policy}    stderr:\n{}    last events:\n{events}", indent(&errors))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.release();
        self.hand.dismiss();
        if !matches!(wait(&mut self.keeper, Duration::from_secs(10)), Ok(Some(_))) {
            // The test has failed already; the next one needs a free machine.
            let _ = self.keeper.kill();
            let _ = self.keeper.wait();
        }
    }
}

fn indent(text: &str) -> String {
    text.lines().flat_map(|line| ["      ", line, "\n"]).collect()
}

/// Runs another verb of the program under test.
pub(crate) fn verb(papers: &Path, words: &[&str]) -> anyhow::Result<Finished> {
    std::fs::create_dir_all(papers)?;
    capture(Command::new(sandbox()).args(words).env("HOME", HOME), papers, "")
}
