//! Sessions on this machine with a stand-in for the kernel's programs: cgroups, processes,
//! signals, terminals and cleaning up are real. Needs root and a cgroup v2 hierarchy.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod jobs;
mod life;
mod orphans;
mod place;
mod stand_in;

use libtest_mimic::{Arguments, Failed, Trial};
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = stand_in::main() {
        return code;
    }
    default_signals();
    let mut arguments = Arguments::from_args();
    // They share the machine's cgroups and process table.
    arguments.test_threads = Some(1);
    let lacks = place::lacks();
    if let Some(lacks) = &lacks {
        eprintln!("session tests are skipped: {lacks}");
    }
    let tests = [life::tests(), orphans::tests(), jobs::tests()].concat();
    let trials = tests.into_iter().map(|(name, test)| {
        let run = move || -> Result<(), Failed> {
            test();
            Ok(())
        };
        Trial::test(name, run).with_ignored_flag(lacks.is_some())
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// Whoever started the tests may ignore signals (`nohup`, a shell's background job), and programs
/// inherit that; the tests are about programs that do not.
fn default_signals() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGPIPE] {
        // SAFETY: a plain system call; the default action needs no handler.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}
