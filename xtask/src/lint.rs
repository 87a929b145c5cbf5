//! `cargo xtask lint`: what every change must pass besides the tests.

use std::process::{Command, ExitCode};

use anyhow::Result;

use crate::cache::Cache;
use crate::command::{progress, run};
use crate::{build, toolchain};

/// Lints that kernel-side code cannot heed: the attach macros hand contexts over by value, there is
/// nobody to tell of a failed conversion, and the kernel's structures are as they are.
const AGAINST_THE_GRAIN: &[&str] = &[
    "clippy::cast_possible_truncation",
    "clippy::cast_possible_wrap",
    "clippy::cast_ptr_alignment",
    "clippy::cast_sign_loss",
    "clippy::needless_pass_by_value",
];

pub(crate) fn main() -> Result<ExitCode> {
    let cache = Cache::open()?;
    toolchain::core_sources(&cache)?;
    let linker = toolchain::bpf_linker(&cache)?;
    let deny = toolchain::cargo_deny(&cache)?;
    drop(cache);

    progress("checking format");
    run(cargo().args(["fmt", "--all", "--check"]))?;

    progress("checking lints of the programs");
    run(cargo().args(["clippy", "--quiet", "--workspace", "--exclude", "sandbox-ebpf"]).args([
        "--all-targets",
        "--target-dir",
        &build::target_directory().to_string_lossy(),
        "--",
        "-D",
        "warnings",
    ]))?;

    progress("checking lints of the BPF programs");
    let mut clippy = cargo();
    clippy
        .args(["clippy", "--quiet", "--release", "--package", "sandbox-ebpf"])
        .args(["--target", build::BPF_TARGET, "-Z", "build-std=core", "--target-dir"])
        .arg(build::target_directory().join("bpf"))
        .args(["--", "-D", "warnings"])
        .args(AGAINST_THE_GRAIN.iter().flat_map(|lint| ["-A", lint]));
    build::bpf_environment(&mut clippy, &linker);
    run(&mut clippy)?;

    progress("checking licences and sources of dependencies");
    let mut check = Command::new(deny);
    check.current_dir(build::workspace()).args(["check", "licenses", "bans", "sources"]);
    run(&mut check)?;

    Ok(ExitCode::SUCCESS)
}

fn cargo() -> Command {
    let mut cargo = toolchain::cargo();
    cargo.current_dir(build::workspace());
    cargo
}
