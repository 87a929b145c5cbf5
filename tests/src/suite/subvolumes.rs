//! btrfs: subvolumes have device numbers of their own for user space, and number their files alike.

use crate::harness::{Bystander, Denial, Disk, Ground, Policy, Session, btrfs_image, trial, write};
use crate::probe::{Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;

const READ_DENY: &str = "files.read.deny";
const WRITE_DENY: &str = "files.write.deny";
const SECRET: &str = "${WORKSPACE}/disk/home/secret/**";
const FIXED: &str = "${WORKSPACE}/seen/fixed/**";

pub(super) const ROWS: &[(&str, &str)] =
    &[("A25", "subvolumes::rules_hold_in_them"), ("D1.18", "subvolumes::rules_hold_in_them")];

pub(super) fn trials() -> Vec<Trial> {
    vec![trial("subvolumes::rules_hold_in_them", hold)]
}

/// `BTRFS_IOC_SUBVOL_CREATE` with `struct btrfs_ioctl_vol_args`, linux/btrfs.h
fn subvolume(parent: &Place, name: &str) -> anyhow::Result<Place> {
    const CREATE: libc::Ioctl = 0x5000_940e;
    let mut arguments = [0u8; 4096];
    arguments[8..8 + name.len()].copy_from_slice(name.as_bytes());
    let directory = std::fs::File::open(parent.path())?;
    // SAFETY: the argument is as large as the number says.
    let result = unsafe { libc::ioctl(directory.as_raw_fd(), CREATE, arguments.as_mut_ptr()) };
    ensure!(result == 0, "making a subvolume: {}", std::io::Error::last_os_error());
    Ok(parent.join(name))
}

fn furnish(at: &Place) -> anyhow::Result<()> {
    for name in ["secret", "fixed", "plain"] {
        std::fs::create_dir(at.join(name))?;
        write(&at.join(name).join("file"), "content")?;
    }
    Ok(std::fs::hard_link(at.join("secret/file"), at.join("alias"))?)
}

fn open(path: &Place, flags: i32) -> Operation {
    Operation::Open { path: path.clone(), flags }
}

fn hold() -> anyhow::Result<()> {
    let ground = Ground::new("btrfs")?;
    let [disk, seen] = ["disk", "seen"].map(|name| ground.workspace().join(name));
    std::fs::create_dir(&disk)?;
    std::fs::create_dir(&seen)?;
    let mounted = Disk::mount(&btrfs_image(&ground)?, "btrfs", "", &disk)?;
    let (home, other) = (subvolume(&disk, "home")?, subvolume(&disk, "other")?);
    furnish(&home)?;
    // Not in one transaction: it is the generation of new files.
    rustix::fs::syncfs(std::fs::File::open(&disk)?).context("writing the disk")?;
    furnish(&other)?;
    mounted.once_more("btrfs", "subvol=home", &seen)?;
    ground.was_mounted(seen.path().to_owned());
    let number = |path: &Place| -> anyhow::Result<(u64, u64)> {
        let found = std::fs::metadata(path.path())?;
        Ok((found.dev(), found.ino()))
    };
    let (one, two) = (number(&home.join("secret/file"))?, number(&other.join("secret/file"))?);
    ensure!(one.0 != two.0 && one.1 == two.1, "subvolumes as expected: {one:?} {two:?}");

    let policy = Policy::preset().read_deny(SECRET).write_deny(FIXED);
    let mut session = Session::start(&ground, &policy)?;
    for view in [&home, &seen] {
        for name in ["secret/file", "alias"] {
            let denial = Denial::read(&home).paths(home.join(name), seen.join(name));
            let denial = denial.rule(READ_DENY, SECRET);
            session.refused(name, &open(&view.join(name), libc::O_RDONLY), &denial)?;
        }
        let (fixed, plain) = (view.join("fixed/file"), view.join("plain/file"));
        let denial = Denial::write(&fixed).paths(home.join("fixed/file"), seen.join("fixed/file"));
        let denial = denial.rule(WRITE_DENY, FIXED);
        session.refused("fixed", &open(&fixed, libc::O_WRONLY), &denial)?;
        session.allowed("reading it", &open(&fixed, libc::O_RDONLY))?;
        session.allowed("plain", &open(&plain, libc::O_RDWR))?;
    }
    // The same numbers in another subvolume are other files.
    for name in ["secret/file", "alias", "fixed/file", "plain/file"] {
        session.allowed(name, &open(&other.join(name), libc::O_RDWR))?;
    }
    let answer = Bystander::new()?.perform(&open(&home.join("secret/file"), libc::O_RDONLY))?;
    ensure!(answer.text() == "content", "a bystander reads {answer}");
    session.finish()
}
