//! Ways out of the session, and its off switches.

use crate::harness::{
    Bystander, Denial, Ground, PATIENCE, Policy, Session, Why, both, cgroup_root, engines,
    eventually, give, key, probe_words, sandbox,
};
use crate::probe::{Operation, Place};
use crate::suite::daemons::{Make, each_is_refused_the_key};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::net::TcpListener;
use std::path::PathBuf;

pub(super) const ROWS: &[(&str, &str)] = &[
    ("A1", "leaving::other_hierarchies"),
    ("A3", "leaving::child_cgroup"),
    ("A5", "leaving::other_hierarchies"),
    ("A8", "leaving::other_hierarchies"),
    ("A10", "leaving::disguises"),
    ("A53", "leaving::disguises"),
    ("A54", "leaving::flood"),
    ("A48", "leaving::wide_policy"),
    ("A61", "leaving::wide_policy"),
    ("A62", "leaving::off_switches"),
    ("A63", "leaving::disguises"),
    ("D5.77", "leaving::child_cgroup"),
    ("D5.77", "leaving::other_hierarchies"),
    ("D5.83", "leaving::flood"),
    ("D5.85", "leaving::disguises"),
    ("D5.86", "leaving::disguises"),
    ("D5.90", "leaving::off_switches"),
    ("D6.98", "leaving::other_hierarchies"),
];

pub(super) fn trials() -> Vec<Trial> {
    let twice = [
        both("leaving::child_cgroup", child),
        both("leaving::other_hierarchies", hierarchies),
        both("leaving::disguises", disguises),
        both("leaving::flood", flood),
        both("leaving::off_switches", switches),
        both("leaving::wide_policy", wide),
    ];
    twice.into_iter().flatten().collect()
}

fn open(path: &Place) -> Operation {
    Operation::Open { path: path.clone(), flags: libc::O_RDONLY }
}

