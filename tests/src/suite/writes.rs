//! All ways to write are one thing: outside the workspace every one is refused and changes nothing.

use super::namespaces::is_possible;
use crate::harness::{
    Attack, Denial, Ground, HOME, Policy, Session, Why, both, bystander_is_free_beside_a_session,
    difference, eventually, is_root, member_changes_nothing, snapshot, trial,
};
use crate::probe::{Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::time::Duration;

/// `RENAME_EXCHANGE`, linux/fs.h.
pub(super) const EXCHANGE: u32 = 2;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("D6.96", "writes::member_cannot_change_anything_outside"),
    ("A14", "writes::member_cannot_change_anything_outside"),
    ("A29", "writes::member_cannot_change_anything_outside"),
    ("A30", "writes::member_cannot_change_anything_outside"),
    ("A31", "writes::member_cannot_change_anything_outside"),
    ("A33", "writes::member_cannot_change_anything_outside"),
    ("A36", "writes::member_cannot_change_anything_outside"),
    ("A37", "writes::member_cannot_change_anything_outside"),
    ("A39", "writes::member_cannot_change_anything_outside"),
    ("A40", "writes::member_cannot_change_anything_outside"),
    ("D2.28", "writes::member_cannot_change_anything_outside"),
    ("D2.29", "writes::member_cannot_change_anything_outside"),
    ("D2.30", "writes::member_cannot_change_anything_outside"),
    ("D2.31", "writes::member_cannot_change_anything_outside"),
    ("D2.33", "writes::member_cannot_change_anything_outside"),
    ("D2.34", "writes::member_cannot_change_anything_outside"),
    ("D2.36", "writes::member_cannot_change_anything_outside"),
    ("D2.45", "writes::member_cannot_change_anything_outside"),
    ("A15", "writes::aliases_do_not_help"),
    ("A17", "writes::aliases_do_not_help"),
    ("D7.109", "writes::temporary_directory_is_writable"),
];

pub(super) fn trials() -> Vec<Trial> {
    let twice = [both("writes::member_cannot_change_anything_outside", member)];
    let once = [
        trial("writes::bystander_changes_it_in_every_way", bystander),
        trial("writes::aliases_do_not_help", aliases),
        trial("writes::temporary_directory_is_writable", temporary),
        trial("writes::a_rename_is_told_as_what_it_would_do", renamed),
    ];
    twice.into_iter().flatten().chain(once).collect()
}

/// An attack on a place outside; the twin is the same in the workspace.
struct Builder<'a> {
    ground: &'a Ground,
    attacks: Vec<Attack>,
}

impl Builder<'_> {
    /// `make` gets the directory that it shall harm. Either of its paths may be what the event
    /// names; all lie outside, or one of two does.
    fn add(
        &mut self,
        name: &'static str,
        denial: Denial,
        make: impl Fn(&Ground, &Place) -> anyhow::Result<Operation>,
    ) -> anyhow::Result<()> {
        let operation = make(self.ground, &self.ground.outside())?;
        let twin = make(self.ground, &self.ground.workspace())?;
        self.attacks.push(Attack { name, operation, denial, twin });
        Ok(())
    }
}

