//! A session's share of an engine: its number, its slots, its ring, its cgroup links.
//!
//! Numbers only go up, so that whatever still bears one (a record on a ring, an entry that is being
//! removed) can never be taken for another session's. A claim is written down in the engine itself
//! and outlives the process that made it: from it, everything that a killed `sandbox run` left is found.

use super::engines::{self, Aside};
use super::events::Ring;
use super::load::{CGROUP_HOOKS, RECEIVING};
use super::notes::{self, Notes};
use super::{Engine, EngineError, sweep};
use crate::policy::compiled::CompiledPolicy;
use crate::session::state::Held;
use aya::maps::{MapData, MapError, PerCpuValues};
use aya::util::nr_cpus;
use aya_obj::generated::bpf_map_type;
use sandbox_common::event::RING_BYTES;
use sandbox_common::subject::SESSIONS;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// `BPF_NOEXIST` of linux/bpf.h: only where there is no such entry.
pub(super) const NOT_YET: u64 = 1;
/// A session takes two numbers: both are slots, the first is its own as well.
const NUMBERS: u32 = 2;
/// Most bytes of an owner's name.
const NAME: usize = 8;

/// Value of map `CLAIMS`, keyed by session number.
#[repr(C)]
#[derive(Clone, Copy, Debug, zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable)]
pub(super) struct Claimed {
    /// Name of the owner: a session's id. Zeros fill it up.
    owner: [u8; NAME],
    /// Cgroup ids of the session and of its canary; 0 where there is none yet.
    cgroups: [u64; 2],
    /// Policy slots beside its numbers, of policies that took the place of the first: the one in force, and
    /// the one that is being entered or withdrawn. 0 where there is none.
    slots: [u32; 2],
}

// SAFETY: the derives above show that every bit pattern is valid and that there is no padding.
unsafe impl aya::Pod for Claimed {}

impl Claimed {
    fn is_of(&self, owner: &str) -> bool {
        name(owner).is_some_and(|name| name == self.owner)
    }
}

fn name(owner: &str) -> Option<[u8; NAME]> {
    let mut name = [0; NAME];
    name.get_mut(..owner.len())?.copy_from_slice(owner.as_bytes());
    (!owner.is_empty()).then_some(name)
}

/// What one session has on an engine. Dropping it changes nothing; [`end`](Self::end) gives it back.
pub struct Share {
    /// The engine.
    pub(super) engine: Engine,
    pub(super) owner: String,
    pub(super) number: u32,
    claimed: Claimed,
    /// The session's cgroup, where this process attached it; else nothing can be attached any more.
    pub(super) directory: PathBuf,
    /// The slot of the policy in force.
    slot: u32,
    /// What it holds, where this process entered it.
    pub(super) policy: Option<CompiledPolicy>,
    /// Whether a slot that is not in force may hold something.
    pub(super) left: bool,
    /// Its notes.
    pub(super) notes: Notes,
}

impl Engine {
    /// Claims a share for `owner`, at most eight bytes that nobody else is called by.
    pub fn claim(mut self, owner: &str, _held: &Held) -> Result<Share, EngineError> {
        let name = name(owner).ok_or_else(|| EngineError::Owner(owner.into()))?;
        let place = self.links(owner);
        DirBuilder::new()
            .mode(0o700)
            .create(&place)
            .map_err(|source| EngineError::Pins { path: place, source })?;
        let claimed = Claimed { owner: name, cgroups: [0; 2], slots: [0; 2] };
        let number = match self.number(claimed) {
            Ok(number) => number,
            Err(error) => {
                // The error to tell is the first one; an empty directory is found by the next start.
                let _ = self.remove_place(owner);
                return Err(error);
            }
        };
        Ok(Share {
            engine: self,
            owner: owner.into(),
            number,
            claimed,
            directory: PathBuf::new(),
            slot: number,
            policy: None,
            left: false,
            notes: Notes::default(),
        })
    }

    /// Takes the next numbers and writes the claim down.
    fn number(&mut self, claimed: Claimed) -> Result<u32, EngineError> {
        let number = self.take_numbers(NUMBERS)?;
        match self.maps.claims.insert(number, claimed, NOT_YET) {
            Err(error) if errno(&error) == Some(libc::E2BIG) => Err(EngineError::Full(SESSIONS)),
            other => other.map_err(EngineError::map("CLAIMS")).map(|()| number),
        }
    }

    /// Takes numbers that nobody had; under the lock.
    fn take_numbers(&mut self, count: u32) -> Result<u32, EngineError> {
        let next = self.maps.next.get(&0, 0).map_err(EngineError::map("NEXT"))?;
        // 0 is nobody's.
        let number = next.max(1);
        let after = number.checked_add(count).ok_or(EngineError::NoNumbers)?;
        self.maps.next.set(0, after, 0).map_err(EngineError::map("NEXT"))?;
        Ok(number)
    }

