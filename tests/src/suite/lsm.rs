//! Both ways of attaching: as BPF-LSM programs, and as `fmod_ret` where `bpf` is not an active LSM.
//!
//! `cargo xtask test` boots each kernel for either, and the whole suite runs in both.

use crate::harness::{Ground, trial, verb};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use serde_json::Value;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[("D6.94", "attaching::way_fits_the_active_lsms")];

pub(super) fn trials() -> Vec<Trial> {
    vec![trial("attaching::way_fits_the_active_lsms", way)]
}

fn way() -> anyhow::Result<()> {
    let list = std::fs::read_to_string("/sys/kernel/security/lsm")?;
    let is_lsm = list.trim().split(',').any(|lsm| lsm == "bpf");
    let expected = if is_lsm { "bpf_lsm" } else { "modify_return" };
    let ground = Ground::new("way")?;
    let told = verb(&ground.papers("doctor"), &["doctor", "--json"])?;
    let object: Value = serde_json::from_str(&told.out).context("what doctor prints")?;
    ensure!(object["attach"] == expected, "{list:?} and attach {}", object["attach"]);
    ensure!(object["enforced"] == true, "{}", told.report());
    Ok(())
}