/// Files and names made, changed, removed. Everything that is not there yet has its own new name.
pub(super) fn attacks(ground: &Ground) -> anyhow::Result<Vec<Attack>> {
    let outside = ground.outside();
    let mut b = Builder { ground, attacks: Vec::new() };
    let by = |hook: &'static str, access: &'static str| {
        Denial::by(&[hook]).access(access).beneath(&outside)
    };
    let content = || by("file_open", "write").error(libc::EACCES);
    for (name, flags) in [
        ("open for writing", libc::O_WRONLY),
        ("open for reading and writing", libc::O_RDWR),
        ("open for appending", libc::O_WRONLY | libc::O_APPEND),
        ("O_TRUNC", libc::O_WRONLY | libc::O_TRUNC),
        ("O_CREAT of what exists", libc::O_WRONLY | libc::O_CREAT),
    ] {
        b.add(name, content(), |g, at| Ok(Operation::Open { path: g.file(at)?, flags }))?;
    }
    b.add("openat2 for writing", content(), |g, at| {
        Ok(Operation::Openat2 { path: g.file(at)?, flags: libc::O_WRONLY })
    })?;
    b.add("reopen for writing", content(), |g, at| {
        Ok(Operation::Reopen { path: g.file(at)?, flags: libc::O_RDWR })
    })?;
    b.add("io_uring for writing", content(), |g, at| {
        Ok(Operation::UringOpen { path: g.file(at)?, flags: libc::O_WRONLY, worker: true })
    })?;
    let cut = || Denial::by(&["path_truncate", "file_truncate"]).access("write").beneath(&outside);
    b.add("O_TRUNC without writing", cut(), |g, at| {
        Ok(Operation::Open { path: g.file(at)?, flags: libc::O_RDONLY | libc::O_TRUNC })
    })?;
    b.add("truncate", cut(), |g, at| Ok(Operation::Truncate { path: g.file(at)?, length: 0 }))?;
    b.add("create", by("path_mknod", "create"), |g, at| {
        Ok(Operation::Create { path: g.absent(at) })
    })?;
    b.add("create through io_uring", by("path_mknod", "create"), |g, at| {
        let flags = libc::O_CREAT | libc::O_WRONLY;
        Ok(Operation::UringOpen { path: g.absent(at), flags, worker: false })
    })?;
    b.add("mkdir", by("path_mkdir", "create"), |g, at| {
        Ok(Operation::Mkdir { path: g.absent(at) })
    })?;
    b.add("rmdir", by("path_rmdir", "delete"), |g, at| {
        Ok(Operation::Rmdir { path: g.directory(at)? })
    })?;
    b.add("unlink", by("path_unlink", "delete"), |g, at| {
        Ok(Operation::Unlink { path: g.file(at)? })
    })?;
    b.add("unlink through io_uring", by("path_unlink", "delete"), |g, at| {
        Ok(Operation::UringUnlink { path: g.file(at)? })
    })?;
    b.add("symlink", by("path_symlink", "create"), |g, at| {
        Ok(Operation::Symlink { target: g.workspace(), path: g.absent(at) })
    })?;
    for (name, kind) in [("mkfifo", libc::S_IFIFO), ("mknod of a file", libc::S_IFREG)] {
        b.add(name, by("path_mknod", "create"), move |g, at| {
            Ok(Operation::Mknod { path: g.absent(at), kind, device: (0, 0) })
        })?;
    }
    b.add("bind of a socket", by("path_mknod", "create"), |g, at| {
        Ok(Operation::BindSocket { path: g.absent(at) })
    })?;
    b.add("chmod", by("path_chmod", "attributes"), |g, at| {
        Ok(Operation::Chmod { path: g.file(at)?, mode: 0o777 })
    })?;
    b.add("chown", by("path_chown", "attributes"), |g, at| {
        Ok(Operation::Chown { path: g.file(at)?, uid: 1000 })
    })?;
    links_and_moves(&mut b)?;
    if !is_root() {
        b.attacks.retain(is_possible);
    }
    Ok(b.attacks)
}

/// Operations with two places, of which one or both lie outside.
fn links_and_moves(b: &mut Builder<'_>) -> anyhow::Result<()> {
    let any = || Why::Reason(&["default", "gain"]);
    let linked = || Denial::by(&["path_link"]).because(any()).or_error(libc::EXDEV);
    b.add("hard link from the workspace", linked(), |g, at| {
        Ok(Operation::Link { from: g.file(&g.workspace())?, to: g.absent(at) })
    })?;
    b.add("hard link of an unwritable file", linked(), |g, at| {
        Ok(Operation::Link { from: g.file(at)?, to: g.absent(&g.workspace()) })
    })?;
    b.add("hard link of a descriptor", linked(), |g, at| {
        let (from, to) = (g.file(&g.workspace())?, g.absent(at));
        Ok(Operation::LinkDescriptor { from, to, through_proc: true })
    })?;
    for (name, through_proc) in
        [("O_TMPFILE linked outside", false), ("O_TMPFILE linked outside through /proc", true)]
    {
        b.add(name, linked(), move |g, at| {
            let (directory, to) = (g.workspace(), g.absent(at));
            Ok(Operation::LinkTemporary { directory, to, through_proc })
        })?;
    }
    let hidden = Denial::by(&["file_open"]).access("write").error(libc::EACCES);
    b.add("O_TMPFILE outside", hidden, |g, at| {
        let to = g.absent(&g.workspace());
        Ok(Operation::LinkTemporary { directory: at.clone(), to, through_proc: false })
    })?;
    let moved = || Denial::by(&["path_rename"]).because(any()).or_error(libc::EXDEV);
    b.add("rename out of", moved(), |g, at| {
        Ok(Operation::Rename { from: g.file(at)?, to: g.absent(&g.workspace()), flags: 0 })
    })?;
    b.add("rename into", moved(), |g, at| {
        Ok(Operation::Rename { from: g.file(&g.workspace())?, to: g.absent(at), flags: 0 })
    })?;
    b.add("rename onto", moved(), |g, at| {
        Ok(Operation::Rename { from: g.file(&g.workspace())?, to: g.file(at)?, flags: 0 })
    })?;
    b.add("rename within", moved(), |g, at| {
        Ok(Operation::Rename { from: g.file(at)?, to: g.absent(at), flags: 0 })
    })?;
    b.add("rename through io_uring", moved(), |g, at| {
        Ok(Operation::UringRename { from: g.file(&g.workspace())?, to: g.absent(at) })
    })?;
    b.add("exchange, outside second", moved(), |g, at| {
        Ok(Operation::Rename { from: g.file(&g.workspace())?, to: g.file(at)?, flags: EXCHANGE })
    })?;
    b.add("exchange, outside first", moved(), |g, at| {
        Ok(Operation::Rename { from: g.file(at)?, to: g.file(&g.workspace())?, flags: EXCHANGE })
    })?;
    b.add("rename of a directory", moved(), |g, at| {
        Ok(Operation::Rename { from: g.directory(at)?, to: g.absent(&g.workspace()), flags: 0 })
    })
}

