//! `cargo xtask setup`: everything that the other verbs need, brought up to date.

use std::process::ExitCode;

use anyhow::Result;

use crate::apt::Apt;
use crate::cache::Cache;
use crate::command::progress;
use crate::kernel::{Kernel, SERIES};
use crate::{image, packages, toolchain};

#[derive(clap::Args)]
pub(crate) struct Args {}

pub(crate) fn main(_: &Args) -> Result<ExitCode> {
    let cache = Cache::open()?;
    packages::ensure(packages::MACHINE)?;
    toolchain::core_sources(&cache)?;
    toolchain::bpf_linker(&cache)?;
    let apt = Apt::open(&cache)?;
    for series in SERIES {
        let kernel = Kernel::newest(&cache, &apt, series)?;
        progress(&format!("kernel {series}: {}", kernel.release));
    }
    image::newest(&cache, &apt)?;
    progress("everything is there");
    Ok(ExitCode::SUCCESS)
}
