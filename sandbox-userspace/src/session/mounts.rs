//! Mounts that come and go while a session runs.
//!
//! The kernel side knows superblocks, not mounts. One that appears after the policy was entered is unknown
//! to it: read as the policy's default, never written. This makes it known: the mount table is read again,
//! the same rules are compiled for it, and the new policy takes the place of the old in one step.

use super::guard::{Guard, Names, Told, Watch};
use super::live::{self, Live, Next};
use super::resources::chain;
use super::state::Registry;
use crate::engine::EngineError;
use crate::kernel::mounts::{Components, MountError, MountTable};
use crate::policy::compiled::CompiledPolicy;
use crate::policy::expand::Placed;
use crate::policy::rule::{Kind, Origin};
use crate::policy::{
    Context, Denial, GRANT_LAYER, Policy, PolicyError, compile_placed, denials, linked,
};
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
    /// Where changes of the policy come from.
    live: Option<Live>,
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
    pub fn new(plan: Plan, policy: CompiledPolicy, live: Option<Live>) -> Self {
        Self { plan, policy, denied: HashMap::new(), live }
    }

    /// Puts another policy in the place of the present one, or leaves all as it is.
    fn change(
        &mut self,
        guard: &mut dyn Guard,
        names: Option<&mut dyn Names>,
        live: &mut Live,
        next: Next,
    ) -> Option<Told> {
        let names = names.filter(|names| names.answers());
        let Plan { policy, placed, context, .. } = &self.plan;
        let (policy, placed) = match live.tie(&next, context, policy, placed) {
            Ok(tied) => tied,
            Err(why) => return live.refuse(next, &why).map(Told::Warning),
        };
        if names.is_none() && live::names(&policy) != live::names(&self.plan.policy) {
            let why = "the session has no resolver of names, for it began without any or it is dead: other \
                       rules about names need a new session; an address can be granted";
            return live.refuse(next, why).map(Told::Warning);
        }
        let denied = self.still_denied(&policy, &placed);
        let linked = linked::find(&placed, policy.defaults, &self.table(), linked::ENTRIES).files;
        let policy = std::mem::replace(&mut self.plan.policy, policy);
        let placed = std::mem::replace(&mut self.plan.placed, placed);
        let denied = std::mem::replace(&mut self.denied, denied);
        let linked = std::mem::replace(&mut self.policy.linked, linked);
        let said = (self.policy.names.clone(), self.policy.within.clone());
        match self.try_follow(guard) {
            Ok(_) => {
                let CompiledPolicy { names: said_now, within, .. } = &self.policy;
                let changed = match names {
                    Some(names) if (said_now, within) != (&said.0, &said.1) => {
                        names.change(said_now, within)
                    }
                    _ => Ok(()),
                };
                // Before it is told that the policy is in force.
                let changed = changed.map_err(|error| self.close_names(guard, &error));
                let text = live.keep(next, &self.policy.rules);
                Some(match changed {
                    Ok(()) => Told::Info(text),
                    Err(error) => Told::Warning(format!("{text}; {error}")),
                })
            }
            Err(error) => {
                (self.plan.policy, self.plan.placed) = (policy, placed);
                (self.denied, self.policy.linked) = (denied, linked);
                live.refuse(next, &chain(&error)).map(Told::Warning)
            }
        }
    }

    /// Closes what names had opened by rules that are no more, where the resolver did not; what to say of that.
    fn close_names(&self, guard: &mut dyn Guard, error: &str) -> String {
        let entries = self.policy.names.iter().flat_map(|layer| &layer.entries);
        match guard.keep_names(&entries.map(|entry| entry.rule).collect()) {
            Ok(()) => format!("{error}; what it had opened is closed until it is asked for again"),
            Err(more) => {
                format!("{error}; what names had opened stays open until it expires: {more}")
            }
        }
    }

    /// What was denied under former tables by rules that are still there.
    fn still_denied(&self, policy: &Policy, placed: &[Placed]) -> HashMap<Denial, u32> {
        let key =
            |origin: &Origin| (origin.key, origin.text.clone(), origin.place.source.name.clone());
        let before: HashMap<u32, _> =
            self.plan.policy.origins().map(|origin| (origin.id, key(origin))).collect();
        let now: HashMap<_, u32> =
            policy.origins().map(|origin| (key(origin), origin.id)).collect();
        let table = self.table();
        // What a grant opened.
        let kept: HashSet<(u32, &Components, Kind)> = placed
            .iter()
            .filter(|rule| rule.allow && rule.layer == 0 && rule.tail.is_empty())
            .flat_map(|rule| Kind::of(rule.access).map(|kind| (rule.id, &rule.path, kind)))
            .collect();
        let opened: Vec<(u32, Components, Kind)> = kept
            .into_iter()
            .filter(|(id, ..)| {
                let origin = policy.origin(*id);
                origin.is_some_and(|origin| origin.place.source.layer == GRANT_LAYER)
            })
            .filter_map(|(_, path, kind)| {
                let (dev, place) = table.locate(path)?;
                Some((dev, place, kind))
            })
            .collect();
        let of_now = |(denial, era): (&Denial, &u32)| {
            let id = match denial.rule() {
                // The default of a ceiling.
                0 => 0,
                rule => *now.get(before.get(&rule)?)?,
            };
            let is_opened =
                opened.iter().any(|(dev, place, kind)| denial.is_of(*dev, place, *kind));
            (!is_opened).then(|| (denial.clone().of_rule(id), *era))
        };
        self.denied.iter().filter_map(of_now).collect()
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
    fn wait_on(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let mut wait = vec![(self.plan.changes.0.as_fd(), PollFlags::PRI)];
        let live = self.live.iter().flat_map(Live::wait_on);
        wait.extend(live.map(|fd| (fd, PollFlags::IN)));
        wait
    }

    fn follow(
        &mut self,
        guard: &mut dyn Guard,
        mut names: Option<&mut dyn Names>,
        woken: &[usize],
    ) -> Vec<Told> {
        let mut told = Vec::new();
        if woken.contains(&0) {
            match self.try_follow(guard) {
                Ok(warnings) => told.extend(warnings.into_iter().map(Told::Warning)),
                Err(error) => told.push(Told::Warning(format!(
                    "the mounts changed and the policy could not follow them: {}; what was \
                     mounted since stays unknown to it: nothing is written there",
                    chain(&error)
                ))),
            }
        }
        if woken.iter().any(|number| *number > 0)
            && let Some(mut live) = self.live.take()
        {
            for due in live.due() {
                match due {
                    Ok(next) => {
                        let names = names.as_mut().map(|names| &mut **names as &mut dyn Names);
                        told.extend(self.change(guard, names, &mut live, next));
                    }
                    Err(text) => {
                        let text = format!("the policy stays as it was: {text}");
                        told.push(Told::Warning(text));
                    }
                }
            }
            live.alarm();
            self.live = Some(live);
        }
        told
    }
}
