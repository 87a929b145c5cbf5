//! A verdict is taken on the object, never on the name by which it was reached.

use crate::harness::{
    Attack, Bystander, Denial, Ground, Policy, Session, Why, bystander_is_free, home, key,
    member_is_refused, trial, write,
};
use crate::probe::{Handle, Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;

/// Rows of the coverage table and the tests that try them.
pub(super) const ROWS: &[(&str, &str)] = &[
    ("A13", "objects::member_cannot_read_a_key_in_any_way"),
    ("A14", "objects::member_cannot_read_a_key_in_any_way"),
    ("A15", "objects::member_cannot_read_a_key_in_any_way"),
    ("A16", "objects::member_cannot_read_a_key_in_any_way"),
    ("A17", "objects::member_cannot_read_a_key_in_any_way"),
    ("A18", "objects::member_cannot_read_a_key_in_any_way"),
    ("A23", "objects::member_cannot_read_a_key_in_any_way"),
    ("A43", "objects::member_cannot_read_a_key_in_any_way"),
    ("A10", "objects::member_cannot_read_a_key_in_any_way"),
    ("D5.86", "objects::member_cannot_read_a_key_in_any_way"),
    ("D5.87", "objects::member_cannot_read_a_key_in_any_way"),
    ("A44", "objects::member_cannot_read_a_key_in_any_way"),
    ("D1.20", "objects::member_cannot_read_a_key_in_any_way"),
    ("D1.3", "objects::member_cannot_read_a_key_in_any_way"),
    ("D1.4", "objects::member_cannot_read_a_key_in_any_way"),
    ("D1.5", "objects::member_cannot_read_a_key_in_any_way"),
    ("D1.7", "objects::member_cannot_read_a_key_in_any_way"),
    ("D1.8", "objects::member_cannot_read_a_key_in_any_way"),
    ("A21", "objects::content_of_allowed_files_is_real"),
    ("A13", MEMBER),
    ("A14", MEMBER),
    ("A15", MEMBER),
    ("A16", MEMBER),
    ("A17", MEMBER),
    ("A18", MEMBER),
    ("A23", MEMBER),
    ("D1.1", MEMBER),
    ("D1.3", MEMBER),
    ("D1.4", MEMBER),
    ("D1.5", MEMBER),
    ("D1.7", MEMBER),
    ("D1.8", MEMBER),
    ("D1.20", MEMBER),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial(MEMBER, member),
        trial("objects::bystander_reads_it_in_every_way", bystander),
        trial("objects::content_of_allowed_files_is_real", content),
    ]
}

const MEMBER: &str = "objects::member_cannot_read_a_key_in_any_way";

fn open(path: impl Into<Place>) -> Operation {
    Operation::Open { path: path.into(), flags: libc::O_RDONLY }
}

fn handle(path: &Place) -> anyhow::Result<Handle> {
    let answer = Bystander::new()?.perform(&Operation::Handle { path: path.clone() })?;
    ensure!(answer.errno == 0, "taking a file handle of {path}: {answer}");
    serde_json::from_value(answer.data).context("the handle's form")
}

/// The name of the key, and of its twin.
const NAME: &str = "id_ed25519";

/// A key, a harmless twin of the same name, and the attacks on the one and the other.
struct Reads<'a> {
    ground: &'a Ground,
    /// `~/.ssh`, and a directory of the workspace.
    keys: Place,
    twins: Place,
    attacks: Vec<Attack>,
}

impl Reads<'_> {
    fn key(&self) -> Place {
        self.keys.join(NAME)
    }

    /// `make` gets the directory that holds the file to be read.
    fn add(
        &mut self,
        name: &'static str,
        make: impl Fn(&Place) -> anyhow::Result<Operation>,
    ) -> anyhow::Result<()> {
        self.explained(name, Denial::read(self.key()), make)
    }

    /// As `add`, where the event may name the object otherwise.
    fn explained(
        &mut self,
        name: &'static str,
        denial: Denial,
        make: impl Fn(&Place) -> anyhow::Result<Operation>,
    ) -> anyhow::Result<()> {
        let (operation, twin) = (make(&self.keys)?, make(&self.twins)?);
        self.attacks.push(Attack { name, operation, denial: denial.of_key(), twin });
        Ok(())
    }
}

