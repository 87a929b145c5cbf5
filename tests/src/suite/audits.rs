//! What is allowed is noted, of the kinds that the policy names, and of no other.

use super::layers::Managed;
use super::network::{Service, V4, V6};
use crate::harness::{
    Bystander, Denial, Events, Ground, PATIENCE, Policy, Runner, Session, eventually, key, sandbox,
    trial, verb, write,
};
use crate::probe::{Attribute, Call, Operation, Place, UdpWay, UnixName};
use anyhow::{Context as _, bail, ensure};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixListener};

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("audits::each_class_is_noted_and_no_other", classes),
        trial("audits::what_is_denied_is_not_noted_besides", denied),
        trial("audits::a_session_that_only_reports_tells_once", reporting),
        trial("audits::a_flood_of_notes_takes_no_room_from_denials", flood),
        trial("audits::a_change_begins_to_note", change),
        trial("audits::an_administrator_has_it_noted", administrator),
    ]
}

/// What must be noted of one operation: access and object of each event, in turn.
type Noted = Vec<(&'static str, String)>;

/// Something that a member may do.
struct Deed {
    class: &'static str,
    operation: Operation,
    noted: Noted,
}

fn deed(class: &'static str, operation: Operation, noted: &[(&'static str, &Place)]) -> Deed {
    let noted = noted.iter().map(|(access, place)| (*access, place.to_string())).collect();
    Deed { class, operation, noted }
}

/// Services of the machine that the policy opens.
struct Services {
    inet: [Service; 2],
    names: [UnixName; 3],
    _stream: UnixListener,
    datagrams: [UnixDatagram; 2],
}

impl Services {
    fn new(at: &Place) -> anyhow::Result<Self> {
        let names = [
            UnixName::Path(at.join("stream")),
            UnixName::Path(at.join("datagram")),
            UnixName::Abstract("audited".to_owned()),
        ];
        let [stream, datagram, hidden] = &names;
        let stream = UnixListener::bind_addr(&stream.address()?)?;
        let datagrams = [
            UnixDatagram::bind_addr(&datagram.address()?)?,
            UnixDatagram::bind_addr(&hidden.address()?)?,
        ];
        for datagrams in &datagrams {
            datagrams.set_nonblocking(true)?;
        }
        let inet = [Service::new(V4)?, Service::new(V6)?];
        Ok(Self { inet, names, _stream: stream, datagrams })
    }

    /// Takes what has come: senders wait where too much does.
    fn drain(&self) {
        let mut bytes = [0; 64];
        for datagrams in &self.datagrams {
            while datagrams.recv(&mut bytes).is_ok() {}
        }
    }

    fn open(&self, policy: Policy) -> Policy {
        let mut policy = policy.with("network.unix.allow", "@audited");
        for name in &self.names {
            if let UnixName::Path(place) = name {
                policy = policy.with("network.unix.allow", place.to_string());
            }
        }
        self.inet.iter().fold(policy, |policy, service| policy.connect(service.address.to_string()))
    }

    fn deeds(&self) -> Vec<Deed> {
        let mut deeds = Vec::new();
        for service in &self.inet {
            let address = service.address;
            let to = |operation| Deed {
                class: "connect",
                operation,
                noted: vec![("connect", address.to_string())],
            };
            deeds.push(to(Operation::Tcp { address }));
            deeds.extend(
                [UdpWay::Connect, UdpWay::Sendto, UdpWay::Sendmmsg]
                    .map(|way| to(Operation::Udp { address, way })),
            );
        }
        for (name, operation) in [
            (&self.names[0], Operation::UnixStream { to: self.names[0].clone() }),
            (&self.names[1], Operation::UnixDatagram { to: self.names[1].clone() }),
            (&self.names[1], Operation::UnixConnected { to: self.names[1].clone() }),
            (&self.names[2], Operation::UnixDatagram { to: self.names[2].clone() }),
        ] {
            let object = match name {
                UnixName::Path(place) => place.to_string(),
                UnixName::Abstract(name) => name.clone(),
            };
            deeds.push(Deed { class: "connect", operation, noted: vec![("connect", object)] });
        }
        deeds
    }
}

/// A program, and a script that it interprets. They say on standard error alone that they were called wrongly: the
/// standard output is the probe's.
fn programs(workspace: &Place) -> anyhow::Result<Vec<Deed>> {
    let (tool, script) = (workspace.join("tool"), workspace.join("script"));
    std::fs::copy(sandbox(), tool.path())?;
    write(&script, &format!("#!{tool} help\n"))?;
    for path in [&tool, &script] {
        std::fs::set_permissions(path.path(), std::fs::Permissions::from_mode(0o755))?;
    }
    let start =
        |path: &Place| Operation::Start { path: path.clone(), words: Vec::new(), by: Call::Execve };
    Ok(vec![
        deed("exec", start(&tool), &[("execute", &tool)]),
        deed("exec", start(&script), &[("execute", &script), ("execute", &tool)]),
    ])
}

