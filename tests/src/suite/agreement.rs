//! `policy::explain`, the rules and the kernel say the same of random places, addresses and sockets.

use super::layers::Managed;
use crate::harness::{Ground, HOME, Policy, Runner, Session, trial, write};
use crate::probe::{Answer, Operation, Place, UdpWay, UnixName};
use anyhow::{Context as _, bail, ensure};
use libtest_mimic::Trial;
use sandbox_userspace::kernel::mounts::MountTable;
use sandbox_userspace::policy::check::unix::spelled_out;
use sandbox_userspace::policy::explain::{Asked, Object, Wish};
use sandbox_userspace::policy::layers::{self, Setting};
use sandbox_userspace::policy::rule::{Kind, Protocol};
use sandbox_userspace::policy::services::Surroundings;
use sandbox_userspace::policy::{self, Context, decide};
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

pub(super) fn trials() -> Vec<Trial> {
    vec![
        trial("agreement::of_files", files),
        // Not seen on every kernel yet: by `--ignored`.
        trial("agreement::of_addresses", addresses).with_ignored_flag(true),
        trial("agreement::of_sockets", sockets).with_ignored_flag(true),
    ]
}

const NAMES: [&str; 7] = ["a", "b", ".env", ".git", "pub", "x.pem", "a b\n*"];

fn one<'a, T>(random: &mut fastrand::Rng, of: &'a [T]) -> &'a T {
    &of[random.usize(..of.len())]
}

/// A directory some levels beneath the workspace or outside, made.
fn directory(random: &mut fastrand::Rng, ground: &Ground) -> anyhow::Result<Place> {
    let mut at = if random.bool() { ground.workspace() } else { ground.outside() };
    for _ in 0..random.usize(1..4) {
        at = at.join(one(random, &NAMES));
    }
    std::fs::create_dir_all(at.path())?;
    Ok(at)
}

/// What a session of root's has by its files.
struct Here {
    policy: policy::Policy,
    context: Context,
    table: MountTable,
}

impl Here {
    fn read(ground: &Ground, named: &Path) -> anyhow::Result<Self> {
        let workspace = ground.workspace().path().to_owned();
        let setting = Setting::new(Path::new(HOME), 0, &workspace, Some(named));
        let (policy, _) = layers::over(policy::load(Some(named))?, &setting)?;
        let (home, tmpdir) = (PathBuf::from(HOME), "/nonexistent".into());
        let surroundings = Surroundings::default();
        let context = Context { home, workspace, tmpdir, terminal: None, surroundings };
        Ok(Self { policy, context, table: MountTable::read(None)? })
    }

    fn asked(&self) -> anyhow::Result<Asked<'_>> {
        Ok(Asked::new(&self.policy, &self.context, &self.table)?)
    }
}

/// How often something was denied and allowed, and what differed.
#[derive(Default)]
struct Agreement {
    counts: [u32; 2],
    problems: Vec<String>,
}

impl Agreement {
    /// `said` by the policy, `answer` by the kernel. Refused is what ends in one of two errors; what is let pass
    /// may fail otherwise, where nobody listens or no way leads.
    fn compare(&mut self, what: impl Debug, said: bool, answer: &Answer) {
        self.counts[usize::from(said)] += 1;
        if said == matches!(answer.errno, libc::EPERM | libc::EACCES) {
            self.problems.push(format!("{what:?}: explained as {said}, but {answer}"));
        }
    }

    fn finish(self, session: Session, least: u32) -> anyhow::Result<()> {
        session.finish()?;
        let Self { counts, problems } = self;
        ensure!(counts.iter().all(|count| *count >= least), "too few of a kind: {counts:?}");
        if !problems.is_empty() {
            let all: u32 = counts.iter().sum();
            let first = problems[..problems.len().min(9)].join("\n");
            bail!("{} of {all}: {first}", problems.len());
        }
        Ok(())
    }
}

