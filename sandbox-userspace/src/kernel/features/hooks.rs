//! The LSM hooks that the programs attach to, as the running kernel has them.

use crate::engine::{LSM_HOOKS, Need, Way, modify_return};
use crate::kernel::btf::{Btf, BtfError, Param};
use sandbox_common::event::Hook;

const PATH: &[&str] = &["struct path *"];
const DENTRY: &[&str] = &["struct dentry *"];
const INODE: &[&str] = &["struct inode *"];
const FILE: &[&str] = &["struct file *"];
const TASK: &[&str] = &["struct task_struct *"];
const MODE: &[&str] = &["umode_t"];
const UNSIGNED: &[&str] = &["unsigned int"];
const LONG: &[&str] = &["long unsigned int", "unsigned long"];
const INT: &[&str] = &["int"];
const BOOL: &[&str] = &["bool"];

const IDMAP: &[&str] = &["struct mnt_idmap *", "struct user_namespace *"];
const NAME: &[&str] = &["char *"];
const VMA: &[&str] = &["struct vm_area_struct *"];

/// Accepted types of each parameter, from `include/linux/lsm_hook_defs.h` of 6.1 to 7.3. The number
/// of parameters must be the same too: the value that an earlier LSM returned is passed to a
/// program right behind them. `None` where the program reads no argument at all, or the hook is
/// none of an LSM.
fn expected(hook: Hook) -> Option<&'static [&'static [&'static str]]> {
    Some(match hook {
        Hook::FileOpen | Hook::FileTruncate | Hook::FileReceive => &[FILE],
        Hook::PathMknod => &[PATH, DENTRY, MODE, UNSIGNED],
        Hook::PathMkdir => &[PATH, DENTRY, MODE],
        Hook::PathSymlink => &[PATH, DENTRY, &["char *"]],
        Hook::PathLink => &[DENTRY, PATH, DENTRY],
        Hook::InodeFollowLink => &[DENTRY, INODE, BOOL],
        Hook::PathUnlink | Hook::PathRmdir => &[PATH, DENTRY],
        Hook::PathRename => &[PATH, DENTRY, PATH, DENTRY, UNSIGNED],
        Hook::PathTruncate => &[PATH],
        Hook::PathChmod => &[PATH, MODE],
        Hook::PathChown => &[PATH, &["kuid_t"], &["kgid_t"]],
        Hook::InodeSetattr => &[IDMAP, DENTRY, &["struct iattr *"]],
        Hook::InodeSetxattr => &[IDMAP, DENTRY, NAME, &["void *"], &["size_t"], INT],
        Hook::InodeRemovexattr | Hook::InodeRemoveAcl => &[IDMAP, DENTRY, NAME],
        Hook::InodeSetAcl => &[IDMAP, DENTRY, NAME, &["struct posix_acl *"]],
        Hook::InodeFileSetattr => &[DENTRY, &["struct file_kattr *", "struct fileattr *"]],
        Hook::MmapFile => &[FILE, LONG, LONG, LONG],
        Hook::FileMprotect => &[VMA, LONG, LONG],
        Hook::BprmCredsForExec | Hook::BprmCheckSecurity => &[&["struct linux_binprm *"]],
        // `u64` since 6.18.
        Hook::TaskAlloc => &[TASK, &["long unsigned int", "unsigned long", "u64"]],
        Hook::SocketCreate => &[INT, INT, INT, INT],
        Hook::SocketConnect => {
            &[&["struct socket *"], &["struct sockaddr *", "struct sockaddr_unsized *"], INT]
        }
        Hook::SocketListen => &[&["struct socket *"], INT],
        Hook::SocketPostCreate => &[&["struct socket *"], INT, INT, INT, INT],
        Hook::UnixStreamConnect => &[&["struct sock *"], &["struct sock *"], &["struct sock *"]],
        Hook::UnixMaySend => &[&["struct socket *"], &["struct socket *"]],
        Hook::FileIoctl | Hook::FileIoctlCompat => &[FILE, UNSIGNED, LONG],
        Hook::PtraceAccessCheck => &[TASK, UNSIGNED],
        Hook::PtraceTraceme | Hook::TaskSetscheduler | Hook::TaskMovememory => &[TASK],
        Hook::TaskKill => &[TASK, &["struct kernel_siginfo *"], INT, &["struct cred *"]],
        Hook::TaskSetnice | Hook::TaskSetioprio => &[TASK, INT],
        Hook::TaskSetrlimit => &[TASK, UNSIGNED, &["struct rlimit *"]],
        Hook::TaskSetpgid => &[TASK, &["pid_t"]],
        Hook::KernelLoadData => &[&["enum kernel_load_data_id"], BOOL],
        Hook::KernelReadFile => &[FILE, &["enum kernel_read_file_id"], BOOL],
        Hook::SbMount => &[NAME, PATH, NAME, LONG, &["void *"]],
        Hook::SbKernMount => &[&["struct super_block *"]],
        Hook::FsContextParseParam => &[&["struct fs_context *"], &["struct fs_parameter *"]],
        Hook::FileSendSigiotask => &[TASK, &["struct fown_struct *"], INT],
        Hook::KeyAlloc => &[&["struct key *"], &["struct cred *"], LONG],
        Hook::KeyPermission => {
            &[&["key_ref_t"], &["struct cred *"], &["enum key_need_perm", "unsigned int"]]
        }
        Hook::SbRemount
        | Hook::SbUmount
        | Hook::SbPivotroot
        | Hook::MoveMount
        | Hook::UsernsCreate
        | Hook::Quotactl
        | Hook::Bpf
        | Hook::PerfEventOpen
        | Hook::KernelModuleRequest
        | Hook::Syslog
        | Hook::Settime
        | Hook::UringOverrideCreds
        | Hook::Connect4
        | Hook::Connect6
        | Hook::Sendmsg4
        | Hook::Sendmsg6
        | Hook::Bind4
        | Hook::Bind6
        | Hook::Egress
        | Hook::Ingress
        | Hook::Recvmsg4
        | Hook::Recvmsg6
        | Hook::Getpeername4
        | Hook::Getpeername6
        | Hook::Resolver
        | Hook::CgroupAttachTask => return None,
    })
}

