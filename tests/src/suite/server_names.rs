//! At an address that names share, TLS asks for a name that is allowed, where a rule has that checked.

use super::names::{A, HERE, PORT, answered};
use crate::harness::hello::{Hello, message, names, record};
use crate::harness::{
    Bystander, Denial, Ground, PATIENCE, Policy, Runner, Session, Stands, Upstream, Why,
    eventually, trial, verb,
};
use crate::probe::{ANSWER, HelloWay, LookupWay, Operation, UdpWay, add_address};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("server_names::only_names_that_are_allowed_are_asked_for", member),
        trial("server_names::a_rule_without_the_check_lifts_it", lifted),
        trial("server_names::a_session_that_reports_lets_pass", audit),
        trial("server_names::a_first_segment_needs_few_options", plain),
    ]
}

const NAME: &str = "api.example.com";
const AAAA: u16 = 28;

/// Whoever serves an address: it remembers what it heard, and answers.
struct Far {
    address: SocketAddr,
    listener: TcpListener,
    heard: Arc<Mutex<Vec<u8>>>,
}

impl Far {
    /// Answers until it is dropped.
    fn at(address: SocketAddr) -> anyhow::Result<Self> {
        let listener =
            TcpListener::bind(address).with_context(|| format!("listening on {address}"))?;
        let address = listener.local_addr()?;
        let heard = Arc::<Mutex<Vec<u8>>>::default();
        let (all, answering) = (Arc::clone(&heard), listener.try_clone()?);
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = answering.accept() {
                let all = Arc::clone(&all);
                std::thread::spawn(move || {
                    let mut buffer = [0; 8192];
                    while let Ok(count @ 1..) = stream.read(&mut buffer) {
                        let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
                        all.extend_from_slice(&buffer[..count]);
                        drop(all);
                        // Who asked may be gone.
                        let _ = stream.write_all(ANSWER);
                    }
                });
            }
        });
        Ok(Self { address, listener, heard })
    }

    /// What it has heard since the last question.
    fn heard(&self) -> Vec<u8> {
        std::mem::take(&mut *self.heard.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // Ends the waiting of whoever answers, and with it the listening: others want the port.
        // SAFETY: a descriptor that is open, and a number.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
    }
}

fn world() -> anyhow::Result<Upstream> {
    add_address("lo:4", HERE).with_context(|| format!("adding {HERE} to lo"))?;
    let here = || Stands::For(vec![HERE.into(), Ipv6Addr::LOCALHOST.into()]);
    Upstream::start(&[
        (NAME, here()),
        ("www.example.com", here()),
        ("free.example.org", here()),
        ("forbidden.example.net", here()),
    ])
}

fn rule() -> String {
    format!("{NAME}:{PORT} sni")
}

fn policy(upstream: &Upstream) -> Policy {
    Policy::preset()
        .with("network.resolvers", upstream.address.to_string())
        .connect(rule())
        .connect(format!("*.example.com:{} sni", PORT + 1))
        // Another name, at this port too, and one at another port.
        .connect(format!("*.cdn.example.org:{PORT}"))
        // That names may lead there.
        .connect("[::1]:1")
}

fn sends(address: SocketAddr, parts: &[&[u8]], way: HelloWay, answered: bool) -> Operation {
    let parts = parts.iter().map(|part| part.to_vec()).collect();
    Operation::Hello { address, parts, way, answered }
}

/// How many events tell of it.
fn told(session: &Session, to: SocketAddr, reason: &str, asked: Option<&str>) -> usize {
    let of = |event: &&Value| {
        let object = &event["object"];
        event["hook"] == "egress"
            && event["reason"] == reason
            && event["rule"]["key"] == "network.allow"
            && event["rule"]["text"] == rule()
            && object["address"] == to.ip().to_string()
            && object["port"] == to.port()
            && object["server_name"] == asked.map_or(Value::Null, Value::from)
            && event["message"].as_str().is_some_and(|message| {
                message.contains(&rule()) && asked.is_none_or(|asked| message.contains(asked))
            })
    };
    session.events().all().iter().filter(of).count()
}

/// One attempt, its reason, and the name that the event tells.
type Attempt<'a> = (&'a str, Vec<&'a [u8]>, HelloWay, &'a str, Option<&'a str>);

fn refused(session: &mut Session, far: &Far, attempt: &Attempt<'_>) -> anyhow::Result<()> {
    let (name, parts, way, reason, asked) = attempt;
    let before = told(session, far.address, reason, *asked);
    // What leaves is refused, not the call that wrote it.
    let answer = session.perform(&sends(far.address, parts, *way, false))?;
    if answer.errno != 0 && answer.errno != libc::EPERM {
        session.problem(format!("{name}: {answer}"));
    }
    let more = || (told(session, far.address, reason, *asked) > before).then_some(());
    if eventually(PATIENCE / 6, more).is_none() {
        let tail = session.events().tail(3);
        session.problem(format!("{name} at {}: no event says {reason}\n{tail}", far.address));
    }
    Ok(())
}

