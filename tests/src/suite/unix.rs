//! A member asks no service of the machine over its unix socket, unless a rule names it.

use crate::harness::{Bystander, Denial, Ground, Policy, Runner, Session, trial};
use crate::probe::{Operation, Place, UnixName};
use anyhow::Context as _;
use libtest_mimic::Trial;
use std::os::unix::net::{UnixDatagram, UnixListener};

pub(super) const ROWS: &[(&str, &str)] = &[
    ("A81", "unix::services_are_out_of_reach"),
    ("D4.68", "unix::a_word_opens_a_service_where_the_variables_say"),
    ("D4.68", "unix::services_are_out_of_reach"),
    ("D4.72", "unix::services_are_out_of_reach"),
    ("D4.73", "unix::services_are_out_of_reach"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("unix::services_are_out_of_reach", out_of_reach),
        trial("unix::own_and_named_sockets_work", within_reach),
        trial("unix::a_socket_keeps_its_verdict_under_other_names", other_names),
        trial("unix::a_word_opens_a_service_where_the_variables_say", services),
    ]
}

/// A service of the machine: both kinds of socket at a place, and what reached them.
struct Service {
    stream: UnixListener,
    datagram: UnixDatagram,
    stream_name: UnixName,
    datagram_name: UnixName,
}

impl Service {
    fn at(place: &Place) -> anyhow::Result<Self> {
        let name = |kind: &str| UnixName::Path(place.join(kind));
        Self::with(name("stream"), name("datagram"))
    }

    fn hidden(name: &str) -> anyhow::Result<Self> {
        let name = |kind: &str| UnixName::Abstract(format!("{name}-{kind}"));
        Self::with(name("stream"), name("dgram"))
    }

    fn with(stream_name: UnixName, datagram_name: UnixName) -> anyhow::Result<Self> {
        let stream = UnixListener::bind_addr(&stream_name.address()?).context("binding")?;
        let datagram = UnixDatagram::bind_addr(&datagram_name.address()?).context("binding")?;
        stream.set_nonblocking(true)?;
        datagram.set_nonblocking(true)?;
        Ok(Self { stream, datagram, stream_name, datagram_name })
    }

    /// Every way to it.
    fn ways(&self) -> [Operation; 3] {
        let (stream, datagram) = (self.stream_name.clone(), self.datagram_name.clone());
        [
            Operation::UnixStream { to: stream },
            Operation::UnixDatagram { to: datagram.clone() },
            Operation::UnixConnected { to: datagram },
        ]
    }

    /// What refuses each way to it, for want of a rule.
    fn denials(&self) -> [Denial; 3] {
        [&self.stream_name, &self.datagram_name, &self.datagram_name].map(|name| {
            let denial = Denial::by(HOOKS).access("connect");
            match name {
                UnixName::Path(place) => denial.path(place.clone()).error(libc::EACCES),
                UnixName::Abstract(name) => denial.abstract_name(name).error(libc::EPERM),
            }
        })
    }

    /// A member reaches it in no way.
    fn is_closed(&self, session: &mut Session, what: &str) -> anyhow::Result<()> {
        for (way, denial) in self.ways().iter().zip(self.denials()) {
            session.refused(what, way, &denial)?;
        }
        if self.arrived() > 0 {
            session.problem(format!("{what}: something reached {:?}", self.stream_name));
        }
        Ok(())
    }

    /// A member reaches it in every way.
    fn is_open(&self, session: &mut Session, what: &str) -> anyhow::Result<()> {
        for way in self.ways() {
            session.allowed(what, &way)?;
        }
        if self.arrived() != 3 {
            session.problem(format!("{what}: not everything reached {:?}", self.stream_name));
        }
        Ok(())
    }

    /// How many attempts have arrived since the last question.
    fn arrived(&self) -> usize {
        let connections = std::iter::from_fn(|| self.stream.accept().ok()).count();
        let mut bytes = [0; 64];
        connections + std::iter::from_fn(|| self.datagram.recv(&mut bytes).ok()).count()
    }
}

const HOOKS: &[&str] = &["unix_stream_connect", "unix_may_send"];

fn out_of_reach() -> anyhow::Result<()> {
    let ground = Ground::new("unix")?;
    let outside = ground.directory(&ground.outside())?;
    let services = [Service::at(&outside)?, Service::hidden("unix-hidden")?];
    let mut session = Session::start(&ground, &Policy::preset())?;
    for service in &services {
        service.is_closed(&mut session, "a service")?;
    }
    // The harmless twin, while the session runs.
    let mut bystander = Bystander::new()?;
    for service in &services {
        for way in service.ways() {
            let answer = bystander.perform(&way)?;
            if answer.errno != 0 {
                session.problem(format!("a bystander was hindered: {answer}"));
            }
        }
        if service.arrived() != 3 {
            session.problem("the bystander did not reach the service");
        }
    }
    session.finish()
}

