//! `sandbox doctor`: what this kernel can enforce, proved.

use std::process::ExitCode;

/// Arguments of `sandbox doctor`.
#[derive(Debug, clap::Args)]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Runs `sandbox doctor`.
pub fn execute(args: &DoctorArgs) -> ExitCode {
    let _ = args;
    ExitCode::FAILURE
}
