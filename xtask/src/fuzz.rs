//! `cargo xtask fuzz`: the targets of `fuzz`, led by which code they reach.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};

use crate::command::{progress, run};
use crate::{build, packages, toolchain};

/// The instrumentation that libFuzzer reads: counters of edges, and where these are.
const FLAGS: &str = "--cfg fuzzing -C passes=sancov-module -C llvm-args=-sanitizer-coverage-level=4 \
    -C llvm-args=-sanitizer-coverage-inline-8bit-counters -C llvm-args=-sanitizer-coverage-pc-table \
    -C codegen-units=1";
/// What is instrumented must have a target of its own, or what runs while it is built is too.
const HOST: &str = "x86_64-unknown-linux-gnu";

/// A target, and where examples for it are besides those in `fuzz/seeds`.
const TARGETS: [(&str, Option<&str>); 5] = [
    ("hello", Some("sandbox-userspace/tests/hellos")),
    ("import", None),
    ("learn", None),
    ("names", None),
    ("policy", Some("sandbox-userspace/src/policy/presets")),
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the target of this name
    #[arg(value_parser = TARGETS.map(|(name, _)| name))]
    target: Option<String>,
    /// For so long, each
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// More options of libFuzzer, or files that are to be read once
    #[arg(last = true)]
    options: Vec<String>,
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    packages::ensure(&[("c++", "g++")])?;
    progress("building the fuzz targets");
    let (source, place) = (build::workspace(), build::target_directory().join("fuzz"));
    let mut cargo = toolchain::cargo();
    cargo
        .current_dir(source.join("fuzz"))
        .args(["build", "--quiet", "--release", "--locked", "--target", HOST, "--target-dir"])
        .arg(&place)
        .env("RUSTFLAGS", FLAGS);
    run(&mut cargo)?;
    let mut failed = Vec::new();
    for (name, examples) in TARGETS {
        if args.target.as_ref().is_some_and(|target| target != name) {
            continue;
        }
        progress(&format!("target {name}"));
        let corpus = place.join("corpus").join(name);
        fs::create_dir_all(&corpus).with_context(|| format!("cannot make {}", corpus.display()))?;
        let mut fuzzer = Command::new(place.join(HOST).join("release").join(name));
        fuzzer
            .args(["-max_len=65536", "-timeout=10", "-print_final_stats=1"])
            .arg(format!("-max_total_time={}", args.seconds))
            .arg(format!("-artifact_prefix={}/{name}-", place.display()))
            .args(&args.options);
        // Files are read once; else new examples go into the first directory.
        if !args.options.iter().any(|option| Path::new(option).is_file()) {
            let seeds = source.join("fuzz/seeds").join(name);
            let seeds = [Some(seeds), examples.map(|path| source.join(path))];
            fuzzer.arg(corpus).args(seeds.into_iter().flatten().filter(|path| path.is_dir()));
        }
        if let Err(error) = run(&mut fuzzer) {
            failed.push(format!("{name}: {error:#}"));
        }
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(ExitCode::SUCCESS)
}