/// A cgroup beneath the session's is the session's: what is made after the start too.
fn child() -> anyhow::Result<()> {
    let ground = Ground::new("child-cgroup")?;
    let (key, twin) = (key()?, ground.file(&ground.workspace())?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let (cgroup, agent) = (session.cgroup()?, session.identity()?.pid);
    let inner = cgroup.join("inner/most");
    std::fs::create_dir_all(&inner).context("making cgroups in the session's")?;
    std::fs::write(inner.join("cgroup.procs"), agent.to_string()).context("moving the agent")?;
    session.refused("in a child cgroup", &open(&key), &Denial::read(&key).of_key())?;
    session.allowed("in a child cgroup (harmless twin)", &open(&twin))?;
    let denial = Denial::by(&["connect4"]).address(address, "tcp");
    session.refused("connects from a child cgroup", &Operation::Tcp { address }, &denial)?;
    ensure!(listener.accept().is_err(), "a connection from a child cgroup arrived");
    std::fs::write(cgroup.join("cgroup.procs"), agent.to_string()).context("moving it back")?;
    for directory in ["inner/most", "inner"] {
        std::fs::remove_dir(cgroup.join(directory)).context("removing a cgroup")?;
    }
    session.finish()
}

/// A mount of this test, undone in the end.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        // A machine that is thrown away.
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// A hybrid machine: a hierarchy of version 1 beside that of version 2.
fn hierarchies() -> anyhow::Result<()> {
    let ground = Ground::new("hierarchies")?;
    let at = ground.directory(&ground.outside())?;
    let flags = MountFlags::empty();
    mount("none", at.path(), "cgroup", flags, c"none,name=probe")
        .context("mounting a v1 cgroup")?;
    let _mounted = Mounted(at.path().to_owned());
    let elsewhere = at.join("elsewhere");
    std::fs::create_dir(elsewhere.path())?;
    let names = ["tasks", "cgroup.procs", "release_agent", "notify_on_release"];
    for path in names.map(|name| at.join(name)).into_iter().chain([
        elsewhere.join("tasks"),
        elsewhere.join("cgroup.procs"),
        at.clone(),
    ]) {
        give(path)?;
    }
    let key = key()?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let mut bystander = Bystander::new()?;
    session.refused("reads on a hybrid machine", &open(&key), &Denial::read(&key).of_key())?;
    for path in [
        at.join("tasks"),
        at.join("cgroup.procs"),
        at.join("release_agent"),
        at.join("notify_on_release"),
        elsewhere.join("tasks"),
        elsewhere.join("cgroup.procs"),
    ] {
        let write = Operation::Open { path: path.clone(), flags: libc::O_WRONLY };
        session.refused(&format!("write of {path}"), &write, &Denial::write(&path))?;
        let answer = bystander.perform(&write)?;
        if answer.errno != 0 {
            session.problem(format!("a bystander's write of {path}: {answer}"));
        }
    }
    let made = at.join("made");
    let denial = Denial::by(&["path_mkdir"]).access("create").path(&made);
    session.refused("mkdir of a v1 cgroup", &Operation::Mkdir { path: made }, &denial)?;
    session.allowed("reads its cgroup", &open(&"/proc/self/cgroup".into()))?;
    session.finish()?;
    std::fs::remove_dir(elsewhere.path()).context("removing the v1 cgroup")
}

/// What a task is called and by which door it asks does not matter.
fn disguises() -> anyhow::Result<()> {
    let ground = Ground::new("disguises")?;
    let (key, twin) = (key()?, ground.file(&ground.workspace())?);
    let mut session = Session::start(&ground, &Policy::preset())?;
    let mut bystander = Bystander::new()?;
    let flags = libc::O_RDONLY;
    let named = |name: &str, path: &Place| Operation::Named {
        name: name.to_owned(),
        then: Box::new(open(path)),
    };
    let kinds: [(&str, Make<'_>); 4] = [
        ("called dpkg", &|path| named("dpkg", path)),
        ("called sandbox", &|path| named("sandbox", path)),
        ("32-bit open", &|path| Operation::OldOpen { path: path.clone(), flags }),
        ("io_uring with a polling thread", &|path| Operation::UringPolled {
            path: path.clone(),
            flags,
        }),
    ];
    each_is_refused_the_key(&mut session, &mut bystander, (&key, &twin), &kinds)?;
    session.finish()
}

/// More denials than can be told, and one that matters.
const FLOOD: u32 = 10_000;

fn flood() -> anyhow::Result<()> {
    let ground = Ground::new("flood")?;
    let (key, closed) = (key()?, ground.file(&ground.workspace())?);
    let rule = "${WORKSPACE}/file-*";
    let policy = Policy::preset().read_deny(rule);
    let mut session = Session::start(&ground, &policy)?;
    let flood = Operation::Flood { path: closed, flags: libc::O_RDONLY, times: FLOOD };
    let answer = session.perform(&flood)?;
    if answer.errno != libc::EACCES {
        session.problem(format!("of {FLOOD} opens some got through: {answer}"));
    }
    // While its reader is behind, the ring has no room; then it has again.
    let (events, attempt, path) = (session.events().clone(), open(&key), key.to_string());
    let told = eventually(PATIENCE, || {
        let answer = session.perform(&attempt).ok()?;
        let told = answer.errno != 0 && !events.that_say(&path).is_empty();
        told.then_some(())
    });
    told.context("the flood has ended, but no denial of the key is told")?;
    session.refused("after the flood", &attempt, &Denial::read(&key).of_key())?;
    session.finish()?;
    // What was not told is counted.
    let told = events.all().iter().filter(|event| event["type"] == "denial").count() as u64;
    let ended = events.state("ended", PATIENCE).context("no end")?;
    let lost = ended["lost"].as_u64().context("the end does not say how many were lost")?;
    ensure!(told + lost > u64::from(FLOOD), "{told} told and {lost} lost of {FLOOD} and one");
    Ok(())
}

/// Nothing that a member starts, says or sets turns the sandbox off.
fn switches() -> anyhow::Result<()> {
    let ground = Ground::new("switches")?;
    let (key, twin) = (key()?, ground.file(&ground.workspace())?);
    let free = ground.workspace().join("free.toml");
    std::fs::write(free.path(), "version = 1\n[files]\nwrite.allow = [\"/**\"]\n")?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let (id, cgroup) = (session.id()?, session.cgroup()?);
    let program = sandbox().to_string_lossy().into_owned();
    let words = |words: &[&str]| Operation::Run {
        words: std::iter::once(program.as_str())
            .chain(words.iter().copied())
            .map(ToString::to_string)
            .collect(),
    };
    let probe = probe_words(&["one", &serde_json::to_string(&open(&key))?])?;
    let free = free.to_string();
    let mut again = vec!["run", "--policy", &free, "--"];
    again.extend(probe.iter().map(String::as_str));
    let refused = Denial::by(&[]).perhaps_untold().error(libc::EPERM);
    let secret = key.to_string();
    for (name, operation) in [
        ("grant", words(&["grant", "--session", &id, "read", &secret])),
        ("policy set", words(&["policy", "set", "--session", &id, &free])),
        ("sessions end", words(&["sessions", "end", &id])),
        ("engine release", words(&["engine", "release"])),
        ("a session of its own", words(&again)),
    ] {
        session.refused(name, &operation, &refused)?;
        session.refused(&format!("after {name}"), &open(&key), &Denial::read(&key).of_key())?;
        session.allowed(&format!("after {name} (harmless twin)"), &open(&twin))?;
        ensure!(cgroup.is_dir() && !engines().is_empty(), "{name}: session or engine is gone");
    }
    session.allowed("the program itself", &words(&["--version"]))?;
    let path: Place = "/run/sandbox/lock".into();
    let text = "/run/sandbox".to_owned();
    let why = Why::Above("sandbox", "files.write.deny", text);
    let denial = Denial::by(&["file_open"]).access("write").because(why).told_to_root();
    let lock = Operation::Open { path, flags: libc::O_RDWR };
    session.refused("the lock", &lock, &denial)?;
    session.finish()
}

/// A policy that lets everything be written still keeps its members.
fn wide() -> anyhow::Result<()> {
    let ground = Ground::new("wide")?;
    let mut session = Session::start(&ground, &Policy::preset().with("files.write.allow", "/"))?;
    let cgroup = Place::from(session.cgroup()?);
    let pins = Place::from(engines().pop().context("no engine is pinned")?);
    let processes = cgroup_root()?.join("cgroup.procs");
    for path in [
        Place::from(processes),
        cgroup.join("cgroup.kill"),
        "/proc/sys/kernel/core_pattern".into(),
        "/proc/1/oom_score_adj".into(),
        "/sys/kernel/mm/ksm/run".into(),
    ] {
        if !path.path().exists() {
            continue;
        }
        let write = Operation::Open { path: path.clone(), flags: libc::O_WRONLY };
        let denial = Denial::write(&path).told_to_root();
        session.refused(&format!("write of {path}"), &write, &denial)?;
    }
    let made = cgroup.join("made");
    let denial = Denial::by(&["path_mkdir"]).access("create").path(&made).told_to_root();
    session.refused("mkdir of a cgroup", &Operation::Mkdir { path: made }, &denial)?;
    let pin = pins.join("links/file_open");
    let denial = Denial::by(&["path_unlink"]).access("delete").path(&pin).told_to_root();
    session.refused("a pin", &Operation::Unlink { path: pin.clone() }, &denial)?;
    let away = Operation::Rename { from: pin.clone(), to: pins.join("links/away"), flags: 0 };
    session.refused("a pin renamed", &away, &Denial::by(&["path_rename"]).told_to_root())?;
    ensure!(pin.path().exists(), "the pin is gone");
    let lock = Operation::Open { path: "/run/sandbox/lock".into(), flags: libc::O_RDWR };
    let denial = Denial::by(&["file_open"]).access("write").because(Why::Reason(&["rule"]));
    let denial = denial.told_to_root();
    session.refused("the lock", &lock, &denial)?;
    let path = ground.absent(&ground.outside());
    session.allowed("a file outside", &Operation::Create { path })?;
    session.finish()
}
