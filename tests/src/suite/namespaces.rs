//! User namespaces and mounts in them, where a policy permits them: every rule holds inside.

use super::{attributes, objects, writes};
use crate::harness::{
    Attack, Bystander, Denial, Ground, Policy, Session, Why, both, difference, home, is_root, key,
    member_is_refused, snapshot,
};
use crate::probe::{Operation, Place};
use anyhow::ensure;
use libtest_mimic::Trial;

pub(super) const ROWS: &[(&str, &str)] = &[
    ("A15", "namespaces::mounts_of_a_member"),
    ("A16", "namespaces::attacks_from_inside"),
    ("A17", "namespaces::attacks_from_inside"),
    ("A24", "namespaces::mounts_of_a_member"),
    ("A43", "namespaces::mounts_of_a_member"),
    ("D1.4", "namespaces::attacks_from_inside"),
    ("D5.87", "namespaces::attacks_from_inside"),
    ("D5.87", "namespaces::mounts_of_a_member"),
];

pub(super) fn trials() -> Vec<Trial> {
    let twice = [
        both("namespaces::attacks_from_inside", attacks),
        both("namespaces::mounts_of_a_member", mounts),
    ];
    twice.into_iter().flatten().collect()
}

/// An operation of root in a user namespace with binds.
fn nested(binds: &[(&Place, &Place)], then: Operation) -> Operation {
    let binds = binds.iter().map(|(from, to)| ((*from).clone(), (*to).clone())).collect();
    Operation::Namespace { user: true, binds, then: Box::new(then) }
}

/// What takes a capability over the machine, or a second user, which root of such a namespace has not:
/// the kernel refuses it before anybody is asked.
const PRIVILEGED: [&str; 11] = [
    "/proc/PID/root",
    "handle",
    "namespace",
    "chown",
    "descriptor",
    "O_TMPFILE linked",
    "O_TMPFILE outside",
    "setxattr",
    "removexattr",
    "access list",
    "chattr",
];

/// Whether it takes none of that.
pub(super) fn is_possible(attack: &Attack) -> bool {
    !PRIVILEGED.iter().any(|word| attack.name.contains(word))
}

/// The attacks on files, each from a user namespace of its own.
fn attacks() -> anyhow::Result<()> {
    let reads = Ground::new("namespace-reads")?;
    from_inside(&reads, objects::attacks(&reads)?)?;
    let writes = Ground::new("namespace-writes")?;
    // What attributes there are takes root to prepare.
    let of_root = if is_root() { attributes::attacks(&writes)? } else { Vec::new() };
    let attacks = [writes::attacks(&writes)?, of_root].concat();
    let before = snapshot(writes.outside().path())?;
    from_inside(&writes, attacks)?;
    let changes = difference(&before, &snapshot(writes.outside().path())?);
    ensure!(changes.is_empty(), "changed outside the workspace: {}", changes.join("; "));
    Ok(())
}

fn from_inside(ground: &Ground, attacks: Vec<Attack>) -> anyhow::Result<()> {
    let inside: Vec<Attack> = attacks
        .into_iter()
        .filter(is_possible)
        .map(|Attack { name, operation, denial, twin }| {
            let (operation, twin) = (nested(&[], operation), nested(&[], twin));
            Attack { name, operation, denial, twin }
        })
        .collect();
    ensure!(inside.len() > 12, "only {} attacks", inside.len());
    let mut session = Session::start(ground, &Policy::preset().namespaces())?;
    member_is_refused(&mut session, &inside)?;
    session.finish()
}

fn open(path: impl Into<Place>, flags: i32) -> Operation {
    Operation::Open { path: path.into(), flags }
}

