//! A descriptor that somebody else opened is judged when a member gets it, and when it maps it.

use crate::harness::{
    Attack, Bystander, Denial, Ground, Policy, Runner, Session, Why, both, bystander_is_free,
    bystander_is_free_beside_a_session, give, home, is_root, key, member_changes_nothing,
    member_is_refused, trial, write,
};
use crate::probe::{Operation, Place, UnixName, Use, send};
use anyhow::Context as _;
use libtest_mimic::Trial;
use std::fs::{File, OpenOptions};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsFd as _, IntoRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};

pub(super) const ROWS: &[(&str, &str)] = &[
    ("A32", "passing::member_gets_no_descriptor_that_it_could_not_open"),
    ("A41", "passing::inherited_descriptors_cannot_be_mapped"),
    ("A41", "passing::member_gets_no_descriptor_that_it_could_not_open"),
    ("A42", "passing::member_gets_no_descriptor_that_it_could_not_open"),
    ("A45", "passing::inherited_descriptors_cannot_be_mapped"),
    ("A11", "passing::member_gets_no_descriptor_that_it_could_not_open"),
    ("A12", "passing::sockets_of_outsiders_do_not_come"),
    ("D1.22", "passing::member_gets_no_descriptor_that_it_could_not_open"),
    ("D2.29", "passing::member_gets_no_descriptor_that_it_could_not_open"),
    ("D2.42", "passing::inherited_descriptors_cannot_be_mapped"),
];

pub(super) fn trials() -> Vec<Trial> {
    let twice = [
        both("passing::member_gets_no_descriptor_that_it_could_not_open", member),
        both("passing::bystander_gets_them", bystander),
        both("passing::sockets_of_outsiders_do_not_come", sockets),
    ];
    let once = [
        trial("passing::members_pass_what_they_like", own),
        trial("passing::inherited_descriptors_cannot_be_mapped", inherited),
    ];
    twice.into_iter().flatten().chain(once).collect()
}

const TEXT: &str = "what the file holds";

/// Passes what `what` opens to whoever connects, outside every session, until the suite ends.
fn giver<T: Into<OwnedFd>>(
    ground: &Ground,
    what: impl Fn() -> std::io::Result<T> + Send + 'static,
) -> anyhow::Result<UnixName> {
    let directory = Place::from(ground.papers("givers"));
    std::fs::create_dir_all(&directory)?;
    give(&directory)?;
    let at = UnixName::Path(ground.absent(&directory));
    let listener = UnixListener::bind_addr(&at.address()?).context("binding")?;
    if let UnixName::Path(path) = &at {
        give(path)?;
    }
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Who gets nothing sees the connection end.
            if let Ok(descriptor) = what() {
                let _ = send(&stream, descriptor.into().as_fd());
            }
        }
    });
    Ok(at)
}

/// A policy under which the givers can be asked.
fn policy(ground: &Ground) -> Policy {
    Policy::preset().with("network.unix.allow", ground.papers("givers").display().to_string())
}

fn open(path: &Place, flags: i32) -> std::io::Result<File> {
    let written = flags & libc::O_ACCMODE == libc::O_RDWR;
    OpenOptions::new().read(true).write(written).custom_flags(flags).open(path)
}

fn attacks(ground: &Ground) -> anyhow::Result<Vec<Attack>> {
    let mut attacks = Vec::new();
    let pass = |path: Place, flags: i32, usage: Use| -> anyhow::Result<Operation> {
        Ok(Operation::UseReceived { from: giver(ground, move || open(&path, flags))?, usage })
    };
    let filled = |at: &Place| -> anyhow::Result<Place> {
        let file = ground.absent(at);
        write(&file, TEXT)?;
        Ok(file)
    };
    for (name, usage) in [
        ("write", Use::Write),
        ("ftruncate", Use::Truncate),
        ("fallocate", Use::PunchHole),
        ("copy_file_range", Use::CopyRange),
        ("sendfile", Use::Sendfile),
        ("splice", Use::Splice),
        ("io_uring write", Use::UringWrite),
        ("shared mapping", Use::MapShared),
        ("shared mapping, then mprotect", Use::MapThenProtect),
        ("a file for writing that is only kept", Use::Nothing),
    ] {
        attacks.push(Attack {
            name,
            operation: pass(filled(&ground.outside())?, libc::O_RDWR, usage)?,
            denial: Denial::by(&["file_receive"]).access("write").beneath(ground.outside()),
            twin: pass(filled(&ground.workspace())?, libc::O_RDWR, usage)?,
        });
    }
    let (key, twin) = (key()?, filled(&ground.workspace())?);
    attacks.push(Attack {
        name: "a key for reading",
        operation: pass(key.clone(), libc::O_RDONLY, Use::Read)?,
        denial: Denial::by(&["file_receive"]).access("read").path(&key).of_key(),
        twin: pass(twin.clone(), libc::O_RDONLY, Use::Read)?,
    });
    let keys = Place::from(home()).join(".ssh/directory");
    std::fs::create_dir_all(&keys)?;
    give(&keys)?;
    attacks.push(Attack {
        name: "a directory",
        operation: pass(keys.clone(), libc::O_RDONLY | libc::O_DIRECTORY, Use::Nothing)?,
        denial: Denial::by(&["file_receive"]).access("read").path(&keys).of_key(),
        twin: pass(ground.outside(), libc::O_RDONLY | libc::O_DIRECTORY, Use::Nothing)?,
    });
    attacks.push(Attack {
        name: "a device",
        operation: pass("/dev/kmsg".into(), libc::O_RDONLY, Use::Nothing)?,
        denial: Denial::by(&["file_receive"])
            .device("/dev/kmsg", 1, 11)
            .because(Why::Reason(&["device"])),
        twin: pass("/dev/null".into(), libc::O_RDWR, Use::Nothing)?,
    });
    // Only a name: to be read it must be opened again.
    let named = pass(key.clone(), libc::O_PATH, Use::Nothing)?;
    if !is_root() {
        // Of the suite, which is root's, an ordinary user can take nothing.
        return Ok(attacks);
    }
    attacks.push(Attack {
        name: "pidfd_getfd",
        operation: taken(&key)?,
        denial: Denial::by(&["ptrace_access_check"])
            .any_object()
            .because(Why::Reason(&["outsider"])),
        twin: named,
    });
    Ok(attacks)
}

