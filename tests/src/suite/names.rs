//! Names: those that the policy allows lead to their addresses, all others to nothing.

use super::network::Service;
use crate::harness::{
    Denial, Ground, PATIENCE, Policy, Session, Stands, Upstream, Why, eventually, trial,
};
use crate::probe::{LookupWay, Operation, UdpWay, add_address};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

pub(super) const ROWS: &[(&str, &str)] = &[
    ("D3.58", "names::allowed_names_open_their_addresses_and_no_other"),
    ("D3.59", "names::every_server_is_the_sessions_resolver"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("names::allowed_names_open_their_addresses_and_no_other", open),
        trial("names::every_server_is_the_sessions_resolver", servers),
        trial("names::a_resolver_that_is_killed_comes_back", killed),
        trial("names::without_names_nothing_is_asked", off),
    ]
}

/// Of networks for documentation (RFC 5737); this machine has them at loopback.
pub(super) const HERE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 5);
pub(super) const THERE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
pub(super) const PORT: u16 = 8443;

pub(super) const A: u16 = 1;
const AAAA: u16 = 28;
pub(super) const REFUSED: u64 = 5;
const NXDOMAIN: u64 = 3;

pub(super) fn world() -> anyhow::Result<Upstream> {
    for (name, address) in [("lo:4", HERE), ("lo:5", THERE)] {
        add_address(name, address).with_context(|| format!("adding {address} to lo"))?;
    }
    let at = |address: Ipv4Addr| Stands::For(vec![address.into()]);
    let many = (1..200).map(|last| IpAddr::from([203, 0, 113, last])).collect();
    Upstream::start(&[
        ("api.example.com", at(HERE)),
        ("www.example.org", Stands::Alias("edge.example.net")),
        ("edge.example.net", at(THERE)),
        ("secret.example.org", at(THERE)),
        ("many.example.org", Stands::For(many)),
        ("inner.example.org", at(Ipv4Addr::new(10, 0, 0, 1))),
        ("home.example.org", at(Ipv4Addr::LOCALHOST)),
        ("forbidden.example.com", at(THERE)),
        ("n9999.example.org", at(HERE)),
        ("both.example.org", at(HERE)),
        ("turns.example.org", Stands::InTurn(vec![HERE.into(), THERE.into()])),
        ("slow.example.org", Stands::Silence),
    ])
}

pub(super) fn policy(upstream: &Upstream) -> Policy {
    Policy::preset()
        .with("network.resolvers", upstream.address.to_string())
        .connect(format!("api.example.com:{PORT}/tcp"))
        .connect(format!("*.example.org:{PORT}"))
        .with("network.deny", "secret.example.org")
}

fn server(text: &str) -> SocketAddr {
    SocketAddr::new(text.parse().unwrap_or(IpAddr::V4(Ipv4Addr::BROADCAST)), 53)
}

pub(super) fn ask(name: &str, kind: u16, way: LookupWay) -> Operation {
    Operation::Lookup { server: server("192.0.2.53"), name: name.into(), kind, way }
}

pub(super) fn tcp(address: Ipv4Addr, port: u16) -> Operation {
    Operation::Tcp { address: (address, port).into() }
}

/// The code and the addresses of an answer.
pub(super) fn answered(
    session: &mut Session,
    name: &str,
    kind: u16,
    way: LookupWay,
) -> anyhow::Result<(u64, Vec<IpAddr>)> {
    let answer = session.allowed(&format!("asking for {name}"), &ask(name, kind, way))?;
    let code = answer.data["code"].as_u64().unwrap_or(u64::MAX);
    let addresses = answer.data["addresses"].clone();
    Ok((code, serde_json::from_value(addresses).unwrap_or_default()))
}

pub(super) fn expect(
    session: &mut Session,
    name: &str,
    kind: u16,
    expected: (u64, &[Ipv4Addr]),
) -> anyhow::Result<()> {
    for way in [LookupWay::Connected, LookupWay::Unconnected, LookupWay::Tcp] {
        let (code, addresses) = answered(session, name, kind, way)?;
        let wanted: Vec<IpAddr> = expected.1.iter().map(|address| (*address).into()).collect();
        if (code, &addresses) != (expected.0, &wanted) {
            session.problem(format!("{name} by {way:?}: code {code}, {addresses:?}"));
        }
    }
    Ok(())
}

