//! What the rules that count have let pass.

use super::claims::{NOT_YET, errno};
use super::load::RECEIVING;
use super::{EngineError, Share};
use crate::policy::compiled::CompiledPolicy;
use aya::maps::MapError;
use sandbox_common::net::{Count, CountKey};

/// What a rule has let pass in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The rule.
    pub rule: u32,
    /// Bytes, and the most of them.
    pub count: Count,
}

impl Share {
    /// Has the rules of a policy that count do so, from where they were. The policy is not in force yet.
    pub(super) fn count(&mut self, policy: &CompiledPolicy) -> Result<(), EngineError> {
        if !policy.counts.is_empty() {
            self.receive().map_err(|error| EngineError::Receiving(Box::new(error)))?;
        }
        let session = self.number();
        for (rule, max) in &policy.counts {
            let key = CountKey { session, rule: *rule };
            let none = Count { max: *max, ..Count::default() };
            match self.engine.maps.counts.insert(key, none, NOT_YET) {
                // Another policy had the same rule.
                Err(error) if errno(&error) == Some(libc::EEXIST) => {}
                other => other.map_err(EngineError::map("COUNTS"))?,
            }
        }
        Ok(())
    }

    /// Has what the session receives looked at, which costs it every packet that comes in: from its first policy that
    /// counts on, and until it ends.
    fn receive(&mut self) -> Result<(), EngineError> {
        // What is pinned is attached.
        if self.engine.links(&self.owner).join(RECEIVING.name()).exists() {
            return Ok(());
        }
        let cgroup = (self.directory.as_path(), self.cgroup());
        self.engine.attach([RECEIVING], cgroup, (&self.owner, ""))
    }

    /// What has passed, by the rules of the policy in force that count.
    pub fn passed(&self) -> Result<Vec<Passed>, EngineError> {
        let rules = self.policy.iter().flat_map(|policy| &policy.counts);
        let passed = |(rule, _): &(u32, u64)| {
            let key = CountKey { session: self.number, rule: *rule };
            match self.engine.maps.counts.get(&key, 0) {
                Ok(count) => Ok(Some(Passed { rule: *rule, count })),
                Err(MapError::KeyNotFound) => Ok(None),
                Err(error) => Err(EngineError::map("COUNTS")(error)),
            }
        };
        rules.map(passed).filter_map(Result::transpose).collect()
    }
}
