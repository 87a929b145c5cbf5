//! The programs of cgroups: of two types, pinned once, attached to each session's cgroup.

use super::EngineError;
use aya::Ebpf;
use aya::maps::ProgramArray;
use aya::programs::links::FdLink;
use aya::programs::{
    CgroupAttachMode, CgroupSkb, CgroupSkbAttachType, CgroupSockAddr, CgroupSockAddrAttachType,
    Program, ProgramError, ProgramInfo,
};
use aya_obj::generated::bpf_attach_type;
use sandbox_common::event::Hook;
use std::fs::File;
use std::path::Path;
use std::time::Instant;

/// What a program of a cgroup is attached as.
#[derive(Clone, Copy)]
enum Attach {
    Address(CgroupSockAddrAttachType),
    Packet(CgroupSkbAttachType),
}

/// How a hook of cgroups is attached, and the kernel's number for that, `enum bpf_attach_type`.
fn attach(hook: Hook) -> Option<(Attach, bpf_attach_type)> {
    use Attach::{Address, Packet};
    use CgroupSockAddrAttachType as Type;
    use bpf_attach_type as Number;
    Some(match hook {
        Hook::Connect4 => (Address(Type::Connect4), Number::BPF_CGROUP_INET4_CONNECT),
        Hook::Connect6 => (Address(Type::Connect6), Number::BPF_CGROUP_INET6_CONNECT),
        Hook::Sendmsg4 => (Address(Type::UDPSendMsg4), Number::BPF_CGROUP_UDP4_SENDMSG),
        Hook::Sendmsg6 => (Address(Type::UDPSendMsg6), Number::BPF_CGROUP_UDP6_SENDMSG),
        Hook::Bind4 => (Address(Type::Bind4), Number::BPF_CGROUP_INET4_BIND),
        Hook::Bind6 => (Address(Type::Bind6), Number::BPF_CGROUP_INET6_BIND),
        Hook::Recvmsg4 => (Address(Type::UDPRecvMsg4), Number::BPF_CGROUP_UDP4_RECVMSG),
        Hook::Recvmsg6 => (Address(Type::UDPRecvMsg6), Number::BPF_CGROUP_UDP6_RECVMSG),
        Hook::Getpeername4 => (Address(Type::GetPeerName4), Number::BPF_CGROUP_INET4_GETPEERNAME),
        Hook::Getpeername6 => (Address(Type::GetPeerName6), Number::BPF_CGROUP_INET6_GETPEERNAME),
        Hook::Egress => (Packet(CgroupSkbAttachType::Egress), Number::BPF_CGROUP_INET_EGRESS),
        Hook::Ingress => (Packet(CgroupSkbAttachType::Ingress), Number::BPF_CGROUP_INET_INGRESS),
        _ => return None,
    })
}

/// As what a hook has storage beside it: those that judge must know whom. See [`attach`].
pub(super) fn storage_of(hook: Hook) -> Option<u32> {
    use Hook::{Getpeername4, Getpeername6, Recvmsg4, Recvmsg6};
    if matches!(hook, Recvmsg4 | Recvmsg6 | Getpeername4 | Getpeername6) {
        return None;
    }
    attach(hook).map(|(_, number)| number as u32)
}

/// A program that is loaded and pinned.
pub(super) enum CgroupProgram {
    /// Judges addresses of sockets.
    Address(CgroupSockAddr),
    /// Judges packets.
    Packet(CgroupSkb, CgroupSkbAttachType),
}

/// Loads the program for a hook of cgroups and pins it in `programs`.
pub(super) fn load(ebpf: &mut Ebpf, hook: Hook, programs: &Path) -> Result<(), EngineError> {
    let (name, path) = (hook.name(), programs.join(hook.name()));
    let refused = |source| EngineError::Load { name, source: Box::new(source) };
    let since = Instant::now();
    let program = ebpf.program_mut(name).ok_or(EngineError::NoProgram(name))?;
    match program {
        Program::CgroupSockAddr(program) => program.load(),
        Program::CgroupSkb(program) => program.load(),
        _ => return Err(EngineError::NoProgram(name)),
    }
    .map_err(refused)?;
    let verified = program.info().ok().and_then(|info| info.verified_instruction_count());
    tracing::debug!(name, verified, took = ?since.elapsed(), "loaded");
    program.pin(&path).map_err(|source| EngineError::Pin { name: name.into(), path, source })
}

/// Loads what `egress` goes on with where a connection is checked, and enters it where that finds it. It lives as long
/// as the map is pinned.
pub(super) fn load_tail(ebpf: &mut Ebpf) -> Result<(), EngineError> {
    const NAME: &str = "egress_hello";
    const MAP: &str = "TAILS";
    let refused = |source| EngineError::Load { name: NAME, source: Box::new(source) };
    let since = Instant::now();
    let program = ebpf.program_mut(NAME).ok_or(EngineError::NoProgram(NAME))?;
    let Program::CgroupSkb(program) = program else { return Err(EngineError::NoProgram(NAME)) };
    program.load().map_err(refused)?;
    let verified = program.info().ok().and_then(|info| info.verified_instruction_count());
    tracing::debug!(name = NAME, verified, took = ?since.elapsed(), "loaded");
    let program = program.fd().and_then(|fd| fd.try_clone().map_err(ProgramError::IOError));
    let program = program.map_err(refused)?;
    let map = ebpf.map_mut(MAP).ok_or(EngineError::NoProgram(NAME))?;
    let mut tails = ProgramArray::try_from(map).map_err(EngineError::map(MAP))?;
    tails.set(0, &program, 0).map_err(EngineError::map(MAP))
}

/// The program for a hook of cgroups that is pinned in `programs`.
pub(super) fn program(programs: &Path, hook: Hook) -> Result<CgroupProgram, EngineError> {
    let (name, path) = (hook.name(), programs.join(hook.name()));
    let (attach, _) = attach(hook).ok_or(EngineError::NoProgram(name))?;
    match attach {
        Attach::Address(kind) => CgroupSockAddr::from_pin(path, kind).map(CgroupProgram::Address),
        Attach::Packet(kind) => {
            CgroupSkb::from_pin(path, kind).map(|program| CgroupProgram::Packet(program, kind))
        }
    }
    .map_err(refused(name))
}

fn refused(name: &'static str) -> impl Fn(ProgramError) -> EngineError {
    move |source| EngineError::Attach { name, source: Box::new(source) }
}

impl CgroupProgram {
    /// What the kernel says of it.
    pub(super) fn info(&self) -> Result<ProgramInfo, ProgramError> {
        match self {
            Self::Address(program) => program.info(),
            Self::Packet(program, _) => program.info(),
        }
    }

    /// Attaches it to a cgroup.
    pub(super) fn attach(&mut self, name: &'static str, to: &File) -> Result<FdLink, EngineError> {
        let mode = CgroupAttachMode::default();
        let link = match self {
            Self::Address(program) => program
                .attach(to, mode)
                .and_then(|id| program.take_link(id))
                .map_err(refused(name))?
                .try_into(),
            Self::Packet(program, kind) => program
                .attach(to, *kind, mode)
                .and_then(|id| program.take_link(id))
                .map_err(refused(name))?
                .try_into(),
        };
        link.map_err(|_| EngineError::NoCgroupLinks)
    }
}