fn within_reach() -> anyhow::Result<()> {
    let ground = Ground::new("unix-own")?;
    let outside = ground.directory(&ground.outside())?;
    let inside = ground.directory(&ground.workspace())?;
    let (named, beside) = (Service::at(&outside)?, Service::at(&inside)?);
    // As long as a name can be, and others of which it is the beginning or that differ at the end.
    let long = "n".repeat(100);
    let hidden = Service::hidden(&long)?;
    let others = [
        Service::hidden(&long[..99])?,
        Service::with(
            UnixName::Abstract(format!("{long}-strea")),
            UnixName::Abstract(format!("{long}-str\0")),
        )?,
    ];
    let denied = Service::hidden("unix-denied")?;
    let policy = Policy::preset()
        .with("network.unix.allow", outside.to_string())
        .with("network.unix.allow", format!("@{long}-stream"))
        .with("network.unix.allow", format!("@{long}-dgram"))
        .with("network.unix.allow", "@unix-denied-stream")
        .with("network.unix.allow", "@unix-denied-dgram")
        .with("network.unix.deny", "@unix-denied-dgram");
    let mut session = Session::start(&ground, &policy)?;
    for service in [&named, &beside, &hidden] {
        service
            .is_open(&mut session, "a socket that a rule names or that lies in the workspace")?;
    }
    for other in &others {
        other.is_closed(&mut session, "nearly the name of a rule")?;
    }
    let [stream, sent, connected] = denied.ways();
    session.allowed("a name that is allowed", &stream)?;
    for way in [sent, connected] {
        let denial = Denial::by(HOOKS)
            .access("connect")
            .abstract_name("unix-denied-dgram")
            .rule("network.unix.deny", "@unix-denied-dgram")
            .error(libc::EPERM);
        session.refused("a name that is allowed and denied", &way, &denial)?;
    }
    for at in [
        UnixName::Path(ground.workspace().join("own")),
        UnixName::Abstract("unix-own-of-the-session".into()),
    ] {
        session.allowed("a socket of its own", &Operation::UnixOwn { at })?;
    }
    session.finish()
}

/// A socket is judged by where it was bound and lies now, not by the name that leads to it; no member brings it
/// to another place.
fn other_names() -> anyhow::Result<()> {
    let ground = Ground::new("unix-names")?;
    let outside = ground.directory(&ground.outside())?;
    let allowed = ground.directory(&ground.outside())?;
    let (workspace, inside) = (ground.workspace(), ground.directory(&ground.workspace())?);
    let (service, mine) = (Service::at(&outside)?, Service::at(&inside)?);
    // Names that somebody else gave it: in the workspace, and where a rule allows.
    let linked = workspace.join("linked");
    std::fs::hard_link(outside.join("stream").path(), linked.path())?;
    std::fs::hard_link(outside.join("datagram").path(), allowed.join("linked").path())?;
    let led = ground.symlink(&outside.join("stream"), &workspace)?;
    let policy = Policy::preset()
        .with("network.unix.allow", allowed.to_string())
        .with("network.unix.deny", inside.join("closed").to_string());
    let mut session = Session::start(&ground, &policy)?;
    let denial = |name: &str| {
        Denial::by(HOOKS).access("connect").path(outside.join(name)).error(libc::EACCES)
    };
    for (what, name, at) in [
        ("a link in the workspace", "stream", linked),
        ("a symbolic link in the workspace", "stream", led),
    ] {
        session.refused(what, &Operation::UnixStream { to: UnixName::Path(at) }, &denial(name))?;
    }
    let at = UnixName::Path(allowed.join("linked"));
    let way = Operation::UnixDatagram { to: at };
    session.refused("a link where a rule allows", &way, &denial("datagram"))?;

    // Bringing it there.
    let rename = |from: Place, to: Place| Operation::Rename { from, to, flags: 0 };
    for (what, operation, hook) in [
        ("onto an allowed name", rename(outside.join("stream"), allowed.join("x")), "path_rename"),
        ("into the workspace", rename(outside.join("stream"), workspace.join("x")), "path_rename"),
        (
            "a link in the workspace",
            Operation::Link { from: outside.join("stream"), to: workspace.join("x") },
            "path_link",
        ),
    ] {
        session.refused(what, &operation, &Denial::by(&[hook]))?;
    }
    service.is_closed(&mut session, "after all that")?;

    // In a place that the agent may write it is the agent's as everything there.
    session.allowed("its own place", &rename(inside.join("stream"), inside.join("other")))?;
    let way = Operation::UnixStream { to: UnixName::Path(inside.join("other")) };
    session.allowed("a socket in the workspace under another name", &way)?;
    if mine.arrived() != 1 {
        session.problem("nothing reached the socket in the workspace");
    }
    if service.arrived() > 0 {
        session.problem("something reached the service");
    }
    session.finish()
}

fn services() -> anyhow::Result<()> {
    let ground = Ground::new("unix-services")?;
    let (agent, engine) =
        (ground.directory(&ground.outside())?, ground.directory(&ground.outside())?);
    let (agent_service, docker) = (Service::at(&agent)?, Service::at(&engine)?);
    let bus = Service::hidden("unix-bus")?;
    let policy = Policy::preset()
        .with("network.unix.allow", "ssh-agent")
        .with("network.unix.allow", "dbus-session");
    let runner = Runner::new(&ground, &policy)?
        .variable("SSH_AUTH_SOCK", agent.join("stream").to_string())
        .variable("DOCKER_HOST", format!("unix://{engine}/stream"))
        .variable("DBUS_SESSION_BUS_ADDRESS", "unix:abstract=unix-bus-stream,guid=00");
    let mut session = runner.open()?;
    session.allowed("the ssh-agent", &agent_service.ways()[0])?;
    session.allowed("the bus", &bus.ways()[0])?;
    if (agent_service.arrived(), bus.arrived()) != (1, 1) {
        session.problem("the ssh-agent or the bus was not reached");
    }
    docker.is_closed(&mut session, "a service that the policy does not name")?;
    for (service, way) in [(&agent_service, 1), (&bus, 2)] {
        let denial = &service.denials()[way];
        session.refused("another socket beside it", &service.ways()[way], denial)?;
    }
    session.finish()
}
