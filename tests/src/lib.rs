//! What runs inside the test machines.
//!
//! The suites are black box: they start the real `sandbox` program and judge what the kernel then
//! does. `probe` performs single operations by system calls and says how they went, `harness`
//! starts sessions and reads their events, `suite` holds the kernel suite, one file a promise, and
//! `system` the suite that drives everyday programs. See `docs/testing.md`.

mod coverage;
mod differential;
mod harness;
mod probe;
mod race;
mod suite;
mod system;

use std::process::ExitCode;

/// The program `kernel-tests`: the kernel suite, or, called as `kernel-tests probe …` and
/// `kernel-tests stage …`, the hand that performs operations on its behalf. `kernel-tests rows`
/// prints which test shows which technique, one a line, and starts nothing.
pub fn kernel_tests() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("rows") {
        for (row, test) in suite::rows() {
            println!("{row}\t{test}");
        }
        return ExitCode::SUCCESS;
    }
    match probe::command_line() {
        Some(status) => status,
        None => harness::conclude(suite::trials()),
    }
}

/// The program `system-tests`: everyday programs on a full system.
pub fn system_tests() -> ExitCode {
    match probe::command_line() {
        Some(status) => status,
        None => harness::conclude(system::trials()),
    }
}
