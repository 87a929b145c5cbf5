//! How much the rules let pass, and what of it is counted.

use super::names::{self, A, HERE, expect};
use super::network::{HOOKS, Service, V4, V6, mapped, must_arrive, must_be_refused};
use crate::harness::{
    Bystander, Denial, Ground, Packets, Policy, Runner, Session, Why, attached, engines, trial,
    verb,
};
use crate::probe::{ENOUGH, Heard, Operation, UdpWay};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
use serde_json::Value;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, UdpSocket};
use std::os::fd::AsRawFd as _;

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("network::rules_let_no_more_pass_than_they_say", amounts),
        trial("network::rules_let_no_more_datagrams_come_than_they_say", answers),
        trial("network::rules_let_what_comes_count_from_a_change_on", later),
    ]
}

/// Bytes of an IPv4 datagram of the probe: headers and what it says. And of the least connection: four segments.
const DATAGRAM: u64 = 20 + 8 + 5;
const CONNECTION: u64 = 150;

fn amounts() -> anyhow::Result<()> {
    let ground = Ground::new("amounts")?;
    let (tcp, udp, counted) = (Service::new(V4)?, Service::new(V4)?, Service::new(V6)?);
    let most = DATAGRAM + 1;
    let rules = [
        format!("127.0.0.1:{}/tcp max {CONNECTION}B", tcp.port()),
        format!("127.0.0.1:{}/udp max {most}B", udp.port()),
        format!("[::1]:{} count", counted.port()),
    ];
    let mut policy = Policy::preset();
    for rule in &rules {
        policy = policy.connect(rule);
    }
    let mut session = Session::start(&ground, &policy)?;
    let denied = |to: &Service, protocol, rule: &str| {
        Denial::by(&HOOKS)
            .access("connect")
            .address(to.address, protocol)
            .because(Why::Spent("network.allow", rule.to_owned()))
    };
    let datagram = |to: &Service| Operation::Udp { address: to.address, way: UdpWay::Sendto };
    let connect = |to: &Service| Operation::Tcp { address: to.address };

    // The first and the second find less than the rule's amount passed, the third does not.
    for _ in 0..2 {
        must_arrive(&mut session, "a datagram within the amount", &datagram(&udp), &udp)?;
    }
    let denial = denied(&udp, "udp", &rules[1]);
    must_be_refused(&mut session, "a datagram beyond it", &datagram(&udp), &udp, &denial)?;
    must_arrive(&mut session, "a connection within the amount", &connect(&tcp), &tcp)?;
    let denial = denied(&tcp, "tcp", &rules[0]);
    must_be_refused(&mut session, "a connection beyond it", &connect(&tcp), &tcp, &denial)?;
    // Who only counts lets everything pass.
    for _ in 0..3 {
        must_arrive(&mut session, "a datagram that is counted", &datagram(&counted), &counted)?;
    }
    let passed = passed(session)?;
    // IPv6 has twenty bytes more.
    let expected = [None, Some(2 * DATAGRAM), Some(3 * (DATAGRAM + 20))];
    for (rule, expected) in rules.iter().zip(expected) {
        let found = passed.of(rule, "sent");
        let right = expected.map_or(found >= Some(CONNECTION), |_| found == expected);
        ensure!(right, "{rule}: {found:?} sent instead of {expected:?}: {}", passed.0);
    }
    Ok(())
}

/// What the end of a session tells of amounts.
struct Passed(Value);

fn passed(session: Session) -> anyhow::Result<Passed> {
    let events = session.events().clone();
    session.finish()?;
    let ended = events.all().into_iter().find(|event| event["state"] == "ended");
    Ok(Passed(ended.map(|event| event["passed"].clone()).unwrap_or_default()))
}

impl Passed {
    /// Bytes in one direction by a rule.
    fn of(&self, rule: &str, direction: &str) -> Option<u64> {
        let of_rule = |entry: &&Value| entry["rule"]["text"] == rule;
        self.0.as_array()?.iter().find(of_rule)?[direction].as_u64()
    }
}

