//! Loading, attaching and pinning the programs.

use super::EngineError;
use super::modify_return::Image;
use aya::programs::links::FdLink;
use aya::programs::{CgroupAttachMode, CgroupSockAddr, FExit, Lsm, ProgramError};
use aya::{Btf, BtfError, Ebpf, EbpfLoader};
use sandbox_common::event::Hook;
use sandbox_common::layout::KernelLayout;
use std::fs::{self, File};
use std::path::Path;
use std::time::Instant;

/// The object that `cargo xtask build` compiled; empty in a build without it.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/programs.o"));

/// The hooks of the whole machine, and whether sessions can do without.
pub const LSM_HOOKS: &[(Hook, Need)] = &[
    (Hook::FileOpen, Need::Required),
    (Hook::PathMknod, Need::Required),
    (Hook::PathMkdir, Need::Required),
    (Hook::PathSymlink, Need::Required),
    (Hook::PathLink, Need::Required),
    (Hook::PathUnlink, Need::Required),
    (Hook::PathRmdir, Need::Required),
    (Hook::PathRename, Need::Required),
    (Hook::PathTruncate, Need::Required),
    (Hook::FileTruncate, Need::WhereItExists),
    (Hook::PathChmod, Need::Required),
    (Hook::PathChown, Need::Required),
    (Hook::TaskAlloc, Need::Required),
    (Hook::SocketCreate, Need::Required),
    (Hook::SocketConnect, Need::Required),
    (Hook::SocketPostCreate, Need::Required),
    (Hook::UnixStreamConnect, Need::Required),
    (Hook::UnixMaySend, Need::Required),
    (Hook::FileIoctl, Need::Required),
    (Hook::FileIoctlCompat, Need::WhereItExists),
    (Hook::PtraceAccessCheck, Need::Required),
    (Hook::PtraceTraceme, Need::Required),
    (Hook::TaskKill, Need::Required),
    (Hook::TaskSetnice, Need::Required),
    (Hook::TaskSetioprio, Need::Required),
    (Hook::TaskSetscheduler, Need::Required),
    (Hook::TaskSetrlimit, Need::Required),
    (Hook::TaskMovememory, Need::Required),
    (Hook::TaskSetpgid, Need::Required),
    (Hook::SbMount, Need::Required),
    (Hook::SbRemount, Need::Required),
    (Hook::SbKernMount, Need::Required),
    (Hook::SbUmount, Need::Required),
    (Hook::SbPivotroot, Need::Required),
    (Hook::MoveMount, Need::Required),
    (Hook::UsernsCreate, Need::Required),
    (Hook::Bpf, Need::Required),
    (Hook::PerfEventOpen, Need::Required),
    (Hook::KernelModuleRequest, Need::Required),
    (Hook::KernelLoadData, Need::Required),
    (Hook::KernelReadFile, Need::Required),
    (Hook::Syslog, Need::Required),
    (Hook::Settime, Need::Required),
];

/// The programs attached to each session's cgroup; all are required.
pub const CGROUP_HOOKS: &[Hook] = &[Hook::Connect4, Hook::Connect6, Hook::Sendmsg4, Hook::Sendmsg6];

/// Functions on whose return something is noted; no hooks, they deny nothing: a new pseudo-terminal, and
/// directories that have another place than before.
const NOTED: &[&str] = &["devpts_pty_new", "vfs_rename", "vfs_rmdir"];

/// The environment variable that, set to `off`, has every place looked up anew: for comparison.
const NODE_CACHE: &str = "SANDBOX_NODE_CACHE";

/// Whether sessions can do without a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// No.
    Required,
    /// A kernel that lacks it calls another of the hooks in its place.
    WhereItExists,
}

/// Name of a cgroup link's pin.
pub(super) fn cgroup_link(name: &str, hook: Hook) -> String {
    format!("{name}-{}", hook.name())
}

/// The loaded programs.
#[derive(Debug)]
pub(super) struct Programs(Ebpf);

/// How the hooks are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// As BPF-LSM programs: `bpf` is an active LSM.
    BpfLsm,
    /// As `fmod_ret` programs on the kernel's `security_*` functions.
    ModifyReturn,
}

