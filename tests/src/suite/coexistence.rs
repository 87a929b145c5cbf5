//! Others decide at the same hooks: what either refuses is refused.

use crate::harness::{
    Bystander, Denial, Ground, Policy, Session, Tool, Traces, key, trial, trial_without_engine,
    verb,
};
use crate::probe::{Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use std::path::Path;

pub(super) fn trials_without_engine() -> Vec<Trial> {
    vec![trial_without_engine("coexistence::another_tool_before_and_after", tools)]
}

pub(super) fn trials() -> Vec<Trial> {
    vec![trial("coexistence::landlock", landlock)]
}

fn open(path: &Place) -> Operation {
    Operation::Open { path: path.clone(), flags: libc::O_RDONLY }
}

/// Refused by somebody else, so that there is no event of ours.
fn refused_by_other(
    session: &mut Session,
    what: &str,
    operation: &Operation,
    errno: i32,
) -> anyhow::Result<()> {
    let before = session.events().all().len();
    let answer = session.perform(operation)?;
    if answer.errno != errno {
        session.problem(format!("{what}: {answer}"));
    }
    let told = session.events().all().len() - before;
    if told != 0 {
        session.problem(format!("{what}: {told} events\n{}", session.events().tail(told)));
    }
    Ok(())
}

fn landlock() -> anyhow::Result<()> {
    let ground = Ground::new("landlock")?;
    let (key, twin) = (key()?, ground.file(&ground.workspace())?);
    let outside = ground.file(&ground.outside())?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let confined = |beneath: Place, path: &Place| Operation::Landlocked {
        beneath,
        then: Box::new(open(path)),
    };
    let root = || Place::from("/");
    session.allowed("outside, without Landlock", &open(&outside))?;
    let beneath = ground.workspace();
    let operation = confined(beneath.clone(), &outside);
    refused_by_other(&mut session, "outside, by Landlock", &operation, libc::EACCES)?;
    session.allowed("where both allow", &confined(beneath, &twin))?;
    let denial = Denial::read(&key).of_key();
    session.refused("the key, which Landlock allows", &confined(root(), &key), &denial)?;
    let answer = Bystander::new()?.perform(&confined(root(), &key))?;
    ensure!(answer.errno == 0, "a bystander's Landlock refuses what it allows: {answer}");
    session.finish()
}

/// More than any hook takes: `BPF_MAX_TRAMP_LINKS` (include/linux/bpf.h) is 38, and newer kernels have no room for as
/// many.
const MANY: usize = 100;
/// Whom the other tool refuses.
const USER: u32 = 4_242;

fn tools() -> anyhow::Result<()> {
    // Where the user gets.
    let ground = Ground::beneath(Path::new("/tmp"), "tools")?;
    let before = Traces::now()?;
    let mut tools = Tool::attach("file_open", USER, MANY)?;
    ensure!((20..MANY).contains(&tools.len()), "a hook takes {} programs", tools.len());
    println!("a hook takes {} programs", tools.len());
    // There is no room for another, and whoever asks is told.
    let full = verb(&ground.papers("verbs"), &["engine", "keep"])?;
    let told = ["BPF_MAX_TRAMP_LINKS", "file_open", "help:"];
    let explained = told.iter().all(|word| full.err.contains(word));
    ensure!(full.code() == Some(1) && explained, "{told:?}: {}", full.report());

    tools.pop();
    let (key, twin) = (key()?, ground.file(&ground.workspace())?);
    let as_user = |path: &Place| Operation::As { uid: USER, then: Box::new(open(path)) };
    let both = |session: &mut Session, when: &str| -> anyhow::Result<()> {
        session.refused(&format!("the key {when}"), &open(&key), &Denial::read(&key).of_key())?;
        session.allowed(&format!("the twin {when}"), &open(&twin))?;
        refused_by_other(session, &format!("the twin, {when}"), &as_user(&twin), libc::EPERM)
    };
    let mut session = Session::start(&ground, &Policy::preset())?;
    both(&mut session, "with tools before")?;
    tools.clear();
    session.allowed("the twin, without tools", &as_user(&twin))?;
    tools = Tool::attach("file_open", USER, 1)?;
    both(&mut session, "with a tool after")?;
    let answer = Bystander::new()?.perform(&as_user(&twin))?;
    ensure!(answer.errno == libc::EPERM, "the tool refuses a bystander too: {answer}");
    session.finish()?;
    tools.clear();
    before.must_return().context("after all")
}
