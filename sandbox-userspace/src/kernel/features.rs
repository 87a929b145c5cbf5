//! What this machine offers for enforcement, and how to mend what it does not.
//!
//! Seeing is not proof: a kernel may list everything and still refuse, or attach and never ask.
//! [`canary`](crate::session::canary) proves; this says early and exactly what is missing.

mod hooks;

pub use hooks::{HookFact, HookState};

use crate::engine::Way;
use crate::kernel::btf::{Btf, BtfError};
use crate::kernel::layout::{self, LayoutError};
use crate::kernel::mounts::{Mount, MountError, MountTable, to_components, to_path};
use crate::kernel::preemption::Preemption;
use rustix::thread::CapabilitySet;
use sandbox_common::layout::KernelLayout;
use std::io;
use std::path::PathBuf;

/// What the link in procfs says of the initial user namespace (`PROC_USER_INIT_INO`, `include/linux/proc_ns.h`).
const INITIAL_USER_NAMESPACE: &str = "user:[4026531837]";

/// Where to look. Other places only serve tests: there is no option and no variable for them.
#[derive(Clone, Debug)]
pub struct Paths {
    /// Types of the kernel.
    pub btf: PathBuf,
    /// securityfs.
    pub securityfs: PathBuf,
    /// The mount table of this process.
    pub mountinfo: PathBuf,
    /// bpffs.
    pub bpffs: PathBuf,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            btf: crate::kernel::btf::KERNEL.into(),
            securityfs: "/sys/kernel/security".into(),
            mountinfo: "/proc/self/mountinfo".into(),
            bpffs: "/sys/fs/bpf".into(),
        }
    }
}

/// Whose a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Not root.
    User,
    /// Root of a user namespace, whose capabilities are none for the kernel.
    RootOfNamespace,
    /// Root of the machine.
    Root,
}

impl Standing {
    fn own() -> Self {
        let namespace = std::fs::read_link("/proc/self/ns/user");
        match namespace.is_ok_and(|ns| ns.as_os_str() != INITIAL_USER_NAMESPACE) {
            _ if !rustix::process::geteuid().is_root() => Self::User,
            true => Self::RootOfNamespace,
            false => Self::Root,
        }
    }
}

/// All that can be seen, good or bad.
#[derive(Debug)]
pub struct Survey {
    /// `uname -r`.
    pub release: String,
    /// Whose this process is.
    pub standing: Standing,
    /// Capabilities that loading needs and this process lacks.
    pub lacking: Vec<&'static str>,
    /// The kernel keeps its memory from everybody (`lockdown=confidentiality`).
    pub confidential: bool,
    /// Types of the kernel.
    pub btf: Result<Btf, BtfError>,
    /// Offsets of the structures; `None` without BTF.
    pub layout: Option<Result<KernelLayout<u32>, LayoutError>>,
    /// The hooks; `None` without BTF.
    pub hooks: Option<Result<Vec<HookFact>, BtfError>>,
    /// Active LSMs, in their order.
    pub lsms: io::Result<Vec<String>>,
    /// Whether tasks are interrupted inside the kernel.
    pub preemption: Preemption,
    /// Where cgroup v2 is mounted.
    pub cgroup2: Result<Option<PathBuf>, MountError>,
    /// Whether any hierarchy of cgroup v1 is mounted.
    pub cgroup1: bool,
    /// Where bpffs is mounted; `None` where nothing of that type lies at [`Paths::bpffs`].
    pub bpffs: Option<PathBuf>,
    paths: Paths,
}

/// What `run` and `doctor` work with: nothing needed is missing, as far as can be seen.
#[derive(Debug)]
pub struct Facts {
    /// `uname -r`.
    pub release: String,
    /// Offsets of the structures.
    pub layout: KernelLayout<u32>,
    /// How the hooks are attached.
    pub way: Way,
    /// The hooks.
    pub hooks: Vec<HookFact>,
    /// Where cgroup v2 is mounted.
    pub cgroup2: PathBuf,
    /// Where bpffs is mounted.
    pub bpffs: PathBuf,
}

