//! A member that takes all it can get takes it from itself, and is confined as before.

use crate::harness::{Bystander, Denial, Ground, Policy, Runner, Session, key, memory, trial};
use crate::probe::{Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("greed::fork_bomb_ends_at_the_limit", bomb),
        trial("greed::files_fill_no_memory", || files(20_000)),
        // Minutes in a machine without KVM: by `--ignored`.
        trial("greed::a_million_files_fill_no_memory", || files(1_000_000)).with_ignored_flag(true),
    ]
}

fn open(path: &Place) -> Operation {
    Operation::Open { path: path.clone(), flags: libc::O_RDONLY }
}

/// Processes at once, of which one is the agent and one does what the test says.
const PROCESSES: u64 = 24;

fn bomb() -> anyhow::Result<()> {
    let ground = Ground::new("bomb")?;
    let (key, twin) = (key()?, ground.file(&ground.workspace())?);
    let runner = Runner::new(&ground, &Policy::preset())?;
    let text = format!("version = 1\nextends = [\"default\"]\n[limits]\npids = {PROCESSES}\n");
    std::fs::write(&runner.policy, text)?;
    let mut session = runner.open()?;
    let mut bystander = Bystander::new()?;
    let answer = session.allowed("a fork bomb", &Operation::Bomb { path: key.clone() })?;
    let count = |what: &str| answer.data[what].as_u64().context("a count");
    let (born, refused, opened) = (count("born")?, count("refused")?, count("opened")?);
    ensure!((1..PROCESSES).contains(&born), "{born} were born of {PROCESSES}");
    ensure!(refused == born + 1 && opened == 0, "{answer}");
    let events = std::fs::read_to_string(session.cgroup()?.join("pids.events"))?;
    let limited = events.lines().any(|line| line.starts_with("max ") && line != "max 0");
    ensure!(limited, "the cgroup refused nobody: {events:?}");
    let answer = bystander.perform(&Operation::Fork { then: Box::new(open(&key)) })?;
    ensure!(answer.errno == 0, "a bystander was hindered: {answer}");
    session.refused("after the bomb", &open(&key), &Denial::read(&key).of_key())?;
    let child = Operation::Fork { then: Box::new(open(&twin)) };
    session.allowed("a child, after the bomb", &child)?;
    session.finish()
}

fn files(files: u32) -> anyhow::Result<()> {
    let ground = Ground::new("many-files")?;
    let key = key()?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    session.refused("before", &open(&key), &Denial::read(&key).of_key())?;
    let before = memory()?;
    let many = Operation::Many { directory: ground.workspace(), files };
    let answer = session.allowed("files without end", &many)?;
    ensure!(answer.data == files, "{answer}");
    let after = memory()?;
    ensure!(!before.is_empty() && before.keys().eq(after.keys()), "maps came or went");
    let grown: Vec<_> = before
        .iter()
        .zip(after.values())
        .filter(|((_, before), after)| after > before)
        .map(|((map, before), after)| (map, before, after))
        .collect();
    ensure!(grown.is_empty(), "{files} files made maps larger: {grown:?}");
    println!("the maps take {} bytes of kernel memory", after.values().sum::<u64>());
    session.refused("afterwards", &open(&key), &Denial::read(&key).of_key())?;
    session.finish()
}
