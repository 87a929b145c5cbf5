//! Debian packages that the verbs call programs from.

use std::process::Command;

use anyhow::{Result, bail};

use crate::command::{find, progress, run};

/// A program and the Debian package it is in.
pub(crate) type Need = (&'static str, &'static str);

pub(crate) const MACHINE: &[Need] =
    &[("qemu-system-x86_64", "qemu-system-x86"), ("setpriv", "util-linux"), ("xz", "xz-utils")];
pub(crate) const KERNELS: &[Need] =
    &[("apt-get", "apt"), ("dpkg-deb", "dpkg"), ("depmod", "kmod"), ("xz", "xz-utils")];
pub(crate) const DISKS: &[Need] = &[("mke2fs", "e2fsprogs"), ("mkfs.btrfs", "btrfs-progs")];
pub(crate) const POLICY: &[Need] = &[("checkpolicy", "checkpolicy")];
pub(crate) const IMAGE: &[Need] = &[("mmdebstrap", "mmdebstrap"), ("mke2fs", "e2fsprogs")];

/// Installs what is missing where we may, otherwise says what to install.
pub(crate) fn ensure(needs: &[Need]) -> Result<()> {
    let missing: Vec<_> =
        needs.iter().filter(|(program, _)| find(program).is_none()).map(|need| need.1).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.join(" ");
    if find("apt-get").is_none() {
        bail!("needed packages are missing; install what your distribution calls: {names}");
    }
    if !rustix::process::geteuid().is_root() {
        bail!("needed packages are missing; run: sudo apt-get install {names}");
    }
    progress(&format!("installing {names}"));
    run(apt_get().arg("update"))?;
    run(apt_get().args(["install", "--yes", "--no-install-recommends"]).args(missing))
}

fn apt_get() -> Command {
    let mut command = Command::new("apt-get");
    command.arg("-qq").env("DEBIAN_FRONTEND", "noninteractive");
    command
}
