//! The second way of attaching only where no task is interrupted inside a hook.

use crate::harness::{Ground, Policy, Runner, Traces, trial};
use anyhow::ensure;
use libtest_mimic::Trial;
use sandbox_userspace::engine::Way;
use sandbox_userspace::kernel::features::{Paths, Survey};
use sandbox_userspace::kernel::preemption::Preemption;

pub(super) fn trials() -> Vec<Trial> {
    vec![trial("preemption::hooks_that_can_be_left_out_are_not_relied_on", relied_on)]
}

fn relied_on() -> anyhow::Result<()> {
    let survey = Survey::take(Paths::default());
    // Debian's choice: voluntary while there was one, lazy since there is none.
    let lazy = !survey.release.starts_with("6.");
    let expected = if lazy { Preemption::Yes } else { Preemption::No };
    ensure!(survey.preemption == expected, "{:?} on {}", survey.preemption, survey.release);
    let ground = Ground::new("preemption")?;
    let mark = ground.workspace().join("started");
    let before = Traces::now()?;
    let finished =
        Runner::new(&ground, &Policy::preset())?.probe(&["touch", &mark.to_string()], "")?;
    if survey.way() == Way::BpfLsm || !lazy {
        ensure!(finished.code() == Some(0), "{}", finished.report());
        return Ok(());
    }
    ensure!(finished.code() == Some(125), "must end with 125: {}", finished.report());
    let words = ["interrupts tasks inside the kernel", "help:", ",bpf`"];
    let told = words.iter().all(|word| finished.err.contains(word));
    ensure!(told, "the message must hold {words:?}: {}", finished.report());
    before.must_return()
}
