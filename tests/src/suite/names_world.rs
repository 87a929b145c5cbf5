//! Names in a world that changes: addresses come and go, name servers are slow or gone, resolvers die, other
//! sessions ask too.

use super::names::{
    A, HERE, PORT, REFUSED, THERE, answered, ask, expect, policy, resolvers, tcp, world,
};
use super::network::Service;
use crate::harness::{
    Denial, Ground, PATIENCE, Policy, Runner, Session, Stands, Upstream, Why, eventually, trial,
    verb,
};
use crate::probe::{LookupWay, Operation, Place};
use anyhow::{Context as _, ensure};
use libtest_mimic::Trial;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(super) const ROWS: &[(&str, &str)] = &[("D3.61", "names::addresses_change_and_expire")];

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("names::a_name_server_that_is_slow_or_gone_is_an_error_soon", slow),
        trial("names::addresses_change_and_expire", changing),
        trial("names::a_resolver_that_cannot_start_again_opens_nothing", lost),
        trial("names::sessions_share_no_addresses", apart),
        trial("names::rules_about_names_change_in_a_running_session", live),
        trial("names::many_names_and_networks_are_all_in_force", many),
    ]
}

const SERVFAIL: u64 = 2;

/// Says for how many seconds addresses stay open when their answers have expired.
const STAY: &str = "SANDBOX_NAMES_STAY";

fn closed(address: Ipv4Addr) -> Denial {
    Denial::by(&["connect4"]).address((address, PORT).into(), "tcp")
}

fn told(session: &Session, text: &str) -> anyhow::Result<()> {
    let notice = || (!session.events().notices(text).is_empty()).then_some(());
    eventually(PATIENCE / 6, notice).with_context(|| format!("no event says {text:?}"))
}

fn slow() -> anyhow::Result<()> {
    let ground = Ground::new("names-slow")?;
    let upstream = world()?;
    let mut session = Session::start(&ground, &policy(&upstream))?;
    let begun = Instant::now();
    let (code, _) = answered(&mut session, "slow.example.org", A, LookupWay::Connected)?;
    let patience = begun.elapsed();
    ensure!(code == SERVFAIL, "a name server that does not answer: code {code}");
    told(&session, "gave no answer about slow.example.org")?;
    // It holds nobody up.
    for _ in 0..8 {
        session.allowed("asking", &ask("slow.example.org", A, LookupWay::Unheard))?;
    }
    let begun = Instant::now();
    let (code, found) = answered(&mut session, "api.example.com", A, LookupWay::Connected)?;
    ensure!((code, &found[..]) == (0, &[HERE.into()]), "beside it: code {code}, {found:?}");
    ensure!(begun.elapsed() < patience, "it waited for the other questions");
    session.finish()?;

    // Nobody is there, and then somebody is.
    let address = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let policy = Policy::preset()
        .with("network.resolvers", address.to_string())
        .connect(format!("api.example.com:{PORT}/tcp"));
    let ground = Ground::new("names-down")?;
    let mut session = Session::start(&ground, &policy)?;
    let service = Service::at((HERE, PORT).into())?;
    for way in [LookupWay::Connected, LookupWay::Unconnected, LookupWay::Tcp] {
        let (code, found) = answered(&mut session, "api.example.com", A, way)?;
        ensure!(code == SERVFAIL && found.is_empty(), "by {way:?}: code {code}, {found:?}");
    }
    told(&session, "gave no answer about api.example.com")?;
    let (code, _) = answered(&mut session, "forbidden.example.com", A, LookupWay::Connected)?;
    ensure!(code == REFUSED, "a name that is not allowed: code {code}");
    session.refused("without an answer", &tcp(HERE, PORT), &closed(HERE))?;
    Upstream::at(address, &[("api.example.com", Stands::For(vec![HERE.into()]))])?;
    let mut again = || answered(&mut session, "api.example.com", A, LookupWay::Connected).ok();
    eventually(PATIENCE / 6, || again().filter(|(code, _)| *code == 0)).context("no answer")?;
    session.allowed("with an answer", &tcp(HERE, PORT))?;
    ensure!(eventually(PATIENCE / 6, || service.arrived()).is_some(), "nothing arrived");
    session.finish()
}

/// Asks until the name stands for the address.
fn until(session: &mut Session, address: Ipv4Addr) -> anyhow::Result<()> {
    let wanted = [IpAddr::from(address)];
    let ask = || {
        let found = answered(session, "turns.example.org", A, LookupWay::Connected).ok()?;
        (found == (0, wanted.to_vec())).then_some(())
    };
    eventually(PATIENCE / 6, ask).with_context(|| format!("it never stands for {address}"))
}

