//! Deleting and attributes by rules of their own, apart from the rest of writing.

use crate::harness::{
    Attack, Denial, Ground, Policy, Session, Why, bystander_is_free, member_is_refused, trial,
    verb, write,
};
use crate::probe::{Attribute, Operation, Place};
use crate::suite::writes::EXCHANGE;
use anyhow::ensure;
use libtest_mimic::Trial;

const DELETE_DENY: &str = "files.delete.deny";
const ATTRIBUTES_DENY: &str = "files.attributes.deny";
/// What is kept: by a place, and by a pattern.
const RECORDS: &str = "${WORKSPACE}/records/**";
const LOGS: &str = "**/*.log";
/// Whose attributes stay.
const SCRIPTS: &str = "${WORKSPACE}/**/*.sh";

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("deleting::member_keeps_names_and_attributes", member),
        trial("deleting::bystander_is_free", bystander),
        trial("deleting::the_rest_of_writing_stays_open", rest),
        trial("deleting::part_of_what_is_closed_is_opened", opened),
    ]
}

fn policy() -> Policy {
    Policy::preset()
        .with(DELETE_DENY, RECORDS)
        .with(DELETE_DENY, LOGS)
        .with(ATTRIBUTES_DENY, SCRIPTS)
}

/// A file of the workspace that is there.
fn present(ground: &Ground, name: &str) -> anyhow::Result<Place> {
    let place = ground.workspace().join(name);
    if let Some(parent) = place.path().parent() {
        std::fs::create_dir_all(parent)?;
    }
    write(&place, "content")?;
    Ok(place)
}

/// A directory of the workspace that is there.
fn directory(ground: &Ground, name: &str) -> anyhow::Result<Place> {
    let place = ground.workspace().join(name);
    std::fs::create_dir_all(place.path())?;
    Ok(place)
}

fn unlink(path: Place) -> Operation {
    Operation::Unlink { path }
}

fn rename(from: Place, to: Place, flags: u32) -> Operation {
    Operation::Rename { from, to, flags }
}

fn attacks(ground: &Ground) -> anyhow::Result<Vec<Attack>> {
    let at = |name: &str| present(ground, name);
    let gone = |name: &str| ground.workspace().join(name);
    let kept = |hook: &'static str, path: &Place| {
        Denial::by(&[hook]).access("delete").path(path).rule(DELETE_DENY, RECORDS)
    };
    let unchanged = |hooks: &[&'static str], path: &Place| {
        Denial::by(hooks).access("attributes").path(path).rule(ATTRIBUTES_DENY, SCRIPTS)
    };
    let mut attacks = Vec::new();
    let mut add = |name, denial, operation, twin| {
        attacks.push(Attack { name, operation, denial, twin });
    };
    let path = at("records/one")?;
    add("unlink", kept("path_unlink", &path), unlink(path), unlink(at("free/one")?));
    let path = at("records/two")?;
    let (denial, twin) = (kept("path_unlink", &path), at("free/two")?);
    let uring = |path| Operation::UringUnlink { path };
    add("unlink through io_uring", denial, uring(path), uring(twin));
    let path = directory(ground, "records/empty")?;
    let rmdir = |path| Operation::Rmdir { path };
    let twin = rmdir(directory(ground, "free/empty")?);
    add("rmdir", kept("path_rmdir", &path), rmdir(path), twin);
    let path = at("records/three")?;
    let (denial, twin) = (kept("path_rename", &path), at("free/three")?);
    let out = rename(path, gone("free/gone"), 0);
    add("rename", denial, out, rename(twin, gone("free/moved"), 0));
    let path = at("records/four")?;
    let onto = rename(at("free/new")?, path.clone(), 0);
    let twin = rename(at("free/newer")?, at("free/old")?, 0);
    add("rename onto", kept("path_rename", &path), onto, twin);
    let path = at("records/five")?;
    let swap = rename(at("free/five")?, path.clone(), EXCHANGE);
    let twin = rename(at("free/six")?, at("free/seven")?, EXCHANGE);
    add("exchange", kept("path_rename", &path), swap, twin);
    let path = at("deep/er/a.log")?;
    let denial = Denial::by(&["path_unlink"]).access("delete").path(&path).rule(DELETE_DENY, LOGS);
    add("unlink by a pattern", denial, unlink(path), unlink(at("deep/er/a.logs")?));

    let path = at("bin/run.sh")?;
    let chmod = |path| Operation::Chmod { path, mode: 0o755 };
    add("chmod", unchanged(&["path_chmod"], &path), chmod(path), chmod(at("bin/run.py")?));
    let path = at("bin/times.sh")?;
    let times = |path| Operation::Change { path, attribute: Attribute::Times };
    add("times", unchanged(&["inode_setattr"], &path), times(path), times(at("bin/times.py")?));
    Ok(attacks)
}

