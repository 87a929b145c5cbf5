//! The end of superblocks.
//!
//! A superblock is known by its number, and the kernel gives the number of one that has ended to the next
//! that is mounted. Whatever policies said of the old one must not hold for the new.

use crate::kernel::vfs::SuperBlock;
use crate::maps::{DEATHS, OBJECTS, Object};
use crate::path::cache;
use aya_ebpf::macros::{fexit, lsm};
use aya_ebpf::programs::{FExitContext, LsmContext};

/// `void security_sb_delete(struct super_block *sb)`, called by `generic_shutdown_super`: nothing can reach
/// the superblock any more, and its number is not free yet.
#[lsm(hook = "sb_delete")]
pub(crate) fn sb_delete(ctx: LsmContext) -> i32 {
    ended(SuperBlock::at(ctx.arg(0)))
}

/// The same where `bpf` is not an active LSM: a function without a value has no `fmod_ret` program.
#[fexit(function = "security_sb_delete")]
pub(crate) fn sb_delete_returned(ctx: FExitContext) -> i32 {
    ended(SuperBlock::at(ctx.arg(0)))
}

/// Only numbers that a policy names are counted.
#[inline(always)]
fn ended(superblock: SuperBlock) -> i32 {
    // One that a member mounted; most are nobody's.
    let _ = OBJECTS.remove(Object::Superblock.at(superblock.address()));
    if let Some(deaths) = DEATHS.get_ptr_mut(superblock.dev()) {
        // SAFETY: a map's value; one superblock of a number ends at a time.
        unsafe { *deaths = (*deaths).wrapping_add(1) };
    }
    // What was found of its directories may not be used for those of the next.
    cache::forget();
    0
}
