//! Beside `SELinux`, permissive and enforcing: what either refuses stays refused.
//!
//! In a machine of its own, whose kernel has `SELinux` among its active LSMs, under a policy of a page.

use crate::harness::{Bystander, Denial, Ground, Policy, Session, key, trial};
use crate::probe::{Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use rustix::mount::{MountFlags, mount};
use std::net::TcpListener;
use std::path::Path;

/// `selinux.conf`, compiled; in the machine that is for this.
const POLICY: &str = "/var/selinux.policy";
/// What that closes.
const CLOSED: &str = "/proc/version";
const SELINUXFS: &str = "/sys/fs/selinux";

pub(super) fn trials() -> Vec<Trial> {
    let trial = trial("selinux::permissive_and_enforcing", modes);
    vec![trial.with_ignored_flag(!Path::new(POLICY).exists())]
}

fn enforce(on: bool) -> anyhow::Result<()> {
    let file = Path::new(SELINUXFS).join("enforce");
    std::fs::write(&file, if on { "1" } else { "0" }).context("switching SELinux")?;
    ensure!(std::fs::read_to_string(&file)? == if on { "1" } else { "0" }, "SELinux stays");
    Ok(())
}

fn modes() -> anyhow::Result<()> {
    let active = std::fs::read_to_string("/sys/kernel/security/lsm")?;
    ensure!(active.trim().split(',').any(|lsm| lsm == "selinux"), "no SELinux: {active}");
    mount("selinuxfs", SELINUXFS, "selinuxfs", MountFlags::empty(), None)
        .context("mounting selinuxfs")?;
    let policy = std::fs::read(POLICY)?;
    std::fs::write(Path::new(SELINUXFS).join("load"), policy).context("loading the policy")?;
    enforce(false)?;
    let ground = Ground::new("selinux")?;
    let mut first = Session::start(&ground, &Policy::preset())?;
    look(&mut first, &ground, false)?;
    enforce(true)?;
    look(&mut first, &ground, true)?;
    first.finish().context("a session from before SELinux enforced")?;
    let ground = Ground::new("selinux-enforcing")?;
    let mut second = Session::start(&ground, &Policy::preset())?;
    look(&mut second, &ground, true)?;
    enforce(false)?;
    look(&mut second, &ground, false)?;
    second.finish().context("a session that started while SELinux enforced")
}

/// What `SELinux` refuses when it enforces, and what the session refuses whatever `SELinux` does.
fn look(session: &mut Session, ground: &Ground, enforcing: bool) -> anyhow::Result<()> {
    let open = |path: &Place| Operation::Open { path: path.clone(), flags: libc::O_RDONLY };
    let closed = open(&CLOSED.into());
    let answer = Bystander::new()?.perform(&closed)?;
    ensure!((answer.errno == libc::EACCES) == enforcing, "a bystander, {enforcing}: {answer}");
    if enforcing {
        let by_selinux = Denial::by(&[]).perhaps_untold().error(libc::EACCES);
        let answer = session.refused("what SELinux closes", &closed, &by_selinux)?;
        let told = session.events().denials_of(answer.pid);
        ensure!(told.is_empty(), "the session takes SELinux's denial for its own: {told:?}");
    } else {
        session.allowed("what SELinux would close", &closed)?;
    }
    let (key, twin) = (key()?, ground.file(&ground.workspace())?);
    session.refused("a key", &open(&key), &Denial::read(&key).of_key())?;
    session.allowed("a key (harmless twin)", &open(&twin))?;
    let path = ground.absent(&ground.outside());
    let denial = Denial::by(&["path_mknod"]).access("create").path(&path);
    session.refused("a file outside", &Operation::Create { path }, &denial)?;
    let inside = Operation::Create { path: ground.absent(&ground.workspace()) };
    session.allowed("a file outside (harmless twin)", &inside)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let denial = Denial::by(&["connect4"]).address(address, "tcp");
    session.refused("a connection", &Operation::Tcp { address }, &denial)?;
    ensure!(listener.accept().is_err(), "a connection arrived");
    Ok(())
}
