//! Times, extended attributes, access lists and flags: changes without a write.

use crate::harness::{
    Attack, Bystander, Denial, Ground, Policy, Session, Why, bystander_is_free_beside_a_session,
    member_changes_nothing, trial,
};
use crate::probe::{Attribute, Operation, Place};
use anyhow::ensure;
use libtest_mimic::Trial;

pub(super) const ROWS: &[(&str, &str)] = &[
    ("A33", "attributes::member_cannot_change_them_outside"),
    ("A34", "attributes::member_cannot_change_them_outside"),
    ("A35", "attributes::member_cannot_change_them_outside"),
    ("A35", "attributes::calls_of_few_file_systems"),
    ("D2.30", "attributes::member_cannot_change_them_outside"),
    ("D2.30", "attributes::calls_of_few_file_systems"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("attributes::member_cannot_change_them_outside", member),
        trial("attributes::bystander_changes_them", bystander),
        trial("attributes::calls_of_few_file_systems", rare),
    ]
}

/// What is changed, and the hooks that may refuse it.
const CHANGES: &[(&str, Attribute, &[&str])] = &[
    ("utimensat", Attribute::Times, &["inode_setattr"]),
    ("utimensat to now", Attribute::TimesNow, &["inode_setattr"]),
    ("futimens of a descriptor for reading", Attribute::TimesOfDescriptor, &["inode_setattr"]),
    ("setxattr", Attribute::Capability, &["inode_setxattr"]),
    ("fsetxattr", Attribute::CapabilityOfDescriptor, &["inode_setxattr"]),
    ("removexattr", Attribute::NoCapability, &["inode_removexattr"]),
    ("access list", Attribute::AccessList, &["inode_set_acl", "inode_setxattr"]),
    ("no access list", Attribute::NoAccessList, &["inode_remove_acl", "inode_removexattr"]),
    ("chattr", Attribute::Flags, &["file_ioctl"]),
];

/// A file that has an attribute and an access list to be taken away.
fn dressed(ground: &Ground, at: &Place, bystander: &mut Bystander) -> anyhow::Result<Place> {
    let path = ground.file(at)?;
    for attribute in [Attribute::Capability, Attribute::AccessList] {
        let answer = bystander.perform(&Operation::Change { path: path.clone(), attribute })?;
        ensure!(answer.errno == 0, "{attribute:?} of {path}: {answer}");
    }
    Ok(path)
}

pub(super) fn attacks(ground: &Ground) -> anyhow::Result<Vec<Attack>> {
    let mut bystander = Bystander::new()?;
    let mut attacks = Vec::new();
    for &(name, attribute, hooks) in CHANGES {
        let mut change = |at: &Place| -> anyhow::Result<Operation> {
            Ok(Operation::Change { path: dressed(ground, at, &mut bystander)?, attribute })
        };
        let operation = change(&ground.outside())?;
        let twin = change(&ground.workspace())?;
        let denial =
            Denial::by(hooks).access("attributes").beneath(ground.outside()).error(libc::EACCES);
        attacks.push(Attack { name, operation, denial, twin });
    }
    Ok(attacks)
}

fn member() -> anyhow::Result<()> {
    member_changes_nothing("attributes", |_| Policy::preset(), attacks)
}

fn bystander() -> anyhow::Result<()> {
    bystander_is_free_beside_a_session("attributes-bystander", attacks)
}

/// What the file system of the machine may lack: it is asked after the session, which refuses.
fn rare() -> anyhow::Result<()> {
    const LACKING: &[i32] = &[0, libc::EOPNOTSUPP, libc::ENOTTY, libc::ENOSYS, libc::EINVAL];
    let ground = Ground::new("attributes-rare")?;
    let denial = |hooks| {
        Denial::by(hooks).access("attributes").beneath(ground.outside()).error(libc::EACCES)
    };
    let mut session = Session::start(&ground, &Policy::preset())?;
    let mut bystander = Bystander::new()?;
    for (attribute, denial) in [
        (Attribute::Project, denial(&["file_ioctl"])),
        (Attribute::FileSetattr, denial(&["inode_file_setattr"])),
        (
            Attribute::Snapshot,
            Denial::by(&["file_ioctl"]).task().because(Why::Reason(&["never"])).error(libc::EPERM),
        ),
    ] {
        let name = format!("{attribute:?}");
        let change = |at: &Place| -> anyhow::Result<Operation> {
            Ok(Operation::Change { path: ground.file(at)?, attribute })
        };
        let (attack, twin) = (change(&ground.outside())?, change(&ground.workspace())?);
        let free = bystander.perform(&attack)?;
        ensure!(LACKING.contains(&free.errno), "{name} by a bystander: {free}");
        if free.errno == libc::ENOSYS {
            continue;
        }
        session.refused(&name, &attack, &denial)?;
        if attribute != Attribute::Snapshot {
            let answer = session.perform(&twin)?;
            if !LACKING.contains(&answer.errno) {
                session.problem(format!("{name} in the workspace: {answer}"));
            }
        }
    }
    session.finish()
}
