//! What the suites share: places, policies, sessions, what a denial must look like, traces.

mod attack;
mod denial;
mod events;
mod ground;
mod hand;
mod kernel_objects;
mod policy;
mod session;
mod traces;

pub(crate) use attack::{Attack, bystander_is_free, member_is_refused};
pub(crate) use denial::{Denial, Why};
pub(crate) use ground::{Ground, HOME, difference, key, snapshot, write};
pub(crate) use hand::{Bystander, Finished, capture, wait};
pub(crate) use policy::Policy;
pub(crate) use session::{Runner, Session, probe_words, verb};
pub(crate) use traces::{Traces, cgroup_root};

use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long anything may take that should happen soon. Generous: the machine may be emulated, its
/// clock is not.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// A test of the suite. Its error is the whole report, over several lines.
pub(crate) fn trial(name: &str, test: fn() -> anyhow::Result<()>) -> Trial {
    Trial::test(name, move || test().map_err(|error| Failed::from(format!("{error:#}"))))
}

/// Runs the suite, one test at a time: sessions and bystanders of one test must not be counted by
/// another.
pub(crate) fn conclude(trials: Vec<Trial>) -> ExitCode {
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
