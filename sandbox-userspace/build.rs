//! Puts the compiled BPF object where `engine::load` includes it.
//!
//! `cargo xtask build` compiles the programs and names the object in `SANDBOX_BPF_OBJECT`. Without
//! it an empty object is embedded, so that plain cargo commands need no BPF toolchain; such a
//! `sandbox` says so and starts nothing.

use anyhow::{Context, Result};
use std::path::PathBuf;
use std::{env, fs};

const OBJECT: &str = "SANDBOX_BPF_OBJECT";

fn main() -> Result<()> {
    println!("cargo:rerun-if-env-changed={OBJECT}");
    let target = PathBuf::from(env::var("OUT_DIR")?).join("programs.o");
    match env::var_os(OBJECT) {
        Some(object) => {
            let object = PathBuf::from(object);
            println!("cargo:rerun-if-changed={}", object.display());
            fs::copy(&object, &target)
                .with_context(|| format!("copying {} ({OBJECT})", object.display()))?;
        }
        None => fs::write(&target, []).with_context(|| format!("writing {}", target.display()))?,
    }
    Ok(())
}
