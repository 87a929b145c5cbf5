//! A verdict is taken on the object, never on the name by which it was reached.

use crate::harness::{
    Attack, Bystander, Denial, Ground, HOME, Policy, Session, Why, bystander_is_free, key,
    member_is_refused, trial, write,
};
use crate::probe::{Handle, Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("objects::member_cannot_read_a_key_in_any_way", member),
        trial("objects::bystander_reads_it_in_every_way", bystander),
        trial("objects::content_of_allowed_files_is_real", content),
    ]
}

fn open(path: impl Into<Place>) -> Operation {
    Operation::Open { path: path.into(), flags: libc::O_RDONLY }
}

fn handle(path: &Place) -> anyhow::Result<Handle> {
    let answer = Bystander::new()?.perform(&Operation::Handle { path: path.clone() })?;
    ensure!(answer.errno == 0, "taking a file handle of {path}: {answer}");
    serde_json::from_value(answer.data).context("the handle's form")
}

/// A program beside the key, and the same in the workspace.
fn program(directory: &Place) -> anyhow::Result<Place> {
    let at = directory.join("program");
    std::fs::copy(std::env::current_exe()?, &at).with_context(|| format!("copying to {at}"))?;
    Ok(at)
}

/// Reads of `~/.ssh/id_ed25519`; the twins read a file of the workspace.
fn attacks(ground: &Ground) -> anyhow::Result<Vec<Attack>> {
    let (key, home) = (key()?, Place::from(HOME));
    let (keys, name) = (home.join(".ssh"), "id_ed25519");
    let workspace = ground.workspace();
    // Beneath a directory of the workspace lies a twin of the key with the same name.
    let twins = ground.directory(&workspace)?;
    let twin = twins.join(name);
    write(&twin, "harmless")?;
    let mut attacks = Vec::new();
    let mut read = |name, of_key: Operation, of_twin: Operation, denial: Denial| {
        attacks.push(Attack { name, operation: of_key, denial: denial.of_key(), twin: of_twin });
    };
    let plain = || Denial::read(&key);
    let rdonly = libc::O_RDONLY;

    read("plain open", open(key.clone()), open(twin.clone()), plain());
    let (link, twin_link) = (ground.symlink(&key, &workspace)?, ground.symlink(&twin, &workspace)?);
    read("symbolic link in the workspace", open(link), open(twin_link), plain());
    let (directory, twin_directory) =
        (ground.symlink(&keys, &workspace)?, ground.symlink(&twins, &workspace)?);
    read(
        "symbolic link to the directory",
        open(directory.join(name)),
        open(twin_directory.join(name)),
        plain(),
    );
    read(
        "dots",
        open(format!("/tmp/../tmp/./..{key}")),
        open(format!("/tmp/../tmp/./..{twin}")),
        plain(),
    );
    for (title, prefix) in [
        ("/proc/self/root", "/proc/self/root"),
        ("/proc/thread-self/root", "/proc/thread-self/root"),
        ("/proc/1/root", "/proc/1/root"),
    ] {
        read(title, open(format!("{prefix}{key}")), open(format!("{prefix}{twin}")), plain());
    }
    let (alias, twin_alias) =
        (ground.bind(&keys, &workspace)?.join(name), ground.bind(&twins, &workspace)?.join(name));
    let either = || Denial::read(&key).paths(&key, &alias);
    read("bind mount in the workspace", open(alias.clone()), open(twin_alias), either());
    let outer = ground.bind(&keys, &ground.outside())?.join(name);
    read(
        "bind mount elsewhere",
        open(outer.clone()),
        open(twin.clone()),
        plain().paths(&key, &outer),
    );

    let chrooted = |root: &Place, path: String| Operation::Chroot {
        root: root.clone(),
        then: Box::new(open(path)),
    };
    let anywhere = || Denial::read(&key).any_object();
    read(
        "chroot beside it",
        chrooted(&keys, format!("/{name}")),
        chrooted(&twins, format!("/{name}")),
        plain(),
    );
    let inner = twin.to_string();
    let inner = inner.strip_prefix(HOME).context("the workspace lies in the home")?.to_owned();
    read(
        "chroot above it",
        chrooted(&home, format!("/.ssh/{name}")),
        chrooted(&home, inner),
        plain(),
    );

    read(
        "O_PATH and reopen",
        Operation::Reopen { path: key.clone(), flags: rdonly },
        Operation::Reopen { path: twin.clone(), flags: rdonly },
        plain(),
    );
    read(
        "openat2",
        Operation::Openat2 { path: key.clone(), flags: rdonly },
        Operation::Openat2 { path: twin.clone(), flags: rdonly },
        plain(),
    );
    for (title, worker) in [("io_uring", false), ("io_uring worker", true)] {
        read(
            title,
            Operation::UringOpen { path: key.clone(), flags: rdonly, worker },
            Operation::UringOpen { path: twin.clone(), flags: rdonly, worker },
            plain(),
        );
    }
    read(
        "open_by_handle_at",
        Operation::OpenHandle { mount: home.clone(), handle: handle(&key)?, flags: rdonly },
        Operation::OpenHandle { mount: home.clone(), handle: handle(&twin)?, flags: rdonly },
        plain(),
    );
    read(
        "detached mount",
        Operation::OpenTree { directory: keys.clone(), name: name.into(), flags: rdonly },
        Operation::OpenTree { directory: twins.clone(), name: name.into(), flags: rdonly },
        plain(),
    );
    let at = ground.directory(&workspace)?;
    for (title, user) in [("mount namespace", false), ("user namespace", true)] {
        let moved = |from: &Place| Operation::Namespace {
            user,
            binds: vec![(from.clone(), at.clone())],
            then: Box::new(open(at.join(name))),
        };
        // Which of its names the event gives, that of the other namespace or that of the host, is
        // not ours to say.
        read(title, moved(&keys), moved(&twins), anywhere());
    }
    let (tool, twin_tool) = (program(&keys)?, program(&twins)?);
    for (title, descriptor) in [("execve", false), ("execveat", true)] {
        read(
            title,
            Operation::Execute { path: tool.clone(), descriptor },
            Operation::Execute { path: twin_tool.clone(), descriptor },
            Denial::by(&["file_open"]).path(&tool),
        );
    }
    let open = |path: &Place| Operation::Open { path: path.clone(), flags: libc::O_RDWR };
    attacks.push(Attack {
        name: "open for reading and writing",
        operation: open(&key),
        // Two rules refuse it; either may be named.
        denial: plain().because(Why::Reason(&["rule", "default"])),
        twin: open(&twin),
    });
    attacks.extend(links(ground, &key, &twin)?);
    Ok(attacks)
}

/// A second name for the key in the workspace.
fn links(ground: &Ground, key: &Place, twin: &Place) -> anyhow::Result<Vec<Attack>> {
    let workspace = ground.workspace();
    let mut attacks = Vec::new();
    let mut link = |name, make: &dyn Fn(Place, Place) -> Operation| {
        let to = ground.absent(&workspace);
        let denial = Denial::by(&["path_link"])
            .paths(key, &to)
            .because(Why::Reason(&["rule", "default", "gain"]))
            .or_error(libc::EXDEV);
        let twin = make(twin.clone(), ground.absent(&workspace));
        attacks.push(Attack { name, operation: make(key.clone(), to), denial, twin });
    };
    link("hard link", &|from, to| Operation::Link { from, to });
    link("hard link of a descriptor", &|from, to| Operation::LinkDescriptor {
        from,
        to,
        through_proc: false,
    });
    link("hard link through /proc", &|from, to| Operation::LinkDescriptor {
        from,
        to,
        through_proc: true,
    });
    Ok(attacks)
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
