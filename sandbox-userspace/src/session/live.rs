//! Changes of the policy of a running session: grants, another policy, a changed policy file.

use super::SessionId;
use super::request::{self, Answer, Request};
use super::state::Registry;
use super::tie::Present;
use crate::policy::expand::{Context, Placed};
use crate::policy::layers::{self, Setting};
use crate::policy::names::NameLayer;
use crate::policy::rule::Policy;
use crate::policy::{self, PolicyError};
use crate::sinks::explain::SharedRules;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// An editor writes a file in several steps: so long after the last one it is read.
const QUIET: Duration = Duration::from_millis(200);

/// Where requests come from, and what the present policy is made of.
pub struct Live {
    registry: Registry,
    id: SessionId,
    setting: Setting,
    rules: SharedRules,
    inotify: OwnedFd,
    timer: OwnedFd,
    /// Directories that are watched, by the kernel's number, and the files in them that count.
    watched: Vec<(i32, Option<OsString>)>,
    /// The policy without grants.
    base: Policy,
    grants: Vec<Grant>,
    /// When the policy file is to be read again.
    reread: Option<Instant>,
}

/// What a [`Live`] is made of, once the session is written down.
pub struct LiveOf {
    /// Where it is written down.
    pub registry: Registry,
    /// The session.
    pub id: SessionId,
    /// Whose it is.
    pub setting: Setting,
    /// Its policy, without what a linked git worktree adds.
    pub policy: Policy,
    /// What its events mean.
    pub rules: SharedRules,
}

impl LiveOf {
    /// Begins to watch.
    pub fn begin(self) -> Result<Live, WatchError> {
        let Self { registry, id, setting, policy, rules } = self;
        Live::new(&registry, &id, setting, policy, rules)
    }
}

/// A rule that the session was given.
#[derive(Clone, Debug)]
struct Grant {
    key: String,
    rule: String,
    until: Option<Instant>,
    policy: Policy,
}

/// A policy that shall take the place of the present one.
pub struct Next {
    /// The policy.
    pub policy: Policy,
    /// What it is made of besides grants, and the grants; to be kept with [`Live::keep`].
    state: (Policy, Vec<Grant>, Option<PathBuf>),
    /// It has a new grant, the last one, which must open something.
    granted: bool,
    /// Who waits for an answer.
    token: Option<String>,
    /// For people.
    text: String,
}

/// Something that cannot be watched.
#[derive(Debug, thiserror::Error)]
#[error("cannot watch {path}: {source}")]
pub struct WatchError {
    /// Which.
    pub path: PathBuf,
    /// Why not.
    pub source: io::Error,
}