fn changing() -> anyhow::Result<()> {
    let upstream = world()?;
    let (here, there) = (Service::at((HERE, PORT).into())?, Service::at((THERE, PORT).into())?);
    let ground = Ground::new("names-changing")?;
    let start =
        |seconds: &str| Runner::new(&ground, &policy(&upstream))?.variable(STAY, seconds).open();
    let told = start("soon").err().map(|error| format!("{error:#}")).unwrap_or_default();
    ensure!(told.contains(&format!("{STAY} is \"soon\"")), "a session without a number: {told}");
    // What a name stood for stays open beside what it stands for now.
    let mut session = start("600")?;
    until(&mut session, HERE)?;
    session.refused("not yet its address", &tcp(THERE, PORT), &closed(THERE))?;
    until(&mut session, THERE)?;
    for (address, service) in [(THERE, &there), (HERE, &here)] {
        session.allowed("its address, now or before", &tcp(address, PORT))?;
        ensure!(eventually(PATIENCE / 6, || service.arrived()).is_some(), "nothing arrived");
    }
    session.finish()?;

    // A second of the answer and two more.
    let mut session = start("2")?;
    let open = |session: &mut Session, operation: &Operation| {
        let connect = || {
            until(session, HERE).ok()?;
            session.perform(operation).ok().filter(|answer| answer.errno == 0)
        };
        eventually(PATIENCE / 6, connect).context("its address does not open")
    };
    open(&mut session, &tcp(HERE, PORT))?;
    let expired = closed(HERE).because(Why::Reason(&["expired"]));
    let is_closed = || session.perform(&tcp(HERE, PORT)).ok().filter(|answer| answer.errno != 0);
    eventually(PATIENCE / 6, is_closed).context("its address never closes")?;
    session.refused("when its time is over", &tcp(HERE, PORT), &expired)?;
    // A connection that began before goes on.
    drop(here);
    let listener = TcpListener::bind((HERE, PORT))?;
    let flag = PathBuf::from("/run/names-expired");
    let after = flag.clone();
    let wait = std::thread::spawn(move || {
        let mut sent = Vec::new();
        loop {
            let (mut stream, _) = listener.accept()?;
            // Longer than it stays open.
            std::thread::sleep(Duration::from_secs(4));
            std::fs::write(&after, "")?;
            stream.read_to_end(&mut sent)?;
            if !sent.is_empty() {
                return Ok::<_, std::io::Error>(sent.len());
            }
        }
    });
    let across = Operation::TcpAcross {
        address: (HERE, PORT).into(),
        until: Place::from(flag.display().to_string()),
    };
    open(&mut session, &across)?;
    let sent = wait.join().map_err(|_| anyhow::anyhow!("the listener panicked"))??;
    std::fs::remove_file(&flag)?;
    ensure!(sent == 10, "{sent} bytes arrived of two messages of five");
    session.refused("when its time is over, again", &tcp(HERE, PORT), &expired)?;
    session.finish()
}

/// The table of names cannot be had: it is out of the way as long as this lives.
struct Hidden {
    table: PathBuf,
    aside: PathBuf,
}

impl Hidden {
    fn new(session: &Session) -> anyhow::Result<Self> {
        let started = session.started()?;
        // That is `ENGINE/sessions/OWNER`.
        let pins = Path::new(started["pins"].as_str().context("no pins")?);
        let maps = pins.ancestors().nth(2).context("no engine")?.join("maps");
        let (table, aside) = (maps.join("NAMES"), maps.join("ASIDE"));
        std::fs::rename(&table, &aside).context("putting the table aside")?;
        Ok(Self { table, aside })
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // What misses it tells.
        let _ = std::fs::rename(&self.aside, &self.table);
    }
}

fn lost() -> anyhow::Result<()> {
    let ground = Ground::new("names-lost")?;
    let upstream = world()?;
    let mut session = Session::start(&ground, &policy(&upstream))?;
    let service = Service::at((HERE, PORT).into())?;
    expect(&mut session, "api.example.com", A, (0, &[HERE]))?;
    let hidden = Hidden::new(&session)?;
    let before = upstream.asked().len();
    for pid in resolvers()? {
        let pid = rustix::process::Pid::from_raw(pid).context("a pid")?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    }
    told(&session, "no name is answered any more")?;
    ensure!(resolvers()?.is_empty(), "a resolver runs");
    session.allowed("asking nobody", &ask("www.example.org", A, LookupWay::Unheard))?;
    session.refused("what was not open", &tcp(THERE, PORT), &closed(THERE))?;
    session.allowed("what was open stays so", &tcp(HERE, PORT))?;
    ensure!(eventually(PATIENCE / 6, || service.arrived()).is_some(), "nothing arrived");
    ensure!(upstream.asked().len() == before, "asked upstream: {:?}", upstream.asked());
    drop(hidden);
    session.finish()
}