fn mounts() -> anyhow::Result<()> {
    let ground = Ground::new("mounts")?;
    let (key, keys) = (key()?, Place::from(home()).join(".ssh"));
    let at = ground.directory(&ground.workspace())?;
    let file = ground.file(&ground.outside())?;
    let name = key.path().file_name().map(|name| name.to_string_lossy().into_owned());
    let name = name.unwrap_or_default();
    let mut session = Session::start(&ground, &Policy::preset().namespaces())?;

    // Binds lead nowhere else.
    let denial = Denial::read(&key).paths(&key, at.join(&name)).of_key();
    let read = open(at.join(&name), libc::O_RDONLY);
    session.refused("a bind of the keys", &nested(&[(&keys, &at)], read), &denial)?;
    let outside = ground.outside();
    let made = Operation::Create { path: at.join("made") };
    let denial = Denial::by(&["path_mknod"]).access("create");
    session.refused("a bind of what is outside", &nested(&[(&outside, &at)], made), &denial)?;
    let own = ground.directory(&ground.workspace())?;
    let made = Operation::Create { path: at.join("made") };
    session.allowed("a bind of the workspace", &nested(&[(&own, &at)], made))?;

    // Memory is the member's own, and covers nothing that is closed.
    let tmpfs = |then| Operation::Mounted {
        kind: "tmpfs".into(),
        at: at.clone(),
        options: String::new(),
        then: Box::new(then),
    };
    let inner = at.join("inner");
    for (what, operation) in [
        ("create", Operation::Create { path: inner.clone() }),
        ("mkdir", Operation::Mkdir { path: inner.clone() }),
        ("symlink", Operation::Symlink { target: "/".into(), path: inner.clone() }),
        ("a socket", Operation::BindSocket { path: inner.clone() }),
        ("chmod", Operation::Chmod { path: at.clone(), mode: 0o700 }),
    ] {
        session.allowed(&format!("{what} in its own tmpfs"), &nested(&[], tmpfs(operation)))?;
    }
    let write = nested(&[], tmpfs(open(&file, libc::O_WRONLY)));
    session.refused("a write beside its own tmpfs", &write, &Denial::write(&file))?;
    let bare = open(&key, libc::O_RDONLY);
    let denial = Denial::read(&key).of_key();
    session.refused("the key beside its own tmpfs", &nested(&[], tmpfs(bare)), &denial)?;

    stacked(&mut session, &ground, &keys)?;
    own_procfs(&mut session)?;
    session.finish()
}

/// File systems that would show files of others, by both calls. They must leave nothing behind.
fn stacked(session: &mut Session, ground: &Ground, keys: &Place) -> anyhow::Result<()> {
    let at = ground.directory(&ground.workspace())?;
    let (upper, work) =
        (ground.directory(&ground.outside())?, ground.directory(&ground.outside())?);
    let before = snapshot(ground.outside().path())?;
    let options = format!("lowerdir={keys},upperdir={upper},workdir={work}");
    let then = Box::new(Operation::Identity {});
    let mount = Operation::Mounted { kind: "overlay".into(), at, options, then };
    let never =
        |hooks| Denial::by(hooks).task().because(Why::Reason(&["never"])).error(libc::EPERM);
    session.refused("an overlay", &nested(&[], mount), &never(&["sb_mount"]))?;
    let option = |key: &str, value: &Place| (key.to_owned(), value.to_string());
    let options =
        vec![option("lowerdir", keys), option("upperdir", &upper), option("workdir", &work)];
    let mount = Operation::FsMounted { kind: "overlay".into(), options };
    session.refused(
        "an overlay by fsopen",
        &nested(&[], mount.clone()),
        &never(&["fs_context_parse_param"]),
    )?;
    for change in difference(&before, &snapshot(ground.outside().path())?) {
        session.problem(format!("the refused overlay left something: {change}"));
    }
    let answer = Bystander::new()?.perform(&nested(&[], mount))?;
    if answer.errno != 0 {
        session.problem(format!("an overlay of a bystander: {answer}"));
    }
    let fresh = Operation::FsMounted { kind: "tmpfs".into(), options: Vec::new() };
    session.allowed("a tmpfs by fsopen", &nested(&[], fresh))?;
    Ok(())
}

/// What a task may say of itself, and not of others.
fn own_procfs(session: &mut Session) -> anyhow::Result<()> {
    for name in ["comm", "oom_score_adj", "coredump_filter"] {
        session.allowed(
            &format!("/proc/self/{name}"),
            &open(format!("/proc/self/{name}"), libc::O_WRONLY),
        )?;
        let path = format!("/proc/1/{name}");
        let denial = Denial::write(path.as_str()).told_to_root();
        session.refused(&path, &open(path.as_str(), libc::O_WRONLY), &denial)?;
        let nested = nested(&[], open(path.as_str(), libc::O_WRONLY));
        session.refused(&path, &nested, &denial)?;
    }
    let path = "/proc/sys/kernel/core_pattern";
    let nested = nested(&[], open(path, libc::O_WRONLY));
    session.refused(path, &nested, &Denial::write(path).told_to_root())?;
    Ok(())
}
