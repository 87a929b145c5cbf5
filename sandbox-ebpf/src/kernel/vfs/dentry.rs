//! `struct dentry`: an object's name and what it lies in.

use super::{Inode, InodeAddress, SuperBlock, SuperBlockAddress};
use crate::kernel::{embedded, load, read};
use crate::layout::LAYOUT;
use aya_ebpf::helpers::generated::bpf_probe_read_kernel;
use core::ffi::c_void;
use sandbox_common::path::PtyKey;

/// `struct dentry *`
#[derive(Clone, Copy)]
pub(crate) struct Dentry(pub(crate) *const c_void);

impl Dentry {
    #[inline(always)]
    pub(crate) fn parent(self) -> Self {
        Self(load(self.0, &LAYOUT.dentry_parent))
    }

    #[inline(always)]
    pub(crate) fn superblock(self) -> SuperBlock {
        SuperBlock::at(load(self.0, &LAYOUT.dentry_sb))
    }

    /// `d_flags`
    #[inline(always)]
    pub(crate) fn flags(self) -> u32 {
        load(self.0, &LAYOUT.dentry_flags)
    }

    /// Its inode; reads as zeros where it has none yet.
    #[inline(always)]
    pub(crate) fn inode(self) -> Inode {
        Inode(load(self.0, &LAYOUT.dentry_inode))
    }

    /// The pseudo-terminal that this is the node of.
    #[inline(always)]
    pub(crate) fn pty(self) -> Option<PtyKey> {
        let dev = self.inode().rdev();
        // UNIX98_PTY_SLAVE_MAJOR and the seven after it, include/uapi/linux/major.h
        let is_pty = (136..144).contains(&(dev >> 20));
        if is_pty { Some(PtyKey { devpts: self.superblock().dev(), dev }) } else { None }
    }

    /// Length of the name in bytes. Loaded as four bytes: on 6.1 a load may not run past the member.
    #[inline(always)]
    pub(crate) fn name_len(self) -> u32 {
        load(embedded(self.0, &LAYOUT.dentry_name), &LAYOUT.qstr_len)
    }

    /// Address of the name's first byte.
    #[inline(always)]
    pub(crate) fn name_address(self) -> u64 {
        load(embedded(self.0, &LAYOUT.dentry_name), &LAYOUT.qstr_name)
    }

    /// The first two bytes of its name and the last two, the earlier one lower. `None` where it has only one,
    /// is longer than 32 bytes, or does not lie in the dentry itself.
    #[inline(always)]
    pub(crate) fn ends(self) -> Option<(u16, u16)> {
        let name = embedded(self.0, &LAYOUT.dentry_short_name);
        if self.name_address() != name as u64 {
            return None;
        }
        // SAFETY: within the 32 bytes that it has at least, by constants, as the verifier wants it.
        let word = |at: usize| unsafe { name.byte_add(at).cast::<u64>().read_volatile() };
        let first = word(0);
        // Where the last but one lies.
        let at = self.name_len().wrapping_sub(2);
        let last = match at >> 3 {
            0 => first,
            1 => word(8),
            2 => word(16),
            3 => word(24),
            _ => return None,
        };
        let shift = 8 * (at & 7);
        let last = if shift < 56 {
            last >> shift
        } else {
            // The last one is the first of the next word.
            let next = match at >> 3 {
                0 => word(8),
                1 => word(16),
                2 => word(24),
                _ => return None,
            };
            last >> 56 | next << 8
        };
        Some((first as u16, last as u16))
    }

    /// The address as a number, for [`DentryAddress`].
    #[inline(always)]
    pub(crate) fn address(self) -> DentryAddress {
        DentryAddress(self.0 as u64)
    }
}

/// The address of a dentry, kept in memory: no longer a type that the verifier knows.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct DentryAddress(pub(crate) u64);

impl DentryAddress {
    #[inline(always)]
    pub(crate) fn parent(self) -> Option<Self> {
        read(self.0 + LAYOUT.dentry_parent.get() as u64).map(Self)
    }

    /// `d_flags`
    #[inline(always)]
    pub(crate) fn flags(self) -> Option<u32> {
        read(self.0 + LAYOUT.dentry_flags.get() as u64)
    }

    /// Its superblock.
    #[inline(always)]
    pub(crate) fn superblock(self) -> Option<SuperBlockAddress> {
        read(self.0 + LAYOUT.dentry_sb.get() as u64).map(SuperBlockAddress)
    }

    /// `s_magic` of its superblock.
    #[inline(always)]
    pub(crate) fn magic(self) -> Option<u64> {
        self.superblock()?.magic()
    }

    /// Length of the name in bytes. Read as four bytes: on 6.1 a load may not run past the member.
    #[inline(always)]
    pub(crate) fn name_len(self) -> Option<u32> {
        read(self.0 + (LAYOUT.dentry_name.get() + LAYOUT.qstr_len.get()) as u64)
    }

    /// Address of the name's first byte.
    #[inline(always)]
    pub(crate) fn name_address(self) -> Option<u64> {
        read(self.0 + (LAYOUT.dentry_name.get() + LAYOUT.qstr_name.get()) as u64)
    }

    /// Its inode.
    #[inline(always)]
    pub(crate) fn inode(self) -> Option<InodeAddress> {
        read(self.0 + LAYOUT.dentry_inode.get() as u64).map(InodeAddress)
    }
}

/// Copies `len` bytes at `from` to `to`. False where that failed.
///
/// # Safety
/// `to` has room for `len` bytes (the verifier checks it).
#[inline(always)]
pub(crate) unsafe fn copy_name(to: *mut u8, len: u32, from: u64) -> bool {
    // SAFETY: as promised by the caller.
    unsafe { bpf_probe_read_kernel(to.cast(), len, from as *const c_void) == 0 }
}
