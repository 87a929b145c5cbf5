//! `cargo xtask build`: the BPF object, and static programs that hold it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};

use crate::cache::{self, Cache};
use crate::command::{progress, run};
use crate::toolchain;

pub(crate) const BPF_TARGET: &str = "bpfel-unknown-none";
const BPF_PROGRAMS: &str = "sandbox-programs";
/// Programs run in an initramfs and in any container, so they are linked statically.
const TARGET: &str = "x86_64-unknown-linux-gnu";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build the programs unoptimised; the BPF object is optimised always, for the verifier
    #[arg(long)]
    debug: bool,
}

/// How the programs are compiled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Profile {
    /// As they are shipped.
    Release,
    /// For the suites: optimised as well, but `sandbox` and the test programs, and what both need, at once.
    Tests,
    /// Unoptimised.
    Dev,
}

impl Profile {
    /// Unoptimised where that is wanted.
    pub(crate) fn shipped_or_dev(debug: bool) -> Self {
        if debug { Self::Dev } else { Self::Release }
    }

    /// Which packages cargo builds in which of its profiles.
    fn packages(self) -> Vec<(&'static str, Vec<&'static str>)> {
        let (shipped, tests) = (["sandbox-userspace", "sandbox-benches"], "sandbox-tests");
        match self {
            Self::Release => vec![("release", shipped.to_vec()), ("tests", vec![tests])],
            Self::Tests => vec![("tests", [&shipped[..], &[tests]].concat())],
            Self::Dev => vec![("dev", [&shipped[..], &[tests]].concat())],
        }
    }
}

pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    println!("{}", build(Profile::shipped_or_dev(args.debug))?.display());
    Ok(ExitCode::SUCCESS)
}

/// Builds everything into the directory `dist` of the target directory, and gives its path.
pub(crate) fn build(profile: Profile) -> Result<PathBuf> {
    let cache = Cache::open()?;
    toolchain::core_sources(&cache)?;
    let linker = toolchain::bpf_linker(&cache)?;
    drop(cache);
    let target = target_directory();

    let object = bpf(&linker, &target.join("bpf"))?;
    let programs = programs(profile, &object, &target.join("static"))?;

    let dist = target.join("dist");
    cache::remove(&dist)?;
    fs::create_dir_all(&dist).with_context(|| format!("cannot make {}", dist.display()))?;
    for program in programs {
        let name = program.file_name().context("a program without a name")?;
        fs::copy(&program, dist.join(name))
            .with_context(|| format!("cannot copy {}", program.display()))?;
    }
    Ok(dist)
}

/// The root of the workspace.
pub(crate) fn workspace() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Where this checkout's build products go.
pub(crate) fn target_directory() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| workspace().join("target"), PathBuf::from)
}

/// Compiles the programs for the kernel; gives the object's path.
fn bpf(linker: &Path, target: &Path) -> Result<PathBuf> {
    progress("building the BPF programs");
    let mut cargo = toolchain::cargo();
    cargo
        .current_dir(workspace())
        .args(["build", "--quiet", "--release", "--package", "sandbox-ebpf"])
        .args(["--bin", BPF_PROGRAMS, "--target", BPF_TARGET, "-Z", "build-std=core"])
        .arg("--target-dir")
        .arg(target);
    bpf_environment(&mut cargo, linker);
    run(&mut cargo)?;
    Ok(target.join(BPF_TARGET).join("release").join(BPF_PROGRAMS))
}

/// What makes cargo compile for the BPF target with the stable compiler.
pub(crate) fn bpf_environment(cargo: &mut std::process::Command, linker: &Path) {
    let flags = ["--cfg=bpf_target_arch=\"x86_64\"", "-Cdebuginfo=2", "-Clink-arg=--btf"];
    cargo
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f"))
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", linker);
}

/// Compiles `sandbox`, with the object in it, and the test programs; gives their paths.
fn programs(profile: Profile, object: &Path, target: &Path) -> Result<Vec<PathBuf>> {
    progress("building the programs");
    let object = std::path::absolute(object)?;
    let mut programs = Vec::<PathBuf>::new();
    for (profile, packages) in profile.packages() {
        let mut cargo = toolchain::cargo();
        cargo
            .current_dir(workspace())
            .args(["build", "--quiet", "--bins", "--target", TARGET, "--target-dir"])
            .arg(target)
            .args(["--profile", profile])
            .env("RUSTFLAGS", "-C target-feature=+crt-static")
            .env("SANDBOX_BPF_OBJECT", &object);
        for package in packages {
            cargo.args(["--package", package]);
        }
        run(&mut cargo)?;
        let directory = if profile == "dev" { "debug" } else { profile };
        let built = built(&target.join(TARGET).join(directory))?;
        let is_new = |program: &PathBuf| {
            programs.iter().all(|other| other.file_name() != program.file_name())
        };
        // What the directory has besides is left from when more was built in this profile.
        let new: Vec<_> = built.into_iter().filter(is_new).collect();
        programs.extend(new);
    }
    Ok(programs)
}

/// The programs in a directory of cargo's.
fn built(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut programs = Vec::new();
    let entries =
        fs::read_dir(directory).with_context(|| format!("cannot list {}", directory.display()))?;
    for entry in entries {
        let path = entry?.path();
        let is_program = path.is_file() && path.extension().is_none();
        if is_program && path.file_name() != Some(&OsString::from(".cargo-lock")) {
            programs.push(path);
        }
    }
    Ok(programs)
}
