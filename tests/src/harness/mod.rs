//! What the suites share: places, policies, sessions, what a denial must look like, traces.

mod attack;
mod denial;
mod disk;
mod engine;
mod events;
mod ground;
mod hand;
pub(crate) mod hello;
mod kernel_objects;
mod policy;
mod session;
mod tool;
mod traces;
mod upstream;
mod who;
mod wire;

pub(crate) use attack::{
    Attack, bystander_is_free, bystander_is_free_beside_a_session, member_changes_nothing,
    member_is_refused,
};
pub(crate) use denial::{Denial, Why};
pub(crate) use disk::{Disk, btrfs_image, disregard_case, ext4_image, forget_names, write_fat};
pub(crate) use engine::engines;
pub(crate) use events::Events;
pub(crate) use ground::{Ground, HOME, difference, key, snapshot, write};
pub(crate) use hand::{Bystander, Finished, Hand, capture, capture_within, wait};
pub(crate) use kernel_objects::{Packets, attached};
pub(crate) use policy::Policy;
pub(crate) use session::{Runner, Session, probe_words, sandbox, verb};
pub(crate) use tool::Tool;
pub(crate) use traces::{Traces, cgroup_root, memory};
pub(crate) use upstream::{Stands, Upstream};
pub(crate) use who::{Lent, ORDINARY, both, dev, give, home, is_root, ordinary, uid};
pub(crate) use wire::Wire;

use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long anything may take that should happen soon. Generous: the machine may be emulated, its
/// clock is not.
pub(crate) const PATIENCE: Duration = Duration::from_mins(3);

/// A test of the suite. Its error is the whole report, over several lines.
pub(crate) fn trial(
    name: &str,
    test: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> Trial {
    Trial::test(name, move || {
        engine::keep();
        test().map_err(|error| Failed::from(format!("{error:#}")))
    })
}

/// A test that begins where no engine is loaded. One after the other they are the cheaper.
pub(crate) fn trial_without_engine(name: &str, test: fn() -> anyhow::Result<()>) -> Trial {
    Trial::test(name, move || {
        let result = engine::release().and_then(|()| test());
        result.map_err(|error| Failed::from(format!("{error:#}")))
    })
}

/// Word on the kernel's command line of every machine that `cargo xtask` boots.
const MACHINE: &str = "sandbox.test_machine";

/// Runs the suite, one test at a time: sessions and bystanders of one test must not be counted by
/// another.
///
/// Only in a test machine: attacks that get through overwrite system files.
pub(crate) fn conclude(trials: Vec<Trial>) -> ExitCode {
    let kernel = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    if !kernel.split_whitespace().any(|word| word == MACHINE) {
        eprintln!(
            "this suite attacks the machine it runs on, and this is not one to be thrown away: \
             `cargo xtask test` boots one"
        );
        return ExitCode::FAILURE;
    }
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Asks until the answer is `Some`, for at most `patience`.
pub(crate) fn eventually<T>(patience: Duration, mut ask: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + patience;
    loop {
        if let Some(answer) = ask() {
            return Some(answer);
        }
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
