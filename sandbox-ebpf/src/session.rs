//! Which session a cgroup lies beneath, at hand: what `SUBJECTS` says, where it was looked up in this
//! generation (`Control::generation`).
//!
//! A cgroup never comes to lie beneath another, and its id is never given to another.

use crate::kernel::task;
use crate::maps::{self, OWNER, SUBJECTS};
use crate::shelf::{Shelf, Words};
use crate::subject::{self, Member, NO_SUBJECT};
use sandbox_common::subject::Subject;

/// | word | |
/// |---|---|
/// | 0 | id of a cgroup: the session's own, or one beneath |
/// | 1 | generation |
/// | 2 | id of the session's cgroup |
/// | 3 | 32 `Subject::slot`, 32 `session` below |
/// | 4 | 32 `Subject::patterns`, 32 `mode` below |
/// | 5 | `Subject::permits` |
static CGROUPS: Shelf<1024> = Shelf::new();

/// A session, by value: what others change meanwhile does not mix with it.
#[derive(Clone, Copy)]
pub(crate) struct Session {
    /// Id of its cgroup.
    cgroup: u64,
    subject: Subject,
    /// In which it was that; 0 where nobody knows.
    generation: u64,
}

impl Session {
    /// None: what an ended session leaves behind belongs to it.
    const UNKNOWN: Self = Self { cgroup: 0, subject: NO_SUBJECT, generation: 0 };

    /// Whoever is in its cgroup, or whatever was made there.
    #[inline(always)]
    pub(crate) fn member(&self) -> Member<'_> {
        Member::of(self.cgroup, &self.subject)
    }

    /// In which generation (`Control::generation`) it had its slot.
    #[inline(always)]
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    #[inline(always)]
    fn of(cgroup: u64, subject: &Subject, generation: u64) -> Self {
        let Subject { session, slot, mode, patterns, permits, pad } = *subject;
        let subject = Subject { session, slot, mode, patterns, permits, pad };
        Self { cgroup, subject, generation }
    }
}

/// The session whose cgroup is an ancestor of the current task's.
#[inline(always)]
pub(crate) fn of_current() -> Option<Session> {
    let (cgroup, generation) = (task::cgroup(), maps::generation());
    if let Some(session) = look(cgroup, generation) {
        return Some(session);
    }
    let member = subject::by_cgroup()?;
    let session = Session::of(member.cgroup, member.subject, generation);
    put(cgroup, &session);
    Some(session)
}

/// The session whose cgroup the program is attached to.
#[inline(always)]
pub(crate) fn owner() -> Session {
    // SAFETY: the kernel makes the value when it attaches the program; user space writes it once.
    let cgroup = unsafe { *OWNER.get_ptr_mut() };
    let generation = maps::generation();
    if let Some(session) = look(cgroup, generation) {
        return session;
    }
    // SAFETY: entries are only added and removed whole, and a reader is under RCU.
    let Some(subject) = (unsafe { SUBJECTS.get(cgroup) }) else { return Session::UNKNOWN };
    let session = Session::of(cgroup, subject, generation);
    put(cgroup, &session);
    session
}

/// Whether a cgroup is known to lie beneath a session's. It may though it is not known.
#[inline(always)]
pub(crate) fn is_above(cgroup: u64) -> bool {
    let generation = maps::generation();
    let differs = |words: Words| (words.get(0) ^ cgroup | words.get(1) ^ generation, ());
    CGROUPS.look(cgroup, generation, differs).is_some()
}

#[inline(always)]
fn look(cgroup: u64, generation: u64) -> Option<Session> {
    let (at, what, how, permits) = CGROUPS.look(cgroup, generation, |words| {
        let differs = words.get(0) ^ cgroup | words.get(1) ^ generation;
        (differs, (words.get(2), words.get(3), words.get(4), words.get(5)))
    })?;
    let subject = Subject {
        session: what as u32,
        slot: (what >> 32) as u32,
        mode: how as u32,
        patterns: (how >> 32) as u32,
        permits: permits as u32,
        pad: 0,
    };
    Some(Session { cgroup: at, subject, generation })
}

/// The generation was read before the session was looked up.
#[inline(always)]
fn put(cgroup: u64, session: &Session) {
    let Subject { session: number, slot, mode, patterns, permits, .. } = session.subject;
    CGROUPS.put(cgroup, |words| {
        words.set(0, cgroup);
        words.set(1, session.generation);
        words.set(2, session.cgroup);
        words.set(3, u64::from(slot) << 32 | u64::from(number));
        words.set(4, u64::from(patterns) << 32 | u64::from(mode));
        words.set(5, permits.into());
    });
}