fn member() -> anyhow::Result<()> {
    member_changes_nothing("writes", |_| Policy::preset(), attacks)
}

fn bystander() -> anyhow::Result<()> {
    bystander_is_free_beside_a_session("writes-bystander", attacks)
}

/// Other roads to a place outside.
fn aliases() -> anyhow::Result<()> {
    let ground = Ground::new("aliases")?;
    let (outside, workspace) = (ground.outside(), ground.workspace());
    let victim = ground.file(&outside)?;
    let name = victim.path().file_name().context("a file has a name")?.to_owned();
    let mounted = ground.bind(&outside, &workspace)?;
    let linked = ground.symlink(&outside, &workspace)?;
    let before = snapshot(outside.path())?;
    let open = |path: Place| Operation::Open { path, flags: libc::O_WRONLY | libc::O_TRUNC };
    let mut session = Session::start(&ground, &Policy::preset())?;
    for (road, base) in [("bind mount", &mounted), ("symbolic link", &linked)] {
        let at = base.join(name.as_encoded_bytes());
        let denial = Denial::write(&victim).paths(&victim, &at);
        session.refused(&format!("{road}: write"), &open(at), &denial)?;
        let create = Operation::Create { path: base.join("new") };
        let denial = Denial::by(&["path_mknod"])
            .access("create")
            .paths(outside.join("new"), base.join("new"));
        session.refused(&format!("{road}: create"), &create, &denial)?;
    }
    let inner = victim.to_string();
    let inner = inner.strip_prefix(HOME).context("it lies in the home")?.to_owned();
    let chrooted =
        Operation::Chroot { root: HOME.into(), then: Box::new(open(Place::from(inner))) };
    session.refused("chroot: write", &chrooted, &Denial::write(&victim))?;
    for change in difference(&before, &snapshot(outside.path())?) {
        session.problem(format!("something changed outside the workspace: {change}"));
    }
    session.finish()
}

fn temporary() -> anyhow::Result<()> {
    let ground = Ground::new("temporary")?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let own = session.identity()?.tmpdir.clone().context("TMPDIR is not set in the session")?;
    let own = Place::from(own);
    session.allowed("create in TMPDIR", &Operation::Create { path: own.join("file") })?;
    session.allowed("mkdir in TMPDIR", &Operation::Mkdir { path: own.join("directory") })?;
    let beside = Place::from(format!("/tmp/beside-{}", std::process::id()));
    let denial = Denial::by(&["path_mknod"]).access("create").path(&beside);
    session.refused("create beside TMPDIR", &Operation::Create { path: beside }, &denial)?;
    session.finish()
}

/// Onto a free name it makes one; onto one that is there it takes that away as well.
fn renamed() -> anyhow::Result<()> {
    let ground = Ground::new("renamed")?;
    let (outside, workspace) = (ground.outside(), ground.workspace());
    let rename = |from: Place, to: &Place| Operation::Rename { from, to: to.clone(), flags: 0 };
    let mut session = Session::start(&ground, &Policy::preset())?;
    let twin = rename(ground.file(&workspace)?, &ground.absent(&workspace));
    session.allowed("rename in the workspace", &twin)?;
    let (free, taken) = (ground.absent(&outside), ground.file(&outside)?);
    for (to, access) in [(free, json!(["create"])), (taken, json!(["create", "delete"]))] {
        let denial = Denial::by(&["path_rename"]).path(&to).or_error(libc::EXDEV);
        let attack = rename(ground.file(&workspace)?, &to);
        let answer = session.refused("rename out of it", &attack, &denial)?;
        let of_it = |event: &Value| event["object"]["path"] == to.to_string();
        let event = || session.events().denials_of(answer.pid).into_iter().find(of_it);
        let event = eventually(Duration::from_secs(30), event).context("no event tells")?;
        ensure!(event["access"] == access, "{access} would be done, told is {event}");
    }
    session.finish()
}
