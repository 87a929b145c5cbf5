//! The resolver's process.

use super::answer::Grant;
use super::grants::{Grants, Stay, Table};
use super::message::{Change, Task, Word};
use super::question::{Question, Refused};
use super::serve;
use crate::engine::NameTable;
use crate::policy::names::{Named, Names, Opening};
use crate::sinks::escape::printable;
use anyhow::Context as _;
use hickory_proto::rr::Record;
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts,
};
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use ipnet::IpNet;
use rustix::io::FdFlags;
use rustix::time::{ClockId, clock_gettime};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, BufRead as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{interval, timeout};

/// How long one server is waited for, and how often all of them are asked again.
const PATIENCE: Duration = Duration::from_secs(2);
const ATTEMPTS: usize = 2;
/// After so long a question is answered whatever upstream does: most programs wait for five seconds.
const DEADLINE: Duration = Duration::from_millis(4500);
/// Answers that are remembered.
const CACHE: u64 = 4096;
/// Names whose refusals are counted before they are told of again.
const REFUSALS: usize = 1024;
/// How often that, and what has expired, is looked after.
const ROUNDS: Duration = Duration::from_secs(30);

/// Runs until its standard input ends. What it has to say goes to standard output.
pub fn main() -> ExitCode {
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start a runtime")
        .and_then(|runtime| LocalSet::new().block_on(&runtime, run()));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&Word::Failed(format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

/// One line; who does not listen is gone.
fn say(word: &Word) {
    if let Ok(mut line) = serde_json::to_vec(word) {
        line.push(b'\n');
        let _ = io::stdout().lock().write_all(&line);
    }
}

/// What the policy says.
pub(super) struct Rules {
    pub(super) names: Names,
    pub(super) within: Vec<IpNet>,
}

/// What all questions share.
pub(super) struct Shared {
    pub(super) rules: RefCell<Rules>,
    pub(super) audit: bool,
    resolver: TokioResolver,
    grants: RefCell<Grants>,
    table: RefCell<Box<dyn Table>>,
    /// Refusals that were not told of yet, by name, type and rule.
    refusals: RefCell<HashMap<(String, String, u32), u64>>,
    /// Addresses that were told of.
    known: RefCell<HashMap<IpAddr, String>>,
    silent: RefCell<bool>,
}

async fn run() -> anyhow::Result<()> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line).context("cannot read the task")?;
    let task: Task = serde_json::from_str(&line).context("cannot understand the task")?;
    let mut table = NameTable::open(&task.pins, task.session).context("cannot open the engine")?;
    // One that died may have left what the policy does not open any more.
    let rules = task.names.iter().flat_map(|layer| &layer.entries).map(|entry| entry.rule);
    table.keep(&rules.collect()).context("cannot close what was open")?;
    let resolver = resolver(&task.servers)?;
    let (datagrams, listeners) = sockets(&task.sockets)?;
    // Nothing that is read from the network from here on needs more than the table of names.
    crate::session::privileges::become_nobody().context("cannot give up capabilities")?;
    let shared = Rc::new(Shared {
        rules: RefCell::new(Rules { names: Names::new(task.names), within: task.within }),
        audit: task.audit,
        resolver,
        grants: RefCell::new(Grants::new(task.stay.map_or_else(Stay::default, Stay::seconds))),
        table: RefCell::new(Box::new(table)),
        refusals: RefCell::default(),
        known: RefCell::default(),
        silent: RefCell::new(false),
    });
    let mut ended = tokio::task::JoinSet::new();
    for socket in datagrams {
        ended.spawn_local(serve::datagrams(socket, Rc::clone(&shared)));
    }
    for listener in listeners {
        ended.spawn_local(serve::connections(listener, Rc::clone(&shared)));
    }
    spawn_local(rounds(Rc::clone(&shared)));
    say(&Word::Ready);
    let (told, mut changes) = tokio::sync::mpsc::channel(1);
    // A thread that nobody waits for: who cannot go on ends, and is started again.
    std::thread::spawn(move || {
        let lines = io::stdin().lock().lines().map_while(Result::ok);
        // Who does not listen ends.
        let _ = lines.map(|line| told.blocking_send(line)).find(Result::is_err);
    });
    loop {
        tokio::select! {
            line = changes.recv() => {
                // The session is over.
                let Some(line) = line else { return Ok(()) };
                let change = serde_json::from_str(&line).context("cannot understand the change")?;
                shared.change(change).context("cannot close what other rules do not open")?;
                say(&Word::Changed);
            }
            Some(result) = ended.join_next() => {
                result.context("a server ended")?.context("a socket failed")?;
                anyhow::bail!("a server ended")
            }
        }
    }
}

/// What a name opens.
pub(super) fn opened(names: &Names, name: &str) -> Vec<Opening> {
    match names.decide(name) {
        Named::Open(open) => open,
        Named::Denied(_) | Named::Unknown => Vec::new(),
    }
}

/// The inherited sockets: UDP and TCP in turn.
fn sockets(numbers: &[i32]) -> anyhow::Result<(Vec<UdpSocket>, Vec<TcpListener>)> {
    let (mut datagrams, mut listeners) = (Vec::new(), Vec::new());
    for (index, number) in numbers.iter().enumerate() {
        // SAFETY: whoever started this process made them for it, and nobody else here uses them.
        let socket = unsafe { OwnedFd::from_raw_fd(*number) };
        rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC).context("an inherited socket")?;
        if index % 2 == 0 {
            let socket = std::net::UdpSocket::from(socket);
            socket.set_nonblocking(true)?;
            datagrams.push(UdpSocket::from_std(socket)?);
        } else {
            let listener = std::net::TcpListener::from(socket);
            listener.set_nonblocking(true)?;
            listeners.push(TcpListener::from_std(listener)?);
        }
    }
    Ok((datagrams, listeners))
}