/// Two sessions with different rules, about names and addresses.
fn apart() -> anyhow::Result<()> {
    let upstream = world()?;
    let services = [
        (HERE, PORT),
        (THERE, PORT),
        (Ipv4Addr::LOCALHOST, PORT),
        (Ipv4Addr::new(127, 0, 0, 2), PORT),
    ];
    let services: Vec<Service> = services
        .map(|(address, port)| Service::at((address, port).into()))
        .into_iter()
        .collect::<Result<_, _>>()?;
    let grounds = [Ground::new("apart-one")?, Ground::new("apart-other")?];
    let start = |ground: &Ground, host: &str, address: &str| {
        let policy = Policy::preset()
            .with("network.resolvers", upstream.address.to_string())
            .connect(format!("{host}:{PORT}"))
            .connect(format!("both.example.org:{PORT}"))
            .connect(format!("{address}:{PORT}"));
        Session::start(ground, &policy)
    };
    let mut one = start(&grounds[0], "api.example.com", "127.0.0.1")?;
    let mut other = start(&grounds[1], "edge.example.net", "127.0.0.2")?;
    expect(&mut one, "api.example.com", A, (0, &[HERE]))?;
    expect(&mut other, "edge.example.net", A, (0, &[THERE]))?;
    expect(&mut one, "edge.example.net", A, (REFUSED, &[]))?;
    expect(&mut other, "api.example.com", A, (REFUSED, &[]))?;
    let own = [(HERE, 0), (Ipv4Addr::LOCALHOST, 2)];
    let others = [(THERE, 1), (Ipv4Addr::new(127, 0, 0, 2), 3)];
    for (session, open, shut) in [(&mut one, own, others), (&mut other, others, own)] {
        for (address, service) in open {
            session.allowed("its own", &tcp(address, PORT))?;
            let arrived = || services[service].arrived();
            ensure!(eventually(PATIENCE / 6, arrived).is_some(), "nothing arrived at {address}");
        }
        for (address, service) in shut {
            session.refused("the other's", &tcp(address, PORT), &closed(address))?;
            ensure!(services[service].arrived().is_none(), "something arrived at {address}");
        }
    }
    // Of a name that both may ask for, each gets the address by asking itself.
    let name = SocketAddr::from((HERE, PORT));
    other.refused("before it asked", &Operation::Tcp { address: name }, &closed(HERE))?;
    expect(&mut one, "both.example.org", A, (0, &[HERE]))?;
    other.refused("the other asked", &Operation::Tcp { address: name }, &closed(HERE))?;
    expect(&mut other, "both.example.org", A, (0, &[HERE]))?;
    other.allowed("it asked itself", &Operation::Tcp { address: name })?;
    other.finish()?;
    one.finish()
}

/// 64,000 networks of 128 addresses each, every other one of what they lie in, and 10,000 names.
fn many() -> anyhow::Result<()> {
    let ground = Ground::new("names-many")?;
    let upstream = world()?;
    let mut policy = Policy::preset().with("network.resolvers", upstream.address.to_string());
    for number in 256..64_256 {
        policy = policy.connect(format!("127.{}.{}.0/25:{PORT}", number >> 8, number & 255));
    }
    for number in 0..10_000 {
        policy = policy.connect(format!("n{number}.example.org:{PORT}/tcp"));
    }
    let mut session = Session::start(&ground, &policy)?;
    for (second, third) in [(1, 0), (1, 255), (77, 9), (128, 128), (250, 255)] {
        let [within, beyond] = [5, 133].map(|last| Ipv4Addr::new(127, second, third, last));
        let (open, shut) =
            (Service::at((within, PORT).into())?, Service::at((beyond, PORT).into())?);
        session.allowed("within a network", &tcp(within, PORT))?;
        ensure!(eventually(PATIENCE / 6, || open.arrived()).is_some(), "nothing at {within}");
        session.refused("beside it", &tcp(beyond, PORT), &closed(beyond))?;
        ensure!(shut.arrived().is_none(), "something arrived at {beyond}");
    }
    let service = Service::at((HERE, PORT).into())?;
    session.refused("before it was asked for", &tcp(HERE, PORT), &closed(HERE))?;
    expect(&mut session, "n10000.example.org", A, (REFUSED, &[]))?;
    expect(&mut session, "n9999.example.org", A, (0, &[HERE]))?;
    session.allowed("the last name", &tcp(HERE, PORT))?;
    ensure!(eventually(PATIENCE / 6, || service.arrived()).is_some(), "nothing arrived");
    let asked = upstream.asked();
    ensure!(!asked.iter().any(|name| name.starts_with("n10000.")), "{asked:?}");
    session.finish()
}

