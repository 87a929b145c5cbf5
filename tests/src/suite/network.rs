//! The allow-list is the only way to the network.

use crate::harness::{
    Attack, Bystander, Denial, Ground, PATIENCE, Policy, Session, Why, eventually, trial,
};
use crate::probe::{Operation, UdpWay, add_address};
use anyhow::{Context as _, bail};
use libtest_mimic::Trial;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

pub(super) const ROWS: &[(&str, &str)] = &[
    ("A65", "network::nothing_reaches_an_address_without_a_rule"),
    ("A66", "network::nothing_reaches_an_address_without_a_rule"),
    ("A67", "network::nothing_reaches_an_address_without_a_rule"),
    ("A68", "network::nothing_reaches_an_address_without_a_rule"),
    ("A69", "network::nothing_reaches_an_address_without_a_rule"),
    ("A70", "network::nothing_reaches_an_address_without_a_rule"),
    ("A71", "network::nothing_reaches_an_address_without_a_rule"),
    ("A82", "network::nothing_reaches_an_address_without_a_rule"),
    ("D3.48", "network::nothing_reaches_an_address_without_a_rule"),
    ("D3.50", "network::nothing_reaches_an_address_without_a_rule"),
    ("D3.48", "network::denials_lie_within_what_is_allowed"),
    ("A83", "network::packets_go_where_their_socket_connected_to"),
];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("network::nothing_reaches_an_address_without_a_rule", member),
        trial("network::bystander_reaches_it_in_every_way", bystander),
        trial("network::protocol_address_and_ports_count", narrow),
        trial("network::port_ranges_end_where_they_say", ranges),
        trial("network::denials_lie_within_what_is_allowed", denials),
        trial("network::packets_go_where_their_socket_connected_to", ways_by),
    ]
}

pub(super) const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub(super) const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
pub(super) const HOOKS: [&str; 4] = ["connect4", "connect6", "sendmsg4", "sendmsg6"];

/// Somebody outside who listens on one address and port, with both protocols.
pub(super) struct Service {
    tcp: TcpListener,
    udp: UdpSocket,
    pub(super) address: SocketAddr,
}

impl Service {
    pub(super) fn new(ip: IpAddr) -> anyhow::Result<Self> {
        // The port that one protocol got may be taken in the other.
        for _ in 0..16 {
            let udp = UdpSocket::bind((ip, 0)).with_context(|| format!("listening on {ip}"))?;
            if let Ok(tcp) = TcpListener::bind(udp.local_addr()?) {
                return Self::of(tcp, udp);
            }
        }
        bail!("no port of {ip} is free for both protocols")
    }

    pub(super) fn at(address: SocketAddr) -> anyhow::Result<Self> {
        let wanted = || format!("listening on {address}");
        let tcp = TcpListener::bind(address).with_context(wanted)?;
        Self::of(tcp, UdpSocket::bind(address).with_context(wanted)?)
    }

    fn of(tcp: TcpListener, udp: UdpSocket) -> anyhow::Result<Self> {
        tcp.set_nonblocking(true)?;
        udp.set_nonblocking(true)?;
        let address = tcp.local_addr()?;
        Ok(Self { tcp, udp, address })
    }

    /// What arrived since the last question.
    pub(super) fn arrived(&self) -> Option<&'static str> {
        let mut buffer = [0; 64];
        if self.tcp.accept().is_ok() {
            return Some("a TCP connection");
        }
        self.udp.recv_from(&mut buffer).is_ok().then_some("a datagram")
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }
}

/// An IPv4 address in the form `::ffff:a.b.c.d`.
pub(super) fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => (ip.to_ipv6_mapped(), address.port()).into(),
        IpAddr::V6(_) => address,
    }
}