/// An event of the resolver about a name.
fn told(session: &Session, name: &str, why: &Why) -> bool {
    let rule = match why {
        Why::Rule(_, text) => Value::from(text.as_str()),
        _ => Value::Null,
    };
    let of_name = |event: &Value| {
        event["hook"] == "resolver"
            && event["object"]["name"] == name
            && (event["rule"]["text"] == rule || (rule.is_null() && event["rule"].is_null()))
    };
    let events = || session.events().denials_of(0).iter().any(of_name).then_some(());
    eventually(PATIENCE / 6, events).is_some()
}

fn open() -> anyhow::Result<()> {
    let ground = Ground::new("names")?;
    let upstream = world()?;
    let mut session = Session::start(&ground, &policy(&upstream))?;
    let (here, beside) = (Service::at((HERE, PORT).into())?, Service::at((HERE, PORT + 1).into())?);
    let there = Service::at((THERE, PORT).into())?;

    // Nobody asked for it yet.
    let denial = |address: Ipv4Addr, port, protocol| {
        Denial::by(&["connect4", "sendmsg4"]).address((address, port).into(), protocol)
    };
    session.refused("before it was asked for", &tcp(HERE, PORT), &denial(HERE, PORT, "tcp"))?;
    expect(&mut session, "api.example.com", A, (0, &[HERE]))?;
    expect(&mut session, "API.Example.com", A, (0, &[HERE]))?;
    expect(&mut session, "api.example.com", AAAA, (0, &[]))?;
    session.allowed("after it was asked for", &tcp(HERE, PORT))?;
    ensure!(eventually(PATIENCE / 6, || here.arrived()).is_some(), "nothing arrived");

    // The rule's port and protocol, and no other; the event knows the name.
    session.refused("another port", &tcp(HERE, PORT + 1), &denial(HERE, PORT + 1, "tcp"))?;
    let udp = Operation::Udp { address: (HERE, PORT).into(), way: UdpWay::Sendto };
    session.refused("another protocol", &udp, &denial(HERE, PORT, "udp"))?;
    let named = |event: &Value| event["object"]["names"][0] == "api.example.com";
    let explained = || {
        let events = session.events().all();
        let hint = format!("api.example.com:{}/tcp", PORT + 1);
        events.iter().any(|event| named(event) && event["hint"]["add"] == hint).then_some(())
    };
    ensure!(eventually(PATIENCE / 6, explained).is_some(), "no event says api.example.com");
    ensure!(beside.arrived().is_none() && here.arrived().is_none(), "something arrived");

    // Beneath a star, by an alias.
    session.refused("before", &tcp(THERE, PORT), &denial(THERE, PORT, "tcp"))?;
    expect(&mut session, "www.example.org", A, (0, &[THERE]))?;
    session.allowed("by an alias", &tcp(THERE, PORT))?;
    let udp = Operation::Udp { address: (THERE, PORT).into(), way: UdpWay::Sendto };
    session.allowed("by an alias", &udp)?;
    ensure!(eventually(PATIENCE / 6, || there.arrived()).is_some(), "nothing arrived");

    // Names that are not allowed, and such as lead where the policy opens nothing.
    for name in ["forbidden.example.com", "edge.example.net", "example.org", "a.b.c.attacker.net"] {
        expect(&mut session, name, A, (REFUSED, &[]))?;
        if !told(&session, name, &Why::Default) {
            session.problem(format!("no event tells of {name}"));
        }
        // The alias's target was not asked for by itself.
        if upstream.asked().iter().any(|asked| asked.trim_end_matches('.') == name) {
            session.problem(format!("{name} was asked for upstream"));
        }
    }
    expect(&mut session, "secret.example.org", A, (REFUSED, &[]))?;
    let why = Why::Rule("network.deny", "secret.example.org".into());
    if !told(&session, "secret.example.org", &why) {
        session.problem("no event names the rule about secret.example.org");
    }
    for name in ["inner.example.org", "home.example.org"] {
        expect(&mut session, name, A, (REFUSED, &[]))?;
        if !told(&session, name, &Why::Default) {
            session.problem(format!("no event tells where {name} leads"));
        }
    }
    expect(&mut session, "none.example.org", A, (NXDOMAIN, &[]))?;

    // Another session has asked for nothing.
    let other_ground = Ground::new("names-other")?;
    let mut other = Session::start(&other_ground, &policy(&upstream))?;
    other.refused("another session", &tcp(HERE, PORT), &denial(HERE, PORT, "tcp"))?;
    other.finish()?;
    session.finish()
}