/// Somebody outside who answers each datagram with some of these lengths, until the suite ends. That it was all says
/// somebody else, whom no rule knows.
fn answering(at: IpAddr, port: u16, lengths: &'static [usize]) -> anyhow::Result<SocketAddr> {
    let udp = UdpSocket::bind((at, port)).with_context(|| format!("listening on {at}"))?;
    let other = UdpSocket::bind((at, 0))?;
    let address = udp.local_addr()?;
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = udp.recv_from(&mut buffer) {
            for length in lengths {
                // Who asked may be gone.
                let _ = udp.send_to(&[b'x'; 2000][..*length], from);
            }
            let _ = other.send_to(ENOUGH, from);
        }
    });
    Ok(address)
}

/// The same over IPv6, with as many headers of options before the one of UDP.
fn answering_behind(options: u8, length: u16) -> anyhow::Result<SocketAddr> {
    let udp = UdpSocket::bind((V6, 0))?;
    let other = UdpSocket::bind((V6, 0))?;
    let address = udp.local_addr()?;
    let raw = socket(AddressFamily::INET6, SocketType::RAW, Some(ipproto::RAW))?;
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((_, from)) = udp.recv_from(&mut buffer) {
            let packet = behind(options, (address.port(), from.port()), length);
            let to = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 0, 0, 0);
            // What does not arrive is missed.
            let _ = sendto(&raw, &packet, SendFlags::empty(), &to);
            let _ = other.send_to(ENOUGH, from);
        }
    });
    Ok(address)
}

/// A packet from loopback to loopback.
fn behind(options: u8, (from, to): (u16, u16), length: u16) -> Vec<u8> {
    const OPTIONS: u8 = 60;
    const UDP: u8 = 17;
    let data = vec![b'x'; length.into()];
    let length = length + 8;
    let mut datagram = [from, to, length, 0].map(u16::to_be_bytes).concat();
    datagram.extend(data);
    let ends = Ipv6Addr::LOCALHOST.octets().repeat(2);
    let pseudo = [&ends[..], &u32::from(length).to_be_bytes(), &[0, 0, 0, UDP]].concat();
    let sum: u32 = [pseudo, datagram.clone()]
        .iter()
        .flat_map(|part| part.chunks(2))
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    let sum = !u16::try_from(folded).unwrap_or(u16::MAX);
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    let next = |left: u8| if left == 0 { UDP } else { OPTIONS };
    let payload = length + u16::from(options) * 8;
    let mut packet = vec![0x60, 0, 0, 0];
    packet.extend(payload.to_be_bytes());
    packet.extend([next(options), 64]);
    packet.extend(ends);
    for left in (0..options).rev() {
        // Four bytes of padding.
        packet.extend([next(left), 0, 1, 4, 0, 0, 0, 0]);
    }
    packet.extend(datagram);
    packet
}

/// Has everything of a socket and of the connections that it accepts leave with a header of options.
fn with_options(socket: &TcpListener) -> anyhow::Result<()> {
    // Next header, no more than these eight bytes, four bytes of padding.
    let options = [0_u8, 0, 1, 4, 0, 0, 0, 0];
    let length = libc::socklen_t::try_from(options.len())?;
    let (level, name) = (libc::IPPROTO_IPV6, libc::IPV6_DSTOPTS);
    let (socket, value) = (socket.as_raw_fd(), options.as_ptr().cast());
    // SAFETY: the value has that length and lives through the call.
    let result = unsafe { libc::setsockopt(socket, level, name, value, length) };
    ensure!(result == 0, "IPV6_DSTOPTS: {}", std::io::Error::last_os_error());
    Ok(())
}

/// Most headers before UDP's that are looked behind.
const HEADERS: u8 = 8;

