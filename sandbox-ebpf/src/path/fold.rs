//! Directories that compare names without regard to case, see [`sandbox_common::fold`].

use crate::kernel::vfs::{Dentry, DentryAddress};
use sandbox_common::fold::{beyond_ascii, lower, tilde};
use sandbox_common::path::{LONG_NAME, LongEdgeKey};

/// How a directory compares names: byte for byte.
pub(super) const EXACTLY: u32 = 0;
/// Without regard to case (ext4, f2fs, tmpfs with `chattr +F`).
const FOLDED: u32 = 1;
/// Without regard to case, and other names may be aliases: short names (`ENV~1`), and names with dots
/// and blanks behind them (FAT, exFAT, NTFS, CIFS and whatever else has a comparison of its own).
const LOOSELY: u32 = 2;
/// Not known.
pub(super) const UNREADABLE: u32 = 3;

/// include/linux/dcache.h: the file system brings a comparison of its own; nearly none does.
const DCACHE_OP_COMPARE: u32 = 1 << 1;

/// How the directory compares names.
#[inline(always)]
pub(super) fn compare(directory: Dentry) -> u32 {
    if directory.flags() & DCACHE_OP_COMPARE == 0 {
        return EXACTLY;
    }
    by_file_system(directory.superblock().magic(), directory.inode().flags())
}

/// The same of a directory in memory; [`UNREADABLE`] where it could not be read. A function of its own, not
/// on the stack of what leads to [`step`](super::step).
#[inline(never)]
pub(super) fn compare_at(directory: DentryAddress) -> u32 {
    let Some(flags) = directory.flags() else { return UNREADABLE };
    if flags & DCACHE_OP_COMPARE == 0 {
        return EXACTLY;
    }
    let Some(inode) = directory.inode() else { return UNREADABLE };
    let (Some(magic), Some(flags)) = (directory.magic(), inode.flags()) else { return UNREADABLE };
    by_file_system(magic, flags)
}

#[inline(always)]
fn by_file_system(magic: u64, inode_flags: u32) -> u32 {
    /// include/linux/fs.h
    const S_CASEFOLD: u32 = 1 << 15;
    // include/uapi/linux/magic.h
    const PROC: u64 = 0x9fa0;
    const EXT: u64 = 0xef53;
    const F2FS: u64 = 0xf2f5_2010;
    const TMPFS: u64 = 0x0102_1994;
    match magic {
        // /proc/sys: by name space, not by case.
        PROC => EXACTLY,
        EXT | F2FS | TMPFS if inode_flags & S_CASEFOLD == 0 => EXACTLY,
        EXT | F2FS | TMPFS => FOLDED,
        _ => LOOSELY,
    }
}

/// Folds the name of `len` bytes in `key`, zeros behind it in its first `words` words. False where it
/// cannot be told which name it is to the file system.
#[inline(always)]
pub(super) fn fold(key: &mut LongEdgeKey, len: u32, words: u32, how: u32) -> bool {
    let last = key.name[len.wrapping_sub(1) as usize & 255];
    let name = (&raw mut key.name).cast::<u64>();
    let (mut strange, mut tildes) = (0, 0);
    for index in 0..(LONG_NAME + 1) / 8 {
        if index as u32 >= words {
            break;
        }
        // SAFETY: within the name, which is aligned to words.
        unsafe {
            let word = name.add(index);
            let bytes = word.read_volatile();
            strange |= beyond_ascii(bytes);
            tildes |= tilde(bytes);
            word.write_volatile(lower(bytes));
        }
    }
    strange == 0 && !(how == LOOSELY && (tildes != 0 || last == b'.' || last == b' '))
}
