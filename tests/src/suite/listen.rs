//! Whom others may reach, and whom a session may reach on its own machine: itself.

use crate::harness::{
    Bystander, Denial, Ground, PATIENCE, Policy, Session, Why, eventually, trial,
};
use crate::probe::Operation;
use libtest_mimic::Trial;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};

pub(super) const ROWS: &[(&str, &str)] = &[
    ("D3.65", "listen::a_session_reaches_itself_and_no_other"),
    ("D3.66", "listen::others_reach_a_session_by_rule_only"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("listen::others_reach_a_session_by_rule_only", by_rule),
        trial("listen::a_session_reaches_itself_and_no_other", itself),
    ]
}

const ANY4: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
const ANY6: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
const MAPPED: IpAddr = IpAddr::V6(Ipv4Addr::LOCALHOST.to_ipv6_mapped());

fn bind(ip: IpAddr, port: u16, udp: bool) -> Operation {
    Operation::Bind { address: (ip, port).into(), udp }
}

fn listen(ip: IpAddr, port: u16) -> Operation {
    Operation::Listen { address: (ip, port).into(), unbound: false }
}

fn by_rule() -> anyhow::Result<()> {
    let ground = Ground::new("listen")?;
    let policy = Policy::preset()
        .with("network.listen", "0.0.0.0:7000-7010/tcp")
        .with("network.listen", "[::]:7000")
        .with("network.listen", "127.0.0.1:7020/udp")
        .connect("0.0.0.0/0");
    let mut session = Session::start(&ground, &policy)?;
    let mut bystander = Bystander::new()?;
    let unbound = |ip: IpAddr| Operation::Listen { address: (ip, 0).into(), unbound: true };
    for (operation, hook, protocol) in [
        (bind(ANY4, 7011, false), "bind4", "tcp"),
        (bind(ANY4, 7000, true), "bind4", "udp"),
        (bind(ANY6, 7001, false), "bind6", "tcp"),
        (bind("::ffff:0.0.0.0".parse()?, 7011, false), "bind6", "tcp"),
        (listen(ANY4, 7999), "bind4", "tcp"),
        // A port that the kernel chooses is free to be bound, but not to be listened at.
        (listen(ANY4, 0), "socket_listen", "tcp"),
        (listen(ANY6, 0), "socket_listen", "tcp"),
        (unbound(ANY4), "socket_listen", "tcp"),
        (unbound(ANY6), "socket_listen", "tcp"),
    ] {
        let denial = Denial::by(&[hook]).access("listen").error(libc::EPERM);
        let name = format!("{operation:?} ({protocol})");
        session.refused(&name, &operation, &denial)?;
        let answer = bystander.perform(&operation)?;
        if answer.errno != 0 {
            session.problem(format!("{name}: a bystander was hindered: {answer}"));
        }
    }
    for operation in [
        listen(ANY4, 7000),
        listen(ANY4, 7010),
        listen("::ffff:0.0.0.0".parse()?, 7005),
        listen(ANY6, 7000),
        bind(ANY6, 7000, true),
        bind(ANY4, 0, true),
        bind(ANY6, 0, true),
        bind(ANY4, 0, false),
        listen(V4, 0),
        listen(V4, 7999),
        listen(V6, 7999),
        listen(MAPPED, 7998),
        listen("127.9.9.9".parse()?, 7999),
    ] {
        session.allowed("listening by rule, or at loopback", &operation)?;
    }
    session.finish()
}

fn itself() -> anyhow::Result<()> {
    let ground = Ground::new("itself")?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    for operation in [
        Operation::OwnTcp { at: V4, to: V4 },
        Operation::OwnTcp { at: V4, to: ANY4 },
        Operation::OwnTcp { at: V4, to: MAPPED },
        Operation::OwnTcp { at: "127.7.7.7".parse()?, to: "127.7.7.7".parse()? },
        Operation::OwnTcp { at: V6, to: V6 },
        Operation::OwnTcp { at: V6, to: ANY6 },
        Operation::OwnUdp { at: V4 },
        Operation::OwnUdp { at: V6 },
    ] {
        session.allowed("the session itself", &operation)?;
    }
    // A service that comes to where the session listened a moment before. No address of its own is
    // there any more when the member connects, for the suite takes it as soon as it is free.
    for ip in [V4, V6] {
        let address: SocketAddr = TcpListener::bind((ip, 0))?.local_addr()?;
        let service = eventually(PATIENCE, || TcpListener::bind(address).ok());
        let Some(service) = service else { anyhow::bail!("{address} is not free") };
        service.set_nonblocking(true)?;
        let hooks: &[&str] = if ip.is_ipv4() { &["connect4"] } else { &["connect6"] };
        let denial = Denial::by(hooks).access("connect").address(address, "tcp");
        session.refused("a service of the machine", &Operation::Tcp { address }, &denial)?;
        if service.accept().is_ok() {
            session.problem("a connection arrived at a service of the machine");
        }
    }
    // Its own listener is gone when `connect` looks: what is left is nobody.
    let address: SocketAddr = TcpListener::bind((V4, 0))?.local_addr()?;
    let denial = Denial::by(&["connect4"]).because(Why::Default);
    session.refused("where it listened before", &Operation::AfterOwn { address }, &denial)?;
    // Of two sessions neither reaches what the other listens at.
    let other_ground = Ground::new("itself-other")?;
    let mut other = Session::start(&other_ground, &Policy::preset())?;
    let port = held(&mut other)?;
    let address: SocketAddr = (V4, port).into();
    let denial = Denial::by(&["connect4"]).access("connect").address(address, "tcp");
    session.refused("another session", &Operation::Tcp { address }, &denial)?;
    // The bystander proves that it listens.
    if TcpStream::connect(address).is_err() {
        session.problem("nobody listens in the other session");
    }
    other.finish()?;
    session.finish()
}

/// The port of a listener that a session keeps.
fn held(session: &mut Session) -> anyhow::Result<u16> {
    let answer = session.allowed("listening on", &Operation::ListenOn { ip: V4 })?;
    answer
        .data
        .as_u64()
        .and_then(|port| u16::try_from(port).ok())
        .ok_or_else(|| anyhow::anyhow!("the member gave no port: {answer}"))
}