/// Other parameters that a hook has on some kernels or in one way of attaching, and the program that
/// was written for them.
fn variant(hook: Hook) -> Option<(&'static [&'static [&'static str]], &'static str)> {
    match hook {
        // Before 6.3 LSMs do not get the first one.
        Hook::InodeSetattr => Some((&[DENTRY, &["struct iattr *"]], "inode_setattr_of_two")),
        // What asks the LSMs gets only what the caller asked for.
        Hook::MmapFile => Some((&[FILE, LONG, LONG], "mmap_file_of_three")),
        _ => None,
    }
}

/// What it means where the kernel lacks a hook.
fn absence(hook: Hook) -> &'static str {
    match hook {
        Hook::FileOpen => "opening files could not be refused",
        Hook::PathMknod => "files could be created anywhere",
        Hook::PathMkdir => "directories could be made anywhere",
        Hook::PathSymlink => "symbolic links could be made anywhere",
        Hook::PathLink => "a protected file could get a second name where nothing protects it",
        Hook::InodeFollowLink => {
            "a protected name could become a symbolic link to what is not protected"
        }
        Hook::PathUnlink => "files could be removed anywhere",
        Hook::PathRmdir => "directories could be removed anywhere",
        Hook::PathRename => "files could be moved away from protected places and over others",
        Hook::PathTruncate => "files could be emptied anywhere",
        Hook::FileTruncate => {
            "nothing is lost: before 6.2 the kernel asks `path_truncate` in its place"
        }
        Hook::PathChmod => "modes could be changed anywhere",
        Hook::PathChown => "owners could be changed anywhere",
        Hook::InodeSetattr => "times of files could be changed anywhere",
        Hook::InodeSetxattr | Hook::InodeRemovexattr => {
            "extended attributes of files could be changed anywhere"
        }
        Hook::InodeSetAcl | Hook::InodeRemoveAcl => {
            "nothing is lost: before 6.2 the kernel asks `inode_setxattr` and `inode_removexattr` in \
             their place"
        }
        Hook::InodeFileSetattr => {
            "nothing is lost: before 6.17 flags of files are changed by `ioctl` only"
        }
        Hook::MmapFile | Hook::FileMprotect => {
            "files could be changed through descriptors that somebody else opened, and any file be \
             executed"
        }
        Hook::FileReceive => "files and sockets that somebody else opened could be used",
        Hook::UringOverrideCreds => "io_uring could act with credentials of somebody else",
        Hook::BprmCredsForExec => "programs that a person is to be asked about would run",
        Hook::BprmCheckSecurity => "which programs run could not be noted",
        Hook::TaskAlloc => "a child could leave the session",
        Hook::SocketCreate => "kinds of sockets that no address rule sees could be made",
        Hook::SocketConnect => {
            "a member that was moved out of its cgroup, or has a socket of others, could connect anywhere"
        }
        Hook::SocketListen | Hook::Bind4 | Hook::Bind6 => "others could connect to the session",
        Hook::Recvmsg4 | Hook::Recvmsg6 | Hook::Getpeername4 | Hook::Getpeername6 => {
            "programs would not believe the answers of the session's resolver"
        }
        Hook::Resolver => "no name could be asked for",
        Hook::CgroupAttachTask => "that somebody moves a member would not be told",
        Hook::Egress => "packets could be sent elsewhere than where their socket connected to",
        Hook::Ingress => "what comes by UDP would not count for a rule's amount",
        Hook::SocketPostCreate => "sockets of the session could not be told from others",
        Hook::UnixStreamConnect | Hook::UnixMaySend => {
            "services of this machine could be asked to act outside the session"
        }
        Hook::Connect4 | Hook::Connect6 => "any address could be connected to",
        Hook::Sendmsg4 | Hook::Sendmsg6 => "datagrams could go to any address",
        Hook::FileIoctlCompat => {
            "nothing is lost: before 6.8 the kernel asks `file_ioctl` in its place"
        }
        Hook::FileIoctl => "input could be typed into the terminal",
        Hook::PtraceAccessCheck | Hook::PtraceTraceme => {
            "processes outside the session could be read and changed"
        }
        Hook::TaskKill => "processes outside the session could be killed",
        Hook::TaskSetnice
        | Hook::TaskSetioprio
        | Hook::TaskSetscheduler
        | Hook::TaskSetrlimit
        | Hook::TaskMovememory
        | Hook::TaskSetpgid => "scheduling and limits of processes outside could be changed",
        Hook::SbMount
        | Hook::SbRemount
        | Hook::SbKernMount
        | Hook::SbUmount
        | Hook::SbPivotroot
        | Hook::FsContextParseParam
        | Hook::MoveMount => "what a path means could be changed",
        Hook::UsernsCreate => "a member could become root in a user namespace of its own",
        Hook::Bpf => "the programs that enforce could be detached",
        Hook::PerfEventOpen | Hook::Syslog => "the kernel and other processes could be observed",
        Hook::KernelModuleRequest | Hook::KernelLoadData | Hook::KernelReadFile => {
            "code could be loaded into the kernel"
        }
        Hook::Settime => "the clock could be changed",
        Hook::FileSendSigiotask => "descriptors could be made to signal processes outside",
        Hook::KeyAlloc | Hook::KeyPermission => {
            "nothing is lost: this kernel keeps no keys (CONFIG_KEYS)"
        }
        Hook::Quotactl => "limits of file systems could be changed",
    }
}