impl Live {
    /// For a session whose state is written down already; `base` is its policy.
    pub fn new(
        registry: &Registry,
        id: &SessionId,
        setting: Setting,
        base: Policy,
        rules: SharedRules,
    ) -> Result<Self, WatchError> {
        let fail = |path: &Path| {
            let path = path.to_owned();
            move |error: rustix::io::Errno| WatchError { path, source: error.into() }
        };
        let directory = registry.directory(id);
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)
            .map_err(fail(&directory))?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)
            .map_err(fail(Path::new("the clock")))?;
        let mut live = Self {
            registry: registry.clone(),
            id: id.clone(),
            setting,
            rules,
            inotify,
            timer,
            watched: Vec::new(),
            base,
            grants: Vec::new(),
            reread: None,
        };
        live.watch(&directory)?;
        if live.setting.managed.is_dir() {
            let number = live.watch(&live.setting.managed)?;
            live.watched.push((number, None));
        }
        let named = live.setting.named.clone();
        let own = live.setting.home.join(layers::USER);
        live.watch_file(named.as_deref().unwrap_or(&own));
        Ok(live)
    }

    /// What becomes readable when there is something to do.
    pub fn wait_on(&self) -> [BorrowedFd<'_>; 2] {
        [self.inotify.as_fd(), self.timer.as_fd()]
    }

    /// A directory; returns its number.
    fn watch(&self, path: &Path) -> Result<i32, WatchError> {
        let flags = WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::ONLYDIR;
        inotify::add_watch(&self.inotify, path, flags)
            .map_err(|error| WatchError { path: path.to_owned(), source: error.into() })
    }

    /// A policy file, if it is there. One that cannot be watched is not: `policy set` reads it.
    fn watch_file(&mut self, path: &Path) {
        let path = std::path::absolute(path).ok();
        let parts = path.as_deref().and_then(|path| path.parent().zip(path.file_name()));
        if let Some((directory, name)) = parts.filter(|(dir, name)| dir.join(name).exists())
            && let Ok(number) = self.watch(directory)
        {
            self.watched.push((number, Some(name.to_owned())));
        }
    }

    /// What is to be done now; requests that cannot be are answered at once.
    pub fn due(&mut self) -> Vec<Result<Next, String>> {
        let now = Instant::now();
        // Only that it has run out counts.
        let _ = rustix::io::read(&self.timer, &mut [0_u8; 8]);
        if self.changed() {
            self.reread = Some(now + QUIET);
        }
        let mut found = Vec::new();
        let directory = self.registry.directory(&self.id);
        match request::waiting(&directory) {
            Ok(waiting) => {
                for (token, asked) in waiting {
                    let next = asked
                        .map_err(|error| format!("the request cannot be read: {error}"))
                        .and_then(|asked| self.next(asked));
                    match next {
                        Ok(next) => found.push(Ok(Next { token: Some(token), ..next })),
                        Err(text) => self.tell(&token, false, text),
                    }
                }
            }
            Err(error) => found.push(Err(format!("cannot look for requests: {error}"))),
        }
        if self.reread.is_some_and(|at| at <= now) {
            self.reread = None;
            let named = self.setting.named.clone();
            found.push(
                self.read(named, "the policy's files have changed: it is in force as they are now"),
            );
        }
        if self.grants.iter().any(|grant| grant.until.is_some_and(|until| until <= now)) {
            let (left, over): (Vec<Grant>, Vec<Grant>) = self
                .grants
                .iter()
                .cloned()
                .partition(|grant| grant.until.is_none_or(|until| until > now));
            let names: Vec<String> = over.iter().map(Grant::name).collect();
            found.push(Ok(self.with(
                self.base.clone(),
                left,
                format!("over: {}", names.join(", ")),
            )));
        }
        found
    }

    /// Whether a policy file has changed.
    fn changed(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut changed = false;
        while let Ok(event) = reader.next() {
            let name = event.file_name().map(|name| OsString::from_vec(name.to_bytes().to_vec()));
            changed |= self
                .watched
                .iter()
                .any(|(number, file)| *number == event.wd() && (file.is_none() || *file == name));
        }
        changed
    }

    fn next(&mut self, asked: Request) -> Result<Next, String> {
        match asked {
            Request::Grant { key, rule, seconds } => {
                let until = match seconds {
                    Some(seconds) => Some(
                        Instant::now()
                            .checked_add(Duration::from_secs(seconds))
                            .ok_or("that is too long")?,
                    ),
                    None => None,
                };
                let name = format!("grant:{}", self.base_numbered() + 1);
                let empty = Policy { numbered: self.base_numbered(), ..Policy::default() };
                let policy =
                    policy::grant(empty, &name, &key, &rule).map_err(|error| error.to_string())?;
                let mut grants = self.grants.clone();
                grants.retain(|grant| (&grant.key, &grant.rule) != (&key, &rule));
                let grant = Grant { key, rule, until, policy };
                let text = format!("granted: {}", grant.name());
                grants.push(grant);
                Ok(Next { granted: true, ..self.with(self.base.clone(), grants, text) })
            }
            Request::Revoke { key, rule } => {
                let meant = |grant: &Grant| {
                    key.as_ref().is_none_or(|key| *key == grant.key)
                        && rule.as_ref().is_none_or(|rule| *rule == grant.rule)
                };
                let (over, left): (Vec<Grant>, Vec<Grant>) =
                    self.grants.iter().cloned().partition(meant);
                if over.is_empty() {
                    return Err("the session has no such grant".to_owned());
                }
                let names: Vec<String> = over.iter().map(Grant::name).collect();
                Ok(self.with(self.base.clone(), left, format!("taken back: {}", names.join(", "))))
            }
            Request::Set { policy } => {
                let text = format!("{} is in force", policy.display());
                self.read(Some(policy), &text)
            }
        }
    }

    /// The highest number that any rule of the session has had.
    fn base_numbered(&self) -> u32 {
        let grants = self.grants.iter().map(|grant| grant.policy.numbered);
        let known = self.rules.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        let last = known.last().map_or(0, |rule| rule.id);
        grants.chain([self.base.numbered, last]).max().unwrap_or(0)
    }

    /// The policy as its files are now.
    fn read(&self, named: Option<PathBuf>, text: &str) -> Result<Next, String> {
        let setting = Setting { named: named.clone(), ..self.setting.clone() };
        let numbered = self.base_numbered();
        let read = || -> Result<Policy, PolicyError> {
            let policy = match &named {
                Some(path) => policy::load_after(path, numbered)?,
                None => match layers::user_policy_after(&setting.home, setting.user, numbered)? {
                    Some(policy) => policy,
                    None => policy::load_after(Path::new(policy::preset::NAMES[0]), numbered)?,
                },
            };
            Ok(layers::over(policy, &setting)?.0)
        };
        let base = read().map_err(|error| error.to_string())?;
        if base.effective_mode() != self.base.effective_mode() {
            return Err("the policy has another `mode`: that needs a new session".to_owned());
        }
        if base.effective_limits() != self.base.effective_limits() {
            return Err("the policy has other `limits`: that needs a new session".to_owned());
        }
        if base.resolvers != self.base.resolvers {
            return Err("the policy has other `resolvers`: that needs a new session".to_owned());
        }
        let next = self.with(base, self.grants.clone(), text.to_owned());
        let (base, grants, _) = next.state;
        Ok(Next { state: (base, grants, named), ..next })
    }

    fn with(&self, base: Policy, grants: Vec<Grant>, text: String) -> Next {
        let mut policy = base.clone();
        for grant in &grants {
            policy.files.extend(grant.policy.files.iter().cloned());
            policy.asks.extend(grant.policy.asks.iter().cloned());
            policy.network.extend(grant.policy.network.iter().cloned());
            policy.names.extend(grant.policy.names.iter().cloned());
            policy.sources.extend(grant.policy.sources.iter().cloned());
            policy.numbered = policy.numbered.max(grant.policy.numbered);
        }
        let state = (base, grants, self.setting.named.clone());
        Next { policy, state, granted: false, token: None, text }
    }

    /// Ties the next policy to this machine, see [`tie`](super::tie).
    pub fn tie(
        &self,
        next: &Next,
        context: &Context,
        policy: &Policy,
        placed: &[Placed],
    ) -> Result<(Policy, Vec<Placed>), String> {
        let grants: HashSet<u32> = next.state.1.iter().map(|grant| grant.policy.numbered).collect();
        let last = next.state.1.last().map(|grant| grant.policy.numbered);
        let present = Present { context, policy, placed, user: self.setting.user };
        present.tie(next.policy.clone(), &grants, last.filter(|_| next.granted))
    }

    /// `next` is in force.
    pub fn keep(&mut self, next: Next, rules: &[policy::compiled::Rule]) -> String {
        let Next { state: (base, grants, named), token, text, .. } = next;
        if named != self.setting.named
            && let Some(named) = &named
        {
            self.watch_file(named);
        }
        (self.base, self.grants, self.setting.named) = (base, grants, named);
        let all = {
            let mut known = self.rules.write().unwrap_or_else(std::sync::PoisonError::into_inner);
            let last = known.last().map_or(0, |rule| rule.id);
            let mut new: Vec<_> = rules.iter().filter(|rule| rule.id > last).cloned().collect();
            new.sort_by_key(|rule| rule.id);
            known.extend(new);
            known.clone()
        };
        // Of an orphan's events they would be the meaning; without them they are numbers.
        let written = self.registry.set_rules(&self.id, all);
        if let Some(token) = token {
            self.tell(&token, true, text.clone());
        }
        self.alarm();
        match written {
            Ok(()) => text,
            Err(error) => format!("{text}; {error}"),
        }
    }

    /// `next` is not in force.
    pub fn refuse(&mut self, next: Next, why: &str) -> Option<String> {
        self.alarm();
        match next.token {
            Some(token) => {
                self.tell(&token, false, why.to_owned());
                None
            }
            None => Some(format!("the policy stays as it was: {why}")),
        }
    }

    /// Sets the clock to what comes next.
    pub fn alarm(&self) {
        let ends = self.grants.iter().filter_map(|grant| grant.until).chain(self.reread);
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = ends.min().map_or(zero, |end| {
            // Zero would stop the clock.
            let wait = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            Timespec {
                tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: wait.subsec_nanos().into(),
            }
        });
        let time = Itimerspec { it_interval: zero, it_value: value };
        // A valid time on an open clock.
        let _ = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &time);
    }

    fn tell(&self, token: &str, done: bool, text: String) {
        let directory = self.registry.directory(&self.id);
        // Who asked gives up by itself.
        let _ = request::answer(&directory, token, &Answer { done, text });
    }
}

/// What the layers of a policy say of names, whatever the numbers of their rules.
pub(super) fn names(policy: &Policy) -> Vec<NameLayer> {
    let mut layers = policy::names::layers(policy);
    layers.iter_mut().flat_map(|layer| &mut layer.entries).for_each(|entry| entry.rule = 0);
    layers
}

impl Grant {
    fn name(&self) -> String {
        format!("{} \"{}\"", self.key, self.rule)
    }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
