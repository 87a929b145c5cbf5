//! The `sandbox` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    sandbox_userspace::cli::main()
}