/// What comes by UDP counts for the rule of where it comes from, and ends with the amount.
fn answers() -> anyhow::Result<()> {
    let ground = Ground::new("answers")?;
    let upstream = names::world()?;
    let (one, other) = (answering(V4, 0, &[1000, 1, 0])?, answering(V4, 0, &[300])?);
    let six = answering(V6, 0, &[900])?;
    let network = answering(IpAddr::V4(Ipv4Addr::new(127, 30, 3, 4)), 0, &[50, 60])?;
    let named = answering(HERE.into(), 0, &[77])?;
    let most = answering(V4, 0, &[700, 700, 700])?;
    let (within, beyond) = (answering_behind(HEADERS, 40)?, answering_behind(HEADERS + 1, 40)?);
    let stream = TcpListener::bind((V6, 0))?;
    with_options(&stream)?;
    let streaming = stream.local_addr()?;
    let rules = [
        (format!("{one}/udp count"), 1001 * 2),
        (format!("{other}/udp count"), 300),
        (format!("{six}/udp count"), 900),
        (format!("127.30.0.0/16:{}/udp count", network.port()), 110),
        (format!("api.example.com:{}/udp count", named.port()), 77),
        // The second finds less than that, the third does not.
        (format!("{most}/udp max {}B", DATAGRAM + 701), 1400),
        (format!("{within}/udp count"), 40),
        (format!("{beyond}/udp count"), 0),
    ];
    let mut policy = Policy::preset().with("network.resolvers", upstream.address.to_string());
    for (rule, _) in &rules {
        policy = policy.connect(rule);
    }
    policy = policy.connect(format!("{streaming}/tcp"));
    let mut session = Session::start(&ground, &policy)?;
    let mut bystander = Bystander::new()?;
    expect(&mut session, "api.example.com", A, (0, &[HERE]))?;

    let all = |from: SocketAddr, lengths: &[usize]| -> Vec<Heard> {
        lengths.iter().map(|length| Heard { from, length: *length }).collect()
    };
    let (cut, whole) = (all(most, &[700, 700]), all(most, &[700, 700, 700]));
    for (name, to, member, free) in [
        ("one after the other at one socket", vec![one, other], None, {
            [all(one, &[1000, 1, 0]), all(other, &[300])].concat()
        }),
        ("IPv4 at a socket of IPv6", vec![mapped(one)], None, all(mapped(one), &[1000, 1, 0])),
        ("IPv6", vec![six], None, all(six, &[900])),
        ("from a network", vec![network], None, all(network, &[50, 60])),
        ("from where a name led", vec![named], None, all(named, &[77])),
        ("beyond the amount", vec![most], Some(cut), whole),
        ("behind other headers", vec![within], None, all(within, &[40])),
        ("behind more than are looked at", vec![beyond], Some(vec![]), all(beyond, &[40])),
    ] {
        let operation = Operation::Hear { to };
        let answer = bystander.perform(&operation)?;
        let heard: Vec<Heard> = serde_json::from_value(answer.data.clone()).unwrap_or_default();
        ensure!(heard == free, "{name}: a bystander must hear {free:?}: {answer}");
        let answer = session.allowed(name, &operation)?;
        let heard: Vec<Heard> = serde_json::from_value(answer.data.clone()).unwrap_or_default();
        let wanted = member.unwrap_or(free);
        if heard != wanted {
            session.problem(format!("{name}: must hear {wanted:?}: {answer}"));
        }
    }
    session.allowed("TCP behind other headers", &Operation::Tcp { address: streaming })?;
    let spent = || Why::Spent("network.allow", rules[5].0.clone());
    let denial = |from| Denial::by(&["ingress"]).access("connect").address(from, "udp");
    session.explained("beyond the amount", 0, &denial(most).because(spent()));
    let denied = denial(beyond).any_object().because(Why::Reason(&["unreadable"]));
    session.explained("behind more headers than are looked at", 0, &denied);
    // Nor may it ask again.
    let denial = Denial::by(&HOOKS).access("connect").address(most, "udp").because(spent());
    let again = Operation::Udp { address: most, way: UdpWay::Sendto };
    session.refused("after the amount", &again, &denial)?;

    let passed = passed(session)?;
    for (rule, expected) in &rules {
        let found = passed.of(rule, "received");
        ensure!(found == Some(*expected), "{rule}: {found:?} received: {}", passed.0);
    }
    Ok(())
}

