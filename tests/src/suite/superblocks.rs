//! Mounts that come and go while a session runs, and numbers of superblocks that are used again.

use crate::harness::{
    Denial, Ground, PATIENCE, Policy, Session, Why, both, eventually, trial, write,
};
use crate::probe::{Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::MetadataExt as _;

const READ_DENY: &str = "files.read.deny";
const VAULT: &str = "${WORKSPACE}/vault/**";

/// Rows of the threat tables and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("D5.91", "superblocks::what_is_mounted_later_becomes_known"),
    ("A15", "superblocks::what_is_covered_stays_closed"),
    ("A26", "superblocks::a_number_used_again_opens_nothing"),
];

pub(super) fn trials() -> Vec<Trial> {
    let twice = [both("superblocks::what_is_mounted_later_becomes_known", later)];
    let once = [
        trial("superblocks::what_is_covered_stays_closed", covered),
        trial("superblocks::a_number_used_again_opens_nothing", reused),
    ];
    twice.into_iter().flatten().chain(once).collect()
}

/// A memory file system, unmounted in the end.
struct Memory(Place);

impl Memory {
    fn mount(at: &Place) -> anyhow::Result<Self> {
        std::fs::create_dir_all(at)?;
        rustix::mount::mount("memory", at.path(), "tmpfs", MountFlags::empty(), None)
            .with_context(|| format!("mounting at {at}"))?;
        Ok(Self(at.clone()))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // The machine is thrown away.
        let _ = rustix::mount::unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

fn open(path: &Place, flags: i32) -> Operation {
    Operation::Open { path: path.clone(), flags }
}

/// Waits until the member gets this answer: `sandbox run` has read the mount table.
pub(super) fn until(
    session: &mut Session,
    operation: &Operation,
    errno: i32,
) -> anyhow::Result<()> {
    let mut last = None;
    let came = eventually(PATIENCE, || match session.perform(operation) {
        Ok(answer) if answer.errno == errno => Some(Ok(())),
        Ok(answer) => {
            last = Some(answer.to_string());
            None
        }
        Err(error) => Some(Err(error)),
    });
    came.unwrap_or_else(|| anyhow::bail!("{operation:?} never gave errno {errno}: {last:?}"))
}

fn later() -> anyhow::Result<()> {
    let ground = Ground::new("mounted-later")?;
    let (inside, outside) = (ground.workspace().join("inside"), ground.outside().join("mount"));
    let vault = ground.workspace().join("vault");
    let mut session = Session::start(&ground, &Policy::preset().read_deny(VAULT))?;

    let _inside = Memory::mount(&inside)?;
    write(&inside.join("file"), "content")?;
    until(&mut session, &open(&inside.join("file"), libc::O_WRONLY), 0)?;
    session.allowed("new file in it", &Operation::Create { path: inside.join("new") })?;

    let _vault = Memory::mount(&vault)?;
    write(&vault.join("key"), "secret")?;
    until(&mut session, &open(&vault.join("key"), libc::O_RDONLY), libc::EACCES)?;
    let denial = Denial::read(vault.join("key")).rule(READ_DENY, VAULT);
    session.refused("read", &open(&vault.join("key"), libc::O_RDONLY), &denial)?;

    let _outside = Memory::mount(&outside)?;
    let file = outside.join("file");
    write(&file, "content")?;
    let denial = Denial::write(&file).any_object();
    let unknown = denial.clone().because(Why::Reason(&["default", "unknown_filesystem"]));
    session.refused("write at once", &open(&file, libc::O_WRONLY), &unknown)?;
    session.allowed("read", &open(&file, libc::O_RDONLY))?;
    // The rules of the start hold still, and a switch loses nothing.
    session
        .allowed("workspace", &Operation::Create { path: ground.absent(&ground.workspace()) })?;
    let beside = ground.file(&ground.outside())?;
    session.refused("beside", &open(&beside, libc::O_WRONLY), &Denial::write(&beside))?;
    session.finish()
}

/// An outsider mounts something over a denied directory, of which he had made another name before.
fn covered() -> anyhow::Result<()> {
    let ground = Ground::new("covered")?;
    let (vault, marker) = (ground.workspace().join("vault"), ground.workspace().join("marker"));
    std::fs::create_dir(&vault)?;
    write(&vault.join("key"), "secret")?;
    let alias = ground.bind(&vault, &ground.outside())?;
    let mut session = Session::start(&ground, &Policy::preset().read_deny(VAULT))?;
    let denial = Denial::read(vault.join("key"))
        .paths(vault.join("key"), alias.join("key"))
        .rule(READ_DENY, VAULT);
    let key = open(&alias.join("key"), libc::O_RDONLY);
    session.refused("alias before", &key, &denial)?;
    let _over = Memory::mount(&vault)?;
    // When this one is known the other is.
    let _marker = Memory::mount(&marker)?;
    until(&mut session, &Operation::Create { path: marker.join("file") }, 0)?;
    session.refused("alias after", &key, &denial)?;
    let beside = ground.file(&ground.outside())?;
    session.allowed("another file", &open(&beside, libc::O_RDONLY))?;
    session.finish()
}

/// The number of a writable file system that was taken away is given to the next that is mounted.
fn reused() -> anyhow::Result<()> {
    let ground = Ground::new("reused")?;
    let (scratch, elsewhere) = (ground.workspace().join("scratch"), ground.outside().join("mount"));
    let first = Memory::mount(&scratch)?;
    let number = std::fs::metadata(&scratch)?.dev();
    let mut session = Session::start(&ground, &Policy::preset())?;
    session.allowed("write", &Operation::Create { path: scratch.join("file") })?;

    // Nobody reads the mount table now.
    let keeper = Pid::from_child(session.keeper());
    kill_process(keeper, Signal::STOP)?;
    drop(first);
    let mut mounts = Vec::new();
    let again = (0..16).any(|_| {
        let at = elsewhere.join(mounts.len().to_string());
        let mount = Memory::mount(&at);
        let same = std::fs::metadata(&at).is_ok_and(|meta| meta.dev() == number);
        mounts.extend(mount);
        same
    });
    let last = mounts.last().context("nothing was mounted")?.0.clone();
    let create = Operation::Create { path: last.join("file") };
    let answer = session.perform(&create)?;
    kill_process(keeper, Signal::CONT)?;
    ensure!(again, "the kernel did not use number {number} again");
    let denial = Denial::by(&["path_mknod"]).because(Why::Reason(&["unknown_filesystem"]));
    if denial.errors.contains(&answer.errno) {
        session.explained("write under the old number", answer.pid, &denial);
    } else {
        session.problem(format!("write under the old number: {answer}"));
    }
    let _inside = Memory::mount(&ground.workspace().join("inside"))?;
    until(&mut session, &Operation::Create { path: ground.workspace().join("inside/file") }, 0)?;
    let denial = Denial::by(&["path_mknod"]).path(last.join("file"));
    session.refused("write when it is known", &create, &denial)?;
    session.finish()
}
