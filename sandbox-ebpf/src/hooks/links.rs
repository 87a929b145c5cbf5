//! Names that lead to what another name protects.

use super::member;
use crate::finish;
use crate::kernel::vfs::Dentry;
use crate::path;
use aya_ebpf::macros::lsm;
use aya_ebpf::programs::LsmContext;
use sandbox_common::decide;
use sandbox_common::event::Hook;

const ECHILD: i32 = 10;

/// `int security_inode_follow_link(struct dentry *dentry, struct inode *inode, bool rcu)`
#[lsm(hook = "inode_follow_link")]
pub(crate) fn inode_follow_link(ctx: LsmContext) -> i32 {
    let link = Dentry(ctx.arg(0));
    let rcu = ctx.arg::<u64>(2) & 0xff != 0;
    member(&ctx, 3, Hook::InodeFollowLink, |member, state| {
        let decision = decide::following(path::place(state, member, link));
        // A walk that holds nothing may see what is being changed: the kernel then makes it again and
        // holds what it sees (fs/namei.c), and this is asked again.
        if rcu && !decision.allowed() {
            return -ECHILD;
        }
        finish::path(Hook::InodeFollowLink, member, decision, link)
    })
}
