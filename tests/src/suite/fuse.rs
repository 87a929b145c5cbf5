//! A file system in user space shows what its server has: known, it is one like others; unknown, none.

use crate::harness::{Bystander, Denial, Ground, Policy, Session, Why, trial};
use crate::probe::{Operation, Place};
use crate::suite::superblocks::until;
use anyhow::{Context as _, ensure};
use fuser::{
    BackgroundSession, FileAttr, FileType, Filesystem, MountOption, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEntry, Request,
};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::time::{Duration, SystemTime};

const READ_DENY: &str = "files.read.deny";
const KEY: &str = "${WORKSPACE}/shown/key";

pub(super) const ROWS: &[(&str, &str)] =
    &[("A24", "fuse::rules_hold_in_a_known_one"), ("A24", "fuse::an_unknown_one_shows_nothing")];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("fuse::rules_hold_in_a_known_one", known),
        trial("fuse::an_unknown_one_shows_nothing", unknown),
    ]
}

/// The files of the one directory; the first has number 2.
const FILES: [&str; 2] = ["key", "file"];
const ROOT: u64 = 1;
const CONTENT: &[u8] = b"content";
/// The server is asked each time.
const NEVER: Duration = Duration::ZERO;

struct Shown;

fn attributes(ino: u64) -> Option<FileAttr> {
    let is_file = (2..2 + FILES.len() as u64).contains(&ino);
    (ino == ROOT || is_file).then_some(FileAttr {
        ino,
        size: CONTENT.len() as u64,
        blocks: 1,
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: if is_file { FileType::RegularFile } else { FileType::Directory },
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 512,
        flags: 0,
    })
}

impl Filesystem for Shown {
    fn lookup(&mut self, _: &Request<'_>, _: u64, name: &OsStr, reply: ReplyEntry) {
        let found = (2..).zip(FILES).find(|(_, file)| name == *file);
        match found.and_then(|(ino, _)| attributes(ino)) {
            Some(file) => reply.entry(&NEVER, &file, 0),
            None => reply.error(libc::ENOENT),
        }
    }

    fn getattr(&mut self, _: &Request<'_>, ino: u64, _: Option<u64>, reply: ReplyAttr) {
        match attributes(ino) {
            Some(attributes) => reply.attr(&NEVER, &attributes),
            None => reply.error(libc::ENOENT),
        }
    }

    fn read(
        &mut self,
        _: &Request<'_>,
        _: u64,
        _: u64,
        offset: i64,
        _: u32,
        _: i32,
        _: Option<u64>,
        reply: ReplyData,
    ) {
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(CONTENT.len());
        reply.data(&CONTENT[from..]);
    }

    fn readdir(&mut self, _: &Request<'_>, _: u64, _: u64, offset: i64, mut reply: ReplyDirectory) {
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        for ((ino, next), name) in (2..).zip(1..).zip(FILES).skip(skipped) {
            if reply.add(ino, next, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }
}

/// Unmounted when it is dropped.
fn mount(at: &Place) -> anyhow::Result<BackgroundSession> {
    std::fs::create_dir(at)?;
    let options = [MountOption::FSName("shown".to_owned()), MountOption::AllowOther];
    fuser::spawn_mount2(Shown, at.path(), &options).with_context(|| format!("mounting at {at}"))
}

fn open(path: &Place, flags: i32) -> Operation {
    Operation::Open { path: path.clone(), flags }
}

fn known() -> anyhow::Result<()> {
    let ground = Ground::new("fuse-known")?;
    let (inside, outside) = (ground.workspace().join("shown"), ground.outside().join("shown"));
    let _mounts = [mount(&inside)?, mount(&outside)?];
    let mut session = Session::start(&ground, &Policy::preset().read_deny(KEY))?;
    let (key, file) = (inside.join("key"), inside.join("file"));
    let denial = Denial::read(&key).rule(READ_DENY, KEY);
    session.refused("read", &open(&key, libc::O_RDONLY), &denial)?;
    let twin = session.allowed("another", &open(&file, libc::O_RDONLY))?;
    ensure!(twin.text() == "content", "it reads {twin}");
    session.allowed("write", &open(&file, libc::O_WRONLY))?;
    session.allowed("list", &open(&inside, libc::O_RDONLY | libc::O_DIRECTORY))?;
    let file = outside.join("file");
    session.refused("write outside", &open(&file, libc::O_WRONLY), &Denial::write(&file))?;
    session.allowed("read outside", &open(&file, libc::O_RDONLY))?;
    let answer = Bystander::new()?.perform(&open(&key, libc::O_RDONLY))?;
    ensure!(answer.text() == "content", "a bystander reads {answer}");
    session.finish()
}

/// Mounted while the session runs: it may show anything.
fn unknown() -> anyhow::Result<()> {
    let ground = Ground::new("fuse-unknown")?;
    let at = ground.workspace().join("shown");
    let mut session = Session::start(&ground, &Policy::preset())?;
    // Nobody reads the mount table now.
    let keeper = Pid::from_child(session.keeper());
    kill_process(keeper, Signal::STOP)?;
    let _mount = mount(&at)?;
    let mut bystander = Bystander::new()?;
    let mut answers = Vec::new();
    for (what, operation) in [
        ("list", open(&at, libc::O_RDONLY | libc::O_DIRECTORY)),
        ("read", open(&at.join("key"), libc::O_RDONLY)),
        ("write", open(&at.join("key"), libc::O_WRONLY)),
    ] {
        answers.push((what, session.perform(&operation)?));
        let answer = bystander.perform(&operation)?;
        if answer.errno != 0 {
            session.problem(format!("{what} by a bystander: {answer}"));
        }
    }
    kill_process(keeper, Signal::CONT)?;
    let denial = Denial::by(&["file_open"]).because(Why::Reason(&["unknown_filesystem"]));
    for (what, answer) in answers {
        if denial.errors.contains(&answer.errno) {
            session.explained(what, answer.pid, &denial);
        } else {
            session.problem(format!("{what}: {answer}"));
        }
    }
    // Then it is a part of the workspace.
    until(&mut session, &open(&at.join("key"), libc::O_RDONLY), 0)?;
    session.finish()
}
