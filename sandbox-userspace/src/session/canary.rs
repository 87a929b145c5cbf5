//! Proof before use: a canary in a throw-away cgroup is denied one thing of every class.
//!
//! That programs loaded and attached proves nothing: a kernel may list BPF and never ask it. So a
//! process of our own becomes the member of a session that exists only for it, tries what its
//! policy forbids (and, each time, a harmless twin that must pass), and the events that come back
//! must say what user space knows of the same objects. If anything differs, nothing is started.

mod attempt;
pub(crate) mod calls;
mod child;
mod judge;
mod scratch;

pub use attempt::Class;
pub use child::child;

use super::cgroup::{Cgroup, CgroupError, CgroupTree};
use super::state::{Registry, StateError};
use crate::engine::events::{DecodeError, Ring};
use crate::engine::{EngineError, Share};
use crate::policy::asks::AskEntry;
use crate::policy::compiled::{AbstractEntry, CompiledPolicy, Edge, PortEntry, Prefix, Rule};
use attempt::{
    ASK_RULE, ASKED, Answer, CLOSED, EXEC_RULE, INHERITED, NET_RULE, OPEN, Orders, READ_RULE,
    SECRET, SHELF, WITHIN, WRITE_RULE,
};
use judge::Observed;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sandbox_common::Access;
use sandbox_common::ask::{Ask, Asks, Word};
use sandbox_common::path::{Inherited, Node, Rights, Root, Said};
use sandbox_common::subject::{ASKS, Mode, Subject};
use scratch::{Ports, Scratch, Sockets};
use serde::Serialize;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Before the owner's name: what its cgroup and its links are called.
pub const PREFIX: &str = "canary-";
/// What `doctor` is called where sessions have their ids.
pub const DOCTOR: &str = "doctor";
/// What the policy's origin is called.
const NAME: &str = "canary";
/// The canary needs milliseconds; emulated machines a few seconds.
const PATIENCE: Duration = Duration::from_mins(1);

/// What was seen, class by class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanaryReport {
    /// Every [`Class`], in order.
    pub classes: Vec<(Class, Outcome)>,
}

/// What was seen of one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// Every denial came, told rightly, and every harmless twin passed.
    Enforced,
    /// This machine has nothing of the kind.
    Absent {
        /// What it lacks.
        why: String,
    },
    /// Something came out otherwise.
    Failed {
        /// The attempt, what was expected and what was met.
        why: String,
    },
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Enforced => f.write_str("enforced"),
            Self::Absent { why } => write!(f, "absent: {why}"),
            Self::Failed { why } => write!(f, "failed: {why}"),
        }
    }
}

impl CanaryReport {
    /// The classes that were not seen to be enforced.
    pub fn failures(&self) -> impl Iterator<Item = (Class, &str)> {
        self.classes.iter().filter_map(|(class, outcome)| match outcome {
            Outcome::Failed { why } => Some((*class, why.as_str())),
            _ => None,
        })
    }
}

