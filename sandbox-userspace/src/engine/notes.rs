//! The second ring of a session: what was allowed and is noted all the same.
//!
//! It is there where a policy of the session has had something noted.

use super::events::Ring;
use super::{EngineError, Share};
use crate::policy::compiled::CompiledPolicy;
use sandbox_common::subject::NOTES;

/// Key of the ring in `RINGS`, and of what it lost in `LOST`, of a session of this number: the number of its canary's
/// slot, which is nobody else's.
pub(super) const fn ring(number: u32) -> u32 {
    number + 1
}

/// The ring of a session's notes.
#[derive(Default)]
pub(super) struct Notes {
    made: bool,
    /// Until it is taken.
    ring: Option<Ring>,
}

impl Share {
    /// Makes the ring where the policy, which is about to be in force, has something noted, and there is none.
    pub(super) fn note_by(&mut self, policy: &CompiledPolicy) -> Result<(), EngineError> {
        if policy.permits & NOTES != 0 && !self.notes.made {
            self.notes.ring = Some(self.ring_at(ring(self.number), "NOTES")?);
            self.notes.made = true;
        }
        Ok(())
    }

    /// The ring of notes, where one was made since this was last asked.
    pub fn new_notes(&mut self) -> Option<Ring> {
        self.notes.ring.take()
    }

    /// Notes that found no room.
    pub fn lost_notes(&self) -> Result<u64, EngineError> {
        if self.notes.made { self.engine.lost(ring(self.number)) } else { Ok(0) }
    }
}