fn servers() -> anyhow::Result<()> {
    let ground = Ground::new("servers")?;
    let upstream = world()?;
    let mut session = Session::start(&ground, &policy(&upstream))?;
    for text in ["192.0.2.53", "127.0.0.53", "8.8.8.8", "2001:db8::53", "::1", "::ffff:192.0.2.53"]
    {
        for way in [LookupWay::Connected, LookupWay::Unconnected, LookupWay::Tcp] {
            let operation = Operation::Lookup {
                server: server(text),
                name: "api.example.com".into(),
                kind: A,
                way,
            };
            let answer = session.allowed(&format!("asking {text} by {way:?}"), &operation)?;
            if answer.errno == 0 && answer.data["code"] != 0 {
                session.problem(format!("{text} by {way:?}: {answer}"));
            }
        }
    }
    // Too long for a datagram: cut, and whole by TCP.
    let long =
        session.allowed("a long answer", &ask("many.example.org", A, LookupWay::Connected))?;
    ensure!(long.data["cut"] == true, "a long answer is not cut: {long}");
    let (code, addresses) = answered(&mut session, "many.example.org", A, LookupWay::Tcp)?;
    ensure!(code == 0 && addresses.len() == 199, "by TCP: {code}, {}", addresses.len());
    // What is no question stops nobody.
    session.allowed("garbage", &Operation::LookupGarbage { server: server("192.0.2.53") })?;
    expect(&mut session, "api.example.com", A, (0, &[HERE]))?;
    ensure!(session.events().notices("started again").is_empty(), "the resolver died of garbage");
    session.finish()
}

/// The resolvers that run on this machine.
pub(super) fn resolvers() -> anyhow::Result<Vec<i32>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if line.starts_with(b"sandbox-resolver\0") {
            found.push(pid);
        }
    }
    Ok(found)
}

fn killed() -> anyhow::Result<()> {
    let ground = Ground::new("killed")?;
    let upstream = world()?;
    let mut session = Session::start(&ground, &policy(&upstream))?;
    let service = Service::at((HERE, PORT).into())?;
    expect(&mut session, "api.example.com", A, (0, &[HERE]))?;
    let before = resolvers()?;
    ensure!(before.len() == 1, "resolvers: {before:?}");
    for pid in &before {
        let pid = rustix::process::Pid::from_raw(*pid).context("a pid")?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    }
    // What was asked meanwhile waits.
    expect(&mut session, "api.example.com", A, (0, &[HERE]))?;
    expect(&mut session, "forbidden.example.com", A, (REFUSED, &[]))?;
    session.allowed("what was open stays so", &tcp(HERE, PORT))?;
    ensure!(eventually(PATIENCE / 6, || service.arrived()).is_some(), "nothing arrived");
    let notice = || (!session.events().notices("started again").is_empty()).then_some(());
    ensure!(eventually(PATIENCE / 6, notice).is_some(), "no event tells of the death");
    ensure!(resolvers()? != before, "it is the same process");
    session.finish()?;
    ensure!(resolvers()?.is_empty(), "a resolver outlives its session");
    Ok(())
}

fn off() -> anyhow::Result<()> {
    let ground = Ground::new("names-off")?;
    let mut session = Session::start(&ground, &Policy::preset())?;
    let server = server("192.0.2.53");
    for (way, protocol) in
        [(LookupWay::Connected, "udp"), (LookupWay::Unconnected, "udp"), (LookupWay::Tcp, "tcp")]
    {
        let denial = Denial::by(&["connect4", "sendmsg4"]).address(server, protocol);
        session.refused("a question", &ask("data.attacker.example", A, way), &denial)?;
    }
    session.finish()
}
