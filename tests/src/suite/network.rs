//! The allow-list is the only way to the network.

use crate::harness::{
    Attack, Bystander, Denial, Ground, PATIENCE, Policy, Session, eventually, trial,
};
use crate::probe::{Operation, UdpWay};
use anyhow::{Context as _, bail};
use libtest_mimic::Trial;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("network::nothing_reaches_an_address_without_a_rule", member),
        trial("network::bystander_reaches_it_in_every_way", bystander),
        trial("network::protocol_address_and_ports_count", narrow),
        trial("network::port_ranges_end_where_they_say", ranges),
    ]
}

const V4: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const V6: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);
const HOOKS: [&str; 4] = ["connect4", "connect6", "sendmsg4", "sendmsg6"];

/// Somebody outside who listens on one address and port, with both protocols.
struct Service {
    tcp: TcpListener,
    udp: UdpSocket,
    address: SocketAddr,
}

impl Service {
    fn new(ip: IpAddr) -> anyhow::Result<Self> {
        // The port that one protocol got may be taken in the other.
        for _ in 0..16 {
            let udp = UdpSocket::bind((ip, 0)).with_context(|| format!("listening on {ip}"))?;
            if let Ok(tcp) = TcpListener::bind(udp.local_addr()?) {
                return Self::of(tcp, udp);
            }
        }
        bail!("no port of {ip} is free for both protocols")
    }

    fn at(address: SocketAddr) -> anyhow::Result<Self> {
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
    fn arrived(&self) -> Option<&'static str> {
        let mut buffer = [0; 64];
        if self.tcp.accept().is_ok() {
            return Some("a TCP connection");
        }
        self.udp.recv_from(&mut buffer).is_ok().then_some("a datagram")
    }

    fn port(&self) -> u16 {
        self.address.port()
    }
}

/// An IPv4 address in the form `::ffff:a.b.c.d`.
fn mapped(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) => (ip.to_ipv6_mapped(), address.port()).into(),
        IpAddr::V6(_) => address,
    }
}

/// Every way to send something to the address.
fn ways(address: SocketAddr) -> Vec<(&'static str, &'static str, Operation)> {
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

fn refusal(service: &Service, protocol: &'static str) -> Denial {
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

fn must_be_refused(
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

fn must_arrive(
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