    /// The share of an owner, made by whatever process; `None` where it has nothing here.
    pub fn share_of(self, owner: &str) -> Result<Option<Share>, EngineError> {
        let mut found = None;
        for entry in &self.maps.claims {
            let (number, claimed) = entry.map_err(EngineError::map("CLAIMS"))?;
            if claimed.is_of(owner) {
                found = Some((number, claimed));
            }
        }
        Ok(found.map(|(number, claimed)| Share {
            engine: self,
            owner: owner.into(),
            number,
            claimed,
            directory: PathBuf::new(),
            slot: if claimed.slots[0] == 0 { number } else { claimed.slots[0] },
            policy: None,
            left: true,
            notes: Notes::default(),
        }))
    }

    /// Gives back what owners left who have no directory here any more.
    pub(super) fn forget_strangers(&mut self, held: &Held) -> Result<(), EngineError> {
        let mut strangers = Vec::new();
        for entry in &self.maps.claims {
            let (number, claimed) = entry.map_err(EngineError::map("CLAIMS"))?;
            let name: Vec<u8> =
                claimed.owner.iter().copied().take_while(|byte| *byte != 0).collect();
            let name = String::from_utf8_lossy(&name).into_owned();
            if !self.pins.join("sessions").join(name).exists() {
                strangers.push((number, claimed));
            }
        }
        for (number, claimed) in strangers {
            let slots = (number..number + NUMBERS).chain(claimed.slots);
            self.give_back(number, claimed, slots, held)?;
        }
        Ok(())
    }

    /// Removes everything that bears a claim's numbers or cgroups, the claim last. The session's slot
    /// is searched for unless it is known to be empty.
    fn give_back(
        &mut self,
        number: u32,
        claimed: Claimed,
        slots: impl IntoIterator<Item = u32>,
        held: &Held,
    ) -> Result<(), EngineError> {
        for cgroup in claimed.cgroups.into_iter().filter(|cgroup| *cgroup != 0) {
            gone("SUBJECTS", self.maps.subjects.remove(&cgroup))?;
            self.renew(held)?;
            sweep::cgroup(&mut self.maps, cgroup)?;
        }
        for ring in [number, notes::ring(number)] {
            gone("RINGS", self.maps.rings.remove(&ring))?;
            gone("LOST", self.maps.lost.remove(&ring))?;
        }
        gone("RESOLVERS", self.maps.resolvers.remove(&number))?;
        sweep::names(&mut self.maps, number)?;
        sweep::counts(&mut self.maps, number)?;
        for slot in slots.into_iter().filter(|slot| *slot != 0) {
            sweep::slot(&mut self.maps, slot)?;
        }
        gone("CLAIMS", self.maps.claims.remove(&number))
    }

    fn remove_place(&self, owner: &str) -> Result<(), EngineError> {
        let path = self.links(owner);
        engines::remove(&path).map_err(|source| EngineError::Pins { path, source })
    }
}

impl Share {
    /// The engine, to publish and admit.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// Who has it.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The session's number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The policy slot of the session, and that of its canary.
    pub fn slots(&self) -> (u32, u32) {
        (self.number, self.number + 1)
    }

    /// Writes down which cgroup is the session's.
    pub fn of_cgroup(&mut self, cgroup: u64) -> Result<(), EngineError> {
        self.note(0, cgroup)
    }

    /// Writes down which cgroup is the canary's.
    pub fn of_canary(&mut self, cgroup: u64) -> Result<(), EngineError> {
        self.note(1, cgroup)
    }

    fn note(&mut self, index: usize, cgroup: u64) -> Result<(), EngineError> {
        self.claimed.cgroups[index] = cgroup;
        let claims = &mut self.engine.maps.claims;
        claims.insert(self.number, self.claimed, 0).map_err(EngineError::map("CLAIMS"))
    }

    /// The session's cgroup.
    pub(super) fn cgroup(&self) -> u64 {
        self.claimed.cgroups[0]
    }

    /// Takes a slot for another policy, and writes that down.
    pub(super) fn take_slot(&mut self, _held: &Held) -> Result<u32, EngineError> {
        let slot = self.engine.take_numbers(1)?;
        self.note_slots([self.claimed.slots[0], slot])?;
        Ok(slot)
    }

    /// Writes down that the policy in force is now `new`, in `slot`; returns what was before, which is still
    /// to be withdrawn.
    pub(super) fn in_force(
        &mut self,
        slot: u32,
        new: CompiledPolicy,
    ) -> (u32, Option<CompiledPolicy>) {
        let old = (std::mem::replace(&mut self.slot, slot), self.policy.replace(new));
        // Both are written down already; in which order matters to nobody.
        let _ = self.note_slots([slot, old.0]);
        old
    }

    fn note_slots(&mut self, slots: [u32; 2]) -> Result<(), EngineError> {
        self.claimed.slots = slots;
        let claims = &mut self.engine.maps.claims;
        claims.insert(self.number, self.claimed, 0).map_err(EngineError::map("CLAIMS"))
    }

    /// Empties a slot of which nobody knows what is in it.
    pub(super) fn empty(&mut self, slot: u32) -> Result<(), EngineError> {
        sweep::slot(&mut self.engine.maps, slot)
    }