/// Something needed that is not there. The text says what it means, [`mend`](Self::mend) what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Missing {
    /// Not root.
    #[error("this process is not root: the kernel lets only root load the programs")]
    Root,
    /// Root without its capabilities.
    #[error("this process lacks {}: the kernel will refuse to load the programs", lacking.join(", "))]
    Capabilities {
        /// Their names.
        lacking: Vec<&'static str>,
    },
    /// Root of a user namespace.
    #[error(
        "this process is root of a user namespace only: the kernel lets only root of the machine load the programs"
    )]
    Namespace,
    /// `lockdown=confidentiality`.
    #[error(
        "the kernel is locked down for confidentiality: it lets no program read its structures, so none can judge"
    )]
    Confidential,
    /// No BTF, or none that can be read.
    #[error("the kernel's types are not known: {0}")]
    Btf(BtfError),
    /// Structures are not as the programs expect.
    #[error("{0}")]
    Layout(LayoutError),
    /// The active LSMs cannot be seen.
    #[error("cannot see which LSMs are active: {file}: {source}", file = file.display())]
    LsmsUnknown {
        /// The file that lists them.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The second way of attaching would not hold.
    #[error(
        "`bpf` is not an active LSM, and this kernel {}: where a task is interrupted inside a hook, the kernel \
         leaves that hook out for the next one on its processor, so nothing would be enforced for sure",
        match preemption {
            Preemption::Unknown => "may interrupt tasks inside the kernel (which cannot be seen here)",
            _ => "interrupts tasks inside the kernel",
        }
    )]
    Interrupted {
        /// What is known of it.
        preemption: Preemption,
        /// The active LSMs.
        lsms: Vec<String>,
    },
    /// The mount table cannot be read.
    #[error("{0}")]
    MountTable(MountError),
    /// No cgroup v2.
    #[error(
        "cgroup v2 is not mounted{}: a session is a cgroup of version 2, so none can be made",
        if *.version1 { ", only version 1 is" } else { "" }
    )]
    Cgroup2 {
        /// Version 1 is.
        version1: bool,
    },
    /// No bpffs.
    #[error("no bpffs is mounted at {}: enforcement could not outlive this process", at.display())]
    Bpffs {
        /// Where one is expected.
        at: PathBuf,
    },
    /// A hook that cannot be used.
    #[error("{}", hook_text(.0))]
    Hook(HookFact),
}

fn hook_text(fact: &HookFact) -> String {
    let name = fact.hook.name();
    match &fact.state {
        HookState::Changed { found, expected } => {
            let found: Vec<_> = found.iter().map(|param| param.type_name.as_str()).collect();
            format!(
                "this kernel's hook {name} takes ({}) where ({}) was expected: a program would read the wrong object",
                found.join(", "),
                expected.join(", ")
            )
        }
        _ => format!("this kernel has no hook {name}: {}", fact.absence),
    }
}

impl Missing {
    /// What to do about it, in one or more lines.
    pub fn mend(&self) -> String {
        match self {
            Self::Root => "run it as root: `sudo sandbox …`".into(),
            Self::Capabilities { .. } => {
                "run it in the initial user namespace with these capabilities; in a container they must be added".into()
            }
            Self::Namespace => {
                "run it as root outside of containers without privileges; in a container it takes the host's user namespace (docker: `--userns=host --privileged`)".into()
            }
            Self::Confidential => {
                "boot with the kernel parameter `lockdown=integrity` (which Secure Boot takes as well), or `lockdown=none`, in place of `lockdown=confidentiality`; where the kernel is built to force it (CONFIG_LOCK_DOWN_KERNEL_FORCE_CONFIDENTIALITY), use another one".into()
            }
            Self::Btf(BtfError::Read { .. } | BtfError::Malformed { .. }) => {
                "use a kernel with CONFIG_DEBUG_INFO_BTF=y (every current distribution kernel has it) and mount sysfs: `mount -t sysfs sysfs /sys`".into()
            }
            Self::Btf(_) | Self::Layout(_) | Self::Hook(HookFact { state: HookState::Changed { .. }, .. }) => {
                "use a kernel that docs/kernel.md names, or a newer version of sandbox; please report this with the output of `uname -r`".into()
            }
            Self::LsmsUnknown { file, .. } => {
                let at = file.parent().unwrap_or(file).display();
                format!("`mount -t securityfs securityfs {at}`; where that fails the kernel is built without CONFIG_SECURITYFS")
            }
            Self::Interrupted { lsms, .. } => format!(
                "make `bpf` an active LSM: boot with the kernel parameter `lsm={}`; or, where the kernel still has the choice (before 7.0), with `preempt=voluntary`",
                lsms.iter().map(String::as_str).filter(|lsm| *lsm != "capability").chain(["bpf"]).collect::<Vec<_>>().join(",")
            ),
            Self::MountTable(_) => "`mount -t proc proc /proc`".into(),
            Self::Cgroup2 { version1: true } => "boot with the kernel parameter `systemd.unified_cgroup_hierarchy=1` and without `systemd.legacy_systemd_cgroup_controller`; or, where nothing else is to change, mount it beside: `mkdir /run/cgroup2 && mount -t cgroup2 cgroup2 /run/cgroup2`".into(),
            Self::Cgroup2 { .. } => "`mount -t cgroup2 cgroup2 /sys/fs/cgroup`, or boot systemd with `systemd.unified_cgroup_hierarchy=1`".into(),
            Self::Bpffs { at } => format!("`mount -t bpf bpf {}`", at.display()),
            Self::Hook(_) => "use a kernel of 6.1 or later with CONFIG_SECURITY=y and CONFIG_SECURITY_PATH=y".into(),
        }
    }
}

/// Looks at the running kernel; everything that is missing at once, the first cause first.
pub fn require() -> Result<Facts, Vec<Missing>> {
    Survey::take(Paths::default()).facts()
}

