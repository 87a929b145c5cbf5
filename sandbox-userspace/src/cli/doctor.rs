//! `sandbox doctor`: what this kernel can enforce, proved.
//!
//! First everything that can be seen without changing anything; then, as root and when nothing
//! needed is missing, a canary is denied one thing of every class on the engine that sessions use; one
//! that was loaded for this alone is removed again.

mod render;

use crate::engine::{Aside, CGROUP_HOOKS, EngineError, Engines, Identity, LSM_HOOKS, Share, Way};
use crate::kernel::features::{Facts, HookFact, HookState, Paths, Survey};
use crate::session::canary::{self, CanaryError, CanaryReport, Class, Outcome};
use crate::session::cgroup::{CgroupError, CgroupTree};
use crate::session::host::{self, HostError};
use crate::session::orphan;
use crate::session::state::{RUN, Registry, StateError};
use sandbox_common::layout::COUNT;
use serde::Serialize;
use std::error::Error;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `sandbox doctor`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct DoctorArgs {
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
}

const AFTER_HELP: &str = "\
The proof needs root: on the engine of this build, which is loaded for this where no session runs, a
process of sandbox's own is confined and denied one thing of every class, and everything is removed
again. Nothing else on the machine is touched.

Exit status: 0 when everything needed was seen to deny, else 1.";

