//! Processes outside the session are out of reach; those of the session are free.

use crate::harness::{Bystander, Denial, Ground, Policy, Session, Why, both, give, trial};
use crate::probe::{Act, Operation, Whom};
use anyhow::ensure;
use libtest_mimic::Trial;

pub(super) const ROWS: &[(&str, &str)] = &[
    ("A11", "outsiders::are_out_of_reach_of_root"),
    ("A49", "outsiders::are_out_of_reach_of_root"),
    ("A49", "outsiders::keeper_is_out_of_reach"),
    ("A56", "outsiders::are_out_of_reach_of_root"),
    ("A56", "outsiders::are_out_of_reach_of_their_user"),
    ("D1.23", "outsiders::are_out_of_reach_of_their_user"),
    ("D1.24", "outsiders::are_out_of_reach_of_root"),
    ("D5.81", "outsiders::keeper_is_out_of_reach"),
];

pub(super) fn trials() -> Vec<Trial> {
    let twice = [both("outsiders::keeper_is_out_of_reach", keeper)];
    let once = [
        trial("outsiders::are_out_of_reach_of_root", || out_of_reach(0)),
        trial("outsiders::are_out_of_reach_of_their_user", || out_of_reach(USER)),
    ];
    twice.into_iter().flatten().chain(once).collect()
}

const USER: u32 = 65_534;

/// What is tried, by which hook it is refused, and what happens to the other where it is not.
struct Try {
    act: Act,
    hook: &'static str,
    access: &'static str,
    /// Only root may do this to others at all.
    root: bool,
}

fn tries() -> Vec<Try> {
    let new = |act, hook, access| Try { act, hook, access, root: false };
    let by_root = |act, hook, access| Try { act, hook, access, root: true };
    let trace = |act| new(act, "ptrace_access_check", "trace");
    let file = |name: &str| trace(Act::Open(name.to_owned(), libc::O_RDONLY));
    let link = |name: &str| trace(Act::Link(name.to_owned()));
    let signal = |act| new(act, "task_kill", "signal");
    vec![
        signal(Act::Signal(0)),
        signal(Act::Signal(libc::SIGSTOP)),
        signal(Act::ThreadSignal(libc::SIGTERM)),
        signal(Act::Queue(libc::SIGTERM)),
        signal(Act::PidfdSignal(libc::SIGKILL)),
        new(Act::DescriptorSignal(libc::SIGKILL), "file_send_sigiotask", "signal"),
        trace(Act::Attach),
        trace(Act::Seize),
        trace(Act::ReadMemory),
        trace(Act::WriteMemory),
        trace(Act::TakeDescriptor),
        trace(Act::RobustList),
        trace(Act::MovePages),
        trace(Act::Compare),
        by_root(Act::Advise, "ptrace_access_check", "trace"),
        by_root(Act::JoinNamespace, "ptrace_access_check", "trace"),
        file("environ"),
        file("mem"),
        file("maps"),
        file("smaps"),
        file("pagemap"),
        link("exe"),
        link("cwd"),
        link("root"),
        link("fd/0"),
        link("ns/net"),
        new(Act::Nice, "task_setnice", "control"),
        new(Act::IoPriority, "task_setioprio", "control"),
        new(Act::Affinity, "task_setscheduler", "control"),
        new(Act::Scheduler, "task_setscheduler", "control"),
        new(Act::Attributes, "task_setscheduler", "control"),
        new(Act::Limit, "task_setrlimit", "control"),
    ]
}

fn denial(of: &Try) -> Denial {
    Denial::by(&[of.hook])
        .access(of.access)
        .any_object()
        .because(Why::Reason(&["outsider"]))
        .error(libc::EPERM)
        .or_error(libc::EACCES)
}

/// Yama guards an ordinary user's processes before anybody else is asked.
fn without_yama() -> anyhow::Result<()> {
    let file = std::path::Path::new("/proc/sys/kernel/yama/ptrace_scope");
    if file.exists() {
        std::fs::write(file, "0")?;
    }
    Ok(())
}

fn out_of_reach(uid: u32) -> anyhow::Result<()> {
    without_yama()?;
    let ground = Ground::new("outsiders")?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let operation = |whom: Whom, act: &Act| {
        let act = Operation::Other { whom, act: act.clone() };
        if uid == 0 { act } else { Operation::As { uid, then: Box::new(act) } }
    };
    let mut bystander = Bystander::new()?;
    let mut victim = Bystander::of_user(uid)?;
    for of in tries().into_iter().filter(|of| uid == 0 || !of.root) {
        let name = format!("{:?} by {uid}", of.act);
        let attack = operation(Whom::Pid(victim.pid()), &of.act);
        session.refused(&name, &attack, &denial(&of))?;
        ensure!(victim.is_well(), "{name}: the outsider is not well");
        // Of namespaces the agent has no right to enter any, not its own either.
        if of.act != Act::JoinNamespace {
            session
                .allowed(&format!("{name} (harmless twin)"), &operation(Whom::Child, &of.act))?;
        }
        let answer = bystander.perform(&attack)?;
        if answer.errno != 0 {
            session.problem(format!("{name}: a bystander was hindered: {answer}"));
        }
        // A bystander may have killed, stopped or traced it.
        victim = Bystander::of_user(uid)?;
    }
    session.finish()
}

/// Files of an outsider in `/proc` through which it is changed.
const SETTINGS: [&str; 6] =
    ["oom_score_adj", "comm", "coredump_filter", "timerslack_ns", "clear_refs", "autogroup"];

/// The program that keeps the session.
fn keeper() -> anyhow::Result<()> {
    let ground = Ground::new("keeper")?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let pid = session.keeper().id().cast_signed();
    for of in tries() {
        let name = format!("{:?} of the keeper", of.act);
        let attack = Operation::Other { whom: Whom::Pid(pid), act: of.act.clone() };
        session.refused(&name, &attack, &denial(&of).told_to_root())?;
    }
    let stat = std::path::PathBuf::from(format!("/proc/{pid}"));
    for name in SETTINGS {
        if stat.join(name).exists() {
            let path = stat.join(name);
            let open = Operation::Open { path: path.clone().into(), flags: libc::O_WRONLY };
            session.refused(
                &format!("write of {name}"),
                &open,
                &Denial::write(path).told_to_root(),
            )?;
        }
    }
    let cgroup = session.cgroup()?;
    for name in ["cgroup.kill", "cgroup.freeze"] {
        let path = cgroup.join(name);
        give(&path)?;
        let open = Operation::Open { path: path.clone().into(), flags: libc::O_WRONLY };
        session.refused(&format!("write of {name}"), &open, &Denial::write(path))?;
    }
    ensure!(session.keeper().try_wait()?.is_none(), "the keeper has ended");
    session.finish()
}
