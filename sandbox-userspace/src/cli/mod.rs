//! The verbs, one file each.

use std::process::ExitCode;

pub mod doctor;
pub mod policy;

/// Parses the arguments and runs the verb.
pub fn main() -> ExitCode {
    ExitCode::FAILURE
}
