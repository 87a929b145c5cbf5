//! Who leads: everything in turn, one boot.

use super::ground::{self, TREES};
use super::hand::{Hand, Session, write};
use anyhow::{Context as _, Result, bail, ensure};
use sandbox_benches::{Line, Measurement, Operation, Policy, Row, Who, rows};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write as _};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// After the boot the kernel has much to tidy up; it costs nothing to let it.
const SETTLE: Duration = Duration::from_secs(20);
/// What is counted once more in the end must be as in the beginning, by this many instructions.
const SAME: f64 = 10.0;
/// Detaching dozens of programs takes the kernel as many grace periods.
const DETACH: Duration = Duration::from_mins(1);
const SESSIONS: &str = "/sys/fs/bpf/sandbox";

/// `bench machine [--no-cache] [FILTER]`: every row whose name contains the filter.
pub(crate) fn machine(options: &[&str]) -> Result<()> {
    let (uncached, filter) = match options {
        ["--no-cache", filter @ ..] => (true, filter),
        filter => (false, filter),
    };
    let ([] | [_]) = filter else { bail!("more than one filter") };
    let mut rows = rows();
    rows.retain(|row| filter.iter().all(|filter| row.to_string().contains(filter)));
    ensure!(!rows.is_empty(), "no row is named like that");
    ground::make().context("making the places")?;
    thread::sleep(SETTLE);

    let operations: BTreeSet<Operation> = rows.iter().map(|row| row.operation).collect();
    progress("no session")?;
    let before = alone(Hand::free()?, Who::None, &operations)?;
    let mut landlocked = Hand::landlocked()?;
    progress("Landlock")?;
    let network = landlocked.must_be_landlocked(&ground::secret())?;
    let mut possible = operations;
    possible.retain(|operation| network || *operation != Operation::TcpConnect);
    alone(landlocked, Who::Landlock, &possible)?;

    let mut policies: Vec<Policy> = rows.iter().map(|row| row.policy).collect();
    policies.sort_unstable();
    policies.dedup();
    for policy in policies {
        if let Some(why) = refused(policy)? {
            say(&Line::Unmeasured { policy, why })?;
            continue;
        }
        let rows: Vec<_> = rows.iter().filter(|row| row.policy == policy).copied().collect();
        progress(&format!("a session with {policy}"))?;
        session(policy, &rows, Who::Member)?;
        if uncached {
            progress(&format!("a session with {policy} without cache"))?;
            session(policy, &rows, Who::Uncached)?;
        }
    }

    progress("no session, once more")?;
    let (operation, first) = before;
    let again = Hand::free()?.count(operation, 0)?.instructions;
    ensure!(
        (first - again).abs() <= SAME,
        "something stays behind: {operation} took {first} instructions before the sessions and \
         takes {again} after them"
    );
    Ok(())
}

/// `bench verifier`: what the verifier followed of each program of a session.
pub(crate) fn verifier() -> Result<()> {
    ground::make().context("making the places")?;
    let session = Session::start(Policy::Default, true)?;
    let mut sessions = fs::read_dir(SESSIONS).context("looking for the session's pins")?;
    let pins = sessions.next().context("no session has pins")??.path();
    ensure!(sessions.next().is_none(), "there is another session");
    let counts = sandbox_benches::verifier::counts(&pins.join("links"))?;
    session.finish()?;
    say(&Line::Verified(counts))
}

/// Everything by a hand while there is no session; gives the first number.
fn alone(mut hand: Hand, who: Who, operations: &BTreeSet<Operation>) -> Result<(Operation, f64)> {
    let mut first = None;
    for &operation in operations {
        let instructions = tell(&mut hand, operation, None, who)?;
        first.get_or_insert((operation, instructions));
    }
    hand.finish()?;
    first.context("nothing to do")
}

/// The rows of one policy, by its member, and by a bystander while the member waits.
fn session(policy: Policy, rows: &[Row], who: Who) -> Result<()> {
    let mut session = Session::start(policy, who != Who::Uncached)?;
    let mut bystander = Hand::free()?;
    bystander.must_be_free(&session.denied)?;
    // By another hand: what one has done before decides how much memory there is to be copied
    // when it forks.
    let mut warmer = Hand::free()?;
    for tree in 0..TREES {
        warmer.warm(tree)?;
    }
    warmer.finish()?;
    for row in rows {
        tell(&mut session.member, row.operation, Some(policy), who)?;
    }
    if who == Who::Member && policy == Policy::Default {
        for row in rows {
            tell(&mut bystander, row.operation, Some(policy), Who::Bystander)?;
        }
    }
    bystander.finish()?;
    session.finish().with_context(|| format!("the session with {policy}"))?;
    thread::sleep(DETACH);
    Ok(())
}

/// Lets the hand count, and prints it.
fn tell(hand: &mut Hand, operation: Operation, policy: Option<Policy>, who: Who) -> Result<f64> {
    let counted = match operation {
        // Every tree is new for a member only once, so that each gives one number.
        Operation::FirstPass | Operation::SecondPass => {
            let mut passes = Vec::new();
            for tree in 0..TREES {
                if operation == Operation::SecondPass {
                    hand.warm(tree)?;
                }
                passes.push(hand.count(operation, tree)?);
            }
            passes.sort_by(|a, b| a.instructions.total_cmp(&b.instructions));
            let [mut least, second, ..] = passes[..] else { bail!("no trees") };
            least.spread = second.instructions - least.instructions;
            least
        }
        _ => hand.count(operation, 0)?,
    };
    let (instructions, spread) = (counted.instructions, counted.spread);
    say(&Line::Measured(Measurement { operation, policy, who, instructions, spread }))?;
    Ok(instructions)
}

/// Why `sandbox` does not take the policy, if it does not.
fn refused(policy: Policy) -> Result<Option<String>> {
    let (file, _) = write(policy)?;
    let mut check = Command::new("sandbox");
    check.args(["policy", "check"]).arg(&file).env("HOME", ground::home());
    let output = check.output().with_context(|| format!("starting {check:?}"))?;
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok((!output.status.success()).then_some(why))
}

fn progress(text: &str) -> Result<()> {
    say(&Line::Progress(text.to_owned()))
}

fn say(line: &Line) -> Result<()> {
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    io::stdout().lock().write_all(text.as_bytes()).context("printing")
}
