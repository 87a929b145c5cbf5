//! The Debian image of the full test machine: systemd, D-Bus and what agents use.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::apt::Apt;
use crate::cache::{self, Cache};
use crate::command::{find, output, progress, run};
use crate::packages;

const RELEASE: &str = "trixie";
const PACKAGES: &[&str] = &[
    "systemd",
    "systemd-sysv",
    "dbus",
    "kmod",
    "procps",
    "iproute2",
    "ca-certificates",
    "git",
    "curl",
    "wget",
    "bind9-dnsutils",
    "busybox-static",
    "openssl",
    "python3",
    "python3-requests",
    "python3-venv",
    "make",
    "gcc",
    "libc6-dev",
    "musl-tools",
    "cargo",
    "npm",
    "ripgrep",
    "tmux",
    "tar",
    "openssh-client",
    "strace",
    "bubblewrap",
    "apparmor",
    // systemd opens it for the restrictions that are BPF programs.
    "libbpf1",
];
/// Documentation is most of the files and nobody reads it there.
const LEFT_OUT: &[&str] = &["/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*"];
/// Run with the image's directory as `$1`. A machine id keeps systemd from its first-boot work.
const FINISH: &str = "\
    chroot \"$1\" useradd --create-home --shell /bin/bash agent && \
    echo 5a4db0c0ffee4ac5b0a7c0de5a4db0c0 >\"$1/etc/machine-id\" && \
    echo sandbox-vm >\"$1/etc/hostname\" && \
    echo '127.0.0.1 localhost sandbox-vm' >\"$1/etc/hosts\"";
/// Start-up work of a real machine that this one has no use for: 13 of 20 seconds under emulation.
const MASKED: &[&str] = &[
    "dev-hugepages.mount",
    "e2scrub_reap.service",
    "ldconfig.service",
    "modprobe@configfs.service",
    "modprobe@drm.service",
    "modprobe@efi_pstore.service",
    "modprobe@fuse.service",
    "proc-sys-fs-binfmt_misc.automount",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "systemd-binfmt.service",
    "systemd-firstboot.service",
    "systemd-hibernate-clear.service",
    "systemd-journal-catalog-update.service",
    "systemd-journal-flush.service",
    "systemd-modules-load.service",
    "systemd-pcrmachine.service",
    "systemd-pstore.service",
    "systemd-random-seed.service",
    "systemd-remount-fs.service",
    "systemd-sysusers.service",
    "systemd-tpm2-setup-early.service",
    "systemd-tpm2-setup.service",
    "systemd-update-done.service",
    "systemd-update-utmp.service",
];
/// Room for what the tests write, in MiB; the file is sparse.
const FREE: u64 = 1024;

const PLACE: &str = "system-image";

/// The image from the cache, or built if there is none of this recipe yet.
pub(crate) fn obtain(cache: &Cache) -> Result<PathBuf> {
    let recipe = fs::read_to_string(cache.path(PLACE).join("recipe")).unwrap_or_default();
    if recipe.starts_with(&recipe_text()) {
        Ok(path(cache))
    } else {
        newest(cache, &Apt::open(cache)?)
    }
}

/// The image with the package versions that the archive now has, built unless in the cache.
pub(crate) fn newest(cache: &Cache, apt: &Apt) -> Result<PathBuf> {
    let mut recipe = recipe_text();
    for (name, version) in apt.versions(PACKAGES).context("packages of the Debian image")? {
        writeln!(recipe, "{name} {version}")?;
    }
    let old = fs::read_to_string(cache.path(PLACE).join("recipe"));
    if old.is_ok_and(|old| old == recipe) {
        progress("the Debian image is in the cache");
    } else {
        packages::ensure(packages::IMAGE)?;
        if !rustix::process::geteuid().is_root() {
            bail!("building the Debian image needs root: run `cargo xtask setup` as root once");
        }
        progress("building the Debian image");
        cache.replace(PLACE, |to| fill(to, apt, &recipe)).context("building the Debian image")?;
    }
    Ok(path(cache))
}

fn path(cache: &Cache) -> PathBuf {
    cache.path(PLACE).join("root.ext4")
}

fn recipe_text() -> String {
    let mut words = vec![RELEASE, FINISH];
    words.extend(LEFT_OUT);
    words.extend(MASKED);
    words.extend(PACKAGES);
    format!("{}\n", words.join(" "))
}

fn fill(to: &Path, apt: &Apt, recipe: &str) -> Result<()> {
    let sources = to.join("sources.list");
    fs::write(&sources, apt.release_sources(RELEASE)?).context("cannot write apt sources")?;
    let root = to.join("root");
    let mut debootstrap = Command::new("mmdebstrap");
    debootstrap
        .args(["--quiet", "--mode=root", "--variant=minbase"])
        .arg(format!("--include={}", PACKAGES.join(",")))
        .args(LEFT_OUT.iter().map(|path| format!("--dpkgopt=path-exclude={path}")))
        .arg(format!("--customize-hook={FINISH}"))
        .arg(format!("--customize-hook=chroot \"$1\" systemctl --quiet mask {}", MASKED.join(" ")))
        .arg(RELEASE)
        .args([&root, &sources]);
    run(&mut debootstrap)?;

    let used = output(Command::new("du").args(["-s", "--block-size=1M"]).arg(&root))?;
    let used: u64 = used
        .split_whitespace()
        .next()
        .and_then(|size| size.parse().ok())
        .with_context(|| format!("du printed {used:?}"))?;
    // No journal: the machine's disk is thrown away at every end.
    let mut make = Command::new(find("mke2fs").context("no mke2fs: install e2fsprogs")?);
    make.args(["-q", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1"])
        .arg("-d")
        .args([&root, &to.join("root.ext4")])
        .arg(format!("{}M", used * 5 / 4 + FREE));
    run(&mut make)?;
    cache::remove(&root)?;
    fs::write(to.join("recipe"), recipe).context("cannot write the recipe")
}
