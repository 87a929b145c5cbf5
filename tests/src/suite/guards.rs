//! What damages without looking like a write: crashes, the sandbox's own files, deletion of
//! everything, programs that no file holds, borrowed credentials.

use crate::harness::{
    Bystander, Denial, Ground, HOME, Policy, Session, Why, both, difference, engines, give, key,
    snapshot, trial, write,
};
use crate::probe::{Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;

pub(super) const ROWS: &[(&str, &str)] = &[
    ("A44", "guards::program_in_memory_is_a_member"),
    ("A61", "guards::own_files_are_out_of_reach"),
    ("D1.25", "guards::the_keeper_shows_little"),
    ("D1.26", "guards::core_dump_leaves_nothing_outside"),
    ("D2.37", "guards::hidden_directory_takes_nothing"),
    ("D2.43", "guards::own_files_are_out_of_reach"),
    ("D2.45", "guards::deletion_stops_at_the_border"),
];

pub(super) fn trials() -> Vec<Trial> {
    let twice = [both("guards::own_files_are_out_of_reach", own_files)];
    let once = [
        trial("guards::core_dump_leaves_nothing_outside", core_dump),
        trial("guards::the_keeper_shows_little", keeper),
        trial("guards::deletion_stops_at_the_border", deletion),
        trial("guards::hidden_directory_takes_nothing", hidden),
        trial("guards::program_in_memory_is_a_member", memory),
        trial("guards::no_other_credentials_through_io_uring", personality),
    ];
    twice.into_iter().flatten().chain(once).collect()
}

const PATTERN: &str = "/proc/sys/kernel/core_pattern";

/// Where the machine's core dumps go, until this is dropped.
struct CorePattern(Vec<u8>);

impl CorePattern {
    fn new() -> anyhow::Result<Self> {
        Ok(Self(std::fs::read(PATTERN)?))
    }
}

fn dump_to(file: &Place) -> anyhow::Result<()> {
    std::fs::write(PATTERN, file.bytes()).context("setting where core dumps go")
}

impl Drop for CorePattern {
    fn drop(&mut self) {
        // Of a machine that is thrown away.
        let _ = std::fs::write(PATTERN, &self.0);
    }
}

fn core_dump() -> anyhow::Result<()> {
    let ground = Ground::new("core")?;
    let [outside, other, inside] = [
        ground.outside().join("core"),
        ground.outside().join("other"),
        ground.workspace().join("core"),
    ];
    let _pattern = CorePattern::new()?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let crash = Operation::Crash {};
    dump_to(&outside)?;
    let denial = Denial::by(&["path_mknod"]).access("create").beneath(ground.outside());
    session.refused("core dump outside", &crash, &denial)?;
    ensure!(std::fs::read_dir(ground.outside())?.next().is_none(), "the core dump left a file");
    dump_to(&inside)?;
    session.allowed("core dump in the workspace", &crash)?;
    dump_to(&other)?;
    let answer = Bystander::new()?.perform(&crash)?;
    if answer.errno != 0 {
        session.problem(format!("a bystander's core dump: {answer}"));
    }
    session.finish()
}

/// What `/proc` says of `sandbox run`: what everybody may see, and nothing through it.
fn keeper() -> anyhow::Result<()> {
    let ground = Ground::new("keeper")?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let keeper = Place::from(format!("/proc/{}", session.keeper().id()));
    let own = Place::from("/proc/self");
    let denial = Denial::by(&["ptrace_access_check"]).any_object();
    let denial = denial.because(Why::Reason(&["outsider"]));
    let open = |at: &Place, name: &str, flags| Operation::Open { path: at.join(name), flags };
    let mut bystander = Bystander::new()?;
    for (name, flags) in [
        ("fd/1", libc::O_RDONLY | libc::O_NONBLOCK),
        ("environ", libc::O_RDONLY),
        ("maps", libc::O_RDONLY),
        ("cwd", libc::O_DIRECTORY),
        ("root/etc/passwd", libc::O_RDONLY),
        ("exe", libc::O_RDONLY),
    ] {
        session.refused(name, &open(&keeper, name, flags), &denial)?;
        session.allowed(&format!("its own {name}"), &open(&own, name, flags))?;
        let answer = bystander.perform(&open(&keeper, name, flags))?;
        ensure!(answer.errno == 0, "{name} by a bystander: {answer}");
    }
    for name in ["cmdline", "status", "cgroup"] {
        session.allowed(name, &open(&keeper, name, libc::O_RDONLY))?;
    }
    session.finish()
}

/// Policy, events, state and pins of the session itself.
fn own_files() -> anyhow::Result<()> {
    let ground = Ground::new("own-files")?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let id = session.id()?;
    let papers = Place::from(ground.papers("session"));
    let engine = engines().pop().context("no engine is pinned")?;
    let pins = Place::from(engine);
    let own = |text: String| Why::Above("sandbox", "files.write.deny", text);
    for path in [papers.clone(), papers.join("policy.toml"), papers.join("events.jsonl")] {
        give(path)?;
    }
    for (name, why) in [
        ("policy.toml", own(papers.join("policy.toml").to_string())),
        ("events.jsonl", Why::Default),
    ] {
        let path = papers.join(name);
        let open = Operation::Open { path: path.clone(), flags: libc::O_WRONLY };
        session.refused(name, &open, &Denial::write(&path).because(why.clone()))?;
        let denial = Denial::by(&["path_unlink"]).access("delete").path(&path).because(why);
        session.refused(name, &Operation::Unlink { path }, &denial)?;
    }
    let evil = ground.file(&ground.workspace())?;
    let over = Operation::Rename { from: evil, to: papers.join("policy.toml"), flags: 0 };
    let denial = Denial::by(&["path_rename"])
        .because(Why::Reason(&["default", "gain", "rule"]))
        .or_error(libc::EXDEV);
    session.refused("another policy over the policy", &over, &denial)?;
    let pin = pins.join("links/file_open");
    ensure!(pin.path().exists(), "no pin at {pin}");
    let denial = Denial::by(&["path_unlink"]).access("delete").path(&pin).told_to_root();
    session.refused("a pin", &Operation::Unlink { path: pin.clone() }, &denial)?;
    let denial = Denial::by(&["path_rename"]).because(Why::Reason(&["default", "rule"]));
    let denial = denial.told_to_root();
    let away = Operation::Rename { from: pin.clone(), to: pins.join("links/away"), flags: 0 };
    session.refused("a pin renamed", &away, &denial)?;
    ensure!(pin.path().exists(), "the pin is gone");
    let mut states = 0;
    for entry in std::fs::read_dir("/run/sandbox")? {
        let path = entry?.path();
        if path.is_dir() && path.ends_with(&id) {
            states += 1;
            let made = Place::from(&path).join("made");
            let denial = Denial::by(&["path_mknod"])
                .access("create")
                .path(&made)
                .because(own("/run/sandbox".to_owned()))
                .told_to_root();
            session.refused("the state", &Operation::Create { path: made }, &denial)?;
        }
    }
    ensure!(states == 1, "{states} directories of state");
    session.finish()
}

fn fill(at: &Place) -> anyhow::Result<()> {
    for directory in ["one", "one/two", "three"] {
        std::fs::create_dir(at.join(directory))?;
        write(&at.join(directory).join("file"), "content")?;
    }
    Ok(())
}

fn deletion() -> anyhow::Result<()> {
    let ground = Ground::new("deletion")?;
    let trees = [&ground.outside(), &ground.workspace(), &ground.outside()]
        .map(|at| ground.directory(at))
        .into_iter()
        .collect::<Result<Vec<_>, _>>()?;
    trees.iter().try_for_each(fill)?;
    let [outside, inside, other] = trees.as_slice() else { anyhow::bail!("three trees") };
    let remove = |path: &Place| Operation::RemoveTree { path: path.clone() };
    let before = snapshot(outside.path())?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let denial = Denial::by(&["path_unlink", "path_rmdir"]).access("delete").beneath(outside);
    session.refused("rm -rf outside", &remove(outside), &denial)?;
    for change in difference(&before, &snapshot(outside.path())?) {
        session.problem(format!("rm -rf changed something: {change}"));
    }
    session.allowed("rm -rf in the workspace", &remove(inside))?;
    ensure!(!inside.path().exists(), "the tree in the workspace is still there");
    let answer = Bystander::new()?.perform(&remove(other))?;
    if answer.errno != 0 {
        session.problem(format!("rm -rf by a bystander: {answer}"));
    }
    session.finish()
}

/// A directory that may not be read takes no file either: it is not there as another, writable one.
fn hidden() -> anyhow::Result<()> {
    key()?;
    let ground = Ground::new("hidden")?;
    let path = Place::from(HOME).join(".ssh").join(format!("new-{}", std::process::id()));
    let create = Operation::Create { path: path.clone() };
    let mut session = Session::start(&ground, &Policy::preset())?;
    let denial = Denial::by(&["path_mknod"]).access("create").path(&path);
    session.refused("create in ~/.ssh", &create, &denial)?;
    ensure!(!path.path().exists(), "the file is there");
    let beside = Operation::Create { path: ground.absent(&ground.workspace()) };
    session.allowed("create in the workspace", &beside)?;
    let answer = Bystander::new()?.perform(&create)?;
    std::fs::remove_file(&path).with_context(|| format!("a bystander's create: {answer}"))?;
    session.finish()
}

fn memory() -> anyhow::Result<()> {
    let (key, ground) = (key()?, Ground::new("memory")?);
    let inside = ground.file(&ground.workspace())?;
    let run = |path: &Place| Operation::ExecuteMemory {
        then: Box::new(Operation::Open { path: path.clone(), flags: libc::O_RDONLY }),
    };
    let mut session = Session::start(&ground, &Policy::preset())?;
    session.refused("read by a program in memory", &run(&key), &Denial::read(&key).of_key())?;
    session.allowed("harmless read by it", &run(&inside))?;
    let answer = Bystander::new()?.perform(&run(&key))?;
    if answer.errno != 0 {
        session.problem(format!("the same by a bystander: {answer}"));
    }
    session.finish()
}

/// While the kernel lends a task credentials it works for itself; a member cannot borrow any.
fn personality() -> anyhow::Result<()> {
    let ground = Ground::new("personality")?;
    let path = ground.file(&ground.workspace())?;
    let flags = libc::O_RDONLY;
    let open = Operation::UringPersonality { path: path.clone(), flags };
    let mut session = Session::start(&ground, &Policy::preset())?;
    let denial = Denial::by(&["uring_override_creds"])
        .task()
        .because(Why::Reason(&["never"]))
        .error(libc::EPERM);
    session.refused("a personality", &open, &denial)?;
    session.allowed("without", &Operation::UringOpen { path, flags, worker: false })?;
    let answer = Bystander::new()?.perform(&open)?;
    if answer.errno != 0 {
        session.problem(format!("a personality of a bystander: {answer}"));
    }
    session.finish()
}
