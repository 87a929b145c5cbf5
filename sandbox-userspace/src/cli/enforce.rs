//! The kernel side of `sandbox run`: a share of the engine, proved, with the session's policy.

use crate::dns;
use crate::dns::message::Task;
use crate::dns::parent::{Resolver, Sockets};
use crate::engine::events::Ring;
use crate::engine::{Aside, EngineError, Engines, Share, Way};
use crate::kernel::features::HookFact;
use crate::policy::compiled::CompiledPolicy;
use crate::session::canary;
use crate::session::cgroup::{Cgroup, CgroupTree};
use crate::session::guard::{Guard, Watch};
use crate::session::live::LiveOf;
use crate::session::mounts::{Follower, Plan};
use crate::session::resources::Enforced;
use crate::session::run::{Kernel, RunError};
use crate::session::state::Registry;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use sandbox_common::layout::KernelLayout;
use sandbox_common::subject::{Mode, Subject};
use std::ffi::OsString;
use std::path::Path;

/// The programs of this kernel with one policy.
pub(super) struct Bpf {
    pub(super) registry: Registry,
    pub(super) engines: Engines,
    pub(super) tree: CgroupTree,
    pub(super) layout: KernelLayout<u32>,
    pub(super) way: Way,
    pub(super) hooks: Vec<HookFact>,
    pub(super) policy: CompiledPolicy,
    pub(super) mode: Mode,
    /// What the policy came from; taken by the one session.
    pub(super) plan: Option<Plan>,
    /// Where changes of it come from.
    pub(super) live: Option<LiveOf>,
}

/// Variable that says for how many seconds addresses of names stay open after their answers have expired,
/// however soon that is: for tests.
const NAMES_STAY: &str = "SANDBOX_NAMES_STAY";

/// What of a session is to be looked after.
type Filled = (Ring, Option<Box<dyn Watch>>, Option<Resolver>);

impl Kernel for Bpf {
    fn enforce(&mut self, cgroup: &Cgroup, pins: &Path) -> Result<Enforced, RunError> {
        let name = pins.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let mut share = self.share(&name)?;
        match self.fill(&mut share, cgroup, pins) {
            Ok((ring, watch, resolver)) => {
                let mut guard: Box<dyn Guard> = Box::new(share);
                let notes = guard.new_notes();
                Ok(Enforced { guard, source: Box::new(ring), notes, watch, resolver })
            }
            Err(RunError::Enforce { message, help }) => {
                let left = self.give_back(share).err();
                let left = left.map(|error| format!("; and cannot undo it: {error:#}"));
                Err(RunError::Enforce { message: message + &left.unwrap_or_default(), help })
            }
            Err(other) => Err(other),
        }
    }
}

impl Bpf {
    /// A share of the engine, which is loaded where it is not yet.
    fn share(&self, name: &str) -> Result<Share, RunError> {
        let held = self.registry.hold().map_err(|error| refused("take the lock", error))?;
        let engine = self.engines.obtain(&self.layout, self.way, &self.hooks, &held);
        let engine = engine.map_err(|error| refused("load the programs", error))?;
        engine.claim(name, &held).map_err(|error| {
            // The error to tell is the first one; an engine that is left is found by the next start.
            let idle = self.engines.set_aside_idle(None, &held);
            drop(held);
            let _ = idle.map(|idle| idle.into_iter().try_for_each(Aside::discard));
            refused("join the engine", error)
        })
    }

    fn give_back(&self, mut share: Share) -> anyhow::Result<()> {
        share.detach("")?;
        let held = self.registry.hold()?;
        let aside = share.end(&held)?;
        drop(held);
        Ok(aside.map_or(Ok(()), Aside::discard)?)
    }

