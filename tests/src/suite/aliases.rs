//! Other names of protected objects that were made before the session.

use crate::harness::{Bystander, Denial, Ground, HOME, Policy, Session, Why, key, trial, write};
use crate::probe::{Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;

const WRITE_DENY: &str = "files.write.deny";
const HOOKS: &str = "${WORKSPACE}/hooks/**";

/// Rows of the threat tables and the tests that try them.
#[cfg_attr(not(test), expect(dead_code, reason = "see `super::rows`"))]
pub(super) const ROWS: &[(&str, &str)] = &[
    ("A14", "aliases::hard_links_from_before_open_nothing"),
    ("D1.1", "aliases::hard_links_from_before_open_nothing"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![trial("aliases::hard_links_from_before_open_nothing", hard_links)]
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