/// Every way to send something to the address.
pub(super) fn ways(address: SocketAddr) -> Vec<(&'static str, &'static str, Operation)> {
    let udp = |way| Operation::Udp { address, way };
    let mut ways = vec![
        ("TCP", "tcp", Operation::Tcp { address }),
        ("TCP fast open", "tcp", Operation::TcpFastOpen { address }),
        ("TCP through io_uring", "tcp", Operation::UringTcp { address }),
        ("connected UDP", "udp", udp(UdpWay::Connect)),
        ("UDP sendto", "udp", udp(UdpWay::Sendto)),
        ("UDP sendmsg", "udp", udp(UdpWay::Sendmsg)),
        ("UDP sendmmsg", "udp", udp(UdpWay::Sendmmsg)),
    ];
    if address.is_ipv4() {
        let other = mapped(address);
        let udp6 = |way| Operation::Udp { address: other, way };
        ways.extend([
            ("UDP sendto, AF_UNSPEC", "udp", udp(UdpWay::SendtoUnspecified)),
            ("UDP sendto, IPv4 address on an IPv6 socket", "udp", udp(UdpWay::SendtoOldAddress)),
            ("TCP, mapped", "tcp", Operation::Tcp { address: other }),
            ("TCP fast open, mapped", "tcp", Operation::TcpFastOpen { address: other }),
            ("connected UDP, mapped", "udp", udp6(UdpWay::Connect)),
            ("UDP sendto, mapped", "udp", udp6(UdpWay::Sendto)),
            ("UDP sendmmsg, mapped", "udp", udp6(UdpWay::Sendmmsg)),
        ]);
    }
    ways
}

pub(super) fn refusal(service: &Service, protocol: &'static str) -> Denial {
    Denial::by(&HOOKS).access("connect").address(service.address, protocol)
}

/// The attacks on `closed`, with twins that reach `open`.
fn attacks(closed: &Service, open: &Service) -> Vec<Attack> {
    let pairs = ways(closed.address).into_iter().zip(ways(open.address));
    pairs
        .map(|((name, protocol, operation), (_, _, twin))| Attack {
            name,
            operation,
            denial: refusal(closed, protocol),
            twin,
        })
        .collect()
}

pub(super) fn must_be_refused(
    session: &mut Session,
    name: &str,
    operation: &Operation,
    service: &Service,
    denial: &Denial,
) -> anyhow::Result<()> {
    session.refused(name, operation, denial)?;
    if let Some(what) = service.arrived() {
        session.problem(format!("{name}: {what} arrived at {}", service.address));
    }
    Ok(())
}

pub(super) fn must_arrive(
    session: &mut Session,
    name: &str,
    operation: &Operation,
    service: &Service,
) -> anyhow::Result<()> {
    let answer = session.allowed(name, operation)?;
    if answer.errno == 0 && eventually(PATIENCE / 6, || service.arrived()).is_none() {
        session.problem(format!("{name}: nothing arrived at {}", service.address));
    }
    Ok(())
}

fn member() -> anyhow::Result<()> {
    let ground = Ground::new("network")?;
    let services =
        [V4, V6].map(|ip| Ok::<_, anyhow::Error>((Service::new(ip)?, Service::new(ip)?)));
    let services: Vec<_> = services.into_iter().collect::<Result<_, _>>()?;
    let mut policy = Policy::preset();
    for (_, open) in &services {
        policy = policy.connect(open.address.to_string());
    }
    let mut session = Session::start(&ground, &policy)?;
    for (closed, open) in &services {
        for Attack { name, operation, denial, twin } in attacks(closed, open) {
            let version = if closed.address.is_ipv4() { "IPv4" } else { "IPv6" };
            let name = format!("{version} {name}");
            must_be_refused(&mut session, &name, &operation, closed, &denial)?;
            must_arrive(&mut session, &format!("{name} (harmless twin)"), &twin, open)?;
        }
    }
    // Nothing was merely late.
    std::thread::sleep(Duration::from_millis(500));
    for (closed, _) in &services {
        if let Some(what) = closed.arrived() {
            session.problem(format!("later, {what} arrived at {}", closed.address));
        }
    }
    session.finish()
}

