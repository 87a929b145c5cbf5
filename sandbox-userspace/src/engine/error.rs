//! What goes wrong between here and the kernel.

use crate::kernel::bpf::Refused;
use aya::maps::MapError;
use aya::pin::PinError;
use aya::programs::ProgramError;
use aya::programs::links::LinkError;
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
    #[error("the kernel refused to load program `{name}`")]
    Load {
        /// The hook.
        name: &'static str,
        /// Why, with the verifier's words.
        #[source]
        source: Box<ProgramError>,
    },
    /// The kernel refused to attach.
    #[error("the kernel refused to attach program `{name}`")]
    Attach {
        /// The hook.
        name: &'static str,
        /// Why.
        #[source]
        source: Box<ProgramError>,
    },
    /// What a session receives cannot be counted.
    #[error(
        "rules with an amount (`max`, `count`) take a program that looks at what the session receives, \
         which cannot be attached"
    )]
    Receiving(#[source] Box<EngineError>),
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
    /// A map holds as many entries as it can.
    #[error(
        "map {name} has no room left for the rules of another session: the policies of all sessions \
         together have too many; end some sessions, or shorten the policy"
    )]
    NoRoom {
        /// The map.
        name: &'static str,
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
    /// The engine holds as many sessions as it can.
    #[error(
        "{0} sessions run already, the most there can be at once; end some: sandbox sessions end ID"
    )]
    Full(u32),
    /// Numbers are never used twice.
    #[error(
        "the engine has no session numbers left; end all sessions and release it (sandbox engine \
         release), so that the next one loads it anew"
    )]
    NoNumbers,
    /// A name that cannot be written down.
    #[error("{0:?} cannot be the owner of a share of the engine: its name has 1 to 8 bytes")]
    Owner(String),
    /// Something was taken out of a pinned engine, or exchanged.
    #[error(
        "the engine pinned at {} is damaged: {what}; sessions on it may not be confined any more, and \
         none is started on it. End them (sandbox sessions end ID): the next start then loads it anew",
        path.display()
    )]
    Damaged {
        /// Its directory.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Its maps mean something else.
    #[error("the engine pinned at {} is one of another version of sandbox", .0.display())]
    Foreign(PathBuf),
    /// Somebody else could have prepared what is in it.
    #[error(
        "{} is not a directory of root's alone (mode 0700): somebody else may have put things there; \
         remove it",
        .0.display()
    )]
    NotPrivate(PathBuf),
    /// A link that was just pinned cannot be looked at.
    #[error("cannot look at the link pinned at {}", path.display())]
    Link {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: LinkError,
    },
    /// The number of processors, which values by processor take.
    #[error("cannot count the processors")]
    Cpus(#[source] io::Error),
    /// The lock of all sessions.
    #[error("cannot take the lock of all sessions")]
    Lock(#[source] crate::session::state::StateError),
    /// A task's label could not be read.
    #[error("cannot read the label of a task")]
    Label {
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Of `attach`: `BPF_MAX_TRAMP_LINKS` (include/linux/bpf.h) counts LSM, `fmod_ret`, `fentry` and `fexit` programs
/// of one function together.
const FULL: &str = "as many programs are attached to this hook already as the kernel takes \
    (BPF_MAX_TRAMP_LINKS, 38 at most): end other BPF tools, or the sessions of other builds of sandbox; \
    `bpftool link` lists what is attached";
const PRIVILEGE: &str = "it takes root with CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN in the machine's own user \
    namespace, on a kernel that is not locked down for confidentiality; a kernel whose security policy refuses \
    BPF to root, too, cannot be used";

impl EngineError {
    /// What to do about it, where that is known.
    pub fn mend(&self) -> Option<&'static str> {
        let (attaching, errno) = match self {
            Self::Load { source, .. } => (false, errno(source)),
            Self::Attach { source, .. } => (true, errno(source)),
            Self::LoadModifyReturn { source, .. } => (false, source.source.raw_os_error()),
            Self::AttachModifyReturn { source, .. } => (true, source.raw_os_error()),
            Self::Object(source) => match source.as_ref() {
                aya::EbpfError::MapError(MapError::CreateError { io_error, .. }) => {
                    (false, io_error.raw_os_error())
                }
                _ => return None,
            },
            Self::Receiving(source) => return source.mend(),
            _ => return None,
        };
        match errno? {
            libc::E2BIG if attaching => Some(FULL),
            libc::EPERM => Some(PRIVILEGE),
            _ => None,
        }
    }

    pub(super) fn map(name: &'static str) -> impl Fn(MapError) -> Self {
        move |source| match &source {
            MapError::SyscallError(call) if call.io_error.raw_os_error() == Some(libc::E2BIG) => {
                Self::NoRoom { name }
            }
            _ => Self::Map { name, source },
        }
    }
}

fn errno(error: &ProgramError) -> Option<i32> {
    match error {
        ProgramError::LoadError { io_error, .. } => io_error.raw_os_error(),
        ProgramError::SyscallError(call) => call.io_error.raw_os_error(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_fit_the_step_that_failed() {
        let io = io::Error::from_raw_os_error;
        let attach = |number| EngineError::AttachModifyReturn { name: "bpf", source: io(number) };
        assert_eq!(attach(libc::E2BIG).mend(), Some(FULL));
        assert_eq!(attach(libc::EPERM).mend(), Some(PRIVILEGE));
        assert_eq!(attach(libc::EBUSY).mend(), None);
        let load = |number| EngineError::LoadModifyReturn {
            name: "bpf",
            source: Refused { source: io(number), log: String::new() },
        };
        // A program that is too long for the verifier is no crowd on a hook.
        assert_eq!(load(libc::E2BIG).mend(), None);
        assert_eq!(load(libc::EPERM).mend(), Some(PRIVILEGE));
    }
}
