//! Loading, attaching and pinning the programs.

use super::identity::FORMAT;
use super::maps::Maps;
use super::modify_return::{Image, function};
use super::{EngineError, cgroup, links};
use crate::kernel::features::HookFact;
use aya::maps::{CgroupStorageKey, PerCpuValues};
use aya::programs::links::FdLink;
use aya::programs::{BtfTracePoint, FExit, Lsm, ProgramError};
use aya::util::nr_cpus;
use aya::{Btf, BtfError, Ebpf, EbpfLoader};
use sandbox_common::event::Hook;
use sandbox_common::layout::KernelLayout;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::time::Instant;

/// The object that `cargo xtask build` compiled; empty in a build without it.
pub(super) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/programs.o"));

/// What the object is called: by its hash, which `build.rs` computed.
pub(super) static PROGRAMS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/programs.name"));

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
    (Hook::InodeSetattr, Need::Required),
    (Hook::InodeSetxattr, Need::Required),
    (Hook::InodeRemovexattr, Need::Required),
    (Hook::InodeSetAcl, Need::WhereItExists),
    (Hook::InodeRemoveAcl, Need::WhereItExists),
    (Hook::InodeFileSetattr, Need::WhereItExists),
    (Hook::MmapFile, Need::Required),
    (Hook::FileMprotect, Need::Required),
    (Hook::FileReceive, Need::Required),
    (Hook::BprmCredsForExec, Need::Required),
    (Hook::BprmCheckSecurity, Need::Required),
    (Hook::TaskAlloc, Need::Required),
    (Hook::SocketCreate, Need::Required),
    (Hook::SocketConnect, Need::Required),
    (Hook::SocketListen, Need::Required),
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
    (Hook::UringOverrideCreds, Need::Required),
    (Hook::InodeFollowLink, Need::Required),
    (Hook::Bpf, Need::Required),
    (Hook::PerfEventOpen, Need::Required),
    (Hook::KernelModuleRequest, Need::Required),
    (Hook::KernelLoadData, Need::Required),
    (Hook::KernelReadFile, Need::Required),
    (Hook::Syslog, Need::Required),
    (Hook::Settime, Need::Required),
    (Hook::FileSendSigiotask, Need::Required),
    (Hook::KeyAlloc, Need::WhereItExists),
    (Hook::KeyPermission, Need::WhereItExists),
    (Hook::Quotactl, Need::Required),
    (Hook::FsContextParseParam, Need::Required),
];

/// The programs attached to sessions' cgroups; all are required.
pub const CGROUP_HOOKS: &[Hook] = &[
    Hook::Connect4,
    Hook::Connect6,
    Hook::Sendmsg4,
    Hook::Sendmsg6,
    Hook::Bind4,
    Hook::Bind6,
    Hook::Egress,
    Hook::Ingress,
    Hook::Recvmsg4,
    Hook::Recvmsg6,
    Hook::Getpeername4,
    Hook::Getpeername6,
];

/// The one of them that a session has only where its rules count, see `Share::count`: it is run on every packet that
/// comes in.
pub(super) const RECEIVING: Hook = Hook::Ingress;

/// Programs that note something and deny nothing: a new pseudo-terminal, directories that begin to have
/// another place and have it, the end of superblocks, who wants signals about a descriptor, and members that
/// somebody moves to another cgroup.
pub(super) const NOTED: &[(&str, Noted)] = &[
    ("devpts_pty_new", Noted::Return("devpts_pty_new")),
    ("inode_rename", Noted::Hook),
    ("vfs_rename", Noted::Return("vfs_rename")),
    ("sb_delete", Noted::VoidHook { otherwise: "sb_delete_returned" }),
    ("file_set_fowner", Noted::VoidHook { otherwise: "file_set_fowner_returned" }),
    ("cgroup_attach_task", Noted::TracePoint),
];

/// What a program that notes something is attached to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Noted {
    /// The return of a kernel function. The kernel leaves the program out where it is being run on that
    /// processor already, by a task that was interrupted.
    Return(&'static str),
    /// The LSM hook of its name, which is never left out.
    Hook,
    /// The tracepoint of its name.
    TracePoint,
    /// One without a value, for which there is no `fmod_ret`: with [`Way::ModifyReturn`] another program on the
    /// return of the function.
    VoidHook {
        /// That program.
        otherwise: &'static str,
    },
}

