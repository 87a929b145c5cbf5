//! Once in, never out: children, threads, daemons, and whoever was moved.

use crate::harness::{
    Bystander, Denial, Ground, PATIENCE, Policy, Session, Why, both, cgroup_root, key,
};
use crate::probe::{Operation, Place};
use anyhow::Context as _;
use libtest_mimic::Trial;
use std::net::TcpListener;
use std::path::PathBuf;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("A6", "membership::moved_member_keeps_its_files_rules"),
    ("A6", "membership::moved_member_keeps_its_network_rules"),
    ("A7", "membership::moved_member_keeps_its_files_rules"),
    ("D5.79", "membership::children_threads_and_daemons_are_members"),
];

pub(super) fn trials() -> Vec<Trial> {
    let twice = [
        both("membership::children_threads_and_daemons_are_members", family),
        both("membership::moved_member_keeps_its_files_rules", moved_files),
        both("membership::moved_member_keeps_its_network_rules", moved_network),
    ];
    twice.into_iter().flatten().collect()
}

fn open(path: &Place) -> Operation {
    Operation::Open { path: path.clone(), flags: libc::O_RDONLY }
}

/// Aims a way of being at a file.
pub(super) type Make<'a> = &'a dyn Fn(&Place) -> Operation;

/// In each way a member is refused the first place and reads the second, and a bystander reads both.
pub(super) fn each_is_refused_the_key(
    session: &mut Session,
    bystander: &mut Bystander,
    (key, twin): (&Place, &Place),
    ways: &[(&str, Make<'_>)],
) -> anyhow::Result<()> {
    for (name, make) in ways {
        session.refused(name, &make(key), &Denial::read(key).of_key())?;
        session.allowed(&format!("{name} (harmless twin)"), &make(twin))?;
        let answer = bystander.perform(&make(key))?;
        if answer.errno != 0 {
            session.problem(format!("{name}: a bystander was hindered: {answer}"));
        }
    }
    Ok(())
}

fn family() -> anyhow::Result<()> {
    let ground = Ground::new("family")?;
    let (key, twin) = (key()?, ground.file(&ground.workspace())?);
    let mut session = Session::start(&ground, &Policy::preset())?;
    let mut bystander = Bystander::new()?;
    let fork = |path: &Place| Operation::Fork { then: Box::new(open(path)) };
    let daemon = |path: &Place| Operation::Daemon { then: Box::new(open(path)) };
    let thread = |path: &Place| Operation::Thread { then: Box::new(open(path)) };
    let deep = |path: &Place| Operation::Daemon {
        then: Box::new(Operation::Daemon { then: Box::new(thread(path)) }),
    };
    let vfork = |path: &Place| Operation::VforkOpen { path: path.clone() };
    let kinds: [(&str, Make<'_>); 5] = [
        ("child", &fork),
        ("daemon", &daemon),
        ("thread", &thread),
        ("thread of a daemon's daemon", &deep),
        ("vforked child", &vfork),
    ];
    each_is_refused_the_key(&mut session, &mut bystander, (&key, &twin), &kinds)?;
    session.finish()
}

/// A session whose agent the administrator moves to another cgroup.
struct Moved {
    session: Session,
    cgroup: PathBuf,
}

impl Moved {
    fn start(ground: &Ground, policy: &Policy) -> anyhow::Result<Self> {
        let mut session = Session::start(ground, policy)?;
        // A member is labelled when a hook first sees it.
        session.allowed("before the move", &open(&"/proc/self/status".into()))?;
        let cgroup = cgroup_root()?.join(format!("moved-{}", std::process::id()));
        std::fs::create_dir(&cgroup).context("making a cgroup")?;
        let mut moved = Self { session, cgroup };
        let agent = moved.session.identity()?.pid;
        let processes = moved.cgroup.join("cgroup.procs");
        std::fs::write(processes, agent.to_string()).context("moving the agent")?;
        let answer = moved.session.perform(&open(&"/proc/self/cgroup".into()))?;
        if !answer.text().contains("/moved-") {
            moved.session.problem(format!("the agent was not moved: it is in {}", answer.data));
        }
        let told =
            moved.session.events().moved(agent, PATIENCE).context("the move was not told")?;
        let to = told["to"].as_str().unwrap_or_default();
        if !to.contains("/moved-") || told["by"] != std::process::id() || told["from"] == 0 {
            moved.session.problem(format!("the move was told wrongly: {told}"));
        }
        Ok(moved)
    }

    fn finish(self) -> anyhow::Result<()> {
        let result = self.session.finish();
        std::fs::remove_dir(&self.cgroup).context("removing the cgroup")?;
        result
    }
}

fn moved_files() -> anyhow::Result<()> {
    let ground = Ground::new("moved")?;
    let (key, twin) = (key()?, ground.file(&ground.workspace())?);
    let mut moved = Moved::start(&ground, &Policy::preset())?;
    let session = &mut moved.session;
    session.refused("moved member", &open(&key), &Denial::read(&key).of_key())?;
    session.allowed("moved member (harmless twin)", &open(&twin))?;
    let daemon = Operation::Daemon { then: Box::new(open(&key)) };
    session.refused("daemon of a moved member", &daemon, &Denial::read(&key).of_key())?;
    let path = ground.outside().join("new");
    let denial = Denial::by(&["path_mknod"]).access("create").path(&path);
    session.refused("moved member creates", &Operation::Create { path }, &denial)?;
    moved.finish()
}

fn moved_network() -> anyhow::Result<()> {
    let ground = Ground::new("moved-network")?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let mut moved = Moved::start(&ground, &Policy::preset())?;
    // Which hook holds a member outside its cgroup is the kernel side's own affair.
    let hooks = ["connect4", "socket_connect", "socket_create"];
    let denial =
        Denial::by(&hooks).any_object().because(Why::Reason(&["default", "socket_kind", "moved"]));
    moved.session.refused("moved member connects", &Operation::Tcp { address }, &denial)?;
    if listener.accept().is_ok() {
        moved.session.problem(format!("a connection of a moved member arrived at {address}"));
    }
    moved.finish()
}
