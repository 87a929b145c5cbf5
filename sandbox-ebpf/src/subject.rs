//! Who: the session of the current task.

use crate::kernel::task::{self, Current, Task};
use crate::maps::{CONTROL, LABELS, SUBJECTS};
use core::ffi::c_void;
use core::ptr;
use sandbox_common::event::Reason;
use sandbox_common::subject::{Label, NAMESPACES, PARENTS, Subject, TaskState};

/// A member, or why a task that is one cannot be judged.
#[derive(Clone, Copy)]
pub(crate) struct Member<'a> {
    /// Id of the session's cgroup.
    pub(crate) cgroup: u64,
    /// What the session is; in the task's own state, in the map, or a copy.
    pub(crate) subject: &'a Subject,
    /// 0, or the [`Reason`] for which everything is denied.
    pub(crate) fault: u16,
    /// The task's own state; null where there was no memory for it.
    state: *mut TaskState,
}

pub(crate) const NO_SUBJECT: Subject =
    Subject { session: 0, slot: 0, mode: 0, patterns: 0, permits: 0, pad: 0 };

impl<'a> Member<'a> {
    /// Whoever is in the session's cgroup.
    #[inline(always)]
    pub(crate) fn of(cgroup: u64, subject: &'a Subject) -> Self {
        Self { cgroup, subject, fault: 0, state: ptr::null_mut() }
    }

    /// The generation of its subject, where its label holds a copy and nothing is wrong with it.
    #[inline(always)]
    pub(crate) fn generation(&self) -> Option<u64> {
        if self.fault != 0 || self.state.is_null() {
            return None;
        }
        // SAFETY: as in `state`.
        let generation = unsafe { (*self.state).label.generation };
        if generation == 0 { None } else { Some(generation) }
    }

    /// Whether its policy permits user namespaces and mounts in them.
    #[inline(always)]
    pub(crate) fn may_mount(&self) -> bool {
        self.fault == 0 && self.subject.permits & NAMESPACES != 0
    }

    /// The task's own state, where it has one.
    #[inline(always)]
    pub(crate) fn state<'b>(&self) -> Option<&'b mut TaskState> {
        // SAFETY: null is checked, the verifier knows the size, and nobody else writes to the
        // storage of a task that runs.
        if self.state.is_null() { None } else { Some(unsafe { &mut *self.state }) }
    }
}

/// The session whose cgroup is an ancestor of the current task's.
#[inline(always)]
pub(crate) fn by_cgroup() -> Option<Member<'static>> {
    let control = CONTROL.get(0)?;
    for index in 0..PARENTS {
        let parent = control.parents[index];
        if parent.cgroup == 0 {
            break;
        }
        // Bystanders end here, for the price of one number.
        if task::ancestor_cgroup(parent.level) != parent.cgroup {
            continue;
        }
        let cgroup = task::ancestor_cgroup(parent.level + 1);
        // SAFETY: entries are only added and removed whole, and a reader is under RCU.
        if let Some(subject) = unsafe { SUBJECTS.get(cgroup) } {
            return Some(Member::of(cgroup, subject));
        }
    }
    None
}

/// The session of the current task: by its label, for once in is never out; or, when it is seen for the
/// first time, by its cgroup.
#[inline(always)]
pub(crate) fn current() -> Option<Member<'static>> {
    let state =
        if Current::task().has_storage() { LABELS.of_current(false) } else { ptr::null_mut() };
    // SAFETY: not null, and the verifier knows its size.
    if !state.is_null() && unsafe { (*state).label.cgroup } != 0 {
        return Some(labelled(state));
    }
    let mut member = by_cgroup()?;
    member.state = LABELS.of_current(true);
    if member.state.is_null() {
        member.fault = Reason::NoMemory as u16;
    } else {
        // SAFETY: as above. The generation stays 0: the next look copies the subject.
        unsafe { (*member.state).label.cgroup = member.cgroup };
    }
    Some(member)
}

#[inline(always)]
fn labelled(state: *mut TaskState) -> Member<'static> {
    // SAFETY: the caller checked that it is not null, and the verifier knows its size.
    let label: &'static mut Label = unsafe { &mut (*state).label };
    let cgroup = label.cgroup;
    let generation = match CONTROL.get(0) {
        Some(control) => control.generation,
        None => 0,
    };
    // The generation is read first: a subject that changes meanwhile is looked up again.
    if label.generation != generation || generation == 0 {
        // SAFETY: as in `by_cgroup`.
        let Some(subject) = (unsafe { SUBJECTS.get(cgroup) }) else {
            // The task outlived its session and stays confined for good.
            let fault = Reason::SessionEnded as u16;
            return Member { cgroup, subject: &NO_SUBJECT, fault, state };
        };
        let Subject { session, slot, mode, patterns, permits, pad } = *subject;
        label.subject = Subject { session, slot, mode, patterns, permits, pad };
        label.generation = generation;
    }
    Member { cgroup, subject: &label.subject, fault: 0, state }
}

/// The session of another task, where it bears a label.
#[inline(always)]
pub(crate) fn of(task: Task) -> Option<Member<'static>> {
    let state = LABELS.of(task.0, false);
    if state.is_null() {
        return None;
    }
    // SAFETY: not null, and the verifier knows its size.
    let cgroup = unsafe { (*state).label.cgroup };
    // SAFETY: as in `by_cgroup`.
    let subject = unsafe { SUBJECTS.get(cgroup) }?;
    Some(Member::of(cgroup, subject))
}

/// Labels a task that is being made. False where there was no memory.
#[inline(always)]
pub(crate) fn label(child: *mut c_void, member: &Member) -> bool {
    let state = LABELS.of(child, true);
    if state.is_null() {
        return false;
    }
    // SAFETY: not null, and the verifier knows its size.
    let label = unsafe { &mut (*state).label };
    label.cgroup = member.cgroup;
    // With the copy of its subject, which it would make at its first look.
    if let Some(generation) = member.generation() {
        let Subject { session, slot, mode, patterns, permits, pad } = *member.subject;
        label.subject = Subject { session, slot, mode, patterns, permits, pad };
        label.generation = generation;
    }
    true
}

/// Whether a task belongs to the member's session. Every member is labelled from its birth or from
/// its first `exec` in the cgroup, before it can be anybody's target.
#[inline(always)]
pub(crate) fn is_fellow(task: Task, member: &Member) -> bool {
    let state = LABELS.of(task.0, false);
    // SAFETY: not null where it is read, and the verifier knows its size.
    !state.is_null() && unsafe { (*state).label.cgroup } == member.cgroup
}
