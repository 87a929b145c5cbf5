//! A member asks no service of the machine over its unix socket, unless a rule names it.

use crate::harness::{Bystander, Denial, Ground, Policy, Session, Why, trial};
use crate::probe::{Operation, Place, UnixName};
use anyhow::Context as _;
use libtest_mimic::Trial;
use std::os::unix::net::{UnixDatagram, UnixListener};

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("unix::services_are_out_of_reach", out_of_reach),
        trial("unix::own_and_named_sockets_work", within_reach),
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
        Self::with(name("stream"), name("datagram"))
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
    let (service, hidden) = (Service::at(&outside)?, Service::hidden("unix-hidden")?);
    let mut session = Session::start(&ground, &Policy::preset())?;
    for (service, denial) in [
        (&service, Denial::by(HOOKS).access("connect").beneath(&outside)),
        (&hidden, Denial::by(HOOKS).task().because(Why::Reason(&["foreign"])).error(libc::EPERM)),
    ] {
        for way in service.ways() {
            session.refused("a service", &way, &denial)?;
        }
        if service.arrived() > 0 {
            session.problem(format!("something reached {:?}", service.stream_name));
        }
    }
    // The harmless twin, while the session runs.
    let mut bystander = Bystander::new()?;
    for service in [&service, &hidden] {
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
    let policy = Policy::preset().with("network.unix.allow", outside.to_string());
    let mut session = Session::start(&ground, &policy)?;
    for service in [&named, &beside] {
        for way in service.ways() {
            session.allowed("a socket that a rule names or that lies in the workspace", &way)?;
        }
        if service.arrived() != 3 {
            session.problem(format!("not everything reached {:?}", service.stream_name));
        }
    }
    for at in [
        UnixName::Path(ground.workspace().join("own")),
        UnixName::Abstract("unix-own-of-the-session".into()),
    ] {
        session.allowed("a socket of its own", &Operation::UnixOwn { at })?;
    }
    session.finish()
}