/// Names are opened and closed while the session runs, with their addresses.
fn live() -> anyhow::Result<()> {
    let ground = Ground::new("names-live")?;
    let upstream = world()?;
    let mut session = Session::start(&ground, &policy(&upstream))?;
    let (here, there) = (Service::at((HERE, PORT).into())?, Service::at((THERE, PORT).into())?);
    let papers = ground.papers("live");
    let id = session.id()?;
    let does = |words: &[&str]| {
        let (verbs, rest) = words.split_at(if words[0] == "policy" { 2 } else { 1 });
        verb(&papers, &[verbs, &["--session", &id], rest].concat())
    };
    let arrives = |session: &mut Session, address, service: &Service| -> anyhow::Result<()> {
        session.allowed("an address of a name", &tcp(address, PORT))?;
        let arrived = || service.arrived();
        ensure!(eventually(PATIENCE / 6, arrived).is_some(), "nothing arrived at {address}");
        Ok(())
    };
    let (name, rule) = ("forbidden.example.com", format!("forbidden.example.com:{PORT}/tcp"));
    expect(&mut session, name, A, (REFUSED, &[]))?;
    let granted = does(&["grant", "connect", &rule])?;
    ensure!(granted.code() == Some(0), "{}", granted.report());
    session.refused("before it asked", &tcp(THERE, PORT), &closed(THERE))?;
    expect(&mut session, name, A, (0, &[THERE]))?;
    arrives(&mut session, THERE, &there)?;
    let revoked = does(&["revoke", "connect", &rule])?;
    ensure!(revoked.code() == Some(0), "{}", revoked.report());
    session.refused("taken back", &tcp(THERE, PORT), &closed(THERE))?;
    expect(&mut session, name, A, (REFUSED, &[]))?;

    // Of two names at one address one is left.
    expect(&mut session, "api.example.com", A, (0, &[HERE]))?;
    expect(&mut session, "both.example.org", A, (0, &[HERE]))?;
    arrives(&mut session, HERE, &here)?;
    let other = |names: &[&str]| -> anyhow::Result<String> {
        let file = papers.join("other.toml");
        let names: Vec<String> = names.iter().map(|name| format!("{name}:{PORT}")).collect();
        let resolver = upstream.address;
        let text = format!(
            "version = 1\nextends = [\"default\"]\n[network]\nallow = {names:?}\n\
             resolvers = [\"{resolver}\"]\n"
        );
        std::fs::write(&file, text)?;
        Ok(file.display().to_string())
    };
    let set = does(&["policy", "set", &other(&["*.example.org"])?])?;
    ensure!(set.code() == Some(0), "{}", set.report());
    arrives(&mut session, HERE, &here)?;
    expect(&mut session, "api.example.com", A, (REFUSED, &[]))?;
    let set = does(&["policy", "set", &other(&["www.example.org"])?])?;
    ensure!(set.code() == Some(0), "{}", set.report());
    session.refused("no name is left", &tcp(HERE, PORT), &closed(HERE))?;
    expect(&mut session, "both.example.org", A, (REFUSED, &[]))?;
    // Who takes the resolver's place knows what holds now.
    expect(&mut session, "www.example.org", A, (0, &[THERE]))?;
    for pid in resolvers()? {
        let pid = rustix::process::Pid::from_raw(pid).context("a pid")?;
        rustix::process::kill_process(pid, rustix::process::Signal::KILL)?;
    }
    expect(&mut session, "api.example.com", A, (REFUSED, &[]))?;
    arrives(&mut session, THERE, &there)?;
    // Who does not take the change is ended, and what it had opened is closed before the change is told of.
    for pid in resolvers()? {
        let pid = rustix::process::Pid::from_raw(pid).context("a pid")?;
        rustix::process::kill_process(pid, rustix::process::Signal::STOP)?;
    }
    let set = does(&["policy", "set", &other(&["api.example.com"])?])?;
    ensure!(set.code() == Some(0), "{}", set.report());
    session.refused("its resolver hung", &tcp(THERE, PORT), &closed(THERE))?;
    told(&session, "did not take the change")?;
    expect(&mut session, "www.example.org", A, (REFUSED, &[]))?;
    expect(&mut session, "api.example.com", A, (0, &[HERE]))?;
    arrives(&mut session, HERE, &here)?;
    session.finish()?;

    // A session that began without names has nobody who could answer.
    let session = Session::start(&ground, &Policy::preset())?;
    let granted = verb(&papers, &["grant", "connect", &rule])?;
    let told = format!("{}{}", granted.out, granted.err);
    ensure!(granted.code() == Some(1) && told.contains("new session"), "{}", granted.report());
    session.finish()
}
