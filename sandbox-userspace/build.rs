//! Puts the compiled BPF object where `engine::load` includes it, and what it is called beside it: every start
//! asks for that, and it takes a while to be computed.
//!
//! `cargo xtask build` compiles the programs and names the object in `SANDBOX_BPF_OBJECT`. Without
//! it an empty object is embedded, so that plain cargo commands need no BPF toolchain; such a
//! `sandbox` says so and starts nothing.

use anyhow::{Context, Result};
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::{env, fs};

const OBJECT: &str = "SANDBOX_BPF_OBJECT";

fn main() -> Result<()> {
    println!("cargo:rerun-if-env-changed={OBJECT}");
    let directory = PathBuf::from(env::var("OUT_DIR")?);
    let (target, named) = (directory.join("programs.o"), directory.join("programs.name"));
    let programs = match env::var_os(OBJECT) {
        Some(object) => {
            let object = PathBuf::from(object);
            println!("cargo:rerun-if-changed={}", object.display());
            fs::read(&object).with_context(|| format!("reading {} ({OBJECT})", object.display()))?
        }
        None => Vec::new(),
    };
    let mut name = String::from("programs of sha256 ");
    for byte in Sha256::digest(&programs) {
        write!(name, "{byte:02x}")?;
    }
    for (target, bytes) in [(&target, &programs[..]), (&named, name.as_bytes())] {
        fs::write(target, bytes).with_context(|| format!("writing {}", target.display()))?;
    }
    Ok(())
}
