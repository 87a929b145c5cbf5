//! Whose a pseudo-terminal is.
//!
//! A terminal of the same user gives away what is typed there, so a member opens only the session's
//! own terminal (in `DEVICES`) and the pseudo-terminals that a member made.

use crate::kernel::vfs::Dentry;
use crate::maps::PTYS;
use crate::subject;
use aya_ebpf::macros::fexit;
use aya_ebpf::programs::FExitContext;

/// `struct dentry *devpts_pty_new(struct pts_fs_info *fsi, int index, void *priv)`, fs/devpts/inode.c:
/// on return of the function that makes the terminal's node, in the context of the task that opened
/// `ptmx`. An index is used again, so an outsider's terminal takes its number away from a session.
#[fexit(function = "devpts_pty_new")]
pub(crate) fn devpts_pty_new(ctx: FExitContext) -> i32 {
    let Some(key) = Dentry(ctx.arg(3)).pty() else { return 0 };
    // What fails here leaves a terminal that members cannot open.
    let _ = match subject::current() {
        Some(member) => PTYS.insert(key, member.cgroup, 0),
        None => PTYS.remove(key),
    };
    0
}