/// Asks these servers, or those of the host.
fn resolver(servers: &[SocketAddr]) -> anyhow::Result<TokioResolver> {
    let config = if servers.is_empty() {
        let (config, _) = hickory_resolver::system_conf::read_system_conf().context(
            "cannot read /etc/resolv.conf; name servers in the policy: network.resolvers",
        )?;
        // Names that a member asks for are whole.
        ResolverConfig::from_parts(None, Vec::new(), config.name_servers)
    } else {
        let server = |address: &SocketAddr| {
            let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut way| {
                way.port = address.port();
                way
            });
            NameServerConfig::new(address.ip(), true, connections.into())
        };
        ResolverConfig::from_parts(None, Vec::new(), servers.iter().map(server).collect())
    };
    let mut options = ResolverOpts::default();
    options.timeout = PATIENCE;
    options.attempts = ATTEMPTS;
    options.cache_size = CACHE;
    options.use_hosts_file = ResolveHosts::Never;
    options.preserve_intermediates = true;
    options.try_tcp_on_error = true;
    options.edns0 = true;
    TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        .with_options(options)
        .build()
        .context("cannot set up the questions upstream")
}

/// Time since boot, as the kernel side counts.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    let (seconds, nanoseconds) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanoseconds.unwrap_or_default())
}

/// Tells of refusals that were counted, and forgets what has expired.
async fn rounds(shared: Rc<Shared>) {
    let mut round = interval(ROUNDS);
    loop {
        round.tick().await;
        let counted = std::mem::take(&mut *shared.refusals.borrow_mut());
        for ((name, kind, rule), count) in counted.into_iter().filter(|(_, count)| *count > 0) {
            say(&Word::Refused { name, kind, rule, count });
        }
        let expired = shared.grants.borrow_mut().expire(now(), shared.table.borrow_mut().as_mut());
        if let Err(error) = expired {
            shared.warn(format!("cannot close addresses that have expired: {error:#}"));
        }
    }
}

impl Shared {
    /// The records that the world has, or why there is no answer before the deadline.
    pub(super) async fn upstream(&self, question: &Question) -> Result<Vec<Record>, NetError> {
        let mut name = question.name.to_lowercase();
        name.set_fqdn(true);
        let found = timeout(DEADLINE, self.resolver.lookup(name, question.kind)).await;
        let found = found.unwrap_or(Err(NetError::Timeout));
        if matches!(found, Ok(_) | Err(NetError::Dns(_))) {
            self.silent.replace(false);
        }
        Ok(found?.answers().to_vec())
    }

    /// Goes by other rules from now on.
    fn change(&self, Change { names, within }: Change) -> anyhow::Result<()> {
        let rules = Rules { names: Names::new(names), within };
        let decide = |name: &str| opened(&rules.names, name);
        self.grants.borrow_mut().change(&decide, self.table.borrow_mut().as_mut())?;
        self.rules.replace(rules);
        Ok(())
    }

    /// Opens addresses, and tells of those that are new.
    pub(super) fn open(&self, grants: &[Grant]) -> anyhow::Result<()> {
        let (mut open, mut table) = (self.grants.borrow_mut(), self.table.borrow_mut());
        for grant in grants {
            open.grant(grant, now(), table.as_mut())?;
            let mut known = self.known.borrow_mut();
            if known.len() >= 65_536 {
                known.clear();
            }
            let told = known.insert(grant.address, grant.name.clone());
            if told.as_ref() != Some(&grant.name) {
                say(&Word::Known { name: grant.name.clone(), address: grant.address });
            }
        }
        Ok(())
    }

    /// Tells of a refusal at once where it is the first of its name, and else counts it.
    pub(super) fn refused(&self, refused: Refused) {
        let Refused { name, kind, rule } = refused;
        let name = printable(name.as_bytes());
        let mut refusals = self.refusals.borrow_mut();
        if refusals.len() >= REFUSALS {
            // More names than are worth telling apart.
            *refusals.entry(("(other names)".into(), kind, 0)).or_default() += 1;
            return;
        }
        if let Some(count) = refusals.get_mut(&(name.clone(), kind.clone(), rule)) {
            *count += 1;
        } else {
            say(&Word::Refused { name: name.clone(), kind: kind.clone(), rule, count: 1 });
            refusals.insert((name, kind, rule), 0);
        }
    }

    /// Tells of addresses that a name may not lead to.
    #[expect(clippy::unused_self, reason = "told by whoever tells the rest")]
    pub(super) fn withheld(&self, name: &str, addresses: Vec<IpAddr>) {
        say(&Word::Withheld { name: name.to_owned(), addresses });
    }

    /// Tells once that upstream gives no answer, until it does again.
    pub(super) fn unanswered(&self, name: &str, error: &NetError) {
        if !self.silent.replace(true) {
            self.warn(format!("the name servers gave no answer about {name}: {error}"));
        }
    }

    /// Says something.
    #[expect(clippy::unused_self, reason = "told by whoever tells the rest")]
    pub(super) fn warn(&self, text: String) {
        say(&Word::Warning(text));
    }
}

#[cfg(test)]
#[path = "latency_tests.rs"]
mod latency;
