//! Other names of protected objects that were made before the session.

use crate::harness::{
    Bystander, Denial, Disk, Ground, HOME, Policy, Session, Why, ext4_image, forget_names, key,
    trial, write,
};
use crate::probe::{Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use std::os::unix::fs::MetadataExt as _;

const WRITE_DENY: &str = "files.write.deny";
const HOOKS: &str = "${WORKSPACE}/hooks/**";

/// Rows of the threat tables and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("A14", "aliases::hard_links_from_before_open_nothing"),
    ("D1.1", "aliases::hard_links_from_before_open_nothing"),
    ("A18", "aliases::handle_of_a_forgotten_file"),
    ("A26", "aliases::a_number_used_again_is_another_file"),
    ("A36", "aliases::a_directory_is_what_it_is_called"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("aliases::hard_links_from_before_open_nothing", hard_links),
        trial("aliases::a_number_used_again_is_another_file", number),
        trial("aliases::handle_of_a_forgotten_file", forgotten),
        trial("aliases::a_directory_is_what_it_is_called", renamed),
    ]
}

fn open(path: &Place, flags: i32) -> Operation {
    Operation::Open { path: path.clone(), flags }
}

fn link(from: &Place, to: &Place) -> anyhow::Result<()> {
    std::fs::hard_link(from, to).with_context(|| format!("link {from} {to}"))
}

/// An outsider made the links before: `ln ~/.ssh/id_ed25519 workspace/alias`.
fn hard_links() -> anyhow::Result<()> {
    let ground = Ground::new("hard-links")?;
    let workspace = ground.workspace();
    let (alias, deep) = (workspace.join("alias"), Place::from(HOME).join(".ssh/deep/er"));
    link(&key()?, &alias)?;
    std::fs::create_dir_all(&deep)?;
    write(&deep.join("token"), "secret")?;
    link(&deep.join("token"), &workspace.join("token"))?;
    std::fs::create_dir(workspace.join("hooks"))?;
    let (hook, hook_alias) = (workspace.join("hooks/hook"), workspace.join("hook-alias"));
    write(&hook, "hook")?;
    link(&hook, &hook_alias)?;
    let (shared, shared_alias) = (ground.file(&ground.outside())?, workspace.join("shared"));
    link(&shared, &shared_alias)?;

    let mut session = Session::start(&ground, &Policy::preset().write_deny(HOOKS))?;
    for path in [&alias, &workspace.join("token")] {
        let denial = Denial::read(path).of_key();
        session.refused("read", &open(path, libc::O_RDONLY), &denial)?;
        let denial = Denial::by(&["file_open"]).path(path).access("write");
        session.refused("write", &open(path, libc::O_WRONLY), &denial)?;
        let to = ground.absent(&workspace);
        let denial = Denial::by(&["path_link"]).paths(path, &to).of_key();
        session.refused("another link", &Operation::Link { from: path.clone(), to }, &denial)?;
    }
    let hooked = |denial: Denial| denial.path(&hook_alias).rule(WRITE_DENY, HOOKS);
    let denial = hooked(Denial::by(&["file_open"]).access("write"));
    session.refused("write of a hook", &open(&hook_alias, libc::O_WRONLY), &denial)?;
    let truncate = Operation::Truncate { path: hook_alias.clone(), length: 0 };
    let denial = hooked(Denial::by(&["path_truncate"]).access("write"));
    session.refused("truncation of a hook", &truncate, &denial)?;
    let chmod = Operation::Chmod { path: hook_alias.clone(), mode: 0o777 };
    let denial = hooked(Denial::by(&["path_chmod"]).access("attributes"));
    session.refused("mode of a hook", &chmod, &denial)?;

    session.allowed("read of a hook", &open(&hook_alias, libc::O_RDONLY))?;
    session.allowed("read of another link", &open(&shared_alias, libc::O_RDONLY))?;
    session.allowed("write of another link", &open(&shared_alias, libc::O_WRONLY))?;
    // Only a name of the workspace goes.
    session.allowed("removal of the alias", &Operation::Unlink { path: alias.clone() })?;
    let denial = Denial::read(key()?).of_key().because(Why::Preset("files.read.deny", "~/.ssh"));
    session.refused("the key itself", &open(&key()?, libc::O_RDONLY), &denial)?;
    let answer = Bystander::new()?.perform(&open(&workspace.join("token"), libc::O_RDONLY))?;
    ensure!(answer.text() == "secret", "a bystander reads the alias: {answer}");
    std::fs::remove_dir_all(Place::from(HOME).join(".ssh/deep").path())?;
    session.finish()
}

const SECRET: &str = "${WORKSPACE}/disk/secret/**";

