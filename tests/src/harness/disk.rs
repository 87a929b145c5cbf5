//! Disks of a test's own: images behind loop devices.

use super::Ground;
use crate::probe::Place;
use anyhow::{Context as _, ensure};
use rustix::mount::{MountFlags, UnmountFlags};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

// include/uapi/linux/loop.h
const LOOP_SET_FD: libc::Ioctl = 0x4c00;
const LOOP_CLR_FD: libc::Ioctl = 0x4c01;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;

/// A mounted image; unmounted in the end.
#[derive(Debug)]
pub(crate) struct Disk {
    path: String,
    device: File,
    at: Place,
}

impl Disk {
    /// Mounts the image at a directory.
    pub(crate) fn mount(
        image: &Path,
        kind: &str,
        options: &str,
        at: &Place,
    ) -> anyhow::Result<Self> {
        let read_write = || OpenOptions::new().read(true).write(true).clone();
        let control = read_write().open("/dev/loop-control").context("opening loop-control")?;
        let number = ioctl(&control, LOOP_CTL_GET_FREE, 0).context("asking for a loop device")?;
        let path = format!("/dev/loop{number}");
        let device = read_write().open(&path).with_context(|| format!("opening {path}"))?;
        let file =
            read_write().open(image).with_context(|| format!("opening {}", image.display()))?;
        ioctl(&device, LOOP_SET_FD, file.as_raw_fd()).context("setting the loop device's file")?;
        let disk = Self { path, device, at: at.clone() };
        disk.once_more(kind, options, at)?;
        Ok(disk)
    }

    /// Mounts it at another directory too; that is not undone with the disk.
    pub(crate) fn once_more(&self, kind: &str, options: &str, at: &Place) -> anyhow::Result<()> {
        let options = std::ffi::CString::new(options)?;
        rustix::mount::mount(&*self.path, at.path(), kind, MountFlags::empty(), Some(&*options))
            .with_context(|| format!("mounting {kind} at {at}"))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // A device in use, or a mount that was never made: the machine is thrown away.
        let _ = rustix::mount::unmount(self.at.path(), UnmountFlags::DETACH);
        let _ = ioctl(&self.device, LOOP_CLR_FD, 0);
    }
}

fn ioctl(file: &File, request: libc::Ioctl, argument: i32) -> io::Result<i32> {
    // SAFETY: the descriptor is open, and these requests take a number or nothing.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), request, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// A copy of the empty ext4, with the feature casefold, that `xtask` puts into the machine.
pub(crate) fn ext4_image(ground: &Ground) -> anyhow::Result<PathBuf> {
    let image = ground.papers("ext4.image");
    std::fs::copy("/var/casefold.ext4", &image).context("copying the ext4 image")?;
    Ok(image)
}

/// A copy of the empty btrfs that `xtask` puts into the machine.
pub(crate) fn btrfs_image(ground: &Ground) -> anyhow::Result<PathBuf> {
    let image = ground.papers("btrfs.image");
    std::fs::copy("/var/empty.btrfs", &image).context("copying the btrfs image")?;
    Ok(image)
}

/// Writes an empty FAT file system of 1 MiB.
///
/// Layout: Microsoft's "FAT: General Overview of On-Disk Format", and what `fat_read_bpb` of
/// fs/fat/inode.c looks at.
pub(crate) fn write_fat(image: &Path) -> anyhow::Result<()> {
    const SECTOR: usize = 512;
    const SECTORS: u16 = 2048;
    const TABLE_SECTORS: u16 = 6;
    let mut disk = vec![0_u8; SECTOR * usize::from(SECTORS)];
    let mut put = |at: usize, bytes: &[u8]| disk[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &[0xeb, 0x3c, 0x90]);
    put(3, b"mkfs.fat");
    put(11, &512_u16.to_le_bytes());
    // One sector a cluster, one reserved sector, two tables, 512 entries in the root.
    put(13, &[1]);
    put(14, &1_u16.to_le_bytes());
    put(16, &[2]);
    put(17, &512_u16.to_le_bytes());
    put(19, &SECTORS.to_le_bytes());
    put(21, &[0xf8]);
    put(22, &TABLE_SECTORS.to_le_bytes());
    put(510, &[0x55, 0xaa]);
    for table in [1, 1 + TABLE_SECTORS] {
        put(SECTOR * usize::from(table), &[0xf8, 0xff, 0xff]);
    }
    std::fs::write(image, &disk).context("writing a FAT image")
}

/// Forgets every name that no one uses: who looks next chooses how it is spelled.
pub(crate) fn forget_names() -> anyhow::Result<()> {
    // What was used since the last time is only marked as unused by the first.
    for _ in 0..3 {
        std::fs::write("/proc/sys/vm/drop_caches", "2").context("dropping the dentry cache")?;
    }
    Ok(())
}

/// `chattr +F`: an empty directory that disregards case.
pub(crate) fn disregard_case(directory: &Place) -> anyhow::Result<()> {
    /// `FS_CASEFOLD_FL`, include/uapi/linux/fs.h
    const CASEFOLD: u32 = 0x4000_0000;
    let opened = File::open(directory.path())?;
    let flags = rustix::fs::ioctl_getflags(&opened).context("reading flags")?;
    let flags = rustix::fs::IFlags::from_bits_retain(flags.bits() | CASEFOLD);
    rustix::fs::ioctl_setflags(&opened, flags)
        .with_context(|| format!("making {directory} disregard case"))?;
    let (one, other) = (directory.join("Case"), directory.join("cASE"));
    std::fs::write(&one, "")?;
    ensure!(other.path().exists(), "{directory} minds case");
    Ok(std::fs::remove_file(&one)?)
}
