//! One policy for another, in one step.

use super::{Engine, EngineError};
use crate::policy::compiled::CompiledPolicy;
use rustix::thread::{MembarrierCommand, membarrier};
use sandbox_common::subject::Subject;

impl Engine {
    /// Puts `new` in the place of `old` for the members of a session (its cgroup id).
    ///
    /// The new policy is entered whole under a slot of its own. Then `usable` is asked whether it is
    /// still right; where it is not, everything is as before and the answer is `false`. Else the
    /// session's subject is switched to the new slot by one map update: every verdict is that of the one
    /// or of the other policy. The old slot is withdrawn when no hook can be using it any more.
    pub fn replace(
        &mut self,
        cgroup: u64,
        old: &CompiledPolicy,
        new: &CompiledPolicy,
        usable: &mut dyn FnMut() -> bool,
    ) -> Result<bool, EngineError> {
        let subject = self.maps.subjects.get(&cgroup, 0).map_err(EngineError::map("SUBJECTS"))?;
        let slot = (1..=u32::MAX).find(|slot| !self.slots.contains_key(slot));
        let slot = slot.ok_or(EngineError::SlotUsed(subject.slot))?;
        self.publish(slot, new)?;
        if !usable() {
            self.withdraw(slot, new)?;
            return Ok(false);
        }
        let switched = Subject { slot, unknown: new.unknown.0.bits(), ..subject };
        if let Err(source) = self.maps.subjects.insert(cgroup, switched, 0) {
            // The error to tell is the first one.
            let _ = self.withdraw(slot, new);
            return Err(EngineError::Map { name: "SUBJECTS", source });
        }
        // Waits for an RCU grace period: every hook that began with the old subject has ended. Some
        // kernels (nohz_full) do not offer it; then such a hook may find the old policy gone, and what
        // is not found is denied.
        let _ = membarrier(MembarrierCommand::Global);
        self.withdraw(subject.slot, old)?;
        Ok(true)
    }
}