/// Reads of `~/.ssh/id_ed25519`; the twins read a file of the workspace.
pub(super) fn attacks(ground: &Ground) -> anyhow::Result<Vec<Attack>> {
    key()?;
    let twins = ground.directory(&ground.workspace())?;
    write(&twins.join(NAME), "harmless")?;
    let keys = Place::from(home()).join(".ssh");
    let mut reads = Reads { ground, keys, twins, attacks: Vec::new() };
    by_other_names(&mut reads)?;
    by_other_roots(&mut reads)?;
    by_other_calls(&mut reads)?;
    by_programs(&mut reads)?;
    by_links(&mut reads);
    Ok(reads.attacks)
}

fn by_other_names(reads: &mut Reads<'_>) -> anyhow::Result<()> {
    let (ground, workspace) = (reads.ground, reads.ground.workspace());
    reads.add("plain open", |at| Ok(open(at.join(NAME))))?;
    reads.add("symbolic link in the workspace", |at| {
        Ok(open(ground.symlink(&at.join(NAME), &workspace)?))
    })?;
    reads.add("symbolic link to the directory", |at| {
        Ok(open(ground.symlink(at, &workspace)?.join(NAME)))
    })?;
    reads.add("dots", |at| Ok(open(format!("/tmp/../tmp/./..{at}/../{}/{NAME}", last(at)?))))?;
    for (name, prefix) in [
        ("/proc/self/root", "/proc/self/root"),
        ("/proc/thread-self/root", "/proc/thread-self/root"),
    ] {
        reads.add(name, |at| Ok(open(format!("{prefix}{at}/{NAME}"))))?;
    }
    // Through the root of somebody outside. A stricter sandbox may keep members from that road
    // altogether, so the twin takes another.
    let (key, twin) = (reads.key(), reads.twins.join(NAME));
    reads.attacks.push(Attack {
        name: "/proc/PID/root",
        operation: open(format!("/proc/{}/root{key}", std::process::id())),
        denial: Denial::by(&["file_open", "ptrace_access_check"])
            .because(Why::Reason(&["rule", "outsider"])),
        twin: open(twin),
    });
    for (name, parent) in [
        ("bind mount in the workspace", workspace.clone()),
        ("bind mount outside", ground.outside()),
    ] {
        let alias = ground.bind(&reads.keys, &parent)?.join(NAME);
        let twin = open(ground.bind(&reads.twins, &parent)?.join(NAME));
        let denial = Denial::read(&key).paths(&key, &alias).of_key();
        reads.attacks.push(Attack { name, operation: open(alias), denial, twin });
    }
    Ok(())
}

fn last(path: &Place) -> anyhow::Result<String> {
    let name = path.path().file_name().context("a path without a last name")?;
    Ok(name.to_string_lossy().into_owned())
}

fn by_other_roots(reads: &mut Reads<'_>) -> anyhow::Result<()> {
    let above = Place::from(home());
    let chrooted = |root: &Place, path: String| Operation::Chroot {
        root: root.clone(),
        then: Box::new(open(path)),
    };
    reads.add("chroot beside it", |at| Ok(chrooted(at, format!("/{NAME}"))))?;
    reads.add("chroot above it", |at| {
        let at = at.to_string();
        let inner = at.strip_prefix(home()).context("it lies in the home")?;
        Ok(chrooted(&above, format!("{inner}/{NAME}")))
    })?;
    let (key, twin) = (reads.key(), open(reads.twins.join(NAME)));
    let mount = reads.ground.directory(&reads.ground.workspace())?;
    let namespace =
        |user, binds, path| Operation::Namespace { user, binds, then: Box::new(open(path)) };
    let bind = || vec![(reads.keys.clone(), mount.clone())];
    let (directory, name, flags) = (reads.keys.clone(), NAME.into(), libc::O_RDONLY);
    // Whether a member may mount at all is another question: it must not help. The twins do
    // without.
    for (name, operation) in [
        ("detached mount", Operation::OpenTree { directory, name, flags }),
        ("mount namespace", namespace(false, Vec::new(), key)),
        ("bind mount of its own", namespace(false, bind(), mount.join(NAME))),
    ] {
        let denial = Denial::by(&["file_open"]).perhaps_untold();
        reads.attacks.push(Attack { name, operation, denial, twin: twin.clone() });
    }
    reads.attacks.push(Attack {
        name: "user namespace",
        operation: namespace(true, bind(), mount.join(NAME)),
        denial: Denial::by(&["file_open", "userns_create", "sb_mount"])
            .because(Why::Reason(&["rule", "never"])),
        twin,
    });
    Ok(())
}