fn files() -> anyhow::Result<()> {
    let ground = Ground::new("explained")?;
    let managed = "version = 1\n[files]\nread.deny = [\"**/x.pem\", \"/root/ground/**/a/pub\"]\n";
    let _managed = Managed::put("10.toml", managed)?;
    let (w, o) = (ground.workspace(), ground.outside());
    let policy = Policy::preset()
        .with("files.read.deny", "**/a/b")
        .with("files.read.deny", "${WORKSPACE}/b/**")
        .with("files.read.allow", "${WORKSPACE}/**/pub/**")
        .with("files.read.allow", format!("{w}/b/a//"))
        .with("files.write.deny", "${WORKSPACE}/a/.git/")
        .with("files.write.allow", format!("{o}/./pub"));
    let mut random = fastrand::Rng::with_seed(6);
    let mut files = Vec::new();
    for number in 0..500 {
        let name = format!("{}-{number}", one(&mut random, &NAMES));
        let file = directory(&mut random, &ground)?.join(&name);
        write(&file, "content")?;
        files.push(file);
    }
    let runner = Runner::new(&ground, &policy)?;
    let here = Here::read(&ground, &runner.policy)?;
    let (asked, mut agreement) = (here.asked()?, Agreement::default());
    let mut session = runner.open()?;
    for (kind, flags) in [(Kind::Read, libc::O_RDONLY), (Kind::Write, libc::O_WRONLY)] {
        for file in &files {
            let object = Object::Path(Asked::resolve(file.path())?);
            let said = asked.decide(&object, Wish::File(kind)).allow;
            let answer = session.perform(&Operation::Open { path: file.clone(), flags })?;
            agreement.compare((kind, file), said, &answer);
        }
    }
    agreement.finish(session, 100)
}

/// An address as the rules below speak of. That nobody is there does not matter: the kernel asks before it looks
/// for a way.
fn address(random: &mut fastrand::Rng) -> IpAddr {
    let (a, b, c) = (random.u8(0..3), random.u8(0..3), random.u8(1..4));
    match random.u8(0..8) {
        0 | 1 => Ipv4Addr::new(127, a, b, c).into(),
        2 | 3 => Ipv4Addr::new(10, a, b, c).into(),
        4 => Ipv6Addr::new(0xfd00, a.into(), b.into(), 0, 0, 0, 0, c.into()).into(),
        5 => Ipv4Addr::new(10, a, b, c).to_ipv6_mapped().into(),
        6 => *one(random, &[Ipv6Addr::LOCALHOST.into(), Ipv4Addr::UNSPECIFIED.into()]),
        _ => *one(random, &[[169, 254, 169, 254].into(), [169, 254, a, c].into()]),
    }
}

/// A rule about addresses, some of them wide.
fn rule(random: &mut fastrand::Rng) -> String {
    let net = match address(random) {
        _ if random.u8(..8) == 0 => one(random, &["0.0.0.0/0", "[::]/0"]).to_string(),
        IpAddr::V4(address) => {
            let bits = *one(random, &[8_u8, 16, 24, 30, 32]);
            let net = address.to_bits() & u32::MAX << (32 - bits);
            format!("{}/{bits}", Ipv4Addr::from(net))
        }
        IpAddr::V6(address) => {
            let bits = if address.to_ipv4_mapped().is_some() {
                128
            } else {
                *one(random, &[16_u8, 48, 128])
            };
            let net = address.to_bits() & u128::MAX << (128 - bits);
            format!("[{}]/{bits}", Ipv6Addr::from(net))
        }
    };
    let (port, more) = (random.u16(1..40), random.u16(0..30));
    let ports = match random.u8(..3) {
        0 => String::new(),
        1 => format!(":{port}"),
        _ => format!(":{port}-{}", port + more),
    };
    net + &ports + *one::<&str>(random, &["", "", "/tcp", "/udp"])
}

