//! An overlay that the policy knows is a file system like others; one that it does not know is none.

use crate::harness::{Bystander, Denial, Ground, HOME, Policy, Session, Why, key, trial, write};
use crate::probe::{Attribute, Operation, Place, Use};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

pub(super) const ROWS: &[(&str, &str)] = &[
    ("A24", "overlays::workspace_on_one_works"),
    ("A24", "overlays::unknown_ones_show_nothing"),
    ("A41", "overlays::workspace_on_one_works"),
    ("D1.17", "overlays::rules_hold_before_and_after_copy_up"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("overlays::workspace_on_one_works", work),
        trial("overlays::rules_hold_before_and_after_copy_up", rules),
        trial("overlays::unknown_ones_show_nothing", unknown),
    ]
}

/// Layers beside the workspace, which is the overlay.
struct Layers {
    ground: Ground,
    lower: Place,
    upper: Place,
}

impl Layers {
    /// `furnish` puts files into the lower layer.
    fn new(name: &str, furnish: impl Fn(&Place) -> anyhow::Result<()>) -> anyhow::Result<Self> {
        let ground = Ground::new(name)?;
        let lower = Place::from(ground.papers("layers")).join("lower");
        std::fs::create_dir_all(&lower)?;
        furnish(&lower)?;
        let upper = ground.overlay(&lower, &ground.workspace())?;
        Ok(Self { ground, lower, upper })
    }
}

const FILES: u32 = 34;

/// `file-1`, `file-2` …, a directory and a program.
fn furnish(lower: &Place) -> anyhow::Result<()> {
    for number in 1..=FILES {
        write(&lower.join(format!("file-{number}")), "what the lower file holds")?;
    }
    std::fs::create_dir(lower.join("directory"))?;
    write(&lower.join("directory/inner"), "inner")?;
    std::fs::copy(std::env::current_exe()?, lower.join("program"))?;
    Ok(())
}

/// Each on a file of its own, so that each must copy it up.
fn operations(at: &Place) -> Vec<(&'static str, Operation)> {
    let mut number = 0;
    let mut file = || {
        number += 1;
        at.join(format!("file-{number}"))
    };
    let used = |path, usage| Operation::UseFile { path, flags: libc::O_RDWR, usage };
    let change = |path, attribute| Operation::Change { path, attribute };
    let opened = |path, flags| Operation::Open { path, flags };
    let mut all = vec![
        ("read", opened(file(), libc::O_RDONLY)),
        ("list", opened(at.clone(), libc::O_RDONLY | libc::O_DIRECTORY)),
        ("execute", Operation::Execute { path: at.join("program"), descriptor: false }),
        ("write", used(file(), Use::Write)),
        ("append", opened(file(), libc::O_WRONLY | libc::O_APPEND)),
        ("empty", opened(file(), libc::O_WRONLY | libc::O_TRUNC)),
        ("truncate", Operation::Truncate { path: file(), length: 1 }),
        ("ftruncate", used(file(), Use::Truncate)),
        ("fallocate", used(file(), Use::PunchHole)),
        ("copy_file_range", used(file(), Use::CopyRange)),
        ("io_uring write", used(file(), Use::UringWrite)),
        ("shared mapping", used(file(), Use::MapShared)),
        ("shared mapping that becomes writable", used(file(), Use::MapThenProtect)),
        ("mapping that becomes executable", used(file(), Use::ProtectExecutable)),
        ("chmod", Operation::Chmod { path: file(), mode: 0o600 }),
        ("chown", Operation::Chown { path: file(), uid: 1000 }),
        ("link", Operation::Link { from: file(), to: at.join("linked") }),
        ("rename", Operation::Rename { from: file(), to: at.join("renamed"), flags: 0 }),
        ("rename onto", Operation::Rename { from: file(), to: file(), flags: 0 }),
        ("unlink", Operation::Unlink { path: file() }),
        ("io_uring unlink", Operation::UringUnlink { path: file() }),
        ("create", Operation::Create { path: at.join("created") }),
        ("mkdir", Operation::Mkdir { path: at.join("made") }),
        ("symlink", Operation::Symlink { target: file(), path: at.join("symbolic") }),
        ("remove a tree", Operation::RemoveTree { path: at.join("directory") }),
    ];
    for (name, worker) in [("io_uring open", false), ("io_uring open by a worker", true)] {
        all.push((name, Operation::UringOpen { path: file(), flags: libc::O_RDWR, worker }));
    }
    for (name, attribute) in [
        ("times", Attribute::Times),
        ("times to now", Attribute::TimesNow),
        ("extended attribute", Attribute::Capability),
        ("access list", Attribute::AccessList),
    ] {
        all.push((name, change(file(), attribute)));
    }
    all
}

