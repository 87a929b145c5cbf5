//! What stable Rust lacks for the BPF target: `core`'s sources and bpf-linker.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, bail};

use crate::apt::Apt;
use crate::cache::{self, Cache};
use crate::command::{find, output, progress, run};
use crate::packages;

/// The last release that can use rustc's own LLVM, which spares everybody an LLVM package.
const LINKER_VERSION: &str = "0.10.4";
const DENY_VERSION: &str = "0.20.2";
/// The rustup server may be out of reach, where connecting takes minutes to fail.
const RUSTUP_SECONDS: &str = "30";

/// Makes sure `core` can be built from source with the compiler of this workspace. In this order:
/// what is there already, the archive that `SANDBOX_RUST_SRC` names, rustup, Debian's package of
/// the same version.
pub(crate) fn core_sources(cache: &Cache) -> Result<()> {
    let sysroot = output(rustc().args(["--print", "sysroot"]))?;
    let sources = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library");
    if sources.join("core").exists() {
        return Ok(());
    }
    let from = |what, done: Result<()>| match done {
        Ok(()) if sources.join("core").exists() => None,
        Ok(()) => Some(anyhow!("{what}: it holds no rust/library/core")),
        Err(error) => Some(error.context(what)),
    };
    let mut failures = Vec::new();
    if let Some(archive) = std::env::var_os("SANDBOX_RUST_SRC").map(PathBuf::from) {
        progress(&format!("unpacking core's sources from {}", archive.display()));
        let Some(failure) = from("SANDBOX_RUST_SRC", from_archive(&archive, &sources)) else {
            return Ok(());
        };
        failures.push(failure);
    }
    progress("fetching core's sources with rustup");
    let Some(failure) = from("rustup", from_rustup()) else { return Ok(()) };
    failures.push(failure);
    progress("fetching core's sources from Debian's package rust-src");
    let Some(failure) = from("Debian's package rust-src", from_debian(cache, &sources)) else {
        return Ok(());
    };
    failures.push(failure);
    let failures: Vec<_> = failures.iter().map(|failure| format!("{failure:#}")).collect();
    bail!(
        "no sources of core for the BPF target at {}.\n{}\nTo mend it: run `rustup component add \
         rust-src`, or set SANDBOX_RUST_SRC to a .tar.xz of this compiler's sources whose top is \
         rust/library",
        sources.display(),
        failures.join("\n")
    )
}

/// The cached bpf-linker, built if there is none.
pub(crate) fn bpf_linker(cache: &Cache) -> Result<PathBuf> {
    let features = ["--no-default-features", "--features", "rust-llvm-22"];
    installed(cache, "bpf-linker", LINKER_VERSION, &features)
}

/// The cached cargo-deny, built if there is none.
pub(crate) fn cargo_deny(cache: &Cache) -> Result<PathBuf> {
    installed(cache, "cargo-deny", DENY_VERSION, &[])
}

/// A program from the crates registry in the cache, at an exact version.
fn installed(cache: &Cache, name: &str, version: &str, options: &[&str]) -> Result<PathBuf> {
    let place = format!("{name}-{version}");
    let program = cache.path(&place).join("bin").join(name);
    if !program.exists() {
        progress(&format!("building {name} {version} (some minutes)"));
        let install = |to: &Path| {
            let mut install = cargo();
            install.args(["install", name, "--version", version, "--locked", "--quiet"]);
            install.args(options).arg("--root").arg(to);
            run(&mut install)
        };
        cache.replace(&place, install)?;
    }
    Ok(program)
}

/// The cargo that runs us, free of what it set for us and of flags meant for the host.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&name);
        }
    }
    for name in ["RUSTFLAGS", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET", "CARGO_TARGET_DIR"] {
        cargo.env_remove(name);
    }
    cargo
}

fn rustc() -> Command {
    Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
}

fn from_archive(archive: &Path, sources: &Path) -> Result<()> {
    packages::ensure(&[("xz", "xz-utils")])?;
    if !archive.is_file() {
        bail!("{} is no file", archive.display());
    }
    let src = sources.ancestors().nth(2).context("the sysroot has no parent")?;
    fs::create_dir_all(src).with_context(|| format!("cannot make {}", src.display()))?;
    run(Command::new("tar").arg("-xJf").arg(archive).arg("-C").arg(src))
}

fn from_rustup() -> Result<()> {
    if find("rustup").is_none() {
        bail!("there is no rustup");
    }
    run(Command::new("timeout").arg(RUSTUP_SECONDS).args([
        "rustup",
        "--quiet",
        "component",
        "add",
        "rust-src",
    ]))
}

fn from_debian(cache: &Cache, sources: &Path) -> Result<()> {
    if find("apt-get").is_none() {
        bail!("there is no apt");
    }
    let version = output(rustc().arg("--version"))?;
    let version = version.split_whitespace().nth(1).context("rustc printed no version")?;
    let apt = Apt::open(cache)?;
    let offered = apt.all_versions("rust-src")?;
    let Some(package) = offered.iter().find(|offer| offer.starts_with(&format!("{version}+")))
    else {
        bail!("the archive has {}, not {version}", offered.join(", "));
    };
    let work = cache.path("rust-src");
    cache::remove(&work)?;
    fs::create_dir_all(&work)?;
    let wanted = [("rust-src".to_owned(), package.clone())].into();
    for file in apt.download(&wanted, &work)? {
        run(Command::new("dpkg-deb").arg("--extract").args([&file, &work]))?;
    }
    let parent = sources.parent().context("the sysroot has no parent")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))?;
    run(Command::new("cp")
        .args(["--recursive", "--no-target-directory"])
        .arg(work.join(format!("usr/src/rustc-{version}/library")))
        .arg(sources))?;
    cache::remove(&work)
}
