//! A thousand sessions at once, and no more than the stated limit.
//!
//! A thousand `sandbox run` would be a thousand supervisors on this small machine. So the sessions are
//! made here, in one process, by the calls that `sandbox run` makes, on the engine that it uses: state,
//! cgroup, share, cgroup programs, ring, policy, and an agent that is a member before its first
//! instruction. What is left out is the proof by a canary and the agent's terminal.

use crate::harness::{
    Bystander, Ground, Hand, Policy, Runner, Session, Traces, key, probe_words, trial,
};
use crate::probe::{Operation, Place};
use anyhow::{Context as _, bail, ensure};
use libtest_mimic::Trial;
use rustix::process::{Resource, Rlimit, setrlimit};
use sandbox_common::subject::{Mode, SESSIONS, Subject};
use sandbox_userspace::engine::events::{Record, Ring};
use sandbox_userspace::engine::{Engine, EngineError, Engines, Share};
use sandbox_userspace::kernel::features::{self, Facts};
use sandbox_userspace::kernel::mounts::MountTable;
use sandbox_userspace::policy;
use sandbox_userspace::session::cgroup::{Cgroup, CgroupTree};
use sandbox_userspace::session::process::Stat;
use sandbox_userspace::session::state::{Entry, RUN, Registry, State, Supervisor};
use sandbox_userspace::session::{SessionId, host, tempdir};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// How many there are at once.
const MANY: usize = 1000;

pub(super) fn trials() -> Vec<Trial> {
    vec![
        // Too much for every run in a machine without KVM: by `--ignored`.
        trial("many::a_thousand_sessions_each_with_its_own_verdicts", thousand)
            .with_ignored_flag(true),
        trial("many::one_more_than_the_limit_is_refused", limit).with_ignored_flag(true),
    ]
}

/// Where sessions are made.
struct Host {
    facts: Facts,
    registry: Registry,
    engines: Engines,
    tree: CgroupTree,
    mounts: MountTable,
}

/// A session that is supervised by this process.
struct One {
    id: SessionId,
    entry: Entry,
    cgroup: Cgroup,
    share: Share,
    ring: Ring,
    agent: Child,
    hand: Hand,
    /// What it may not read, but others may.
    secret: Place,
}

impl Host {
    fn new() -> anyhow::Result<Self> {
        let facts = features::require();
        let facts = facts.map_err(|missing| anyhow::anyhow!("the kernel lacks {missing:?}"))?;
        Ok(Self {
            facts,
            registry: Registry::open(RUN)?,
            engines: Engines::at(host::PINS),
            tree: CgroupTree::find()?,
            mounts: MountTable::read(None)?,
        })
    }

    fn start(&self, ground: &Ground, secret: Place) -> anyhow::Result<One> {
        let id = SessionId::random()?;
        let context = policy::Context {
            home: crate::harness::HOME.into(),
            workspace: ground.workspace().path().into(),
            tmpdir: tempdir::path(&id),
            terminal: None,
            surroundings: policy::services::Surroundings::default(),
        };
        let text = Policy::preset().read_deny(secret.to_string()).write().text;
        let written = policy::load_text("many.toml", text)?;
        let (compiled, _) = policy::compile(&written, &context, &self.mounts)?;
        let stat = Stat::of("self")?;
        let mut state = State {
            id: id.clone(),
            supervisor: Supervisor { pid: std::process::id().cast_signed(), start: stat.start },
            started: String::new(),
            cgroup: self.tree.parent().join(id.as_str()),
            cgroup_id: None,
            pins: host::PINS.into(),
            temporary: context.tmpdir.clone(),
            workspace: String::new(),
            command: Vec::new(),
            user: String::new(),
            uid: 0,
            rules: Vec::new(),
        };
        let entry = self.registry.enter(&state)?;
        let cgroup = self.tree.create(id.as_str())?;
        state.cgroup_id = Some(cgroup.id);
        entry.write(&state)?;

        let held = self.registry.hold()?;
        let engine =
            self.engines.obtain(&self.facts.layout, self.facts.way, &self.facts.hooks, &held)?;
        let mut share = engine.claim(id.as_str(), &held)?;
        drop(held);
        share.of_cgroup(cgroup.id)?;
        share.attach((&cgroup.path, cgroup.id))?;
        let ring = share.ring()?;
        let subject = Subject {
            session: share.number(),
            slot: share.slots().0,
            mode: Mode::Enforce as u32,
            patterns: share.publish(compiled)?,
            permits: 0,
            pad: 0,
        };
        share.engine().admit(cgroup.id, cgroup.parent, subject, &self.registry.hold()?)?;

        let mut entrance = cgroup.entrance()?;
        let words = probe_words(&["serve"])?;
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped());
        // SAFETY: the child makes one system call and allocates nothing.
        unsafe { command.pre_exec(move || entrance.write_all(b"0")) };
        let mut agent = command.spawn().context("starting an agent")?;
        let hand = Hand::of(&mut agent)?;
        Ok(One { id, entry, cgroup, share, ring, agent, hand, secret })
    }

    fn end(&self, one: One) -> anyhow::Result<()> {
        let One { entry, cgroup, mut share, ring, mut agent, mut hand, .. } = one;
        hand.dismiss();
        agent.wait()?;
        drop(ring);
        ensure!(share.lost()? == 0, "records of session {} were lost", share.owner());
        let held = self.registry.hold()?;
        share.engine().dismiss(cgroup.id, &held)?;
        share.detach("")?;
        let aside = share.end(&held)?;
        ensure!(aside.is_none(), "the kept engine was set aside");
        cgroup.remove()?;
        Ok(entry.remove(&held)?)
    }
}

