//! `cargo xtask coverage`: writes `docs/coverage.md` from the tables of the tests.

use std::fs;
use std::process::{ExitCode, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::command::line;
use crate::{build, toolchain};

pub(crate) fn main() -> Result<ExitCode> {
    let mut cargo = toolchain::cargo();
    cargo
        .current_dir(build::workspace())
        .args(["run", "--quiet", "--package", "sandbox-tests", "--bin", "kernel-tests"])
        .arg("--target-dir")
        .arg(build::target_directory())
        .args(["--", "coverage"])
        .stderr(Stdio::inherit());
    let output = cargo.output().with_context(|| format!("cannot start: {}", line(&cargo)))?;
    ensure!(output.status.success(), "{} ended with {}", line(&cargo), output.status);
    let file = build::workspace().join("docs/coverage.md");
    fs::write(&file, output.stdout).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(ExitCode::SUCCESS)
}
