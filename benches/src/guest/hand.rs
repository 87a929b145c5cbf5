//! Hands as seen by who leads them, and the sessions whose agents they are.

use super::ground;
use super::operations::{OPEN_PORT, SHUT_PORT};
use super::policies;
use super::serve::{Answer, Order};
use anyhow::{Context as _, Result, bail, ensure};
use sandbox_benches::{Operation, Policy};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use super::count::Counted;

/// What was started goes on doing this and that for a while. It costs nothing: when nobody has
/// anything to do, the machine's clock jumps.
const SETTLE: Duration = Duration::from_secs(5);
/// Errors that tell of a refusal.
const REFUSED: [i32; 2] = [libc::EACCES, libc::EPERM];
/// Tells the engine to do without its cache of nodes.
const NO_CACHE: (&str, &str) = ("SANDBOX_NODE_CACHE", "off");

/// A process that follows orders.
pub(crate) struct Hand {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Hand {
    /// One in no session.
    pub(crate) fn free() -> Result<Self> {
        Self::start(Command::new(program()?).arg("serve"))
    }

    /// One confined to the workspace by Landlock.
    pub(crate) fn landlocked() -> Result<Self> {
        Self::start(Command::new(program()?).args(["serve", "--landlock"]).arg(ground::workspace()))
    }

    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command
            .current_dir(ground::workspace())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {command:?}"))?;
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("a hand without a mouth")?);
        let mut hand = Self { child, orders, answers };
        match hand.answer().with_context(|| format!("starting {command:?}"))? {
            Answer::Ready => {}
            other => bail!("a hand began with {other:?}"),
        }
        thread::sleep(SETTLE);
        Ok(hand)
    }

    fn answer(&mut self) -> Result<Answer> {
        let mut line = String::new();
        self.answers.read_line(&mut line).context("reading an answer")?;
        ensure!(!line.is_empty(), "it ended without an answer");
        serde_json::from_str(&line).with_context(|| format!("it said {line:?}"))
    }

    fn order(&mut self, order: &Order) -> Result<Answer> {
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        let orders = self.orders.as_mut().context("the hand was dismissed")?;
        orders.write_all(line.as_bytes()).context("giving an order")?;
        match self.answer().with_context(|| format!("order {order:?}"))? {
            Answer::Failed(why) => bail!("{why}"),
            answer => Ok(answer),
        }
    }

    /// What the operation costs it.
    pub(crate) fn count(&mut self, operation: Operation, tree: u32) -> Result<Counted> {
        match self.order(&Order::Count(operation, tree))? {
            Answer::Counted(counted) => Ok(counted),
            other => bail!("asked to count {operation} it said {other:?}"),
        }
    }

    pub(crate) fn warm(&mut self, tree: u32) -> Result<()> {
        self.order(&Order::Warm(tree)).map(drop)
    }

    fn errno(&mut self, order: &Order) -> Result<i32> {
        match self.order(order)? {
            Answer::Errno(errno) => Ok(errno),
            other => bail!("{order:?}: it said {other:?}"),
        }
    }

    /// Fails unless the file and the other port are refused, so that what is counted is the work
    /// of something that is in force.
    pub(crate) fn must_be_confined(&mut self, denied: &Path) -> Result<()> {
        self.must_be_kept_from(denied)?;
        let errno = self.errno(&Order::Connect(SHUT_PORT))?;
        ensure!(REFUSED.contains(&errno), "port {SHUT_PORT} was reached: errno {errno}");
        Ok(())
    }

    /// The same for Landlock; gives whether it confines connecting too, which older ones do not.
    pub(crate) fn must_be_landlocked(&mut self, denied: &Path) -> Result<bool> {
        self.must_be_kept_from(denied).context("Landlock does not confine")?;
        Ok(REFUSED.contains(&self.errno(&Order::Connect(SHUT_PORT))?))
    }

    fn must_be_kept_from(&mut self, denied: &Path) -> Result<()> {
        let errno = self.errno(&Order::Open(denied.to_owned()))?;
        ensure!(REFUSED.contains(&errno), "{} was opened: errno {errno}", denied.display());
        let errno = self.errno(&Order::Connect(OPEN_PORT))?;
        ensure!(errno == libc::ECONNREFUSED, "port {OPEN_PORT} must be reached: errno {errno}");
        Ok(())
    }

    /// Fails unless nothing is refused.
    pub(crate) fn must_be_free(&mut self, denied: &Path) -> Result<()> {
        let errno = self.errno(&Order::Open(denied.to_owned()))?;
        ensure!(errno == 0, "a bystander cannot open {}: errno {errno}", denied.display());
        let errno = self.errno(&Order::Connect(SHUT_PORT))?;
        ensure!(errno == libc::ECONNREFUSED, "a bystander cannot reach a port: errno {errno}");
        Ok(())
    }

    /// Ends it, well.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.orders = None;
        let status = self.child.wait().context("waiting for a hand")?;
        ensure!(status.success(), "a hand ended with {status}");
        Ok(())
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        // After an error. A session's keeper ends when its agent's input does.
        self.orders = None;
        let _ = self.child.wait();
    }
}

/// A session whose agent is a hand.
pub(crate) struct Session {
    pub(crate) member: Hand,
    /// A file that its policy denies.
    pub(crate) denied: PathBuf,
    events: PathBuf,
}

impl Session {
    /// Starts one; it has been seen to confine.
    pub(crate) fn start(policy: Policy, cache: bool) -> Result<Self> {
        let (file, denied) = write(policy)?;
        let [events, errors] = ["events.jsonl", "errors"].map(|name| papers().join(name));
        for old in [&events, &errors] {
            fs::write(old, "")?;
        }
        let mut command = Command::new("sandbox");
        command
            .args(["run", "--policy"])
            .arg(file)
            .arg("--workspace")
            .arg(ground::workspace())
            .args(["--quiet", "--events"])
            .arg(&events)
            .arg("--")
            .arg(program()?)
            .arg("serve")
            .env("HOME", ground::home())
            .stderr(File::create(&errors)?);
        if !cache {
            command.env(NO_CACHE.0, NO_CACHE.1);
        }
        let mut member = Hand::start(&mut command).with_context(|| {
            fs::read_to_string(&errors).unwrap_or_else(|error| format!("errors: {error}"))
        })?;
        member.must_be_confined(&denied).context("the session does not confine")?;
        Ok(Self { member, denied, events })
    }

    /// Ends it, and fails if anything was denied but what had to be.
    pub(crate) fn finish(self) -> Result<()> {
        self.member.finish()?;
        let events = fs::read_to_string(&self.events).context("reading the session's events")?;
        let mut ended = None;
        for line in events.lines() {
            let event: Value = serde_json::from_str(line).context("an event that is no JSON")?;
            if event["state"] == "ended" {
                ended = Some(event);
            }
        }
        let ended = ended.context("no event tells that the session ended")?;
        ensure!(
            ended["denials"] == 2,
            "2 attempts had to be refused, but {} were\n{events}",
            ended["denials"]
        );
        Ok(())
    }
}

/// Writes the policy; gives its file, and a file that it denies.
pub(crate) fn write(policy: Policy) -> Result<(PathBuf, PathBuf)> {
    let (text, denied) = policies::text(policy);
    fs::create_dir_all(papers())?;
    let file = papers().join("policy.toml");
    fs::write(&file, text).context("writing the policy")?;
    Ok((file, denied))
}

/// In another file system than all that is counted.
fn papers() -> &'static Path {
    Path::new("/tmp/bench")
}

fn program() -> Result<PathBuf> {
    std::env::current_exe().context("where this program is")
}
