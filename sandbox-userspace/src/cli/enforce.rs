//! The kernel side of `sandbox run`: programs of its own, proved, with the session's policy.

use crate::engine::events::Ring;
use crate::engine::{Engine, Way};
use crate::policy::compiled::CompiledPolicy;
use crate::session::canary;
use crate::session::cgroup::{Cgroup, CgroupTree};
use crate::session::resources::Enforced;
use crate::session::run::{Kernel, RunError};
use sandbox_common::layout::KernelLayout;
use sandbox_common::subject::{Mode, Subject};
use std::path::Path;

/// The slot of a session's policy; its engine is its own.
const SLOT: u32 = 1;

/// The programs of this kernel with one policy.
pub(super) struct Bpf {
    pub(super) tree: CgroupTree,
    pub(super) layout: KernelLayout<u32>,
    pub(super) way: Way,
    pub(super) policy: CompiledPolicy,
}

impl Kernel for Bpf {
    fn enforce(&mut self, cgroup: &Cgroup, pins: &Path) -> Result<Enforced, RunError> {
        let mut engine = Engine::load(&self.layout, self.way, pins)
            .map_err(|error| refused("load the programs", error))?;
        match self.fill(&mut engine, cgroup, pins) {
            Ok(ring) => Ok(Enforced { guard: Box::new(engine), source: Box::new(ring) }),
            Err(RunError::Enforce { message, help }) => {
                let left = engine.remove().err();
                let left = left.map(|error| format!("; and cannot remove the programs: {error}"));
                Err(RunError::Enforce { message: message + &left.unwrap_or_default(), help })
            }
            Err(other) => Err(other),
        }
    }
}

impl Bpf {
    fn fill(&self, engine: &mut Engine, cgroup: &Cgroup, pins: &Path) -> Result<Ring, RunError> {
        let name = pins.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        engine
            .attach(&cgroup.path, &name)
            .map_err(|error| refused("attach the cgroup programs", error))?;
        canary::prove(engine, &self.tree)
            .map_err(|error| refused("prove that this kernel denies", error))?;
        let mut ring = engine.ring().map_err(|error| refused("open the ring of denials", error))?;
        // What the proof left is not the agent's.
        while ring.next().is_some() {}
        let patterns = engine
            .publish(SLOT, &self.policy)
            .map_err(|error| refused("load the policy", error))?;
        let subject = Subject { session: 1, slot: SLOT, mode: Mode::Enforce as u32, patterns };
        engine
            .admit(cgroup.id, cgroup.parent, subject)
            .map_err(|error| refused("put the policy in force", error))?;
        Ok(ring)
    }
}

/// With everything that is behind the error: the verifier's words may be all there is to go by.
fn refused(what: &str, error: impl Into<anyhow::Error>) -> RunError {
    RunError::Enforce {
        message: format!("cannot {what}: {:#}", error.into()),
        help: Some(
            "see what this kernel lacks: sandbox doctor\n\
             where it says that `bpf` is not an active LSM, the kernel parameter `lsm=` with the list \
             in /sys/kernel/security/lsm and `,bpf` at its end makes it one"
                .into(),
        ),
    }
}