    fn fill(
        &mut self,
        share: &mut Share,
        cgroup: &Cgroup,
        pins: &Path,
    ) -> Result<Filled, RunError> {
        let error = |what: &'static str| move |error: EngineError| refused(what, error);
        share.of_cgroup(cgroup.id).map_err(error("join the engine"))?;
        share.attach((&cgroup.path, cgroup.id)).map_err(error("attach the cgroup programs"))?;
        let mut ring = share.ring().map_err(error("make the ring of denials"))?;
        canary::prove(share, &mut ring, &self.registry, &self.tree)
            .map_err(|error| refused("prove that this kernel denies", error))?;
        // What the proof left is not the agent's.
        while ring.next().is_some() {}
        let devs = self.policy.roots.iter().map(|(dev, _)| *dev);
        self.policy.eras = share.engine().eras(devs).map_err(error("number the file systems"))?;
        let patterns = share.publish(self.policy.clone());
        let subject = Subject {
            session: share.number(),
            slot: share.slots().0,
            mode: self.mode as u32,
            patterns: patterns.map_err(error("load the policy"))?,
            permits: self.policy.permits,
            pad: 0,
        };
        let held = self.registry.hold().map_err(|error| refused("take the lock", error))?;
        share
            .engine()
            .admit(cgroup.id, cgroup.parent, subject, &held)
            .map_err(error("put the policy in force"))?;
        drop(held);
        let resolver = self.resolver(share, pins)?;
        let Some(plan) = self.plan.take() else { return Ok((ring, None, resolver)) };
        let live = self.live.take().map(LiveOf::begin).transpose();
        let live = live.map_err(|error| refused("follow changes of the policy", error))?;
        let mut follower = Follower::new(plan, std::mem::take(&mut self.policy), live);
        follower.begin(share).map_err(|error| refused("follow the mounts", error))?;
        Ok((ring, Some(Box::new(follower)), resolver))
    }

    /// Starts what answers questions about names, where the policy knows any.
    fn resolver(&self, share: &mut Share, pins: &Path) -> Result<Option<Resolver>, RunError> {
        // A session that only reports has one too, so that addresses have their names; unless there is nobody
        // to ask, for then nobody can tell a name.
        let stay = names_stay(std::env::var_os(NAMES_STAY))?;
        let audit = self.mode == Mode::Audit;
        let asks = || !self.policy.resolvers.is_empty() || dns::host_names_servers();
        if self.policy.names.is_empty() && !(audit && asks()) {
            return Ok(None);
        }
        let sockets = Sockets::bind().map_err(|error| refused("listen for questions", error))?;
        let task = Task {
            session: share.number(),
            // That is `ENGINE/sessions/OWNER`.
            pins: pins.parent().and_then(Path::parent).unwrap_or(pins).to_owned(),
            names: self.policy.names.clone(),
            within: if audit { everywhere() } else { self.policy.within.clone() },
            audit,
            servers: self.policy.resolvers.clone(),
            stay,
            sockets: Vec::new(),
        };
        share
            .resolve_at(sockets.port)
            .map_err(|error| refused("lead questions to the resolver", error))?;
        Resolver::start(sockets, task).map(Some).map_err(|error| RunError::Enforce {
            message: error.to_string(),
            help: Some("name servers can be named in the policy: network.resolvers".into()),
        })
    }
}

/// For how many seconds addresses stay open, where that is set.
fn names_stay(set: Option<OsString>) -> Result<Option<u64>, RunError> {
    let Some(set) = set else { return Ok(None) };
    let seconds = set.to_str().and_then(|seconds| seconds.parse().ok());
    seconds.map(Some).ok_or_else(|| RunError::Enforce {
        message: format!("{NAMES_STAY} is \"{}\": that is no number of seconds", set.display()),
        help: Some(format!("set {NAMES_STAY} to a whole number, or unset it")),
    })
}

/// All addresses, of this site too.
fn everywhere() -> Vec<IpNet> {
    vec![Ipv4Net::default().into(), Ipv6Net::default().into()]
}

/// With everything that is behind the error: the verifier's words may be all there is to go by.
fn refused(what: &str, error: impl Into<anyhow::Error>) -> RunError {
    let error = error.into();
    let known = error.chain().find_map(|cause| cause.downcast_ref::<EngineError>()?.mend());
    RunError::Enforce {
        message: format!("cannot {what}: {error:#}"),
        help: Some(known.map_or_else(doctor, str::to_owned)),
    }
}

fn doctor() -> String {
    "see what this kernel lacks: sandbox doctor\n\
     where it says that `bpf` is not an active LSM, the kernel parameter `lsm=` with the list \
     in /sys/kernel/security/lsm and `,bpf` at its end makes it one"
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_addresses_stay_is_a_number_or_an_error() {
        let of = |set: &str| names_stay(Some(set.into()));
        assert!(matches!(names_stay(None), Ok(None)));
        assert!(matches!(of("0"), Ok(Some(0))));
        for bad in ["", "5s", "-1", "1.5", "18446744073709551616"] {
            let error = of(bad).expect_err(bad).to_string();
            assert!(error.contains("SANDBOX_NAMES_STAY"), "{error}");
        }
    }
}