/// Every kind of change, in a directory that has a file.
fn changes(at: &Place) -> anyhow::Result<Vec<Deed>> {
    std::fs::create_dir(at.path())?;
    let file = at.join("file");
    write(&file, "content")?;
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o644))?;
    let name = |name: &str| at.join(name);
    let (new, dir, link, hard, moved) =
        (name("new"), name("dir"), name("link"), name("hard"), name("moved"));
    let open = |path: &Place, flags| Operation::Open { path: path.clone(), flags };
    let of = |operation, noted: &[(&'static str, &Place)]| deed("write", operation, noted);
    Ok(vec![
        of(open(&file, libc::O_RDONLY), &[]),
        of(open(&file, libc::O_WRONLY), &[("write", &file)]),
        of(open(&file, libc::O_RDWR), &[("write", &file)]),
        of(Operation::Truncate { path: file.clone(), length: 1 }, &[("write", &file)]),
        of(Operation::Create { path: new.clone() }, &[("create", &new), ("write", &new)]),
        of(Operation::Mkdir { path: dir.clone() }, &[("create", &dir)]),
        of(Operation::Symlink { target: file.clone(), path: link.clone() }, &[("create", &link)]),
        of(Operation::Link { from: file.clone(), to: hard.clone() }, &[("create", &hard)]),
        of(
            Operation::Rename { from: new.clone(), to: moved.clone(), flags: 0 },
            &[("delete", &new), ("create", &moved)],
        ),
        of(
            Operation::UringRename { from: moved.clone(), to: new.clone() },
            &[("delete", &moved), ("create", &new)],
        ),
        of(Operation::Unlink { path: new.clone() }, &[("delete", &new)]),
        of(Operation::Unlink { path: hard.clone() }, &[("delete", &hard)]),
        of(Operation::Rmdir { path: dir.clone() }, &[("delete", &dir)]),
        of(Operation::Chmod { path: file.clone(), mode: 0o600 }, &[("attributes", &file)]),
        of(
            Operation::Change { path: file.clone(), attribute: Attribute::Times },
            &[("attributes", &file)],
        ),
    ])
}

/// Access and object of an event.
fn said(event: &Value) -> (String, String) {
    let object = &event["object"];
    let text = |name: &str| object[name].as_str().unwrap_or_default().to_owned();
    let shown = match object["kind"].as_str() {
        Some("address") => {
            let ip = text("address").parse().unwrap_or(V4);
            let port = object["port"].as_u64().and_then(|port| u16::try_from(port).ok());
            SocketAddr::new(ip, port.unwrap_or(0)).to_string()
        }
        Some("abstract") => text("name"),
        _ => text("path"),
    };
    let access: Vec<&str> =
        event["access"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    (access.join("+"), shown)
}

/// What a process did is noted so, or not at all.
fn is_noted(session: &mut Session, pid: i32, class: &str, noted: &Noted, what: &Operation) {
    let events = session.events().clone();
    let enough = || (events.audits_of(pid).len() >= noted.len()).then_some(());
    let _ = eventually(PATIENCE, enough);
    let found = events.audits_of(pid);
    let wanted: Vec<_> =
        noted.iter().map(|(access, object)| ((*access).to_owned(), object.clone())).collect();
    let of_class = found.iter().all(|event| event["class"] == class && event["verdict"].is_null());
    let whole = found.iter().all(|event| {
        let texts = ["time", "comm", "message", "session", "hook"];
        texts.iter().all(|name| event[*name].as_str().is_some_and(|text| !text.is_empty()))
    });
    if !of_class || !whole || found.iter().map(said).collect::<Vec<_>>() != wanted {
        session.problem(format!("{what:?} must be noted as {class} {wanted:?}, and is {found:#?}"));
    }
}

/// One session a class, in which all is done; and a bystander does it too.
fn classes() -> anyhow::Result<()> {
    let ground = Ground::new("audits")?;
    let services = Services::new(&ground.directory(&ground.outside())?)?;
    let each: [&'static [&'static str]; 3] = [&["exec"], &["connect"], &["write"]];
    for class in each {
        let policy = services.open(Policy::preset()).audit(class);
        let runner = Runner::named(&ground, &policy, class[0])?;
        let mut session = runner.open()?;
        let mut bystander = Bystander::new()?;
        let deeds = |who: &str| -> anyhow::Result<Vec<Deed>> {
            let mut deeds = programs(&ground.workspace())?;
            deeds.extend(services.deeds());
            deeds.extend(changes(&ground.workspace().join(format!("{who}-{}", class[0])))?);
            Ok(deeds)
        };
        let mut silent = Vec::new();
        for deed in deeds("bystander")? {
            let answer = bystander.perform(&deed.operation)?;
            ensure!(answer.errno == 0, "a bystander is hindered: {answer} {:?}", deed.operation);
            silent.push(answer.pid);
        }
        services.drain();
        // The others first: what of them would be noted is before what is waited for.
        let (own, others): (Vec<Deed>, Vec<Deed>) =
            deeds("member")?.into_iter().partition(|deed| deed.class == class[0]);
        for deed in others {
            silent.push(session.allowed("of another class", &deed.operation)?.pid);
        }
        for Deed { class, operation, noted } in own {
            let answer = session.allowed("of the class", &operation)?;
            is_noted(&mut session, answer.pid, class, &noted, &operation);
        }
        for pid in silent {
            let found = session.events().audits_of(pid);
            if !found.is_empty() {
                session.problem(format!("{class:?}: noted of another: {found:#?}"));
            }
        }
        services.drain();
        let events = session.events().clone();
        session.finish().with_context(|| format!("{class:?}"))?;
        let ended = events.state("ended", PATIENCE).context("no end")?;
        let told = events.all().iter().filter(|event| event["type"] == "audit").count();
        ensure!(ended["audits"] == told && ended["audits_lost"].is_null(), "{told}: {ended}");
        ensure!(ended["denials"] == 0, "nothing was denied: {ended}");
    }
    Ok(())
}

fn all() -> Policy {
    Policy::preset().audit(&["exec", "connect", "write"])
}

fn open(path: &Place, flags: i32) -> Operation {
    Operation::Open { path: path.clone(), flags }
}

fn denied() -> anyhow::Result<()> {
    let ground = Ground::new("audits-denied")?;
    let (outside, file) = (ground.outside(), ground.file(&ground.workspace())?);
    let (key, closed) = (key()?, ground.file(&outside)?);
    let service = Service::new(V4)?;
    let tool = ground.workspace().join("tool");
    std::fs::copy(sandbox(), tool.path())?;
    let policy = all().with("files.exec.deny", tool.to_string());
    let mut session = Session::start(&ground, &policy)?;
    let start = Operation::Start { path: tool.clone(), words: Vec::new(), by: Call::Execve };
    let away = ground.absent(&outside);
    let address = service.address;
    let connect = Denial::by(&super::network::HOOKS).access("connect").address(address, "tcp");
    let rename = Operation::Rename { from: file.clone(), to: away.clone(), flags: 0 };
    for (operation, denial) in [
        (open(&closed, libc::O_WRONLY), Denial::write(&closed)),
        (Operation::Unlink { path: closed.clone() }, Denial::by(&["path_unlink"]).path(&closed)),
        (rename, Denial::by(&["path_rename"]).path(&away)),
        (Operation::Tcp { address }, connect),
        (start, Denial::by(&["file_open"]).rule("files.exec.deny", tool.to_string())),
        (open(&key, libc::O_RDONLY), Denial::read(&key).of_key()),
    ] {
        let pid = session.refused("denied", &operation, &denial)?.pid;
        // Something that is noted, behind it on the same ring.
        let after = session.allowed("noted", &open(&file, libc::O_WRONLY))?.pid;
        is_noted(&mut session, after, "write", &vec![("write", file.to_string())], &operation);
        let found = session.events().audits_of(pid);
        if !found.is_empty() {
            session.problem(format!("{operation:?} is denied and noted: {found:#?}"));
        }
    }
    session.finish()
}

/// What would be denied passes, and is told of as that alone.
fn reporting() -> anyhow::Result<()> {
    let ground = Ground::new("audits-reporting")?;
    let (file, closed) = (ground.file(&ground.workspace())?, ground.file(&ground.outside())?);
    let runner = Runner::new(&ground, &all())?;
    let text = format!("mode = \"audit\"\n{}", std::fs::read_to_string(&runner.policy)?);
    std::fs::write(&runner.policy, text)?;
    let mut session = runner.open()?;
    let pid = session.perform(&open(&closed, libc::O_WRONLY))?.pid;
    let after = session.allowed("allowed", &open(&file, libc::O_WRONLY))?.pid;
    let noted = vec![("write", file.to_string())];
    is_noted(&mut session, after, "write", &noted, &open(&file, libc::O_WRONLY));
    let events = session.events().clone();
    let told = eventually(PATIENCE, || events.denials_of(pid).pop());
    ensure!(told.is_some_and(|denial| denial["verdict"] == "audited"), "{}", events.tail(8));
    ensure!(events.audits_of(pid).is_empty(), "told twice: {}", events.tail(8));
    session.finish()
}

/// More than can be told, while nobody reads, and one denial that matters.
const FLOOD: u32 = 10_000;

fn flood() -> anyhow::Result<()> {
    let ground = Ground::new("audits-flood")?;
    let (key, file) = (key()?, ground.file(&ground.workspace())?);
    let mut session = Session::start(&ground, &Policy::preset().audit(&["write"]))?;
    let events = session.events().clone();
    let keeper = Pid::from_child(session.keeper());
    kill_process(keeper, Signal::STOP)?;
    let flooded = session.perform(&Operation::Flood {
        path: file.clone(),
        flags: libc::O_WRONLY,
        times: FLOOD,
    });
    let denied = session.perform(&open(&key, libc::O_RDONLY));
    kill_process(keeper, Signal::CONT)?;
    let (flooded, denied) = (flooded?, denied?);
    ensure!(flooded.data == FLOOD, "the flood was hindered: {flooded}");
    ensure!(denied.errno == libc::EACCES, "the key was not denied: {denied}");
    session.explained("in the flood", denied.pid, &Denial::read(&key).of_key());
    session.finish()?;
    let ended = events.state("ended", PATIENCE).context("no end")?;
    let told = events.audits_of(flooded.pid).len() as u64;
    let lost = ended["audits_lost"].as_u64().context("no losses are told")?;
    ensure!(ended["lost"] == 0 && ended["denials"] == 1, "a denial was lost: {ended}");
    ensure!(told > 0 && told + lost == u64::from(FLOOD), "{told} told, {lost} lost: {ended}");
    ensure!(
        events.notices(&format!("{lost} allowed operations were not noted")).len() == 1,
        "{ended}"
    );
    Ok(())
}

/// Whether an open for writing comes to be noted, and was not before.
fn begins(
    session: &mut Session,
    events: &Events,
    file: &Place,
    papers: &std::path::Path,
    policy: &str,
) -> anyhow::Result<()> {
    let write = open(file, libc::O_WRONLY);
    let before = session.allowed("before", &write)?.pid;
    let set = verb(papers, &["policy", "set", policy])?;
    ensure!(set.code() == Some(0), "{}", set.report());
    let after = session.allowed("after", &write)?.pid;
    is_noted(session, after, "write", &vec![("write", file.to_string())], &write);
    ensure!(events.audits_of(before).is_empty(), "noted before the change: {}", events.tail(8));
    Ok(())
}

fn change() -> anyhow::Result<()> {
    let ground = Ground::new("audits-change")?;
    let file = ground.file(&ground.workspace())?;
    let papers = ground.papers("change");
    std::fs::create_dir_all(&papers)?;
    let policy = |name: &str, text: &str| -> anyhow::Result<String> {
        let path = papers.join(name);
        std::fs::write(&path, format!("version = 1\n{text}extends = [\"default\"]\n"))?;
        Ok(path.display().to_string())
    };
    let noting = policy("noting.toml", "audit = [\"write\"]\n")?;
    let silent = policy("silent.toml", "")?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let events = session.events().clone();
    begins(&mut session, &events, &file, &papers, &noting)?;
    // It ends as well, and begins again.
    let set = verb(&papers, &["policy", "set", &silent])?;
    ensure!(set.code() == Some(0), "{}", set.report());
    begins(&mut session, &events, &file, &papers, &noting)?;
    session.finish()
}

/// The administrator's file alone says it, and a session's own policy takes nothing away.
fn administrator() -> anyhow::Result<()> {
    let ground = Ground::new("audits-managed")?;
    let file = ground.file(&ground.workspace())?;
    let _managed = Managed::put("10-site.toml", "version = 1\naudit = [\"write\"]\n")?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let write = open(&file, libc::O_WRONLY);
    let pid = session.allowed("a write", &write)?.pid;
    is_noted(&mut session, pid, "write", &vec![("write", file.to_string())], &write);
    let papers = ground.papers("show");
    let workspace = ground.workspace().to_string();
    let shown = verb(&papers, &["policy", "show", "--effective", "--workspace", &workspace])?;
    let line = shown.out.lines().find(|line| line.starts_with("audit "));
    match line {
        Some(line) if line.contains("\"write\"") && line.contains("10-site.toml") => {}
        _ => bail!("the effective policy does not say it: {}", shown.report()),
    }
    session.finish()
}
