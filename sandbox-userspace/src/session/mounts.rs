//! Mounts that come and go while a session runs.
//!
//! The kernel side knows superblocks, not mounts. One that appears after the policy was entered is unknown
//! to it: read as the policy's default, never written. This makes it known: the mount table is read again,
//! the same rules are compiled for it, and the new policy takes the place of the old in one step.

use super::guard::{Guard, Watch};
use super::state::Registry;
use crate::engine::EngineError;
use crate::kernel::mounts::{MountError, MountTable};
use crate::policy::compiled::CompiledPolicy;
use crate::policy::expand::Placed;
use crate::policy::{Context, Denial, Policy, PolicyError, compile_placed, denials};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, PoisonError, RwLock};

/// So often a table is read anew that changed while it was compiled, before it is given up until the
/// next change.
const ROUNDS: usize = 16;

/// Tells of changes of the calling process's mount table. Open it before the table is read.
#[derive(Debug)]
pub struct Changes(File);

impl Changes {
    /// From now on changes are seen.
    pub fn open() -> io::Result<Self> {
        File::open("/proc/self/mountinfo").map(Self)
    }

    /// Whether something changed since this was last asked. What cannot be known is a change.
    fn seen(&self) -> bool {
        let mut wait = [PollFd::new(&self.0, PollFlags::PRI)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut wait, Some(&now)).is_err() || !wait[0].revents().is_empty()
    }
}

/// The mount table as it was last read; the explanations of denials use it too.
pub type SharedTable = Arc<RwLock<MountTable>>;

/// What a policy is compiled from, again and again.
#[derive(Debug)]
pub struct Plan {
    /// The rules.
    pub policy: Policy,
    /// What they were tied to.
    pub context: Context,
    /// The paths that they had when the session began.
    pub placed: Vec<Placed>,
    /// The mounts.
    pub table: SharedTable,
    /// When they change.
    pub changes: Changes,
    /// Of the lock under which one policy takes the place of another.
    pub registry: Registry,
}

/// Follows the mounts of a session.
pub struct Follower {
    plan: Plan,
    /// What is in force.
    policy: CompiledPolicy,
    /// What was denied under the tables so far, with the era of the superblock.
    denied: HashMap<Denial, u32>,
}

/// The mounts could not be followed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FollowError {
    /// The table cannot be read.
    #[error(transparent)]
    Table(#[from] MountError),
    /// The rules make no policy with the new mounts.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The kernel side refused.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// No table was in force long enough.
    #[error("the mounts change faster than they can be read")]
    Restless,
}

impl Follower {
    /// `policy` was compiled from the plan's table and is in force for the session, its
    /// [`eras`](CompiledPolicy::eras) are those that it was entered under.
    pub fn new(plan: Plan, policy: CompiledPolicy) -> Self {
        Self { plan, policy, denied: HashMap::new() }
    }

    /// To be called before the first member runs: brings the policy up to date where the table changed
    /// since it was first read.
    pub fn begin(&mut self, guard: &mut dyn Guard) -> Result<Vec<String>, FollowError> {
        let table = self.table();
        // Of the first table nothing is known for sure if it changed before the policy was entered.
        if self.plan.changes.seen() {
            return self.try_follow(guard);
        }
        self.remember(&table);
        Ok(Vec::new())
    }

    fn try_follow(&mut self, guard: &mut dyn Guard) -> Result<Vec<String>, FollowError> {
        for _ in 0..ROUNDS {
            // From here on a change is seen below.
            self.plan.changes.seen();
            let numbers = MountTable::read(None)?;
            let mut devs: HashSet<u32> = numbers.mounts().iter().map(|mount| mount.dev).collect();
            devs.extend(self.denied.keys().map(|denial| denial.dev));
            // Before the table that counts: see `Engine::eras`.
            let eras = guard.eras(&devs.into_iter().collect::<Vec<_>>())?;
            let table = MountTable::read(None)?;
            if table.mounts().iter().any(|mount| !eras.contains_key(&mount.dev)) {
                continue;
            }
            // What was denied on a superblock that has ended is over.
            self.denied.retain(|denial, era| eras.get(&denial.dev) == Some(era));
            let former: Vec<Denial> = self.denied.keys().cloned().collect();
            let Plan { policy, context, placed, changes, registry, .. } = &self.plan;
            let (mut compiled, warnings) =
                compile_placed(policy, context, placed, &table, &former)?;
            compiled.eras = eras;
            compiled.linked.clone_from(&self.policy.linked);
            let mut usable = || !changes.seen();
            if guard.replace(registry, &compiled, &mut usable)? {
                self.policy = compiled;
                self.remember(&table);
                *self.plan.table.write().unwrap_or_else(PoisonError::into_inner) = table;
                return Ok(warnings.iter().map(ToString::to_string).collect());
            }
        }
        Err(FollowError::Restless)
    }

    fn table(&self) -> MountTable {
        self.plan.table.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes what the table denies, which is in force.
    fn remember(&mut self, table: &MountTable) {
        let eras = &self.policy.eras;
        let denials = denials(&self.plan.policy, &self.plan.placed, table);
        let denials = denials.into_iter();
        self.denied.extend(denials.filter_map(|d| eras.get(&d.dev).map(|era| (d, *era))));
    }
}

impl Watch for Follower {
    fn wait_on(&self) -> BorrowedFd<'_> {
        self.plan.changes.0.as_fd()
    }

    fn follow(&mut self, guard: &mut dyn Guard) -> Vec<String> {
        match self.try_follow(guard) {
            Ok(warnings) => warnings,
            Err(error) => vec![format!(
                "the mounts changed and the policy could not follow them: {error}; what was mounted \
                 since stays unknown to it: nothing is written there"
            )],
        }
    }
}