fn bystander() -> anyhow::Result<()> {
    let ground = Ground::new("network-bystander")?;
    let session = Session::start(&ground, &Policy::preset())?;
    let mut bystander = Bystander::new()?;
    let mut problems = Vec::new();
    for ip in [V4, V6] {
        let service = Service::new(ip)?;
        for (name, _, operation) in ways(service.address) {
            let answer = bystander.perform(&operation)?;
            if answer.errno != 0 || eventually(PATIENCE / 6, || service.arrived()).is_none() {
                problems.push(format!("{name} to {}: {answer}", service.address));
            }
        }
    }
    if !problems.is_empty() {
        bail!("a bystander was hindered\n  - {}", problems.join("\n  - "));
    }
    session.finish()
}

/// A rule for one protocol, one address, one prefix opens nothing else.
fn narrow() -> anyhow::Result<()> {
    let ground = Ground::new("narrow")?;
    let (tcp, udp, both) = (Service::new(V4)?, Service::new(V4)?, Service::new(V4)?);
    let neighbour = Service::at((Ipv4Addr::new(127, 0, 0, 2), both.port()).into())?;
    let within = Service::at((Ipv4Addr::new(127, 9, 8, 7), both.port()).into())?;
    let beyond = Service::at((Ipv4Addr::new(127, 10, 0, 1), both.port()).into())?;
    let other_port = Service::new(IpAddr::V4(Ipv4Addr::new(127, 9, 8, 7)))?;
    let policy = Policy::preset()
        .connect(format!("{}/tcp", tcp.address))
        .connect(format!("{}/udp", udp.address))
        .connect(both.address.to_string())
        .connect(format!("127.9.0.0/16:{}", both.port()));
    let mut session = Session::start(&ground, &policy)?;
    let sendto = |to: &Service| Operation::Udp { address: to.address, way: UdpWay::Sendto };
    let connect = |to: &Service| Operation::Tcp { address: to.address };
    for (name, service, tcp_opens, udp_opens) in [
        ("rule for TCP", &tcp, true, false),
        ("rule for UDP", &udp, false, true),
        ("rule for both", &both, true, true),
        ("address beside the rule's", &neighbour, false, false),
        ("address within the prefix", &within, true, true),
        ("address beyond the prefix", &beyond, false, false),
        ("another port within the prefix", &other_port, false, false),
    ] {
        for (protocol, opens, operation) in
            [("tcp", tcp_opens, connect(service)), ("udp", udp_opens, sendto(service))]
        {
            let name = format!("{name}, {protocol}");
            if opens {
                must_arrive(&mut session, &name, &operation, service)?;
            } else {
                let denial = refusal(service, protocol);
                must_be_refused(&mut session, &name, &operation, service, &denial)?;
            }
        }
    }
    session.finish()
}

fn ranges() -> anyhow::Result<()> {
    let ground = Ground::new("ranges")?;
    let policy = Policy::preset()
        .connect("127.0.0.1:8000-8010/tcp")
        .connect("127.0.0.1:65535")
        .connect("127.0.0.1:1-2/udp");
    let mut session = Session::start(&ground, &policy)?;
    for (port, opens) in [
        (7999, false),
        (8000, true),
        (8003, true),
        (8007, true),
        (8008, true),
        (8010, true),
        (8011, false),
        (65534, false),
        (65535, true),
        (1, false),
    ] {
        let service = Service::at((V4, port).into())?;
        let connect = Operation::Tcp { address: service.address };
        let name = format!("TCP port {port}");
        if opens {
            must_arrive(&mut session, &name, &connect, &service)?;
        } else {
            let denial = refusal(&service, "tcp");
            must_be_refused(&mut session, &name, &connect, &service, &denial)?;
        }
    }
    session.finish()
}