/// Asks somebody who answers, and must hear datagrams of these lengths.
fn hears(session: &mut Session, from: SocketAddr, lengths: &[usize]) -> anyhow::Result<()> {
    let answer = session.allowed("asks", &Operation::Hear { to: vec![from] })?;
    let heard: Vec<Heard> = serde_json::from_value(answer.data.clone()).unwrap_or_default();
    let wanted: Vec<_> = lengths.iter().map(|length| Heard { from, length: *length }).collect();
    ensure!(heard == wanted, "must hear {wanted:?}: {answer}");
    Ok(())
}

/// What a session receives is looked at from the first change on that has a rule count, and not before; where that
/// cannot be, nothing changes.
fn later() -> anyhow::Result<()> {
    let ground = Ground::new("amounts-later")?;
    let (open, counted) = (answering(V4, 0, &[300])?, answering(V4, 0, &[1000, 1])?);
    let most = answering(V4, 0, &[700, 700, 700])?;
    let policy = Policy::preset().connect(format!("{open}/udp"));
    let mut session = Session::start(&ground, &policy)?;
    let mut other = Runner::named(&ground, &policy, "other")?.open()?;
    let (cgroup, others) = (session.cgroup()?, other.cgroup()?);
    let looks = |programs: u32| -> anyhow::Result<()> {
        for (cgroup, programs) in [(&cgroup, programs), (&others, 0)] {
            let received = attached(cgroup, Packets::Received)?;
            ensure!(received == programs, "{received} programs look at what comes, not {programs}");
            let sent = attached(cgroup, Packets::Sent)?;
            ensure!(sent == 1, "{sent} programs look at what leaves");
        }
        Ok(())
    };
    let (papers, id) = (ground.papers("verbs"), session.id()?);
    let change = |words: &[&str]| verb(&papers, &[words, &["--session", &id]].concat());
    hears(&mut session, open, &[300])?;
    looks(0)?;

    let engine = engines().pop().context("no engine is loaded")?;
    let (program, away) = (engine.join("programs/ingress"), engine.join("programs/away"));
    std::fs::rename(&program, &away)?;
    let rule = format!("{counted}/udp count");
    let refused = change(&["grant", "connect", &rule]);
    std::fs::rename(&away, &program)?;
    let refused = refused?;
    let told = refused.err.contains("`ingress`") && refused.err.contains("cannot be attached");
    ensure!(refused.code() == Some(1) && told, "{}", refused.report());
    looks(0)?;
    hears(&mut session, open, &[300])?;
    let denial = Denial::by(&HOOKS).access("connect").address(counted, "udp");
    session.refused("a change that was none", &Operation::Hear { to: vec![counted] }, &denial)?;

    let granted = change(&["grant", "connect", &rule])?;
    ensure!(granted.code() == Some(0), "{}", granted.report());
    looks(1)?;
    hears(&mut session, counted, &[1000, 1])?;
    let amount = format!("{most}/udp max {}B", DATAGRAM + 701);
    let file = papers.join("most.toml");
    std::fs::write(&file, policy.connect(&amount).write().text)?;
    let set = change(&["policy", "set", &file.to_string_lossy()])?;
    ensure!(set.code() == Some(0), "{}", set.report());
    looks(1)?;
    hears(&mut session, most, &[700, 700])?;
    let denial = Denial::by(&["ingress"]).access("connect").address(most, "udp");
    session.explained("beyond the amount", 0, &denial.because(Why::Reason(&["spent"])));
    hears(&mut session, open, &[300])?;
    hears(&mut other, open, &[300])?;
    looks(1)?;
    other.finish()?;
    let passed = passed(session)?;
    for (rule, expected) in [(&rule, 1001), (&amount, 1400)] {
        let found = passed.of(rule, "received");
        ensure!(found == Some(expected), "{rule}: {found:?} received: {}", passed.0);
    }
    Ok(())
}