/// From the suite itself, which keeps the file open for as long as it lives.
fn taken(path: &Place) -> anyhow::Result<Operation> {
    let number = File::open(path).with_context(|| format!("opening {path}"))?.into_raw_fd();
    let pid = i32::try_from(std::process::id())?;
    Ok(Operation::UseTaken { pid, number, usage: Use::Read })
}

fn member() -> anyhow::Result<()> {
    member_changes_nothing("passing", policy, attacks)
}

fn bystander() -> anyhow::Result<()> {
    bystander_is_free_beside_a_session("passing-bystander", attacks)
}

/// A socket made outside is judged by nobody else: the cgroup programs follow the socket's cgroup.
fn sockets() -> anyhow::Result<()> {
    let ground = Ground::new("passing-sockets")?;
    let attack = |name, from| Attack {
        name,
        operation: Operation::UseReceived { from, usage: Use::Nothing },
        denial: Denial::by(&["file_receive"])
            .access("connect")
            .task()
            .because(Why::Reason(&["foreign"])),
        twin: Operation::PassOwn { path: "/dev/null".into(), flags: libc::O_RDWR },
    };
    let attacks = [
        attack("TCP", giver(&ground, || TcpListener::bind("127.0.0.1:0"))?),
        attack("UDP", giver(&ground, || UdpSocket::bind("127.0.0.1:0"))?),
        attack("UDP over IPv6", giver(&ground, || UdpSocket::bind("[::1]:0"))?),
        attack("unix", giver(&ground, || UnixStream::pair().map(|(one, _)| one))?),
    ];
    let mut session = Session::start(&ground, &policy(&ground))?;
    member_is_refused(&mut session, &attacks)?;
    bystander_is_free(&attacks, &[])?;
    session.finish()
}

fn own() -> anyhow::Result<()> {
    let ground = Ground::new("passing-own")?;
    let inside = ground.file(&ground.workspace())?;
    let outside = ground.file(&ground.outside())?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    for (path, flags) in [(inside, libc::O_RDWR), (outside, libc::O_RDONLY)] {
        session.allowed("from member to member", &Operation::PassOwn { path, flags })?;
    }
    session.finish()
}

/// The standard streams are the user's choice, but what they are open for is not more than that.
fn inherited() -> anyhow::Result<()> {
    let stores = [Use::MapShared, Use::MapThenProtect];
    let code = [Use::MapExecutable, Use::ProtectExecutable, Use::MapReadImpliesExec];
    let hooks = &["mmap_file", "file_mprotect"];
    for (usages, is_code) in [(&stores[..], false), (&code[..], true)] {
        let ground = Ground::new("inherited")?;
        let victim = if is_code { key()? } else { ground.file(&ground.outside())? };
        let twin = ground.file(&ground.workspace())?;
        let denial = if is_code {
            Denial::by(hooks).access("read").path(&victim).of_key()
        } else {
            Denial::by(hooks).access("write").path(&victim)
        };
        let flags = if is_code { libc::O_RDONLY } else { libc::O_RDWR };
        let errors = open(&victim, flags)?;
        let mut session = Runner::new(&ground, &Policy::preset())?.errors(errors).open()?;
        let number = 2;
        let before = std::fs::read(&victim)?;
        for &usage in usages {
            let attack = Operation::UseInherited { number, usage };
            session.refused(&format!("{usage:?}"), &attack, &denial)?;
            if std::fs::read(&victim)? != before {
                session.problem(format!("{usage:?} changed {victim}"));
            }
            let twin = Operation::UseFile { path: twin.clone(), flags: libc::O_RDWR, usage };
            session.allowed(&format!("{usage:?} (harmless twin)"), &twin)?;
            let free = Operation::UseFile { path: victim.clone(), flags, usage };
            let answer = Bystander::new()?.perform(&free)?;
            if answer.errno != 0 {
                session.problem(format!("{usage:?} by a bystander: {answer}"));
            }
            if !is_code {
                std::fs::write(&victim, &before)?;
            }
        }
        session.finish()?;
    }
    Ok(())
}