impl One {
    /// Its own secret is refused, and told of on its own ring; the others' it may read.
    fn judge(&mut self, other: &Place) -> anyhow::Result<()> {
        let open = |path: &Place| Operation::Open { path: path.clone(), flags: libc::O_RDONLY };
        let answer = self.hand.perform(&open(other))?;
        ensure!(answer.errno == 0, "session {} is refused another's secret: {answer}", self.id);
        let answer = self.hand.perform(&open(&self.secret))?;
        ensure!(answer.errno == libc::EACCES, "session {} reads its secret: {answer}", self.id);
        let name = self.secret.path().file_name().context("a secret without a name")?;
        let mut told = 0;
        while let Some(record) = self.ring.next() {
            let Record::Path { header, object } = record? else {
                bail!("a record of another kind")
            };
            let right = header.session == self.share.number()
                && header.pid.cast_signed() == answer.pid
                && object.components.last().map(Vec::as_slice) == Some(name.as_encoded_bytes());
            ensure!(right, "on the ring of session {}: {header:?} {object:?}", self.id);
            told += 1;
        }
        ensure!(told == 1, "{told} records about one denial of session {}", self.id);
        Ok(())
    }
}

/// Every session has three descriptors for its agent, and one for each of the engine's maps.
fn raise_limits() -> anyhow::Result<()> {
    let most = 100_000;
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    setrlimit(Resource::Nofile, limit).context("raising the number of open files")
}

fn thousand() -> anyhow::Result<()> {
    raise_limits()?;
    let ground = Ground::new("thousand")?;
    let before = Traces::places()?;
    let host = Host::new()?;
    let mut sessions = Vec::new();
    let since = Instant::now();
    for _ in 0..MANY {
        let secret = ground.file(&ground.outside())?;
        let session = host.start(&ground, secret);
        sessions
            .push(session.with_context(|| format!("session {} of {MANY}", sessions.len() + 1))?);
    }
    println!("{MANY} sessions were started in {} ms", since.elapsed().as_millis());
    let mut numbers: Vec<_> = sessions.iter().map(|one| one.share.number()).collect();
    ensure!(numbers.is_sorted(), "numbers do not only go up: {numbers:?}");
    numbers.dedup();
    ensure!(numbers.len() == MANY, "numbers are used twice");

    let since = Instant::now();
    for at in 0..MANY {
        let other = sessions[(at + 1) % MANY].secret.clone();
        sessions[at].judge(&other)?;
    }
    println!("{MANY} sessions were asked in {} ms", since.elapsed().as_millis());

    // One more is a `sandbox run` like any other, and bystanders are as free as ever.
    let since = Instant::now();
    let runner = Runner::new(&ground, &Policy::preset().read_deny("/nowhere"))?;
    let finished = runner.probe(&["exit", "5"], "")?;
    ensure!(finished.code() == Some(5), "one session more: {}", finished.report());
    println!("one `sandbox run` among them took {} ms", since.elapsed().as_millis());
    let mut bystander = Bystander::new()?;
    for path in [key()?, sessions[0].secret.clone()] {
        let answer = bystander.perform(&Operation::Open { path, flags: libc::O_RDONLY })?;
        ensure!(answer.errno == 0, "a bystander was hindered: {answer}");
    }
    let listed = crate::harness::verb(&ground.papers("list"), &["sessions", "list"])?;
    let running = listed.out.lines().filter(|line| line.contains("running")).count();
    ensure!(running == MANY, "`sandbox sessions` lists {running} running");

    let since = Instant::now();
    for session in sessions {
        host.end(session)?;
    }
    println!("{MANY} sessions were ended in {} ms", since.elapsed().as_millis());
    host.tree.tidy();
    before.must_return()
}

/// Shares without anything behind them are enough to fill an engine.
fn limit() -> anyhow::Result<()> {
    let ground = Ground::new("limit")?;
    let before = Traces::places()?;
    let host = Host::new()?;
    let held = host.registry.hold()?;
    let pins = host.engines.list()?.into_iter().find(|found| found.kept);
    let pins = pins.context("no engine is kept")?.pins;
    let mut shares = Vec::new();
    let refused = loop {
        let engine = Engine::adopt(&pins)?;
        match engine.claim(&format!("{:08x}", shares.len()), &held) {
            Ok(share) => shares.push((share.owner().to_owned(), share.number())),
            Err(error) => break error,
        }
        ensure!(shares.len() < 100_000, "there is no limit");
    };
    let most = usize::try_from(SESSIONS)?;
    ensure!(shares.len() == most, "{} shares of at most {most}", shares.len());
    ensure!(matches!(refused, EngineError::Full(SESSIONS)), "{refused:#}");
    shares.sort_by_key(|(_, number)| *number);
    shares.dedup_by_key(|(_, number)| *number);
    ensure!(shares.len() == most, "numbers are used twice");
    // Whoever comes next gives back what has no directory any more.
    for (owner, _) in shares {
        std::fs::remove_dir(pins.join("sessions").join(owner))?;
    }
    host.engines.obtain(&host.facts.layout, host.facts.way, &host.facts.hooks, &held)?;
    drop(held);
    before.must_return()?;
    // And there is room again.
    Session::start(&ground, &Policy::preset())?.finish()
}