    /// Makes the ring of its denials, once. Readable (epoll) when records wait.
    pub fn ring(&mut self) -> Result<Ring, EngineError> {
        self.ring_at(self.number, "DENIALS")
    }

    /// Makes a ring of this name, and the count of what it loses.
    pub(super) fn ring_at(&mut self, number: u32, name: &'static str) -> Result<Ring, EngineError> {
        let cpus = nr_cpus().map_err(|(_, error)| EngineError::Cpus(error))?;
        let none = PerCpuValues::try_from(vec![0; cpus]).map_err(EngineError::Cpus)?;
        let maps = &mut self.engine.maps;
        maps.lost.insert(number, none, NOT_YET).map_err(EngineError::map("LOST"))?;
        let kind = bpf_map_type::BPF_MAP_TYPE_RINGBUF as u32;
        let shape = aya_obj::Map::new_from_params(kind, 0, 0, RING_BYTES, 0);
        let ring = MapData::create(shape, name, None).map_err(EngineError::map(name))?;
        maps.rings.insert(number, &ring, NOT_YET).map_err(EngineError::map("RINGS"))?;
        Ring::of(ring, name)
    }

    /// See [`Engine::label`].
    pub fn label(&self, pidfd: BorrowedFd<'_>) -> Result<Option<u64>, EngineError> {
        self.engine.label(pidfd)
    }

    /// Attaches to the session's cgroup (directory and id) the programs that every session has there.
    pub fn attach(&mut self, cgroup: (&Path, u64)) -> Result<(), EngineError> {
        cgroup.0.clone_into(&mut self.directory);
        let hooks = CGROUP_HOOKS.iter().copied().filter(|hook| *hook != RECEIVING);
        self.engine.attach(hooks, cgroup, (&self.owner, ""))
    }

    /// Attaches all cgroup programs to another cgroup of its, for [`detach`](Self::detach) under a prefix.
    pub fn attach_all(&mut self, cgroup: (&Path, u64), prefix: &str) -> Result<(), EngineError> {
        self.engine.attach(CGROUP_HOOKS.iter().copied(), cgroup, (&self.owner, prefix))
    }

    /// Detaches them.
    pub fn detach(&mut self, prefix: &str) -> Result<(), EngineError> {
        self.engine.detach(&self.owner, prefix)
    }

    /// Records that found no room on its ring, over all CPUs.
    pub fn lost(&self) -> Result<u64, EngineError> {
        self.engine.lost(self.number)
    }

    /// Enters the session's policy into its slot, see [`Engine::publish`].
    pub fn publish(&mut self, mut policy: CompiledPolicy) -> Result<u32, EngineError> {
        let patterns = self.engine.publish(self.number, &mut policy)?;
        self.count(&policy)?;
        self.note_by(&policy)?;
        self.policy = Some(policy);
        Ok(patterns)
    }

    /// Gives everything back that is this session's; no task may be in it any more. Where it was the
    /// last session the engine is set aside, unless it is kept.
    pub fn end(mut self, held: &Held) -> Result<Option<Aside>, EngineError> {
        // Every part is tried; what fails is told, and done by the next start.
        let place = self.engine.remove_place(&self.owner);
        let withdrawn = match &self.policy {
            Some(policy) => self.engine.withdraw(self.slot, policy),
            None => Ok(()),
        };
        // Who published has seen its canary's slot emptied as well, and those of former policies.
        let known = self.policy.is_some() && withdrawn.is_ok() && !self.left;
        let count = if known { 0 } else { NUMBERS };
        let others = if known { [0; 2] } else { self.claimed.slots };
        let slots = (self.number..self.number + count).chain(others);
        let given = self.engine.give_back(self.number, self.claimed, slots, held);
        place.and(withdrawn).and(given)?;
        engines::set_aside_if_idle(&self.engine.pins, held)
    }
}

/// That there is no such entry is what was wanted.
pub(super) fn gone(name: &'static str, removed: Result<(), MapError>) -> Result<(), EngineError> {
    match removed {
        Ok(()) | Err(MapError::KeyNotFound) => Ok(()),
        Err(error) if errno(&error) == Some(libc::ENOENT) => Ok(()),
        Err(error) => Err(EngineError::map(name)(error)),
    }
}

/// The number of the error that the kernel answered with.
pub(super) fn errno(error: &MapError) -> Option<i32> {
    match error {
        MapError::SyscallError(call) => call.io_error.raw_os_error(),
        MapError::IoError(error) => error.raw_os_error(),
        _ => None,
    }
}

/// Owners that have a directory on the engine pinned at `pins`.
pub(super) fn owners(pins: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(pins.join("sessions")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_have_names_of_one_to_eight_bytes() {
        assert_eq!(name("doctor"), Some(*b"doctor\0\0"));
        assert_eq!(name("0123abcd"), Some(*b"0123abcd"));
        assert_eq!(name(""), None);
        assert_eq!(name("0123abcde"), None);
        let claimed = Claimed { owner: *b"doctor\0\0", cgroups: [0; 2], slots: [0; 2] };
        assert!(claimed.is_of("doctor") && !claimed.is_of("doct") && !claimed.is_of(""));
    }
}