fn work() -> anyhow::Result<()> {
    let Layers { ground, lower, upper } = Layers::new("overlay", furnish)?;
    let before = crate::harness::snapshot(lower.path())?;
    let outside = ground.file(&ground.outside())?;
    let copied = |name: &str| upper.join(name);
    let other = Layers::new("overlay-other", furnish)?;
    let mut bystander = Bystander::new()?;
    for (name, operation) in operations(&other.ground.workspace()) {
        let answer = bystander.perform(&operation)?;
        ensure!(answer.errno == 0, "{name} by a bystander: {answer}");
    }
    let mut session = Session::start(&ground, &Policy::preset())?;
    for (name, operation) in operations(&ground.workspace()) {
        session.allowed(name, &operation)?;
    }
    ensure!(copied("file-2").path().exists(), "nothing was copied up");
    for change in crate::harness::difference(&before, &crate::harness::snapshot(lower.path())?) {
        session.problem(format!("the lower layer changed: {change}"));
    }
    // What the overlay may do to its layers, the member may not.
    for path in [outside, lower.join("file-3"), copied("file-2")] {
        let open = Operation::Open { path: path.clone(), flags: libc::O_WRONLY };
        session.refused("write beside the overlay", &open, &Denial::write(&path))?;
        let change = Operation::Change { path: path.clone(), attribute: Attribute::Times };
        let denial = Denial::by(&["inode_setattr"]).access("attributes").path(&path);
        session.refused("times beside the overlay", &change, &denial)?;
    }
    session.finish()
}

fn rules() -> anyhow::Result<()> {
    const RULE: &str = "${WORKSPACE}/secret/**";
    const KEY: &str = "files.read.deny";
    const DATA: &str = "${WORKSPACE}/data/**";
    let Layers { ground, lower, .. } = Layers::new("overlay-rules", |lower| {
        std::fs::create_dir(lower.join("secret"))?;
        std::fs::create_dir(lower.join("data"))?;
        for name in ["secret/key", "data/table", "code", "hidden"] {
            write(&lower.join(name), "content")?;
        }
        Ok(())
    })?;
    let hidden = lower.join("hidden");
    let policy = Policy::preset().read_deny(RULE).read_deny(hidden.to_string());
    let policy = policy.with("files.exec.deny", DATA);
    let mut session = Session::start(&ground, &policy)?;
    let path = ground.workspace().join("secret/key");
    let read = Operation::Open { path: path.clone(), flags: libc::O_RDONLY };
    session.refused("in the lower layer", &read, &Denial::read(&path).rule(KEY, RULE))?;
    let write = Operation::UseFile { path: path.clone(), flags: libc::O_RDWR, usage: Use::Write };
    let answer = Bystander::new()?.perform(&write)?;
    ensure!(answer.errno == 0, "a bystander's write: {answer}");
    session.refused("copied up", &read, &Denial::read(&path).rule(KEY, RULE))?;
    // A mapping is of the layer's file, which by its own place may do less or more.
    let change = |path: &Place, usage| {
        let path = path.clone();
        Operation::UseFile { path, flags: libc::O_RDWR, usage }
    };
    let data = ground.workspace().join("data/table");
    let denial = Denial::by(&["file_mprotect"]).access("execute").path(&data);
    let denial = denial.rule("files.exec.deny", DATA);
    session.refused("code", &change(&data, Use::ProtectExecutable), &denial)?;
    session.allowed("data", &change(&data, Use::MapThenProtect))?;
    let code = ground.workspace().join("code");
    session.allowed("other code", &change(&code, Use::ProtectExecutable))?;
    // The layer itself goes by its own place.
    let direct = Operation::Open { path: hidden.clone(), flags: libc::O_RDONLY };
    let denial = Denial::read(&hidden).rule(KEY, hidden.to_string());
    session.refused("the layer's file", &direct, &denial)?;
    session.finish()
}

/// Mounted while the session runs, over what is protected where it lies.
fn unknown() -> anyhow::Result<()> {
    let key = key()?;
    let name = key.path().file_name().context("a file has a name")?.to_owned();
    let ground = Ground::new("overlay-unknown")?;
    let at = ground.directory(&ground.workspace())?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    // Nobody reads the mount table now.
    let keeper = Pid::from_child(session.keeper());
    kill_process(keeper, Signal::STOP)?;
    ground.overlay(&Place::from(HOME).join(".ssh"), &at)?;
    let path = at.join(name.as_encoded_bytes());
    let mut bystander = Bystander::new()?;
    let mut answers = Vec::new();
    for (what, operation, hook) in [
        ("list", Operation::Open { path: at.clone(), flags: libc::O_DIRECTORY }, "file_open"),
        ("read", Operation::Open { path: path.clone(), flags: libc::O_RDONLY }, "file_open"),
        ("write", Operation::Open { path: path.clone(), flags: libc::O_WRONLY }, "file_open"),
        ("create", Operation::Create { path: at.join("created") }, "path_mknod"),
        ("unlink", Operation::Unlink { path: path.clone() }, "path_unlink"),
    ] {
        answers.push((what, session.perform(&operation)?, hook));
        let answer = bystander.perform(&operation)?;
        if answer.errno != 0 {
            session.problem(format!("{what} by a bystander: {answer}"));
        }
    }
    kill_process(keeper, Signal::CONT)?;
    for (what, answer, hook) in answers {
        let denial = Denial::by(&[hook]).because(Why::Reason(&["unknown_filesystem"]));
        if denial.errors.contains(&answer.errno) {
            session.explained(what, answer.pid, &denial);
        } else {
            session.problem(format!("{what}: {answer}"));
        }
    }
    session.finish()
}