fn member() -> anyhow::Result<()> {
    let ground = Ground::new("deleting")?;
    let attacks = attacks(&ground)?;
    let mut session = Session::start(&ground, &policy())?;
    member_is_refused(&mut session, &attacks)?;
    session.finish()?;
    for name in ["records/one", "records/two", "records/four", "records/five", "deep/er/a.log"] {
        let text = std::fs::read_to_string(ground.workspace().join(name).path())?;
        ensure!(text == "content", "{name} holds {text:?}");
    }
    Ok(())
}

fn bystander() -> anyhow::Result<()> {
    let (ground, own) = (Ground::new("deleting-session")?, Ground::new("deleting-bystander")?);
    let attacks = attacks(&own)?;
    let session = Session::start(&ground, &policy())?;
    bystander_is_free(&attacks, &[])?;
    session.finish()
}

/// What is kept can be written, what is not to change its mode can be deleted, and a name elsewhere gives no more.
fn rest() -> anyhow::Result<()> {
    let ground = Ground::new("deleting-rest")?;
    let (record, script) = (present(&ground, "records/one")?, present(&ground, "bin/run.sh")?);
    let mut session = Session::start(&ground, &policy())?;
    let append = |path: &Place| Operation::Write {
        path: path.clone(),
        text: "more".into(),
        flags: libc::O_WRONLY | libc::O_APPEND,
    };
    session.allowed("write of a record", &append(&record))?;
    session.allowed("mode of a record", &Operation::Chmod { path: record.clone(), mode: 0o600 })?;
    let made = ground.workspace().join("records/made");
    session.allowed("a new record", &Operation::Create { path: made })?;
    session.allowed("write of a script", &append(&script))?;
    // Elsewhere it could be deleted, and its name here would be the last.
    let to = ground.workspace().join("free");
    let denial = Denial::by(&["path_link"]).because(Why::Reason(&["gain"]));
    session.refused("link of a record", &Operation::Link { from: record, to }, &denial)?;
    session.allowed("deletion of a script", &unlink(script))?;
    session.finish()
}

/// Deleting is opened where writing is not; a person's grant opens it where it is closed.
fn opened() -> anyhow::Result<()> {
    let ground = Ground::new("deleting-opened")?;
    let cache = ground.outside().join("cache");
    std::fs::create_dir(cache.path())?;
    let files = ["one", "two"].map(|name| cache.join(name));
    for file in &files {
        write(file, "content")?;
    }
    let records = ["records/one", "records/two"].map(|name| present(&ground, name));
    let [granted, other] = records;
    let (granted, other) = (granted?, other?);
    let policy = policy().with("files.delete.allow", format!("{cache}/**"));
    let mut session = Session::start(&ground, &policy)?;
    let denial = Denial::write(&files[0]);
    let open = Operation::Open { path: files[0].clone(), flags: libc::O_WRONLY };
    session.refused("write of the cache", &open, &denial)?;
    session.allowed("deletion in the cache", &unlink(files[0].clone()))?;
    let denial = Denial::by(&["path_chmod"]).access("attributes").path(&files[1]);
    let chmod = Operation::Chmod { path: files[1].clone(), mode: 0o777 };
    session.refused("mode in the cache", &chmod, &denial)?;

    let (id, named) = (session.id()?, granted.to_string());
    let grant = ["grant", "--session", &id, "delete", &named];
    let done = verb(&ground.papers("verbs"), &grant)?;
    ensure!(done.status.success(), "{}", done.report());
    let denial = Denial::by(&["path_unlink"]).access("delete").path(&other);
    session.refused("another", &unlink(other), &denial.rule(DELETE_DENY, RECORDS))?;
    session.allowed("what was granted", &unlink(granted))?;
    session.finish()
}