fn addresses() -> anyhow::Result<()> {
    let ground = Ground::new("addresses")?;
    let mut random = fastrand::Rng::with_seed(7);
    let mut list = |count| -> Vec<String> { (0..count).map(|_| rule(&mut random)).collect() };
    let (open, closed) = (list(40), list(6));
    let managed = format!("version = 1\n[network]\nallow = {open:?}\ndeny = {closed:?}\n");
    let _managed = Managed::put("10.toml", &managed)?;
    let mut policy = Policy::preset();
    for (key, count) in [("network.allow", 40), ("network.deny", 10)] {
        policy = list(count).into_iter().fold(policy, |policy, rule| policy.with(key, rule));
    }
    let runner = Runner::new(&ground, &policy)?;
    let here = Here::read(&ground, &runner.policy)?;
    let (asked, mut agreement) = (here.asked()?, Agreement::default());
    let mut session = runner.open()?;
    for _ in 0..500 {
        let (ip, port) = (address(&mut random), random.u16(1..70));
        let to = SocketAddr::from((ip, port));
        let (protocol, operation) = match random.u8(..3) {
            0 => (Protocol::Udp, Operation::Udp { address: to, way: UdpWay::Connect }),
            1 => (Protocol::Udp, Operation::Udp { address: to, way: UdpWay::Sendto }),
            _ => (Protocol::Tcp, Operation::Tcp { address: to }),
        };
        let said = asked.decide(&Object::Address(ip, port), Wish::Reach(protocol));
        ensure!(said == decide::reach(&here.policy, protocol, ip, port), "{to}");
        agreement.compare((&operation, said.rule), said.allow, &session.perform(&operation)?);
    }
    agreement.finish(session, 100)
}

fn sockets() -> anyhow::Result<()> {
    let ground = Ground::new("sock")?;
    let mut random = fastrand::Rng::with_seed(8);
    let hidden: Vec<String> = (0..100)
        .map(|number| format!("agreement {number} {}", one(&mut random, &["a", "\0", "\\", "\n"])))
        .collect();
    let mut some = |count| -> Vec<String> {
        (0..count).map(|_| spelled_out(one(&mut random, &hidden).as_bytes())).collect()
    };
    let (mut open, mut closed) = (some(120), some(10));
    open.push("/root/ground/**".into());
    closed.push("**/.env".into());
    let managed = format!("version = 1\n[network.unix]\nallow = {open:?}\ndeny = {closed:?}\n");
    let _managed = Managed::put("10.toml", &managed)?;
    let o = ground.outside();
    let mut policy = Policy::preset()
        .with("files.write.allow", format!("{o}/pub/pub"))
        .with("network.unix.allow", format!("{o}/a"))
        .with("network.unix.allow", format!("{o}/*/b"))
        .with("network.unix.allow", "**/pub/**")
        .with("network.unix.allow", format!("{o}/.env/**"))
        .with("network.unix.deny", "${WORKSPACE}/a")
        .with("network.unix.deny", format!("{o}/a/b/**"))
        .with("network.unix.deny", "**/x.pem");
    for (key, count) in [("network.unix.allow", 120), ("network.unix.deny", 20)] {
        policy = some(count).into_iter().fold(policy, |policy, rule| policy.with(key, rule));
    }
    let mut names: Vec<UnixName> = hidden.into_iter().map(UnixName::Abstract).collect();
    for number in 0..300 {
        let at = directory(&mut random, &ground)?.join(number.to_string());
        names.push(UnixName::Path(at));
    }
    let services: Vec<UnixListener> = names
        .iter()
        .map(|name| UnixListener::bind_addr(&name.address()?).with_context(|| format!("{name:?}")))
        .collect::<Result<_, _>>()?;
    let runner = Runner::new(&ground, &policy)?;
    let here = Here::read(&ground, &runner.policy)?;
    let (asked, mut agreement) = (here.asked()?, Agreement::default());
    let mut session = runner.open()?;
    for name in names {
        let object = match &name {
            UnixName::Path(place) => Object::Path(Asked::resolve(place.path())?),
            UnixName::Abstract(name) => Object::Abstract(name.as_bytes().to_vec()),
        };
        let said = asked.decide(&object, Wish::File(Kind::Connect));
        let answer = session.perform(&Operation::UnixStream { to: name.clone() })?;
        agreement.compare((name, said.rule), said.allow, &answer);
    }
    drop(services);
    agreement.finish(session, 100)
}