/// Runs `sandbox doctor`.
pub fn execute(args: &DoctorArgs) -> ExitCode {
    let diagnosis = Diagnosis::make();
    let text = if args.json {
        serde_json::to_string(&diagnosis).unwrap_or_else(|error| error.to_string()) + "\n"
    } else {
        render::render(&diagnosis)
    };
    // Whoever reads may have gone away; the exit status still tells.
    let _ = anstream::stdout().write_all(text.as_bytes());
    if diagnosis.enforced { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Everything that was seen. The JSON object is this.
#[derive(Debug, Serialize)]
struct Diagnosis {
    r#type: &'static str,
    /// `uname -r`.
    kernel: String,
    btf: BtfSeen,
    /// Active LSMs; `null` where that cannot be seen.
    lsms: Option<Vec<String>>,
    /// How the hooks are attached; `null` where they cannot be.
    attach: Option<Way>,
    cgroup2: Option<PathBuf>,
    bpffs: Option<PathBuf>,
    hooks: Vec<HookSeen>,
    /// Sessions that lost their supervisor, and what was done about them.
    orphans: Vec<String>,
    /// What stands in the way, and what to do about it.
    missing: Vec<Remedy>,
    /// Every class; `null` where no proof could be tried.
    proof: Option<Vec<Proved>>,
    /// Everything needed was seen to deny.
    enforced: bool,
}

/// The kernel's types.
#[derive(Debug, Serialize)]
struct BtfSeen {
    /// They can be read.
    readable: bool,
    /// Fields of kernel structures that were found as the programs need them.
    fields: usize,
    /// Fields that the programs need.
    of: usize,
}

/// A hook.
#[derive(Debug, Serialize)]
struct HookSeen {
    hook: &'static str,
    /// `present`, `absent`, `changed`; `unknown` without BTF; `cgroup` for those of a cgroup, which
    /// only the proof shows.
    state: &'static str,
    required: bool,
    /// What it means that the hook is not there as expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    meaning: Option<&'static str>,
}

/// Something that is missing.
#[derive(Debug, Serialize)]
struct Remedy {
    what: String,
    mend: String,
}

/// A class and what was seen of it.
#[derive(Debug, Serialize)]
struct Proved {
    class: Class,
    /// The outcome is `enforced`.
    enforced: bool,
    #[serde(flatten)]
    outcome: Outcome,
}

impl Diagnosis {
    fn make() -> Self {
        let survey = Survey::take(Paths::default());
        let mut diagnosis = Self::of(&survey);
        match survey.facts() {
            Err(missing) => diagnosis.missing.extend(
                missing.iter().map(|one| Remedy { what: one.to_string(), mend: one.mend() }),
            ),
            Ok(facts) => {
                diagnosis.orphans = orphans(&facts);
                match prove(&facts) {
                    Ok(report) => diagnosis.accept(report),
                    Err(failure) => diagnosis.explain(failure),
                }
            }
        }
        diagnosis.enforced = diagnosis.missing.is_empty()
            && diagnosis.proof.as_ref().is_some_and(|classes| {
                classes.iter().all(|proved| !matches!(proved.outcome, Outcome::Failed { .. }))
            });
        diagnosis
    }

    /// What can be seen without changing anything.
    fn of(survey: &Survey) -> Self {
        let fields = match &survey.layout {
            None => 0,
            Some(Ok(_)) => COUNT,
            Some(Err(error)) => COUNT - error.faults.len(),
        };
        let mut hooks: Vec<HookSeen> = match &survey.hooks {
            Some(Ok(facts)) => facts.iter().map(HookSeen::of).collect(),
            _ => LSM_HOOKS
                .iter()
                .map(|(hook, _)| HookSeen {
                    hook: hook.name(),
                    state: "unknown",
                    required: true,
                    meaning: None,
                })
                .collect(),
        };
        hooks.extend(CGROUP_HOOKS.iter().map(|hook| HookSeen {
            hook: hook.name(),
            state: "cgroup",
            required: true,
            meaning: None,
        }));
        Self {
            r#type: "doctor",
            kernel: survey.release.clone(),
            btf: BtfSeen { readable: survey.btf.is_ok(), fields, of: COUNT },
            lsms: survey.lsms.as_ref().ok().cloned(),
            attach: survey.lsms.is_ok().then(|| survey.way()),
            cgroup2: survey.cgroup2.as_ref().ok().cloned().flatten(),
            bpffs: survey.bpffs.clone(),
            hooks,
            orphans: Vec::new(),
            missing: Vec::new(),
            proof: None,
            enforced: false,
        }
    }

    fn accept(&mut self, report: CanaryReport) {
        self.missing.extend(report.failures().map(|(class, _)| Remedy {
            what: format!("{class} was not seen to be enforced"),
            mend: REPORT.into(),
        }));
        self.proof = Some(report.classes.into_iter().map(Proved::from).collect());
    }

    /// A failed proof: the classes where they were tried, else the error and what caused it.
    fn explain(&mut self, failure: Failure) {
        match failure {
            Failure::Canary(CanaryError::NotEnforced(report)) => self.accept(report),
            other => self.missing.push(Remedy { what: chain(&other), mend: other.mend().into() }),
        }
    }
}

impl From<(Class, Outcome)> for Proved {
    fn from((class, outcome): (Class, Outcome)) -> Self {
        Self { class, enforced: outcome == Outcome::Enforced, outcome }
    }
}

impl HookSeen {
    fn of(fact: &HookFact) -> Self {
        let state = match fact.state {
            HookState::Present => "present",
            HookState::Absent => "absent",
            HookState::Changed { .. } => "changed",
        };
        let meaning = (fact.state != HookState::Present).then_some(fact.absence);
        Self { hook: fact.hook.name(), state, required: fact.required, meaning }
    }
}

/// Sessions that lost their supervisor: those without processes are removed, the others stay in
/// force and are told of.
fn orphans(facts: &Facts) -> Vec<String> {
    match orphan::report(Some(Identity::own(&facts.layout, facts.way))) {
        Ok(findings) => findings.iter().map(ToString::to_string).collect(),
        Err(error) => vec![format!("cannot look for sessions left behind: {error:#}")],
    }
}

/// Why there is no proof.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Host(#[from] HostError),
    #[error("the programs cannot be loaded")]
    Load(#[source] EngineError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Cgroups(#[from] CgroupError),
    #[error(transparent)]
    Canary(#[from] CanaryError),
    #[error("the programs cannot be removed again")]
    Remove(#[source] EngineError),
}

/// Where nothing better is known.
const REPORT: &str = "please report this with the output of `sandbox doctor --json`";

impl Failure {
    /// What to do about it.
    fn mend(&self) -> &'static str {
        match self {
            Self::Host(error) => error.help(),
            Self::Load(error) => error.mend().unwrap_or(REPORT),
            _ => REPORT,
        }
    }
}

/// Proves on the engine that sessions use; where there is none it is loaded for this, and removed.
fn prove(facts: &Facts) -> Result<CanaryReport, Failure> {
    // Where depths of cgroups are not the kernel's, a proof would only fail without saying why.
    host::check()?;
    let (engines, registry) = (Engines::at(host::PINS), Registry::open(RUN)?);
    let cgroups = CgroupTree::find()?;
    let _alone = registry.hold_doctor()?;
    let held = registry.hold()?;
    // Of one that was killed: there is no other now.
    let mut aside = engines.clear(canary::DOCTOR, &held).map_err(Failure::Remove)?;
    let share = engines
        .obtain(&facts.layout, facts.way, &facts.hooks, &held)
        .map_err(Failure::Load)
        .and_then(|engine| engine.claim(canary::DOCTOR, &held).map_err(Failure::Load));
    if share.is_err() {
        aside.extend(engines.set_aside_idle(None, &held).map_err(Failure::Remove)?);
    }
    drop(held);
    let proof = share.and_then(|share| in_share(share, &registry, &cgroups));
    let proof = proof.map(|(report, idle)| {
        aside.extend(idle);
        report
    });
    aside.into_iter().try_for_each(Aside::discard).map_err(Failure::Remove)?;
    proof
}

/// The proof's outcome, and the engine where nobody else uses it.
fn in_share(
    mut share: Share,
    registry: &Registry,
    cgroups: &CgroupTree,
) -> Result<(CanaryReport, Option<Aside>), Failure> {
    let report = share
        .ring()
        .map_err(Failure::Load)
        .and_then(|mut ring| Ok(canary::prove(&mut share, &mut ring, registry, cgroups)?));
    let ended = share.end(&registry.hold()?).map_err(Failure::Remove);
    match (report, ended) {
        (Ok(report), Ok(aside)) => Ok((report, aside)),
        (Err(error), Ok(aside)) => {
            // The error to tell is why there is no proof.
            let _ = aside.map_or(Ok(()), Aside::discard);
            Err(error)
        }
        (_, Err(error)) => Err(error),
    }
}

/// An error and its causes, on one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests;
