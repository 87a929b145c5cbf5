//! `struct inode`: what an object is, and `iattr`, what is to change of it.

use crate::kernel::{load, read};
use crate::layout::LAYOUT;
use core::ffi::c_void;

/// `struct inode *`, null where a name has none.
///
/// Every load asks first: of a dentry that it trusts, the verifier took the inode for one that is there
/// (`BTF_TYPE_SAFE_TRUSTED`, 6.4 to 6.18) and has it loaded from without a net. Where it believes that on every way to
/// the question, it drops that: whether a name has an inode at all is asked of [`InodeAddress`].
#[derive(Clone, Copy)]
pub(crate) struct Inode(pub(super) *const c_void);

impl Inode {
    #[inline(always)]
    pub(crate) fn exists(self) -> bool {
        !self.0.is_null()
    }

    /// `i_mode`; 0 where there is no inode.
    #[inline(always)]
    pub(crate) fn mode(self) -> u32 {
        if self.exists() { u32::from(load::<u16>(self.0, &LAYOUT.inode_mode)) } else { 0 }
    }

    /// `i_flags`; 0 where there is no inode.
    #[inline(always)]
    pub(crate) fn flags(self) -> u32 {
        if self.exists() { load(self.0, &LAYOUT.inode_flags) } else { 0 }
    }

    /// `i_ino`; 0 where there is no inode.
    #[inline(always)]
    pub(crate) fn number(self) -> u64 {
        if self.exists() { load(self.0, &LAYOUT.inode_ino) } else { 0 }
    }

    /// `i_generation`; 0 where there is no inode.
    #[inline(always)]
    pub(crate) fn generation(self) -> u32 {
        if self.exists() { load(self.0, &LAYOUT.inode_generation) } else { 0 }
    }

    /// Number of names; 0 once it is removed, and where there is no inode.
    #[inline(always)]
    pub(crate) fn links(self) -> u32 {
        if self.exists() { load(self.0, &LAYOUT.inode_nlink) } else { 0 }
    }

    /// In procfs: address of the `struct pid` whose directory this lies in; 0 where it is nobody's.
    #[inline(always)]
    pub(crate) fn process(self) -> u64 {
        if !self.exists() {
            return 0;
        }
        let outer = (self.0 as u64).wrapping_sub(LAYOUT.proc_vfs.get() as u64);
        read(outer + LAYOUT.proc_pid.get() as u64).unwrap_or(0)
    }

    /// `i_rdev`, kernel encoding; 0 where there is no inode.
    #[inline(always)]
    pub(crate) fn rdev(self) -> u32 {
        if self.exists() { load(self.0, &LAYOUT.inode_rdev) } else { 0 }
    }
}

/// The address of an inode, kept in memory.
#[derive(Clone, Copy)]
pub(crate) struct InodeAddress(pub(super) u64);

impl InodeAddress {
    /// Whether it is that of one.
    #[inline(always)]
    pub(crate) fn exists(self) -> bool {
        self.0 != 0
    }

    #[inline(always)]
    pub(crate) fn number(self) -> Option<u64> {
        read(self.0 + LAYOUT.inode_ino.get() as u64)
    }

    #[inline(always)]
    pub(crate) fn generation(self) -> Option<u32> {
        read(self.0 + LAYOUT.inode_generation.get() as u64)
    }

    /// `i_mode`
    #[inline(always)]
    pub(crate) fn mode(self) -> Option<u32> {
        read::<u16>(self.0 + LAYOUT.inode_mode.get() as u64).map(u32::from)
    }

    /// `i_rdev`, kernel encoding.
    #[inline(always)]
    pub(crate) fn rdev(self) -> Option<u32> {
        read(self.0 + LAYOUT.inode_rdev.get() as u64)
    }

    /// `i_flags`
    #[inline(always)]
    pub(crate) fn flags(self) -> Option<u32> {
        read(self.0 + LAYOUT.inode_flags.get() as u64)
    }

    /// Number of names; 0 once it is removed.
    #[inline(always)]
    pub(crate) fn links(self) -> Option<u32> {
        read(self.0 + LAYOUT.inode_nlink.get() as u64)
    }
}

/// `struct iattr *`: what is to change.
#[derive(Clone, Copy)]
pub(crate) struct Attributes(pub(crate) *const c_void);

impl Attributes {
    /// Whether times are to be set, and not because the size changes. `ATTR_*`, include/linux/fs.h
    #[inline(always)]
    pub(crate) fn are_times(self) -> bool {
        const SIZE: u32 = 1 << 3;
        const ACCESSED: u32 = 1 << 4;
        const MODIFIED: u32 = 1 << 5;
        let valid: u32 = load(self.0, &LAYOUT.iattr_valid);
        valid & (ACCESSED | MODIFIED) != 0 && valid & SIZE == 0
    }
}