fn by_other_calls(reads: &mut Reads<'_>) -> anyhow::Result<()> {
    let flags = libc::O_RDONLY;
    reads.add("O_PATH and reopen", |at| Ok(Operation::Reopen { path: at.join(NAME), flags }))?;
    reads.add("openat2", |at| Ok(Operation::Openat2 { path: at.join(NAME), flags }))?;
    for (name, worker) in [("io_uring", false), ("io_uring worker", true)] {
        reads.add(name, |at| Ok(Operation::UringOpen { path: at.join(NAME), flags, worker }))?;
    }
    reads.add("open_by_handle_at", |at| {
        let handle = handle(&at.join(NAME))?;
        Ok(Operation::OpenHandle { mount: home().into(), handle, flags })
    })?;
    let both = |at: &Place| Operation::Open { path: at.join(NAME), flags: libc::O_RDWR };
    reads.attacks.push(Attack {
        name: "open for reading and writing",
        operation: both(&reads.keys),
        // Two rules refuse it; either may be named.
        denial: Denial::read(reads.key()).because(Why::Reason(&["rule", "default"])),
        twin: both(&reads.twins),
    });
    Ok(())
}

/// Running a program that may not be read.
fn by_programs(reads: &mut Reads<'_>) -> anyhow::Result<()> {
    for directory in [&reads.keys, &reads.twins] {
        let at = directory.join("program");
        std::fs::copy(std::env::current_exe()?, &at).with_context(|| format!("copying to {at}"))?;
    }
    let denial = Denial::by(&["file_open"]).path(reads.keys.join("program"));
    for (name, descriptor) in [("execve", false), ("execveat", true)] {
        reads.explained(name, denial.clone(), |at| {
            Ok(Operation::Execute { path: at.join("program"), descriptor })
        })?;
    }
    Ok(())
}

/// A second name for the key in the workspace.
fn by_links(reads: &mut Reads<'_>) {
    let (key, twin) = (reads.key(), reads.twins.join(NAME));
    let workspace = reads.ground.workspace();
    for (name, descriptor) in [
        ("hard link", None),
        ("hard link of a descriptor", Some(false)),
        ("hard link of a descriptor through /proc", Some(true)),
    ] {
        let link = |from: &Place, to: &Place| {
            let (from, to) = (from.clone(), to.clone());
            match descriptor {
                None => Operation::Link { from, to },
                Some(through_proc) => Operation::LinkDescriptor { from, to, through_proc },
            }
        };
        let to = reads.ground.absent(&workspace);
        let denial = Denial::by(&["path_link"])
            .paths(&key, &to)
            .because(Why::Reason(&["rule", "default", "gain"]))
            .or_error(libc::EXDEV);
        let twin = link(&twin, &reads.ground.absent(&workspace));
        reads.attacks.push(Attack { name, operation: link(&key, &to), denial, twin });
    }
}

fn member() -> anyhow::Result<()> {
    let ground = Ground::new("objects")?;
    let attacks = attacks(&ground)?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    member_is_refused(&mut session, &attacks)?;
    session.finish()
}

fn bystander() -> anyhow::Result<()> {
    let (ground, own) = (Ground::new("objects-session")?, Ground::new("objects-bystander")?);
    let attacks = attacks(&own)?;
    let session = Session::start(&ground, &Policy::preset())?;
    bystander_is_free(&attacks, &[])?;
    session.finish()
}

fn content() -> anyhow::Result<()> {
    let ground = Ground::new("content")?;
    let (inside, outside) = (ground.file(&ground.workspace())?, ground.file(&ground.outside())?);
    let mut session = Session::start(&ground, &Policy::preset())?;
    for path in [inside, outside] {
        let answer = session.allowed("read", &open(path.clone()))?;
        if answer.text() != "content" {
            session.problem(format!("{path} holds \"content\", the member read {}", answer.data));
        }
    }
    session.allowed("memory and pipes of its own", &Operation::OwnMemory {})?;
    session.finish()
}
