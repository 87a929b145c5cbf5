//! What the host must have before a session can be made.

use std::io;
use std::path::{Path, PathBuf};

/// Where bpffs is.
pub const BPFFS: &str = "/sys/fs/bpf";
/// Where engines are pinned.
pub const PINS: &str = "/sys/fs/bpf/sandbox";
/// `BPF_FS_MAGIC` of `linux/magic.h`.
const BPF_FS_MAGIC: u32 = 0xcafe_4a11;
/// `PROC_CGROUP_INIT_INO` of `linux/proc_ns.h`: the inode of the first cgroup namespace.
const FIRST_CGROUP_NAMESPACE: &str = "cgroup:[4026531835]";

/// The host lacks something.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Not root.
    #[error("only root may load programs into the kernel")]
    NotRoot,
    /// bpffs is missing.
    #[error("no bpffs is mounted at {BPFFS}")]
    NoBpffs,
    /// A path could not be looked at.
    #[error("cannot look at {path}: {source}")]
    Look {
        /// The path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Depths of cgroups as seen here are not the kernel's.
    #[error(
        "this process is in a cgroup namespace of its own, where depths differ from the kernel's"
    )]
    CgroupNamespace,
}

impl HostError {
    /// How to mend it.
    pub const fn help(&self) -> &'static str {
        match self {
            Self::NotRoot => "start it with sudo; the agent still runs as you",
            Self::NoBpffs => "mount -t bpf bpf /sys/fs/bpf",
            Self::Look { .. } => "is /sys or /proc mounted?",
            Self::CgroupNamespace => {
                "run it on the host, or give the container the host's cgroup namespace \
                 (docker run --cgroupns=host)"
            }
        }
    }
}

/// Refuses a host on which a session cannot be made.
pub fn check() -> Result<(), HostError> {
    if !rustix::process::geteuid().is_root() {
        return Err(HostError::NotRoot);
    }
    let look = |path: &str| {
        let path = PathBuf::from(path);
        move |source: io::Error| HostError::Look { path, source }
    };
    let stat = rustix::fs::statfs(BPFFS).map_err(|error| look(BPFFS)(error.into()))?;
    // The magic number is the low half; the field's type differs between architectures.
    if u64::try_from(stat.f_type).ok() != Some(u64::from(BPF_FS_MAGIC)) {
        return Err(HostError::NoBpffs);
    }
    let namespace = "/proc/self/ns/cgroup";
    let link = std::fs::read_link(namespace).map_err(look(namespace))?;
    if link != Path::new(FIRST_CGROUP_NAMESPACE) {
        return Err(HostError::CgroupNamespace);
    }
    Ok(())
}