pub(super) fn load(
    layout: &KernelLayout<u32>,
    way: Way,
    pins: &Path,
) -> Result<Programs, EngineError> {
    if OBJECT.is_empty() {
        return Err(EngineError::NoPrograms);
    }
    let btf = Btf::from_sys_fs().map_err(EngineError::Btf)?;
    let node_cache = std::env::var_os(NODE_CACHE).is_none_or(|value| value != "off");
    let mut ebpf = EbpfLoader::new()
        .btf(Some(&btf))
        // Task storage, for which aya has no type.
        .allow_unsupported_maps()
        .override_global("LAYOUT", layout, true)
        .override_global("NODE_CACHE", &u32::from(node_cache), true)
        .load(OBJECT)
        .map_err(|error| EngineError::Object(Box::new(error)))?;
    let (maps, links) = (pins.join("maps"), pins.join("links"));
    for dir in [&maps, &links] {
        fs::create_dir(dir).map_err(|source| EngineError::Pins { path: dir.clone(), source })?;
    }
    for (name, map) in ebpf.maps() {
        // The layout's section has been read by the verifier; nobody needs it again.
        if name.starts_with('.') {
            continue;
        }
        let path = maps.join(name);
        map.pin(&path).map_err(|source| EngineError::Pin {
            name: name.to_owned(),
            path,
            source,
        })?;
    }
    let image = match way {
        Way::BpfLsm => None,
        Way::ModifyReturn => Some(Image::new(OBJECT, &ebpf, &maps)?),
    };
    for (hook, need) in LSM_HOOKS {
        let attached = match &image {
            None => attach_lsm(&mut ebpf, *hook, &btf, &links)?,
            Some(image) => image.attach(*hook, &btf, &links)?,
        };
        if !attached && *need == Need::Required {
            return Err(EngineError::NoHook(hook.name()));
        }
    }
    for name in NOTED {
        pin(attach_noted(&mut ebpf, name, &btf)?, &links, name)?;
    }
    for hook in CGROUP_HOOKS {
        let name = hook.name();
        cgroup_program(&mut ebpf, *hook)?.load().map_err(|source| EngineError::Load {
            name,
            hint: "",
            source: Box::new(source),
        })?;
    }
    Ok(Programs(ebpf))
}

/// Attaches one LSM program and pins its link; false where the kernel has no such hook.
fn attach_lsm(ebpf: &mut Ebpf, hook: Hook, btf: &Btf, links: &Path) -> Result<bool, EngineError> {
    let name = hook.name();
    let program = ebpf.program_mut(name).ok_or(EngineError::NoProgram(name))?;
    let program: &mut Lsm = program.try_into().map_err(|source| EngineError::Load {
        name,
        hint: "",
        source: Box::new(source),
    })?;
    let since = Instant::now();
    match program.load(name, btf) {
        Ok(()) => {
            let verified = program.info().ok().and_then(|info| info.verified_instruction_count());
            tracing::debug!(name, verified, took = ?since.elapsed(), "loaded");
        }
        Err(ProgramError::Btf(BtfError::UnknownBtfTypeName { .. })) => return Ok(false),
        Err(source) => {
            let hint = hint(&source);
            return Err(EngineError::Load { name, hint, source: Box::new(source) });
        }
    }
    let attach = |source: ProgramError| {
        let hint = hint(&source);
        EngineError::Attach { name, hint, source: Box::new(source) }
    };
    let id = program.attach().map_err(attach)?;
    let link = program.take_link(id).map_err(attach)?;
    pin(link.into(), links, name)?;
    Ok(true)
}

fn attach_noted(ebpf: &mut Ebpf, name: &'static str, btf: &Btf) -> Result<FdLink, EngineError> {
    let program = ebpf.program_mut(name).ok_or(EngineError::NoProgram(name))?;
    let attach = |source: ProgramError| {
        let hint = hint(&source);
        EngineError::Attach { name, hint, source: Box::new(source) }
    };
    let program: &mut FExit = program.try_into().map_err(attach)?;
    program.load(name, btf).map_err(attach)?;
    let id = program.attach().map_err(attach)?;
    program.take_link(id).map(Into::into).map_err(attach)
}

fn cgroup_program(ebpf: &mut Ebpf, hook: Hook) -> Result<&mut CgroupSockAddr, EngineError> {
    let name = hook.name();
    ebpf.program_mut(name)
        .ok_or(EngineError::NoProgram(name))?
        .try_into()
        .map_err(|source| EngineError::Load { name, hint: "", source: Box::new(source) })
}

fn pin(link: FdLink, links: &Path, name: &str) -> Result<(), EngineError> {
    let path = links.join(name);
    link.pin(&path).map(|_| ()).map_err(|source| EngineError::Pin {
        name: name.to_owned(),
        path,
        source,
    })
}

/// What is behind the kernel's less telling errors.
fn hint(error: &ProgramError) -> &'static str {
    let errno = match error {
        ProgramError::LoadError { io_error, .. } => io_error.raw_os_error(),
        ProgramError::SyscallError(call) => call.io_error.raw_os_error(),
        _ => None,
    };
    match errno {
        Some(libc::E2BIG) => {
            ": 38 programs are attached to this hook already, the most a kernel takes \
             (BPF_MAX_TRAMP_LINKS); end other sessions or other BPF tools"
        }
        Some(libc::EPERM) => {
            ": it takes root with CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN, outside a container, on a \
             kernel that is not locked down"
        }
        _ => "",
    }
}

impl Programs {
    pub(super) fn attach(
        &mut self,
        cgroup: &Path,
        links: &Path,
        name: &str,
    ) -> Result<(), EngineError> {
        let directory = File::open(cgroup)
            .map_err(|source| EngineError::Cgroup { path: cgroup.to_owned(), source })?;
        for hook in CGROUP_HOOKS {
            let program = cgroup_program(&mut self.0, *hook)?;
            let attach = |source| EngineError::Attach {
                name: hook.name(),
                hint: "",
                source: Box::new(source),
            };
            let id = program.attach(&directory, CgroupAttachMode::default()).map_err(attach)?;
            let link = program.take_link(id).map_err(attach)?;
            let link: FdLink = link.try_into().map_err(|_| EngineError::NoCgroupLinks)?;
            pin(link, links, &cgroup_link(name, *hook))?;
        }
        Ok(())
    }
}
