//! Who: the session of the current task.

use crate::kernel::task::{self, Task};
use crate::maps::{CONTROL, LABELS, SUBJECTS};
use core::ffi::c_void;
use sandbox_common::event::Reason;
use sandbox_common::subject::{LEVELS, Subject};

/// A member, or why a task that is one cannot be judged.
#[derive(Clone, Copy)]
pub(crate) struct Member {
    /// Id of the session's cgroup.
    pub(crate) cgroup: u64,
    /// What the session is.
    pub(crate) subject: Subject,
    /// 0, or the [`Reason`] for which everything is denied.
    pub(crate) fault: u16,
}

impl Member {
    /// A task of which only the sandbox is known that its socket belongs to.
    pub(crate) const UNKNOWN: Self =
        Self { cgroup: 0, subject: Subject { session: 0, slot: 0, mode: 0, unknown: 0 }, fault: 0 };

    /// A label without a session: the task outlived it and stays confined for good.
    #[inline(always)]
    fn ended(cgroup: u64) -> Self {
        Self {
            cgroup,
            subject: Subject { session: 0, slot: 0, mode: 0, unknown: 0 },
            fault: Reason::SessionEnded as u16,
        }
    }
}

/// The session whose cgroup is an ancestor of the current task's.
#[inline(always)]
pub(crate) fn by_cgroup() -> Option<Member> {
    let control = CONTROL.get(0)?;
    for index in 0..LEVELS {
        let level = control.levels[index];
        if level == 0 {
            break;
        }
        let cgroup = task::ancestor_cgroup(level);
        // SAFETY: entries are only added and removed whole, and a reader is under RCU.
        if let Some(subject) = unsafe { SUBJECTS.get(cgroup) } {
            return Some(Member { cgroup, subject: *subject, fault: 0 });
        }
    }
    None
}

/// The session of the current task, by cgroup or by label. A member that is seen for the first
/// time is labelled, so that leaving the cgroup changes nothing.
#[inline(always)]
pub(crate) fn current() -> Option<Member> {
    match by_cgroup() {
        Some(mut member) => {
            let label = LABELS.of_current(true);
            if label.is_null() {
                member.fault = Reason::NoMemory as u16;
            } else {
                // SAFETY: not null, and the verifier knows its size.
                unsafe { (*label).cgroup = member.cgroup };
            }
            Some(member)
        }
        None => by_label(),
    }
}

#[inline(always)]
fn by_label() -> Option<Member> {
    let label = LABELS.of_current(false);
    if label.is_null() {
        return None;
    }
    // SAFETY: not null, and the verifier knows its size.
    let cgroup = unsafe { (*label).cgroup };
    if cgroup == 0 {
        return None;
    }
    // SAFETY: as in `by_cgroup`.
    Some(match unsafe { SUBJECTS.get(cgroup) } {
        Some(subject) => Member { cgroup, subject: *subject, fault: 0 },
        None => Member::ended(cgroup),
    })
}

/// Labels a task that is being made. False where there was no memory.
#[inline(always)]
pub(crate) fn label(child: *mut c_void, member: &Member) -> bool {
    let label = LABELS.of(child, true);
    if label.is_null() {
        return false;
    }
    // SAFETY: not null, and the verifier knows its size.
    unsafe { (*label).cgroup = member.cgroup };
    true
}

/// Whether a task belongs to the member's session. Every member is labelled from its birth or from
/// its first `exec` in the cgroup, before it can be anybody's target.
#[inline(always)]
pub(crate) fn is_fellow(task: Task, member: &Member) -> bool {
    let label = LABELS.of(task.0, false);
    // SAFETY: not null where it is read, and the verifier knows its size.
    !label.is_null() && unsafe { (*label).cgroup } == member.cgroup
}