/// Why enforcement is not proved; nothing may be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CanaryError {
    /// A class did not deny, or its events are wrong.
    #[error("{}", not_enforced(.0))]
    NotEnforced(CanaryReport),
    /// A step before or after the attempts failed.
    #[error("the proof of enforcement could not be made: cannot {what} {path}: {source}", path = path.display())]
    Step {
        /// What was attempted.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The mount table cannot be read.
    #[error("the proof of enforcement could not be made: {0}")]
    Mounts(#[from] crate::kernel::mounts::MountError),
    /// The mount table does not say on which superblock the canary's directory lies.
    #[error("the proof of enforcement could not be made: the mount table has no place for {}", .0.display())]
    NoPlace(PathBuf),
    /// The throw-away cgroup.
    #[error("the proof of enforcement could not be made: {0}")]
    Cgroup(#[from] CgroupError),
    /// The lock of all sessions.
    #[error("the proof of enforcement could not be made: {0}")]
    State(#[from] StateError),
    /// The engine refused.
    #[error("the proof of enforcement could not be made")]
    Engine(#[from] EngineError),
    /// An event that the programs of this very build wrote cannot be read.
    #[error("the proof of enforcement failed: {0}; nothing is started")]
    Event(#[from] DecodeError),
}

fn not_enforced(report: &CanaryReport) -> String {
    let list: Vec<_> =
        report.failures().map(|(class, why)| format!("\n  {class}: {why}")).collect();
    format!(
        "this kernel was seen not to enforce what it should:{}\n\
         Nothing is started. `sandbox doctor` shows more; please report this with the output of `uname -r`",
        list.concat()
    )
}

/// Names a step that failed.
fn step<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> CanaryError + 'a {
    move |source| CanaryError::Step { what, path: path.to_path_buf(), source }
}

/// Proves that everything is enforced, with a process in a throw-away cgroup, or says what is not.
/// Its denials come to the ring of the session that asks.
///
/// Everything it makes is removed again, on an error too.
pub fn prove(
    share: &mut Share,
    ring: &mut Ring,
    registry: &Registry,
    cgroups: &CgroupTree,
) -> Result<CanaryReport, CanaryError> {
    let name = format!("{PREFIX}{}", share.owner());
    if let Ok(left) = cgroups.open(&name) {
        // Of a `doctor` that was killed.
        left.kill()?;
        left.remove()?;
    }
    let cell = cgroups.create(&name)?;
    let report = prove_in(share, ring, registry, &cell);
    let removed = cell.remove();
    cgroups.tidy();
    let report = report?;
    removed?;
    Ok(report)
}

/// What the canary has at hand.
struct Place {
    scratch: Scratch,
    ports: Ports,
    sockets: Sockets,
}

fn prove_in(
    share: &mut Share,
    ring: &mut Ring,
    registry: &Registry,
    cell: &Cgroup,
) -> Result<CanaryReport, CanaryError> {
    let scratch = Scratch::make(&registry.scratch(share.owner()))?;
    let (ports, sockets) = (Ports::bind()?, Sockets::bind(&scratch.dir)?);
    let place = Place { scratch, ports, sockets };
    share.of_canary(cell.id)?;
    let mut policy = policy(&place);
    let (_, slot) = share.slots();
    let patterns = share.engine().publish(slot, &mut policy)?;
    let report = admit(share, patterns, ring, registry, cell, &place);
    let withdrawn = share.engine().withdraw(slot, &policy);
    let report = report?;
    withdrawn?;
    if report.failures().next().is_some() {
        return Err(CanaryError::NotEnforced(report));
    }
    Ok(report)
}

/// Makes the cell a session for as long as the attempts take.
fn admit(
    share: &mut Share,
    patterns: u32,
    ring: &mut Ring,
    registry: &Registry,
    cell: &Cgroup,
    place: &Place,
) -> Result<CanaryReport, CanaryError> {
    let (session, (_, slot)) = (share.number(), share.slots());
    let mode = Mode::Enforce as u32;
    let subject = Subject { session, slot, mode, patterns, permits: ASKS, pad: 0 };
    share.engine().admit(cell.id, cell.parent, subject, &registry.hold()?)?;
    let observed = match share.attach_all((&cell.path, cell.id), PREFIX) {
        Ok(()) => {
            let observed = observe(ring, session, cell, place);
            let detached = share.detach(PREFIX);
            observed.and_then(|observed| Ok(detached.map(|()| observed)?))
        }
        Err(error) => Err(error.into()),
    };
    let dismissed = share.engine().dismiss(cell.id, &registry.hold()?);
    let observed = observed?;
    dismissed?;
    Ok(judge::judge(&observed))
}

/// Runs the canary and gathers what it, the file system, the sockets and the ring say.
fn observe(
    ring: &mut Ring,
    session: u32,
    cell: &Cgroup,
    place: &Place,
) -> Result<Observed, CanaryError> {
    let Place { scratch, ports, sockets } = place;
    let before = scratch.stats()?;
    let (answers, pid) = converse(cell, place)?;
    let after = scratch.stats()?;
    let mut records = Vec::new();
    while let Some(record) = ring.next() {
        records.push(record?);
    }
    // `PROC_PID_INIT_INO`: elsewhere the kernel's process ids are not those that we see.
    let initial =
        fs::read_link("/proc/self/ns/pid").is_ok_and(|ns| ns.as_os_str() == "pid:[4026531836]");
    let comm = Path::new("/proc/self/comm");
    Ok(Observed {
        session,
        answers,
        records,
        before,
        after,
        place: scratch.place.clone(),
        shelf: scratch.shelf.dev,
        untraceable: untraceable(),
        pid: initial.then_some(pid),
        uid: rustix::process::getuid().as_raw(),
        parent: fs::read_to_string(comm).map_err(step("read", comm))?.trim_end().to_owned(),
        cgroup: cell.id,
        v4: ports.v4(),
        v6: ports.v6(),
        loopback6: ports.loopback6(),
        arrived: ports.arrived(),
        names: sockets.names(),
        arrived_unix: sockets.arrived(),
    })
}

/// Kills and reaps a canary that was not waited for.
struct Caged(Child);

impl Drop for Caged {
    fn drop(&mut self) {
        // It may have ended, and then there is nothing to kill.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the canary in its cgroup, moves it out between its two stages; its answers and its pid.
fn converse(cell: &Cgroup, place: &Place) -> Result<([Answer; 2], u32), CanaryError> {
    let procs = cell.path.join("cgroup.procs");
    let entrance = OpenOptions::new().write(true).open(&procs).map_err(step("open", &procs))?;
    let Place { scratch, ports, sockets } = place;
    let file = scratch.dir.join(INHERITED);
    let inherited =
        OpenOptions::new().read(true).write(true).open(&file).map_err(step("open", &file))?;
    let shelf = scratch.shelf.root.try_clone().map_err(step("keep open", &scratch.dir))?;
    let program = Path::new("/proc/self/exe");
    let orders = Orders {
        dir: scratch.dir.clone(),
        cgroup: cell.path.parent().unwrap_or(&cell.path).to_path_buf(),
        inherited: inherited.as_raw_fd(),
        shelf: shelf.as_raw_fd(),
        v4: ports.v4(),
        v6: ports.v6(),
        names: sockets.names(),
    };
    let mut command = Command::new(program);
    command
        .arg("canary")
        .env_clear()
        .env("CANARY", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    // SAFETY: between fork and exec only system calls are made: nothing is allocated and no lock
    // taken.
    unsafe {
        command.pre_exec(move || {
            rustix::io::write(&entrance, b"0")?;
            super::privileges::shed()?;
            for kept in [inherited.as_fd(), shelf.as_fd()] {
                rustix::io::fcntl_setfd(kept, rustix::io::FdFlags::empty())?;
            }
            Ok(())
        });
    }
    let mut canary = Caged(command.spawn().map_err(step("start the canary", program))?);
    let talk = |what: &'static str| step(what, program);
    let (Some(mut stdin), Some(mut stdout)) = (canary.0.stdin.take(), canary.0.stdout.take())
    else {
        return Err(talk("talk to the canary")(io::ErrorKind::BrokenPipe.into()));
    };
    let end = Instant::now() + PATIENCE;
    let mut line = serde_json::to_vec(&orders).map_err(|e| talk("order")(e.into()))?;
    line.push(b'\n');
    stdin.write_all(&line).map_err(talk("give orders to the canary"))?;
    let first = answer(&mut stdout, end).map_err(talk("hear the canary"))?;
    let pid = canary.0.id();
    release(cell, pid)?;
    stdin.write_all(b"\n").map_err(talk("give orders to the canary"))?;
    let second = answer(&mut stdout, end).map_err(talk("hear the moved canary"))?;
    drop(stdin);
    canary.0.wait().map_err(talk("wait for the canary"))?;
    Ok(([first, second], pid))
}

/// Reads one line of JSON. The canary sends nothing behind a line before it gets another order.
fn answer(from: &mut ChildStdout, end: Instant) -> io::Result<Answer> {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let left = end.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut waiting = [PollFd::from_borrowed_fd(from.as_fd(), PollFlags::IN)];
        match poll(&mut waiting, Some(&left)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let mut part = [0; 4096];
        match from.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => line.extend_from_slice(&part[..bytes]),
        }
    }
    Ok(serde_json::from_slice(&line)?)
}

/// Moves the canary to the nearest cgroup above that takes processes (one that hands controllers
/// down takes none; the root always does).
fn release(cell: &Cgroup, pid: u32) -> Result<(), CanaryError> {
    let mut last = None;
    for above in cell.path.ancestors().skip(1) {
        let procs = above.join("cgroup.procs");
        match OpenOptions::new().write(true).open(&procs).and_then(|mut file| write!(file, "{pid}"))
        {
            Ok(()) => return Ok(()),
            Err(source) if source.kind() == io::ErrorKind::NotFound => break,
            Err(source) => last = Some((procs, source)),
        }
    }
    let (path, source) =
        last.unwrap_or_else(|| (cell.path.clone(), io::ErrorKind::NotFound.into()));
    Err(step("move the canary to", &path)(source))
}

/// Whether Yama lets nobody trace anybody, so that no other LSM is asked (`kernel.yama.ptrace_scope` 3).
fn untraceable() -> bool {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    scope.is_ok_and(|scope| scope.trim() == "3")
}

/// Reads everywhere but `secret`, writes beneath `w`, runs all but one program, one port of this machine, one
/// abstract name.
fn policy(place: &Place) -> CompiledPolicy {
    let Place { scratch, ports, sockets } = place;
    let node = |id: usize, edges, said: Said| {
        // Ids are small: a path has few components.
        Node { id: u32::try_from(id).unwrap_or(u32::MAX), edges, own: said, below: said }
    };
    let (dev, names) = &scratch.place;
    let depth = names.len();
    let on_the_way =
        |level: usize| node(level + 1, if level == depth { 2 } else { 1 }, Said::default());
    let mut edges: Vec<Edge> = names
        .iter()
        .enumerate()
        .map(|(level, name)| {
            let (from, to) = (on_the_way(level).id, on_the_way(level + 1));
            Edge { from, name: name.clone(), to }
        })
        .collect();
    let from = on_the_way(depth).id;
    let closed = Said::of(Access::READ, false, READ_RULE);
    let open = Said::of(Access::WRITES, true, WRITE_RULE);
    edges.push(Edge { from, name: SECRET.into(), to: node(depth + 2, 0, closed) });
    edges.push(Edge { from, name: WITHIN.into(), to: node(depth + 3, 0, open) });
    let shut = Said::of(Access::EXECUTE, false, EXEC_RULE);
    let shelf = node(depth + 4, 1, Said::default());
    let name = CLOSED.strip_prefix(SHELF).unwrap_or(CLOSED);
    edges.push(Edge { from: shelf.id, name: name.into(), to: node(depth + 5, 0, shut) });
    let read = Access::READ.union(Access::EXECUTE);
    let rights = Rights { allow: read.bits(), ..Rights::default() };
    let below = Inherited { rights, unknown: 1, ..Inherited::default() };
    let elsewhere = Root { own: rights, pad: 0, below };
    let Node { id, edges: count, .. } = on_the_way(0);
    let here = Inherited { node: id, edges: count, unknown: 0, ..below };
    let there = Inherited { node: shelf.id, edges: shelf.edges, unknown: 0, ..below };

    let open = OPEN.strip_prefix(SHELF).unwrap_or(OPEN);
    let mut asks = Asks::default();
    let asked = Word::cut(ASKED.to_bytes());
    asks.rules[0] =
        Ask { rule: ASK_RULE, words: 1, word: [asked, Word::default(), Word::default()] };
    let port = |set, protocol, port| PortEntry {
        set,
        protocol,
        port,
        bits: 16,
        rule: NET_RULE,
        allow: true,
    };
    let both = |set, number| [port(set, 6, number), port(set, 17, number)];
    CompiledPolicy {
        roots: vec![
            (0, elsewhere),
            (*dev, Root { below: here, ..elsewhere }),
            (scratch.shelf.dev, Root { below: there, ..elsewhere }),
        ],
        edges,
        net4: vec![Prefix { address: Ipv4Addr::LOCALHOST, bits: 32, set: 0 }],
        net6: vec![Prefix { address: Ipv6Addr::LOCALHOST, bits: 128, set: 1 }],
        ports: [both(0, ports.v4().0), both(1, ports.v6().0)].concat(),
        abstracts: vec![AbstractEntry { name: sockets.names().0, rule: NET_RULE, allow: true }],
        asks: vec![AskEntry { program: Word::cut(open.as_bytes()), asks }],
        rules: [
            (READ_RULE, "files.read.deny"),
            (WRITE_RULE, "files.write.allow"),
            (NET_RULE, "network.allow"),
            (EXEC_RULE, "files.exec.deny"),
            (ASK_RULE, "files.exec.ask"),
        ]
        .map(|(id, key)| Rule {
            id,
            key: key.into(),
            text: "the canary's own rule".into(),
            layer: NAME.into(),
            file: NAME.into(),
            line: id,
            column: 1,
        })
        .into(),
        ..CompiledPolicy::default()
    }
}

#[cfg(test)]
mod tests;