impl Survey {
    /// Looks; changes nothing and needs no privilege.
    pub fn take(paths: Paths) -> Self {
        let btf = Btf::read(&paths.btf);
        let lsms = std::fs::read_to_string(paths.securityfs.join("lsm"))
            .map(|text| text.trim().split(',').map(str::to_owned).collect());
        let table = std::fs::read(&paths.mountinfo)
            .map_err(|source| MountError::Read {
                path: paths.mountinfo.display().to_string(),
                source,
            })
            .and_then(|text| MountTable::parse(&text));
        let bpffs = table.as_ref().ok().and_then(|table| {
            let holder = table.holder(&to_components(&paths.bpffs))?;
            let there = holder.fs_type == "bpf" && to_path(&holder.point) == paths.bpffs;
            there.then(|| paths.bpffs.clone())
        });
        Self {
            release: rustix::system::uname().release().to_string_lossy().into_owned(),
            standing: Standing::own(),
            lacking: lacking(),
            confidential: std::fs::read_to_string(paths.securityfs.join("lockdown"))
                .is_ok_and(|modes| modes.contains("[confidentiality]")),
            layout: btf.as_ref().ok().map(layout::read),
            hooks: btf.as_ref().ok().map(|btf| hooks::hooks(btf, way_of(&lsms))),
            btf,
            lsms,
            preemption: Preemption::read(),
            cgroup1: table
                .as_ref()
                .is_ok_and(|table| table.visible().any(|mount| mount.fs_type == "cgroup")),
            cgroup2: table.map(|table| {
                let whole = |mount: &&Mount| mount.fs_type == "cgroup2" && mount.root.is_empty();
                table.visible().find(whole).map(|mount| to_path(&mount.point))
            }),
            bpffs,
            paths,
        }
    }

    /// How the hooks can be attached.
    pub fn way(&self) -> Way {
        way_of(&self.lsms)
    }

    /// The facts, or everything that is missing.
    pub fn facts(self) -> Result<Facts, Vec<Missing>> {
        let mut missing = Vec::new();
        match self.standing {
            Standing::User => missing.push(Missing::Root),
            _ if !self.lacking.is_empty() => {
                missing.push(Missing::Capabilities { lacking: self.lacking.clone() });
            }
            Standing::RootOfNamespace => missing.push(Missing::Namespace),
            Standing::Root => {}
        }
        if self.confidential {
            missing.push(Missing::Confidential);
        }
        let way = self.way();
        if let Err(error) = self.btf {
            missing.push(Missing::Btf(error));
        }
        let layout = self
            .layout
            .and_then(|layout| layout.map_err(|error| missing.push(Missing::Layout(error))).ok());
        let hooks = self
            .hooks
            .and_then(|hooks| hooks.map_err(|error| missing.push(Missing::Btf(error))).ok());
        match self.lsms {
            Err(source) => {
                let file = self.paths.securityfs.join("lsm");
                missing.push(Missing::LsmsUnknown { file, source });
            }
            Ok(lsms) if way == Way::ModifyReturn && self.preemption != Preemption::No => {
                missing.push(Missing::Interrupted { preemption: self.preemption, lsms });
            }
            Ok(_) => {}
        }
        let cgroup2 = match self.cgroup2 {
            Ok(Some(at)) => Some(at),
            Ok(None) => {
                missing.push(Missing::Cgroup2 { version1: self.cgroup1 });
                None
            }
            Err(error) => {
                missing.push(Missing::MountTable(error));
                None
            }
        };
        if self.bpffs.is_none() {
            missing.push(Missing::Bpffs { at: self.paths.bpffs });
        }
        for fact in hooks.iter().flatten().filter(|fact| fact.stops()) {
            missing.push(Missing::Hook(fact.clone()));
        }
        match (layout, hooks, cgroup2, self.bpffs) {
            (Some(layout), Some(hooks), Some(cgroup2), Some(bpffs)) if missing.is_empty() => {
                Ok(Facts { release: self.release, layout, way, hooks, cgroup2, bpffs })
            }
            _ => Err(missing),
        }
    }
}

/// BPF-LSM programs where `bpf` is an active LSM; elsewhere the kernel would never ask them.
fn way_of(lsms: &io::Result<Vec<String>>) -> Way {
    match lsms {
        Ok(active) if active.iter().any(|lsm| lsm == "bpf") => Way::BpfLsm,
        _ => Way::ModifyReturn,
    }
}

/// Capabilities that are needed and not effective. `CAP_SYS_ADMIN` includes the others for BPF.
fn lacking() -> Vec<&'static str> {
    let effective =
        rustix::thread::capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
    if effective.contains(CapabilitySet::SYS_ADMIN) {
        return Vec::new();
    }
    [
        (CapabilitySet::BPF, "CAP_BPF"),
        (CapabilitySet::PERFMON, "CAP_PERFMON"),
        (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN"),
    ]
    .into_iter()
    .filter(|(capability, _)| !effective.contains(*capability))
    .map(|(_, name)| name)
    .collect()
}

#[cfg(test)]
mod tests;
