//! The LSM hooks that the programs attach to, as the running kernel has them.

use crate::kernel::btf::{Btf, BtfError, Param};
use sandbox_common::event::Hook;

/// A hook as the programs expect it.
struct Expected {
    hook: Hook,
    /// Accepted types of each parameter. The number of parameters must be the same too: the value
    /// that an earlier LSM returned is passed to a program right behind them.
    params: &'static [&'static [&'static str]],
    /// What it means where the kernel lacks it.
    absence: &'static str,
    /// Nothing is enforced without it.
    required: bool,
}

const PATH: &[&str] = &["struct path *"];
const DENTRY: &[&str] = &["struct dentry *"];
const FILE: &[&str] = &["struct file *"];
const MODE: &[&str] = &["umode_t"];
const UNSIGNED: &[&str] = &["unsigned int"];
const INT: &[&str] = &["int"];

const fn needed(
    hook: Hook,
    params: &'static [&'static [&'static str]],
    absence: &'static str,
) -> Expected {
    Expected { hook, params, absence, required: true }
}

/// `include/linux/lsm_hook_defs.h` of 6.1 to 7.3.
const EXPECTED: &[Expected] = &[
    needed(Hook::FileOpen, &[FILE], "opening files could not be refused"),
    needed(Hook::PathMknod, &[PATH, DENTRY, MODE, UNSIGNED], "files could be created anywhere"),
    needed(Hook::PathMkdir, &[PATH, DENTRY, MODE], "directories could be made anywhere"),
    needed(
        Hook::PathSymlink,
        &[PATH, DENTRY, &["char *"]],
        "symbolic links could be made anywhere",
    ),
    needed(
        Hook::PathLink,
        &[DENTRY, PATH, DENTRY],
        "a protected file could get a second name in a place that is not protected",
    ),
    needed(Hook::PathUnlink, &[PATH, DENTRY], "files could be removed anywhere"),
    needed(Hook::PathRmdir, &[PATH, DENTRY], "directories could be removed anywhere"),
    needed(
        Hook::PathRename,
        &[PATH, DENTRY, PATH, DENTRY, UNSIGNED],
        "files could be moved away from and over protected ones",
    ),
    needed(Hook::PathTruncate, &[PATH], "files could be emptied anywhere"),
    Expected {
        hook: Hook::FileTruncate,
        params: &[FILE],
        absence: "nothing is lost: before 6.2 the kernel asks `path_truncate` in its place",
        required: false,
    },
    needed(
        Hook::TaskAlloc,
        // `u64` since 6.18.
        &[&["struct task_struct *"], &["long unsigned int", "unsigned long", "u64"]],
        "a child could leave the session",
    ),
    needed(
        Hook::SocketCreate,
        &[INT, INT, INT, INT],
        "kinds of sockets that no address rule sees could be made",
    ),
    needed(Hook::PathChmod, &[PATH, MODE], "modes could be changed anywhere"),
    needed(Hook::PathChown, &[PATH, &["kuid_t"], &["kgid_t"]], "owners could be changed anywhere"),
];

/// What the running kernel has of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookFact {
    /// The hook.
    pub hook: Hook,
    /// Whether the programs can use it.
    pub state: HookState,
    /// What it means where it is absent.
    pub absence: &'static str,
    /// Nothing is enforced without it.
    pub required: bool,
}

/// Whether the programs can use a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookState {
    /// It is there and has the parameters that the programs read.
    Present,
    /// This kernel does not have it.
    Absent,
    /// It has other parameters: a program would load and read the wrong object.
    Changed {
        /// The parameters that it has.
        found: Vec<Param>,
        /// The types that were expected.
        expected: Vec<&'static str>,
    },
}

impl HookFact {
    /// It cannot be used, and nothing is enforced without it. An optional hook that has changed
    /// counts too: it exists, so the kernel asks it and no other.
    pub fn stops(&self) -> bool {
        match self.state {
            HookState::Present => false,
            HookState::Absent => self.required,
            HookState::Changed { .. } => true,
        }
    }
}

/// Looks up every hook: `bpf_lsm_<hook>` is the function that BPF programs attach to.
pub(super) fn hooks(btf: &Btf) -> Result<Vec<HookFact>, BtfError> {
    EXPECTED
        .iter()
        .map(|&Expected { hook, params, absence, required }| {
            let state = match btf.function(&format!("bpf_lsm_{}", hook.name()))? {
                None => HookState::Absent,
                Some(found) if fits(&found, params) => HookState::Present,
                Some(found) => HookState::Changed {
                    found,
                    expected: params.iter().filter_map(|types| types.first().copied()).collect(),
                },
            };
            Ok(HookFact { hook, state, absence, required })
        })
        .collect()
}

fn fits(found: &[Param], expected: &[&[&str]]) -> bool {
    found.len() == expected.len()
        && found
            .iter()
            .zip(expected)
            .all(|(param, types)| types.contains(&param.type_name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::btf::builder::Builder;
    use crate::kernel::btf::tests::kernels;

    #[test]
    fn every_lsm_hook_of_the_events_is_known() {
        let cgroup = [Hook::Connect4, Hook::Connect6, Hook::Sendmsg4, Hook::Sendmsg6];
        for hook in Hook::ALL {
            let known = EXPECTED.iter().filter(|expected| expected.hook == *hook).count();
            assert_eq!(known, usize::from(!cgroup.contains(hook)), "{hook:?}");
        }
    }

    #[test]
    fn a_changed_prototype_stops() {
        let mut b = Builder::new();
        let int = b.int("int", 4);
        let file = b.structure("file", 8, &[]);
        let file = b.pointer(file);
        b.function("bpf_lsm_file_open", &[("file", file)]);
        b.function("bpf_lsm_file_truncate", &[("file", file), ("length", int)]);
        b.function("bpf_lsm_socket_create", &[("a", int), ("b", int), ("c", int), ("d", file)]);
        let facts = hooks(&Btf::parse(b.finish()).unwrap()).unwrap();
        let fact = |hook| facts.iter().find(|fact| fact.hook == hook).unwrap();
        assert_eq!(fact(Hook::FileOpen).state, HookState::Present);
        assert!(!fact(Hook::FileOpen).stops());
        for hook in [Hook::FileTruncate, Hook::SocketCreate] {
            assert!(matches!(fact(hook).state, HookState::Changed { .. }), "{hook:?}");
            assert!(fact(hook).stops());
        }
        assert_eq!(fact(Hook::PathRename).state, HookState::Absent);
        assert!(fact(Hook::PathRename).stops());
    }

    #[test]
    fn only_an_optional_hook_may_be_absent() {
        let facts = hooks(&Btf::parse(Builder::new().finish()).unwrap()).unwrap();
        let tolerated: Vec<Hook> =
            facts.iter().filter(|fact| !fact.stops()).map(|fact| fact.hook).collect();
        assert_eq!(tolerated, [Hook::FileTruncate]);
    }

    #[test]
    fn real_kernels_have_every_hook() {
        for file in kernels() {
            let btf = Btf::read(&file).unwrap();
            if btf.function("bpf_lsm_file_open").unwrap().is_none() {
                eprintln!("skipped: {} is built without CONFIG_BPF_LSM", file.display());
                continue;
            }
            for fact in hooks(&btf).unwrap() {
                assert!(!fact.stops(), "{}: {fact:?}", file.display());
            }
        }
    }
}