/// An ext4 at `workspace/disk` with `secret/key` and `plain/file`.
fn disk(ground: &Ground) -> anyhow::Result<(Disk, Place)> {
    let at = ground.workspace().join("disk");
    std::fs::create_dir(&at)?;
    let disk = Disk::mount(&ext4_image(ground)?, "ext4", "", &at)?;
    for name in ["secret/key", "plain/file"] {
        let file = at.join(name);
        std::fs::create_dir(file.path().parent().context("it has a parent")?)?;
        write(&file, "content")?;
    }
    Ok((disk, at))
}

/// Both names of a file go, and another file gets its number: nothing of the old holds for it.
fn number() -> anyhow::Result<()> {
    let ground = Ground::new("number")?;
    let (_disk, disk) = disk(&ground)?;
    let (key, alias) = (disk.join("secret/key"), disk.join("alias"));
    link(&key, &alias)?;
    let ino = std::fs::metadata(&alias)?.ino();
    let mut session = Session::start(&ground, &Policy::preset().read_deny(SECRET))?;
    let denial = Denial::read(&alias).rule("files.read.deny", SECRET);
    session.refused("alias", &open(&alias, libc::O_RDONLY), &denial)?;
    std::fs::remove_file(&key)?;
    std::fs::remove_file(&alias)?;
    // ext4 gives a number again when no other is left.
    let same = (0..4096).find_map(|count| {
        let file = disk.join(format!("plain/{count}"));
        std::fs::write(&file, "content").ok()?;
        (std::fs::metadata(&file).ok()?.ino() == ino).then_some(file)
    });
    let same = same.with_context(|| format!("no new file got the number {ino}"))?;
    link(&same, &disk.join("plain/second"))?;
    session.allowed("another file of this number", &open(&same, libc::O_RDONLY))?;
    session.finish()
}

/// The kernel has forgotten the names: a file that is opened by handle has no place.
fn forgotten() -> anyhow::Result<()> {
    let ground = Ground::new("forgotten")?;
    let (_disk, disk) = disk(&ground)?;
    let mut bystander = Bystander::new()?;
    let mut handle = |name: &str| -> anyhow::Result<Operation> {
        let path = disk.join(name);
        let answer = bystander.perform(&Operation::Handle { path })?;
        ensure!(answer.errno == 0, "taking the handle of {name}: {answer}");
        let (mount, handle) = (disk.clone(), serde_json::from_value(answer.data)?);
        Ok(Operation::OpenHandle { mount, handle, flags: libc::O_RDONLY })
    };
    let (secret, plain) = (handle("secret/key")?, handle("plain/file")?);
    let mut session = Session::start(&ground, &Policy::preset().read_deny(SECRET))?;
    let denial = Denial::by(&["file_open"]).because(Why::Reason(&["disconnected", "rule"]));
    for _ in 0..3 {
        forget_names()?;
        session.refused("handle of the key", &secret, &denial)?;
    }
    let answer = bystander.perform(&secret)?;
    ensure!(answer.text() == "content", "a bystander opens it: {answer}");
    // With its name known it is what it is.
    std::fs::metadata(disk.join("plain/file"))?;
    let _open = std::fs::File::open(disk.join("plain/file"))?;
    session.allowed("handle of another file", &plain)?;
    session.finish()
}

/// Names carry the rules: what an outsider moves is judged by where it is now.
fn renamed() -> anyhow::Result<()> {
    let ground = Ground::new("renamed")?;
    let workspace = ground.workspace();
    let rule = "${WORKSPACE}/above/secret/**";
    for name in ["above/secret", "other/secret"] {
        std::fs::create_dir_all(workspace.join(name))?;
        write(&workspace.join(name).join("key"), name)?;
    }
    let mut session = Session::start(&ground, &Policy::preset().read_deny(rule))?;
    let [key, other, moved] = ["above", "other", "moved"]
        .map(|above| open(&workspace.join(above).join("secret/key"), libc::O_RDONLY));
    let denial = Denial::read(workspace.join("above/secret/key")).rule("files.read.deny", rule);
    session.refused("before", &key, &denial)?;
    session.allowed("the other before", &other)?;
    std::fs::rename(workspace.join("above"), workspace.join("moved"))?;
    session.allowed("moved away by an outsider", &moved)?;
    std::fs::rename(workspace.join("other"), workspace.join("above"))?;
    session.refused("moved there by an outsider", &key, &denial)?;
    std::fs::rename(workspace.join("above"), workspace.join("other"))?;
    std::fs::rename(workspace.join("moved"), workspace.join("above"))?;
    session.refused("moved back", &key, &denial)?;
    session.finish()
}