fn passes(
    session: &mut Session,
    far: &Far,
    name: &str,
    parts: &[&[u8]],
    way: HelloWay,
) -> anyhow::Result<()> {
    session.allowed(name, &sends(far.address, parts, way, true))?;
    let heard = far.heard();
    if heard != parts.concat() {
        session.problem(format!("{name}: heard was {}", heard.escape_ascii()));
    }
    Ok(())
}

/// Asks for a name at both kinds of addresses.
fn asks(session: &mut Session, name: &str) -> anyhow::Result<()> {
    for (kind, address) in [(A, IpAddr::from(HERE)), (AAAA, Ipv6Addr::LOCALHOST.into())] {
        let (code, found) = answered(session, name, kind, LookupWay::Connected)?;
        ensure!(code == 0 && found == [address], "{name}: code {code}, {found:?}");
    }
    Ok(())
}

fn member() -> anyhow::Result<()> {
    use HelloWay::{Again, FastOpen, Sendfile, Splice, Urgent, Uring, Write, ZeroCopy};
    let ground = Ground::new("server-names")?;
    let upstream = world()?;
    let mut session = Session::start(&ground, &policy(&upstream))?;
    asks(&mut session, NAME)?;
    let good = Hello::of(NAME).record();
    let browser = Hello::of_browser("API.Example.Com").record();
    let other = Hello::of("forbidden.example.net").record();
    let cdn = Hello::of("a.cdn.example.org").record();
    let two = Hello { extensions: vec![names(&[(0, NAME.as_bytes()), (0, b"b.example")])] };
    let two = two.record();
    let nameless = Hello { extensions: vec![(43, vec![2, 3, 4])] }.record();
    let body = message(&Hello::of(NAME).body());
    let records = [record(&body[..60]), record(&body[60..])].concat();
    let (half, rest) = good.split_at(good.len() / 2);
    let begun = [&good[..], half].concat();
    for to in [SocketAddr::from((HERE, PORT)), (Ipv6Addr::LOCALHOST, PORT).into()] {
        let far = Far::at(to)?;
        passes(&mut session, &far, "its name", &[&good], Write)?;
        passes(&mut session, &far, "in another shape", &[&browser], Write)?;
        passes(&mut session, &far, "another allowed name", &[&cdn], Write)?;
        passes(&mut session, &far, "with the first segment", &[&good], FastOpen)?;
        passes(&mut session, &far, "by io_uring", &[&good], Uring)?;
        passes(&mut session, &far, "with more behind it", &[&begun], Write)?;
        let again = "a second connection of a socket";
        passes(&mut session, &far, again, &[&good, &good], Again)?;
        let forbidden = Some("forbidden.example.net");
        for attempt in [
            ("another name", vec![&other[..]], Write, "server_name", forbidden),
            ("two names", vec![&two], Write, "server_name", None),
            ("no name", vec![&nameless], Write, "no_server_name", None),
            (
                "no TLS",
                vec![b"GET / HTTP/1.1\r\nHost: api.example.com\r\n\r\n"],
                Write,
                "not_tls",
                None,
            ),
            ("two packets", vec![half, rest], Write, "split_hello", None),
            ("half of it", vec![half], Write, "split_hello", None),
            ("one byte", vec![&good[..1], &good[1..]], Write, "split_hello", None),
            ("two records", vec![&records], Write, "split_hello", None),
            ("the first segment", vec![&other], FastOpen, "server_name", forbidden),
            ("half in the first segment", vec![half, rest], FastOpen, "split_hello", None),
            ("io_uring", vec![&other], Uring, "server_name", forbidden),
            ("urgent data", vec![&good], Urgent, "not_tls", None),
            ("pages of the program", vec![&good], ZeroCopy, "changeable", None),
            ("pages of a file", vec![&good], Sendfile, "changeable", None),
            ("pages of a pipe", vec![&good], Splice, "changeable", None),
        ] as [Attempt<'_>; 15]
        {
            refused(&mut session, &far, &attempt)?;
        }
        // A name that passed lets no other pass by a later connection of the same socket.
        let attempt = (again, vec![&good[..], &other], Again, "server_name", forbidden);
        refused(&mut session, &far, &attempt)?;
        // Nothing of all that has arrived but what passed in the last one.
        let heard = far.heard();
        if heard != good {
            session.problem(format!("at {to} arrived {}", heard.escape_ascii()));
        }
        let denial = Denial::by(&["connect4", "sendmsg4", "connect6", "sendmsg6"]);
        let denial = denial.address(to, "udp").because(Why::Reason(&["not_tcp"]));
        for way in [UdpWay::Sendto, UdpWay::Connect] {
            session.refused("QUIC", &Operation::Udp { address: to, way }, &denial)?;
        }
    }
    session.finish()
}

fn lifted() -> anyhow::Result<()> {
    let ground = Ground::new("server-names-lifted")?;
    let upstream = world()?;
    let mut session = Session::start(&ground, &policy(&upstream))?;
    let (papers, id) = (ground.papers("verbs"), session.id()?);
    let does = |verbs: &str, rule: &str| -> anyhow::Result<()> {
        let finished = verb(&papers, &[verbs, "--session", &id, "connect", rule])?;
        ensure!(finished.code() == Some(0), "{}", finished.report());
        Ok(())
    };
    asks(&mut session, NAME)?;
    let far = Far::at((HERE, PORT).into())?;
    let www = Hello::of("www.example.com").record();
    let text = b"SSH-2.0-client\r\n";
    let asked = Some("www.example.com");
    let attempt = ("at another port only", vec![&www[..]], HelloWay::Write, "server_name", asked);
    refused(&mut session, &far, &attempt)?;
    // A name more, with the check: it may be asked for, and nothing else is lifted.
    let more = format!("www.example.com:{PORT}/tcp sni");
    does("grant", &more)?;
    passes(&mut session, &far, "a name that was granted", &[&www], HelloWay::Write)?;
    let plain = ("plain text", vec![&text[..]], HelloWay::Write, "not_tls", None);
    refused(&mut session, &far, &plain)?;
    does("revoke", &more)?;
    refused(&mut session, &far, &attempt)?;
    // Another name at the address, without.
    let free = format!("free.example.org:{PORT}/tcp");
    does("grant", &free)?;
    refused(&mut session, &far, &plain)?;
    asks(&mut session, "free.example.org")?;
    passes(&mut session, &far, "another name opens all", &[text], HelloWay::Write)?;
    does("revoke", &free)?;
    refused(&mut session, &far, &plain)?;
    // The address itself.
    let address = format!("{HERE}:{PORT}/tcp");
    does("grant", &address)?;
    passes(&mut session, &far, "a rule about the address", &[text], HelloWay::Write)?;
    does("revoke", &address)?;
    refused(&mut session, &far, &plain)?;
    ensure!(far.heard().is_empty(), "something arrived");
    session.finish()
}

fn audit() -> anyhow::Result<()> {
    let ground = Ground::new("server-names-audit")?;
    let upstream = world()?;
    let mut runner = Runner::new(&ground, &policy(&upstream))?;
    let text = runner.written.text.replacen("version = 1\n", "version = 1\nmode = \"audit\"\n", 1);
    std::fs::write(&runner.policy, &text)?;
    runner.written.text = text;
    let mut session = runner.open()?;
    asks(&mut session, NAME)?;
    let far = Far::at((HERE, PORT).into())?;
    let text = b"SSH-2.0-client\r\n";
    let attempt = ("plain text", vec![&text[..]], HelloWay::Write, "not_tls", None);
    refused(&mut session, &far, &attempt)?;
    // It was told, and has arrived.
    ensure!(eventually(PATIENCE, || (far.heard() == text).then_some(())).is_some(), "lost");
    passes(&mut session, &far, "the same, answered", &[text], HelloWay::Write)?;
    session.finish()
}

/// A setting of the machine's TCP that is off until it is dropped.
struct Off(&'static str, String);

impl Off {
    fn now(name: &'static str) -> anyhow::Result<Self> {
        let off = Self(name, std::fs::read_to_string(Self::path(name))?);
        std::fs::write(Self::path(name), "0").with_context(|| format!("turning {name} off"))?;
        Ok(off)
    }

    fn path(name: &str) -> PathBuf {
        Path::new("/proc/sys/net/ipv4").join(name)
    }
}

impl Drop for Off {
    fn drop(&mut self) {
        // What other tests measure does not hang on it.
        let _ = std::fs::write(Self::path(self.0), &self.1);
    }
}

/// The last option of a first segment has two bytes where the machine uses neither timestamps nor large windows.
fn plain() -> anyhow::Result<()> {
    let _off = [Off::now("tcp_timestamps")?, Off::now("tcp_window_scaling")?];
    let ground = Ground::new("server-names-plain")?;
    let upstream = world()?;
    let mut session = Session::start(&ground, &policy(&upstream))?;
    let mut bystander = Bystander::new()?;
    asks(&mut session, NAME)?;
    let far = Far::at((HERE, PORT).into())?;
    let (good, other) = (Hello::of(NAME).record(), Hello::of("forbidden.example.net").record());
    for way in [HelloWay::Write, HelloWay::FastOpen] {
        let answer = bystander.perform(&sends(far.address, &[&good], way, true))?;
        ensure!(answer.errno == 0 && far.heard() == good, "a bystander was hindered: {answer}");
        passes(&mut session, &far, "few options", &[&good], way)?;
        let asked = Some("forbidden.example.net");
        let attempt = ("few options, another name", vec![&other[..]], way, "server_name", asked);
        refused(&mut session, &far, &attempt)?;
    }
    ensure!(far.heard().is_empty(), "something arrived");
    session.finish()
}
