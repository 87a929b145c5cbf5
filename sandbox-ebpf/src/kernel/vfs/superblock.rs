//! `struct super_block`: the file system that an object lies in, and `fs_context`, one that is to be mounted.

use super::DentryAddress;
use crate::kernel::{load, read};
use crate::layout::LAYOUT;
use core::ffi::c_void;

/// include/uapi/linux/magic.h
const TMPFS: u64 = 0x0102_1994;
const PROC: u64 = 0x9fa0;
const SYSFS: u64 = 0x6265_6572;
const CGROUP: u64 = 0x0027_e0eb;
const CGROUP2: u64 = 0x6367_7270;
const BPFFS: u64 = 0xcafe_4a11;
const DEBUGFS: u64 = 0x6462_6720;
const TRACEFS: u64 = 0x7472_6163;
const SECURITYFS: u64 = 0x7363_6673;
const CONFIGFS: u64 = 0x6265_6570;
const BINFMTFS: u64 = 0x4249_4e4d;
const EFIVARFS: u64 = 0xde5e_81e4;
const PSTORE: u64 = 0x6165_676c;
const RESCTRL: u64 = 0x0765_5821;
const SELINUXFS: u64 = 0xf97c_ff8c;
const SMACKFS: u64 = 0x4341_5d53;

/// `struct fs_context *`: a file system that is to be mounted.
#[derive(Clone, Copy)]
pub(crate) struct Mounting(pub(crate) *const c_void);

impl Mounting {
    /// Address of the name of its type.
    #[inline(always)]
    pub(crate) fn type_name(self) -> u64 {
        let kind: u64 = load(self.0, &LAYOUT.context_type);
        read(kind + LAYOUT.type_name.get() as u64).unwrap_or(0)
    }
}

/// Whether a file system of this `s_magic` shows files that lie elsewhere: overlay and FUSE.
#[inline(always)]
pub(crate) fn shows_others(magic: u64) -> bool {
    const OVERLAYFS: u64 = 0x794c_7630;
    const FUSE: u64 = 0x6573_5546;
    matches!(magic, OVERLAYFS | FUSE)
}

/// The address of a superblock, kept in memory.
#[derive(Clone, Copy)]
pub(crate) struct SuperBlockAddress(pub(super) u64);

impl SuperBlockAddress {
    /// `s_dev`
    #[inline(always)]
    pub(crate) fn dev(self) -> Option<u32> {
        read(self.0 + LAYOUT.sb_dev.get() as u64)
    }

    /// `s_magic`
    #[inline(always)]
    pub(crate) fn magic(self) -> Option<u64> {
        read(self.0 + LAYOUT.sb_magic.get() as u64)
    }

    /// `s_root`
    #[inline(always)]
    pub(crate) fn root(self) -> Option<DentryAddress> {
        read(self.0 + LAYOUT.sb_root.get() as u64).map(DentryAddress)
    }
}

/// `struct super_block *`
#[derive(Clone, Copy)]
pub(crate) struct SuperBlock(pub(crate) *const c_void);

impl SuperBlock {
    #[inline(always)]
    pub(crate) fn dev(self) -> u32 {
        load(self.0, &LAYOUT.sb_dev)
    }

    #[inline(always)]
    pub(crate) fn root(self) -> DentryAddress {
        DentryAddress(load(self.0, &LAYOUT.sb_root))
    }

    /// `s_magic`
    #[inline(always)]
    pub(crate) fn magic(self) -> u64 {
        load(self.0, &LAYOUT.sb_magic)
    }

    /// From its address.
    #[inline(always)]
    pub(crate) fn at(superblock: *const c_void) -> Self {
        Self(superblock)
    }

    /// Whether no two live inodes of this file system ever have the same number, so that it names a
    /// directory: ext2 to ext4, xfs, f2fs, tmpfs. Not so btrfs (a number per
    /// subvolume), overlayfs (numbers of several layers) and what a server numbers.
    #[inline(always)]
    pub(crate) fn numbers_are_unique(self) -> bool {
        const EXT: u64 = 0xef53;
        const XFS: u64 = 0x5846_5342;
        const F2FS: u64 = 0xf2f5_2010;
        matches!(self.magic(), EXT | XFS | F2FS | TMPFS)
    }

    /// The address as a number.
    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    #[inline(always)]
    pub(crate) fn is_proc(self) -> bool {
        self.magic() == PROC
    }

    /// Whether this shows and sets the kernel, not files: what is written here is no content.
    #[inline(always)]
    pub(crate) fn is_of_the_kernel(self) -> bool {
        matches!(
            self.magic(),
            PROC | SYSFS
                | CGROUP
                | CGROUP2
                | BPFFS
                | DEBUGFS
                | TRACEFS
                | SECURITYFS
                | CONFIGFS
                | BINFMTFS
                | EFIVARFS
                | PSTORE
                | RESCTRL
                | SELINUXFS
                | SMACKFS
        )
    }

    /// What a member may mount, and whether each mount of it is a new one that holds nothing yet.
    ///
    /// procfs, sysfs and cgroupfs show the kernel, and are judged as such. A queue file system is of the
    /// namespace that the member made.
    #[inline(always)]
    pub(crate) fn mountable(self) -> Option<bool> {
        const DEVPTS: u64 = 0x1cd1;
        const MQUEUE: u64 = 0x1980_0202;
        match self.magic() {
            TMPFS | DEVPTS | MQUEUE => Some(true),
            PROC | SYSFS | CGROUP2 => Some(false),
            _ => None,
        }
    }

    /// Whether what lies here is anonymous memory or a channel that the task already has: pipes,
    /// sockets, memfd, anonymous inodes, namespaces, pidfds.
    ///
    /// By magic number. `SB_KERNMOUNT` alone would not do: file systems that pin themselves with
    /// `simple_pin_fs` (debugfs, tracefs, securityfs, configfs) carry it too.
    #[inline(always)]
    pub(crate) fn is_anonymous(self) -> bool {
        const SB_KERNMOUNT: u64 = 1 << 22;
        const PIPEFS: u64 = 0x5049_5045;
        const SOCKFS: u64 = 0x534f_434b;
        const ANON_INODE: u64 = 0x0904_1934;
        const NSFS: u64 = 0x6e73_6673;
        const PIDFS: u64 = 0x5049_4446;
        const SECRETMEM: u64 = 0x5345_434d;
        const DMA_BUF: u64 = 0x444d_4142;
        const HUGETLBFS: u64 = 0x9584_58f6;
        match self.magic() {
            PIPEFS | SOCKFS | ANON_INODE | NSFS | PIDFS | SECRETMEM | DMA_BUF => true,
            // memfd and SysV shared memory live on the kernel's own mounts of these.
            TMPFS | HUGETLBFS => load::<u64>(self.0, &LAYOUT.sb_flags) & SB_KERNMOUNT != 0,
            _ => false,
        }
    }
}