/// Denials within an allowed network, by prefix, port and protocol, and the addresses that a rule on a wider
/// network does not open.
fn denials() -> anyhow::Result<()> {
    let ground = Ground::new("denials")?;
    let metadata = Ipv4Addr::new(169, 254, 169, 254);
    let (named, link) = (Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(169, 254, 7, 7));
    for (name, address) in [("lo:1", metadata), ("lo:2", named), ("lo:3", link)] {
        add_address(name, address).with_context(|| format!("adding {address} to lo"))?;
    }
    let policy = Policy::preset()
        .connect("0.0.0.0/0")
        .connect("[::]/0")
        .with("network.deny", "127.20.0.0/16")
        .connect("127.20.30.0/24:1000-2000")
        .with("network.deny", "127.20.30.40")
        .with("network.deny", "127.0.0.0/8:1500/udp")
        .with("network.deny", "[::1]:1500/tcp")
        .connect("100.100.100.200:1500");
    let mut session = Session::start(&ground, &policy)?;
    let rule = |text: &'static str| Some(Why::Rule("network.deny", text.to_owned()));
    let reserved = || Some(Why::Reason(&["reserved_address"]));
    for (address, port, tcp, udp) in [
        ("127.0.0.1", 1500, None, rule("127.0.0.0/8:1500/udp")),
        ("127.0.0.1", 1501, None, None),
        ("127.20.1.1", 1501, rule("127.20.0.0/16"), rule("127.20.0.0/16")),
        ("127.20.30.1", 1501, None, None),
        ("127.20.30.1", 2001, rule("127.20.0.0/16"), rule("127.20.0.0/16")),
        // The longer prefix speaks of this port.
        ("127.20.30.1", 1500, None, None),
        ("127.20.30.40", 1501, rule("127.20.30.40"), rule("127.20.30.40")),
        ("::1", 1500, rule("[::1]:1500/tcp"), None),
        ("169.254.169.254", 1501, reserved(), reserved()),
        ("169.254.7.7", 1501, reserved(), reserved()),
        ("100.100.100.200", 1501, reserved(), reserved()),
        ("100.100.100.200", 1500, None, None),
    ] {
        let service = Service::at((address.parse::<IpAddr>()?, port).into())?;
        let address = service.address;
        for (protocol, why, operation) in [
            ("tcp", tcp, Operation::Tcp { address }),
            ("udp", udp.clone(), Operation::Udp { address, way: UdpWay::Connect }),
            ("udp", udp, Operation::Udp { address, way: UdpWay::Sendto }),
        ] {
            let name = format!("{address}/{protocol}");
            match why {
                None => must_arrive(&mut session, &name, &operation, &service)?,
                Some(why) => {
                    let denial = refusal(&service, protocol).because(why);
                    must_be_refused(&mut session, &name, &operation, &service, &denial)?;
                }
            }
        }
    }
    // To nowhere is to this machine.
    let service = Service::at("127.0.0.1:1500".parse()?)?;
    let nowhere: SocketAddr = "0.0.0.0:1500".parse()?;
    let denial =
        Denial::by(&HOOKS).address(nowhere, "udp").rule("network.deny", "127.0.0.0/8:1500/udp");
    for way in [UdpWay::Sendto, UdpWay::Connect] {
        let operation = Operation::Udp { address: nowhere, way };
        must_be_refused(&mut session, "0.0.0.0", &operation, &service, &denial)?;
    }
    session.finish()
}

/// The last look at each packet: source routes and routing headers lead it elsewhere.
fn ways_by() -> anyhow::Result<()> {
    let ground = Ground::new("ways-by")?;
    let policy = Policy::preset().connect("127.0.0.0/8").connect("[::1]");
    let mut session = Session::start(&ground, &policy)?;
    let mut bystander = Bystander::new()?;
    for (ip, via) in [(V4, "127.0.0.7"), (V6, "::1")] {
        let service = Service::new(ip)?;
        let (address, via) = (service.address, via.parse()?);
        let operation = Operation::Routed { address, via };
        let free = bystander.perform(&operation)?;
        if free.errno != 0 && free.stage == "setsockopt" {
            // Nothing to refuse: a kernel without this kind of header.
            continue;
        }
        let answer = session.perform(&operation)?;
        if answer.errno != libc::EPERM {
            session.problem(format!("by way of {via}: must be refused, but {answer}"));
        }
        let denial = Denial::by(&["egress"]).any_object().because(Why::Reason(&["packet"]));
        session.explained("a packet by another way", 0, &denial);
        let plain = Operation::Udp { address, way: UdpWay::Connect };
        must_arrive(&mut session, "the same without options", &plain, &service)?;
    }
    session.finish()
}