/// The environment variable that, set to `off`, has every place looked up anew: for comparison.
const NODE_CACHE: &str = "SANDBOX_NODE_CACHE";

/// Whether an engine that this process loads remembers places.
pub(super) fn node_cache() -> bool {
    std::env::var_os(NODE_CACHE).is_none_or(|value| value != "off")
}

/// Whether sessions can do without a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// No.
    Required,
    /// A kernel that lacks it calls another of the hooks in its place.
    WhereItExists,
}

/// How the hooks are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// As BPF-LSM programs: `bpf` is an active LSM.
    BpfLsm,
    /// As `fmod_ret` programs on the kernel's `security_*` functions.
    ModifyReturn,
}

/// Loads the programs, attaches the global hooks, and pins maps, links and the programs of cgroups
/// beneath `pins`, a directory of a bpffs that is made here.
pub(super) fn load(
    layout: &KernelLayout<u32>,
    way: Way,
    hooks: &[HookFact],
    pins: &Path,
) -> Result<(), EngineError> {
    if OBJECT.is_empty() {
        return Err(EngineError::NoPrograms);
    }
    let btf = Btf::from_sys_fs().map_err(EngineError::Btf)?;
    let mut ebpf = EbpfLoader::new()
        .btf(Some(&btf))
        // Task storage, for which aya has no type.
        .allow_unsupported_maps()
        .override_global("LAYOUT", layout, true)
        .override_global("NODE_CACHE", &u32::from(node_cache()), true)
        .load(OBJECT)
        .map_err(|error| EngineError::Object(Box::new(error)))?;
    let [maps, links, programs, sessions] =
        ["maps", "links", "programs", "sessions"].map(|name| pins.join(name));
    for dir in [pins, maps.as_path(), &links, &programs, &sessions] {
        DirBuilder::new()
            .mode(0o700)
            .create(dir)
            .map_err(|source| EngineError::Pins { path: dir.into(), source })?;
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
    Maps::make(&maps)?;
    let image = match way {
        Way::BpfLsm => None,
        Way::ModifyReturn => Some(Image::new(OBJECT, &ebpf, &maps)?),
    };
    for (hook, need) in LSM_HOOKS {
        let fact = hooks.iter().find(|fact| fact.hook == *hook);
        let program = fact.map_or(hook.name(), |fact| fact.program);
        let attached = match &image {
            None => attach_lsm(&mut ebpf, hook.name(), program, &btf, &links)?,
            Some(image) => image.attach(hook.name(), &function(*hook), program, &btf, &links)?,
        };
        if !attached && *need == Need::Required {
            return Err(EngineError::NoHook(hook.name()));
        }
    }
    for (name, noted) in NOTED {
        attach_noted(&mut ebpf, image.as_ref(), (name, *noted), &btf, &links)?;
    }
    for hook in CGROUP_HOOKS {
        cgroup::load(&mut ebpf, *hook, &programs)?;
    }
    cgroup::load_tail(&mut ebpf)?;
    let mut maps = Maps::open(&maps)?;
    count_for_nobody(&mut maps)?;
    maps.next.set(1, FORMAT, 0).map_err(EngineError::map("NEXT"))?;
    links::record(pins, &mut maps)
}

/// Makes the counter of records that have no session.
fn count_for_nobody(maps: &mut Maps) -> Result<(), EngineError> {
    let cpus = nr_cpus().map_err(|(_, error)| EngineError::Cpus(error))?;
    let none = PerCpuValues::try_from(vec![0; cpus]).map_err(EngineError::Cpus)?;
    maps.lost.insert(0, none, 0).map_err(EngineError::map("LOST"))
}

/// Attaches one LSM program and pins its link; false where the kernel has no such hook.
fn attach_lsm(
    ebpf: &mut Ebpf,
    name: &'static str,
    program: &'static str,
    btf: &Btf,
    links: &Path,
) -> Result<bool, EngineError> {
    let program = ebpf.program_mut(program).ok_or(EngineError::NoProgram(program))?;
    let program: &mut Lsm = program
        .try_into()
        .map_err(|source| EngineError::Load { name, source: Box::new(source) })?;
    let since = Instant::now();
    match program.load(name, btf) {
        Ok(()) => {
            let verified = program.info().ok().and_then(|info| info.verified_instruction_count());
            tracing::debug!(name, verified, took = ?since.elapsed(), "loaded");
        }
        Err(ProgramError::Btf(BtfError::UnknownBtfTypeName { .. })) => return Ok(false),
        Err(source) => {
            return Err(EngineError::Load { name, source: Box::new(source) });
        }
    }
    let attach = |source: ProgramError| EngineError::Attach { name, source: Box::new(source) };
    let id = program.attach().map_err(attach)?;
    let link = program.take_link(id).map_err(attach)?;
    pin(link.into(), links, name)?;
    Ok(true)
}

fn attach_noted(
    ebpf: &mut Ebpf,
    image: Option<&Image>,
    (name, noted): (&'static str, Noted),
    btf: &Btf,
    links: &Path,
) -> Result<(), EngineError> {
    let function = format!("security_{name}");
    let attached = match (noted, image) {
        (Noted::Return(function), _) => {
            return pin(attach_return(ebpf, name, function, btf)?, links, name);
        }
        (Noted::TracePoint, _) => return pin(attach_trace(ebpf, name, btf)?, links, name),
        (Noted::VoidHook { otherwise }, Some(_)) => {
            return pin(attach_return(ebpf, otherwise, &function, btf)?, links, name);
        }
        (Noted::Hook | Noted::VoidHook { .. }, None) => attach_lsm(ebpf, name, name, btf, links)?,
        (Noted::Hook, Some(image)) => image.attach(name, &function, name, btf, links)?,
    };
    if attached { Ok(()) } else { Err(EngineError::NoHook(name)) }
}

/// Attaches a program to a tracepoint.
fn attach_trace(ebpf: &mut Ebpf, name: &'static str, btf: &Btf) -> Result<FdLink, EngineError> {
    let program = ebpf.program_mut(name).ok_or(EngineError::NoProgram(name))?;
    let attach = |source: ProgramError| EngineError::Attach { name, source: Box::new(source) };
    let program: &mut BtfTracePoint = program.try_into().map_err(attach)?;
    program.load(name, btf).map_err(attach)?;
    let id = program.attach().map_err(attach)?;
    program.take_link(id).map(Into::into).map_err(attach)
}

/// Attaches a program to the return of a function.
fn attach_return(
    ebpf: &mut Ebpf,
    name: &'static str,
    function: &str,
    btf: &Btf,
) -> Result<FdLink, EngineError> {
    let program = ebpf.program_mut(name).ok_or(EngineError::NoProgram(name))?;
    let attach = |source: ProgramError| EngineError::Attach { name, source: Box::new(source) };
    let program: &mut FExit = program.try_into().map_err(attach)?;
    program.load(function, btf).map_err(attach)?;
    let id = program.attach().map_err(attach)?;
    program.take_link(id).map(Into::into).map_err(attach)
}

/// Attaches cgroup programs pinned beneath `pins` to the cgroup (directory and id) and pins the links in `links`, their
/// names behind `prefix`. What is pinned knows whose it is.
pub(super) fn attach(
    pins: &Path,
    maps: &mut Maps,
    hooks: impl IntoIterator<Item = Hook>,
    cgroup: (&Path, u64),
    (links, prefix): (&Path, &str),
) -> Result<(), EngineError> {
    let (directory, id) = cgroup;
    let file = File::open(directory)
        .map_err(|source| EngineError::Cgroup { path: directory.to_owned(), source })?;
    for hook in hooks {
        let name = hook.name();
        let mut program = cgroup::program(&pins.join("programs"), hook)?;
        let link = program.attach(name, &file)?;
        if let Some(kind) = cgroup::storage_of(hook) {
            let key = CgroupStorageKey::new(id, kind);
            maps.owner.insert(key, id, 0).map_err(EngineError::map("OWNER"))?;
        }
        pin(link, links, &format!("{prefix}{name}"))?;
    }
    Ok(())
}

fn pin(link: FdLink, links: &Path, name: &str) -> Result<(), EngineError> {
    let path = links.join(name);
    link.pin(&path).map(|_| ()).map_err(|source| EngineError::Pin {
        name: name.to_owned(),
        path,
        source,
    })
}
