//! Whether the kernel takes the processor from a task while it is inside the kernel.
//!
//! It decides whether the second way of attaching holds. Before it runs a `fmod_ret` program the kernel counts
//! it as running on that processor, and leaves it out where it is counted already (`__bpf_prog_enter_recur`,
//! kernel/bpf/trampoline.c): a task that was interrupted in a hook opens that hook for every other task on
//! its processor. BPF-LSM programs are not counted (`bpf_prog_check_recur`).

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read as _};

/// What is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Preemption {
    /// Not inside the kernel (`PREEMPT_NONE`, `PREEMPT_VOLUNTARY`).
    No,
    /// At any place (`PREEMPT`, `PREEMPT_LAZY`, `PREEMPT_RT`).
    Yes,
    /// It can be chosen at boot, and what was chosen cannot be seen.
    Unknown,
}

impl Preemption {
    /// Of the running kernel.
    pub fn read() -> Self {
        let version = rustix::system::uname().version().to_string_lossy().into_owned();
        Self::of(&version, dynamic)
    }

    /// From the version that the kernel gives itself (`UTS_VERSION`, init/Makefile), and, where it was chosen
    /// at boot, the list in which the choice is in brackets.
    fn of(version: &str, chosen: impl FnOnce() -> io::Result<String>) -> Self {
        let words = || version.split_whitespace();
        if words().any(|word| word == "PREEMPT_DYNAMIC") {
            return chosen().map_or(Self::Unknown, |list| Self::in_brackets(&list));
        }
        if words().any(|word| word.starts_with("PREEMPT")) { Self::Yes } else { Self::No }
    }

    fn in_brackets(list: &str) -> Self {
        let chosen =
            list.split_whitespace().find_map(|word| word.strip_prefix('(')?.strip_suffix(')'));
        match chosen {
            Some("none" | "voluntary") => Self::No,
            Some("full" | "lazy") => Self::Yes,
            _ => Self::Unknown,
        }
    }
}

/// `sched/preempt` of debugfs, like `none (voluntary) full`; without mounting it for anybody to see.
fn dynamic() -> io::Result<String> {
    let context = fsopen("debugfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    let root = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let file = openat(&root, "sched/preempt", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut text = String::new();
    File::from(file).take(1024).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_tells_where_there_is_no_choice() {
        let of = |version| Preemption::of(version, || unreachable!("no choice at boot"));
        assert_eq!(of("#1 SMP Debian 5.10.1-1 (2021-01-01)"), Preemption::No);
        assert_eq!(of("#1 SMP PREEMPT Mon Jan 1 00:00:00 UTC 2024"), Preemption::Yes);
        assert_eq!(of("#1 SMP PREEMPT_RT Debian 6.12.1-1"), Preemption::Yes);
        assert_eq!(of("#1 SMP PREEMPT_LAZY Debian 7.0.1-1"), Preemption::Yes);
    }

    #[test]
    fn the_choice_is_in_brackets() {
        let of =
            |list: &str| Preemption::of("#1 SMP PREEMPT_DYNAMIC Debian", || Ok(list.to_owned()));
        assert_eq!(of("none (voluntary) full \n"), Preemption::No);
        assert_eq!(of("(none) voluntary full lazy"), Preemption::No);
        assert_eq!(of("full (lazy)"), Preemption::Yes);
        assert_eq!(of("none voluntary (full)"), Preemption::Yes);
        assert_eq!(of("none voluntary full"), Preemption::Unknown);
        assert_eq!(of("(something new)"), Preemption::Unknown);
        let hidden =
            Preemption::of("#1 SMP PREEMPT_DYNAMIC", || Err(io::ErrorKind::NotFound.into()));
        assert_eq!(hidden, Preemption::Unknown);
    }
}
