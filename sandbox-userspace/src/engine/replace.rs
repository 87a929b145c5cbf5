//! One policy for another, in one step.

use super::{EngineError, Share};
use crate::policy::compiled::CompiledPolicy;
use crate::session::state::{Held, Registry};
use rustix::thread::{MembarrierCommand, membarrier};
use sandbox_common::subject::Subject;

impl Share {
    /// Puts `new` in the place of the session's policy.
    ///
    /// The new policy is entered whole under a slot of its own. Then `usable` is asked whether it is
    /// still right; where it is not, everything is as before and the answer is `false`. Else the
    /// session's subject is switched to the new slot by one map update: every verdict is that of the one
    /// or of the other policy. The old slot is withdrawn when no hook can be using it any more.
    ///
    /// The lock is not held while the policy is entered.
    pub fn replace(
        &mut self,
        registry: &Registry,
        new: &CompiledPolicy,
        usable: &mut dyn FnMut() -> bool,
    ) -> Result<bool, EngineError> {
        let replaced = self.try_replace(registry, new.clone(), usable);
        self.left |= replaced.is_err();
        replaced
    }

    fn try_replace(
        &mut self,
        registry: &Registry,
        mut new: CompiledPolicy,
        usable: &mut dyn FnMut() -> bool,
    ) -> Result<bool, EngineError> {
        let hold = || registry.hold().map_err(EngineError::Lock);
        let slot = self.take_slot(&hold()?)?;
        let patterns = self.engine.publish(slot, &mut new)?;
        let prepared = self.count(&new).and_then(|()| self.note_by(&new));
        let switched = prepared.and_then(|()| hold()).and_then(|held| {
            if !usable() {
                return Ok(false);
            }
            self.switch(slot, (patterns, new.permits), &held)?;
            Ok(true)
        });
        if !matches!(switched, Ok(true)) {
            // The error to tell is the first one; what is left is found by the claim.
            let withdrawn = self.engine.withdraw(slot, &new);
            return switched.and_then(|switched| withdrawn.map(|()| switched));
        }
        // Waits for an RCU grace period: every hook that began with the old subject has ended. Some
        // kernels (nohz_full) do not offer it; then such a hook may find the old policy gone, and what
        // is not found is denied.
        let _ = membarrier(MembarrierCommand::Global);
        let (slot, old) = self.in_force(slot, new);
        match old {
            Some(old) => self.engine.withdraw(slot, &old)?,
            // Of a process that is gone: nobody knows what it entered.
            None => self.empty(slot)?,
        }
        Ok(true)
    }

    /// Changes the session's subject, and what tasks know of it.
    fn switch(
        &mut self,
        slot: u32,
        (patterns, permits): (u32, u32),
        held: &Held,
    ) -> Result<(), EngineError> {
        let (cgroup, maps) = (self.cgroup(), &mut self.engine.maps);
        let subject = maps.subjects.get(&cgroup, 0).map_err(EngineError::map("SUBJECTS"))?;
        let switched = Subject { slot, patterns, permits, ..subject };
        maps.subjects.insert(cgroup, switched, 0).map_err(EngineError::map("SUBJECTS"))?;
        self.engine.renew(held)
    }
}
