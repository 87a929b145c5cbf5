//! Prepares a crippled world for a program and becomes that program.

use super::Place;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};
use rustix::thread::{
    CapabilitySet, UnshareFlags, remove_capability_from_bounding_set, unshare_unsafe,
};
use serde::{Deserialize, Serialize};
use std::os::fd::IntoRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, ExitCode};

/// One step of the preparation. Mounts change in a mount namespace of the program's own.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Step {
    Unmount(Place),
    /// A cgroup namespace of its own, whose root is this cgroup, and cgroup v2 mounted anew in it.
    Cgroup(Place),
    Bind(Place, Place),
    /// A hierarchy of cgroup v1, mounted there.
    Version1(Place),
    /// A user namespace of its own, of which it is root.
    Container,
    /// Root without `CAP_SYS_ADMIN` and the capabilities that it includes.
    Powerless,
    /// Opens the file and lets the program inherit the descriptor.
    Leak(Place),
    User(u32),
}

/// `stage STEPS-AS-JSON PROGRAM ARGUMENTS…`
pub(super) fn main(words: &[String]) -> ExitCode {
    let [steps, program, arguments @ ..] = words else {
        eprintln!("stage: usage: stage JSON PROGRAM ARGUMENTS…");
        return ExitCode::from(99);
    };
    let mut command = Command::new(program);
    command.args(arguments);
    let error = match prepare(steps, &mut command) {
        Ok(()) => command.exec().to_string(),
        Err(error) => format!("{error:#}"),
    };
    eprintln!("stage: {program}: {error}");
    ExitCode::from(99)
}

fn prepare(steps: &str, command: &mut Command) -> anyhow::Result<()> {
    let steps: Vec<Step> = serde_json::from_str(steps)?;
    // Away from whatever terminal the suite was started on; fails only where that is so already.
    let _ = rustix::process::setsid();
    // SAFETY: no descriptor table or address space is unshared; this process has one thread.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    for step in steps {
        match step {
            Step::Cgroup(place) => {
                let root = place.path().parent().unwrap_or(Path::new("/sys/fs/cgroup"));
                std::fs::write(place.path().join("cgroup.procs"), "0")?;
                // SAFETY: as above.
                unsafe { unshare_unsafe(UnshareFlags::NEWCGROUP) }?;
                unmount(root, UnmountFlags::DETACH)?;
                mount("cgroup2", root, "cgroup2", MountFlags::empty(), None)?;
            }
            Step::Unmount(place) => unmount(place.path(), UnmountFlags::DETACH)?,
            Step::Bind(from, to) => mount_bind(from.path(), to.path())?,
            Step::Leak(path) => {
                let file = rustix::fs::open(path.path(), OFlags::RDONLY, Mode::empty())?;
                // Deliberately left open across the exec.
                let _ = file.into_raw_fd();
            }
            Step::Version1(place) => {
                mount("cgroup", place.path(), "cgroup", MountFlags::empty(), c"none,name=stage")?;
            }
            Step::Container => {
                // SAFETY: as above.
                unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }?;
                // More than the own one may only be given from outside.
                std::fs::write("/proc/self/uid_map", "0 0 1")?;
            }
            Step::Powerless => {
                for capability in [
                    CapabilitySet::SYS_ADMIN,
                    CapabilitySet::BPF,
                    CapabilitySet::PERFMON,
                    CapabilitySet::NET_ADMIN,
                ] {
                    remove_capability_from_bounding_set(capability)?;
                }
            }
            Step::User(uid) => {
                command.uid(uid).gid(uid);
            }
        }
    }
    Ok(())
}