/// What the running kernel has of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookFact {
    /// The hook.
    pub hook: Hook,
    /// Whether the programs can use it.
    pub state: HookState,
    /// Name of the program for the parameters that it has.
    pub program: &'static str,
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

/// Looks up every hook: `bpf_lsm_<hook>` is the function that BPF-LSM programs attach to,
/// `security_<hook>` the one for `fmod_ret`.
pub(super) fn hooks(btf: &Btf, way: Way) -> Result<Vec<HookFact>, BtfError> {
    LSM_HOOKS
        .iter()
        .map(|&(hook, need)| {
            let function = match way {
                Way::BpfLsm => format!("bpf_lsm_{}", hook.name()),
                Way::ModifyReturn => modify_return::function(hook),
            };
            let found = btf.function(&function)?;
            let other = |found: &[Param]| {
                variant(hook).filter(|(params, _)| fits(found, params)).map(|(_, program)| program)
            };
            let mut program = hook.name();
            let state = match (found, expected(hook)) {
                (None, _) => HookState::Absent,
                (Some(found), Some(params)) if !fits(&found, params) => match other(&found) {
                    Some(name) => {
                        program = name;
                        HookState::Present
                    }
                    None => HookState::Changed {
                        found,
                        expected: params
                            .iter()
                            .filter_map(|types| types.first().copied())
                            .collect(),
                    },
                },
                _ => HookState::Present,
            };
            let required = need == Need::Required;
            Ok(HookFact { hook, state, program, absence: absence(hook), required })
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
    fn a_changed_prototype_stops() {
        let mut b = Builder::new();
        let int = b.int("int", 4);
        let file = b.structure("file", 8, &[]);
        let file = b.pointer(file);
        b.function("bpf_lsm_file_open", &[("file", file)]);
        b.function("bpf_lsm_file_truncate", &[("file", file), ("length", int)]);
        b.function("bpf_lsm_socket_create", &[("a", int), ("b", int), ("c", int), ("d", file)]);
        let facts = hooks(&Btf::parse(b.finish()).unwrap(), Way::BpfLsm).unwrap();
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
        let facts = hooks(&Btf::parse(Builder::new().finish()).unwrap(), Way::BpfLsm).unwrap();
        let tolerated: Vec<Hook> =
            facts.iter().filter(|fact| !fact.stops()).map(|fact| fact.hook).collect();
        assert_eq!(
            tolerated,
            [
                Hook::FileTruncate,
                Hook::InodeSetAcl,
                Hook::InodeRemoveAcl,
                Hook::InodeFileSetattr,
                Hook::FileIoctlCompat,
                Hook::KeyAlloc,
                Hook::KeyPermission
            ]
        );
    }

    #[test]
    fn the_program_fits_the_parameters() {
        for (two, program) in [(false, "inode_setattr"), (true, "inode_setattr_of_two")] {
            let mut b = Builder::new();
            let [idmap, dentry, attr] = ["mnt_idmap", "dentry", "iattr"].map(|name| {
                let structure = b.structure(name, 8, &[]);
                b.pointer(structure)
            });
            let all = [("idmap", idmap), ("dentry", dentry), ("attr", attr)];
            b.function("bpf_lsm_inode_setattr", &all[usize::from(two)..]);
            let facts = hooks(&Btf::parse(b.finish()).unwrap(), Way::BpfLsm).unwrap();
            let fact = facts.iter().find(|fact| fact.hook == Hook::InodeSetattr).unwrap();
            assert_eq!((&fact.state, fact.program), (&HookState::Present, program));
        }
    }

    #[test]
    fn real_kernels_have_every_hook() {
        for file in kernels() {
            let btf = Btf::read(&file).unwrap();
            if btf.function("bpf_lsm_file_open").unwrap().is_none() {
                eprintln!("skipped: {} is built without CONFIG_BPF_LSM", file.display());
                continue;
            }
            let both = [Way::BpfLsm, Way::ModifyReturn].map(|way| hooks(&btf, way).unwrap());
            for fact in both.into_iter().flatten() {
                assert!(!fact.stops(), "{}: {fact:?}", file.display());
            }
        }
    }
}
