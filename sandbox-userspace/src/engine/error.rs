//! What goes wrong between here and the kernel.

use crate::kernel::bpf::Refused;
use aya::maps::MapError;
use aya::pin::PinError;
use aya::programs::ProgramError;
use std::io;
use std::path::PathBuf;

/// What went wrong between here and the kernel.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// Built without the BPF toolchain.
    #[error("this build of sandbox holds no BPF programs: build it with `cargo xtask build`")]
    NoPrograms,
    /// The object could not be loaded.
    #[error("cannot load the BPF object")]
    Object(#[source] Box<aya::EbpfError>),
    /// The kernel's type information cannot be read.
    #[error("cannot read the kernel's BTF at /sys/kernel/btf/vmlinux")]
    Btf(#[source] aya::BtfError),
    /// The object lacks a program: it is of another version.
    #[error("the BPF object has no program `{0}`: build it anew with `cargo xtask build`")]
    NoProgram(&'static str),
    /// The kernel refused a program.
    #[error("the kernel refused to load program `{name}`{hint}")]
    Load {
        /// The hook.
        name: &'static str,
        /// What to do about it, if that is known.
        hint: &'static str,
        /// Why, with the verifier's words.
        #[source]
        source: Box<ProgramError>,
    },
    /// The kernel refused to attach.
    #[error("the kernel refused to attach program `{name}`{hint}")]
    Attach {
        /// The hook.
        name: &'static str,
        /// What to do about it, if that is known.
        hint: &'static str,
        /// Why.
        #[source]
        source: Box<ProgramError>,
    },
    /// The object could not be made ready for `fmod_ret`.
    #[error("cannot prepare the programs for attaching as fmod_ret")]
    Image(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The object or the kernel has no types for programs.
    #[error("programs attached as fmod_ret need type information, which this kernel does not take")]
    NoProgramTypes,
    /// The kernel refused the programs' types.
    #[error("the kernel refused the type information of the programs")]
    ProgramTypes(#[source] io::Error),
    /// A map that was just pinned cannot be opened.
    #[error("map {name}")]
    PinnedMap {
        /// The map.
        name: String,
        /// Why.
        #[source]
        source: MapError,
    },
    /// The kernel refused a program of the kind `fmod_ret`.
    #[error("the kernel refused to load program `{name}` as fmod_ret")]
    LoadModifyReturn {
        /// The hook.
        name: &'static str,
        /// Why, with the verifier's words.
        #[source]
        source: Refused,
    },
    /// A program of the kind `fmod_ret` could not be attached or pinned.
    #[error("cannot attach program `{name}` as fmod_ret")]
    AttachModifyReturn {
        /// The hook.
        name: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A link or map could not be pinned.
    #[error("cannot pin `{name}` at {}", path.display())]
    Pin {
        /// The link or map.
        name: String,
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: PinError,
    },
    /// The pin directory.
    #[error("{}: {source}", path.display())]
    Pins {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A cgroup's directory.
    #[error("cgroup {}: {source}", path.display())]
    Cgroup {
        /// Its directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A map could not be opened, read or written.
    #[error("map {name}")]
    Map {
        /// The map.
        name: &'static str,
        /// Why.
        #[source]
        source: MapError,
    },
    /// The kernel lacks a hook that sessions cannot do without.
    #[error(
        "this kernel has no LSM hook `{0}`: it takes Linux 6.1 or later with CONFIG_BPF_LSM=y and CONFIG_SECURITY_PATH=y"
    )]
    NoHook(&'static str),
    /// Before 5.7.
    #[error("this kernel attaches cgroup programs without links: it takes Linux 6.1 or later")]
    NoCgroupLinks,
    /// A name that no file can have.
    #[error("a rule has a name of {} bytes; file names have 1 to 255", .0.len())]
    Name(Vec<u8>),
    /// More parents of sessions' cgroups than the programs look at.
    #[error("sessions lie in more than {} cgroups", sandbox_common::subject::PARENTS)]
    Parents,
    /// The slot has a policy already.
    #[error("policy slot {0} is in use")]
    SlotUsed(u32),
    /// A task's label could not be read.
    #[error("cannot read the label of a task")]
    Label {
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Only the process that loaded the programs can attach them.
    #[error("an adopted engine attaches no programs")]
    Adopted,
}

impl EngineError {
    pub(super) fn map(name: &'static str) -> impl Fn(MapError) -> Self {
        move |source| Self::Map { name, source }
    }
}
