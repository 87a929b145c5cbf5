//! Capabilities that an agent must not have, root or not: those for what no hook can hold; and none at all.
//!
//! - Since 6.16 the kernel lets a reader into another process's `environ`, `maps` and `auxv` for
//!   `CAP_PERFMON` (and `CAP_SYS_ADMIN`, which includes it) *after* the LSMs have refused
//!   (`may_access_mm`, `kernel/fork.c`).
//! - Modules are unloaded, the machine is restarted, swap is taken away, names of the host are set,
//!   process accounting is turned off, ports are written and the clock is bent (`adjtimex`) without an
//!   LSM being asked.
//! - With `CAP_NET_ADMIN` a tunnel would carry what goes to an allowed address anywhere else.
//! - What is left are settings of the machine's guards: of other LSMs, of the audit system.

use rustix::io::Result;
use rustix::process::{Gid, Uid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

/// What an agent does not keep.
pub const SHED: [CapabilitySet; 13] = [
    CapabilitySet::SYS_ADMIN,
    CapabilitySet::PERFMON,
    CapabilitySet::BPF,
    CapabilitySet::CHECKPOINT_RESTORE,
    CapabilitySet::SYS_MODULE,
    CapabilitySet::SYS_BOOT,
    CapabilitySet::SYS_RAWIO,
    CapabilitySet::SYS_PACCT,
    CapabilitySet::SYS_TIME,
    CapabilitySet::NET_ADMIN,
    CapabilitySet::MAC_ADMIN,
    CapabilitySet::MAC_OVERRIDE,
    CapabilitySet::AUDIT_CONTROL,
];

/// Takes them from this thread for good: with its next program they are gone, for root too.
///
/// Makes system calls only, so it may run between fork and exec. Without `CAP_SETPCAP` the bounding
/// set cannot be changed and needs not be, unless the program run next brings capabilities of its
/// own, which `no_new_privs` forbids.
pub fn shed() -> Result<()> {
    let mut sets = capabilities(None)?;
    if sets.effective.contains(CapabilitySet::SETPCAP) {
        for capability in SHED {
            remove_capability_from_bounding_set(capability)?;
        }
    }
    for capability in SHED {
        sets.effective.remove(capability);
        sets.permitted.remove(capability);
        sets.inheritable.remove(capability);
    }
    set_capabilities(None, sets)
}

/// Makes this process, which has one thread, nobody's and powerless for good.
pub fn become_nobody() -> Result<()> {
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    if rustix::process::geteuid().is_root() {
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
    }
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    set_no_new_privs(true)
}

/// What the kernel calls those who have no number here (`DEFAULT_OVERFLOWUID`).
const NOBODY: u32 = 65_534;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    #[test]
    fn a_program_run_next_does_not_have_them() {
        let mut command = Command::new("cat");
        command.arg("/proc/self/status");
        // SAFETY: `shed` makes system calls only.
        unsafe { command.pre_exec(|| Ok(shed()?)) };
        let status = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let set = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            CapabilitySet::from_bits_retain(u64::from_str_radix(line.trim(), 16).unwrap())
        };
        let gone = CapabilitySet::from_iter(SHED);
        for name in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert!(!set(name).intersects(gone), "{name}");
        }
        if rustix::process::geteuid().is_root() {
            assert!(!set("CapBnd:").intersects(gone));
            assert!(set("CapEff:").contains(CapabilitySet::CHOWN));
        }
    }
}
