//! Directories that compare names without regard to case, see [`sandbox_common::fold`].

use crate::kernel::vfs::DentryAddress;
use sandbox_common::fold::{beyond_ascii, lower, tilde};

/// How a directory compares names.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Compare {
    /// Byte for byte.
    Exactly,
    /// Without regard to case (ext4, f2fs, tmpfs with `chattr +F`).
    Folded,
    /// Without regard to case, and other names may be aliases: short names (`ENV~1`), and names with dots
    /// and blanks behind them (FAT, exFAT, NTFS, CIFS and whatever else has a comparison of its own).
    Loosely,
}

/// How the directory compares names. `None` where it could not be read.
///
/// The dentry says whether its file system brings a comparison of its own; nearly none does.
#[inline(always)]
pub(super) fn compare(directory: DentryAddress) -> Option<Compare> {
    /// include/linux/dcache.h
    const DCACHE_OP_COMPARE: u32 = 1 << 1;
    /// include/linux/fs.h
    const S_CASEFOLD: u32 = 1 << 15;
    // include/uapi/linux/magic.h
    const PROC: u64 = 0x9fa0;
    const EXT: u64 = 0xef53;
    const F2FS: u64 = 0xf2f5_2010;
    const TMPFS: u64 = 0x0102_1994;
    if directory.flags()? & DCACHE_OP_COMPARE == 0 {
        return Some(Compare::Exactly);
    }
    Some(match directory.magic()? {
        // /proc/sys: by name space, not by case.
        PROC => Compare::Exactly,
        EXT | F2FS | TMPFS if directory.inode_flags()? & S_CASEFOLD == 0 => Compare::Exactly,
        EXT | F2FS | TMPFS => Compare::Folded,
        _ => Compare::Loosely,
    })
}

/// Folds a name in place: `count` words at `words`, zeros behind the name, whose last byte is `last`. False
/// where it cannot be told which name it is to the file system.
///
/// # Safety
/// `words` are `count` aligned words.
#[inline(always)]
pub(super) unsafe fn fold(words: *mut u64, count: usize, last: u8, how: Compare) -> bool {
    let (mut strange, mut tildes) = (0, 0);
    for index in 0..count {
        // SAFETY: within the words, as the caller promised.
        unsafe {
            let word = words.add(index);
            let name = word.read();
            strange |= beyond_ascii(name);
            tildes |= tilde(name);
            word.write_volatile(lower(name));
        }
    }
    strange == 0 && !(how == Compare::Loosely && (tildes != 0 || last == b'.' || last == b' '))
}
