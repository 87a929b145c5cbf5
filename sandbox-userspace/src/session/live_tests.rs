use super::super::guard::{Guard, Names, Told, Watch as _};
use super::super::mounts::{Changes, Follower, Plan, SharedTable};
use super::super::request::ask;
use super::super::state::{Entry, Held, tests::state};
use super::*;
use crate::engine::{Aside, EngineError, Passed};
use crate::kernel::mounts::{MountTable, to_components};
use crate::policy::compiled::CompiledPolicy;
use crate::policy::expand::expand;
use crate::policy::rule::Kind;
use crate::policy::walk::{Walker, decision};
use crate::policy::{compile_placed, load_text};
use ipnet::IpNet;
use rustix::event::{PollFd, poll};
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::RwLock;

/// The kernel side of nothing: keeps what it is given, counts and says when.
#[derive(Default)]
struct Kept(Option<CompiledPolicy>, usize, Option<Instant>, Option<HashSet<u32>>);

impl Guard for Kept {
    fn label(&self, _: BorrowedFd<'_>) -> Result<Option<u64>, EngineError> {
        Ok(None)
    }
    fn dismiss(&mut self, _: u64, _: &Held) -> Result<(), EngineError> {
        Ok(())
    }
    fn detach(&mut self) -> Result<(), EngineError> {
        Ok(())
    }
    fn eras(&mut self, devs: &[u32]) -> Result<HashMap<u32, u32>, EngineError> {
        Ok(devs.iter().map(|dev| (*dev, 0)).collect())
    }
    fn replace(
        &mut self,
        _: &Registry,
        new: &CompiledPolicy,
        usable: &mut dyn FnMut() -> bool,
    ) -> Result<bool, EngineError> {
        if !usable() {
            return Ok(false);
        }
        self.2 = Some(Instant::now());
        (self.0, self.1) = (Some(new.clone()), self.1 + 1);
        Ok(true)
    }
    fn keep_names(&mut self, rules: &HashSet<u32>) -> Result<(), EngineError> {
        self.3 = Some(rules.clone());
        Ok(())
    }
    fn lost(&self) -> Result<u64, EngineError> {
        Ok(0)
    }

    fn passed(&self) -> Result<Vec<Passed>, EngineError> {
        Ok(Vec::new())
    }
    fn remove(self: Box<Self>, _: &Held) -> Result<Option<Aside>, EngineError> {
        Ok(None)
    }
}

/// A resolver of nothing: keeps what it is told, or dies of it.
#[derive(Default)]
struct Answers(Vec<NameLayer>, Vec<IpNet>, bool);

impl Names for Answers {
    fn answers(&self) -> bool {
        true
    }

    fn change(&mut self, names: &[NameLayer], within: &[IpNet]) -> Result<(), String> {
        (self.0, self.1) = (names.to_vec(), within.to_vec());
        if self.2 { Err("it died of the change".to_owned()) } else { Ok(()) }
    }
}

struct Machine {
    _guard: tempfile::TempDir,
    _entry: Entry,
    dir: PathBuf,
    registry: Registry,
    id: SessionId,
    follower: Follower,
    kept: Kept,
    names: Option<Answers>,
    rules: SharedRules,
}

const OWN: &str = "version = 1\n[files]\nread.deny = ['@/s/**', '@/t', '**/.env']\n\
                   write.allow = ['@/w/**']\n[network]\nallow = ['10.0.0.0/8']\n";

fn machine() -> Machine {
    machine_under(OWN)
}

fn machine_under(own: &str) -> Machine {
    let guard = tempfile::tempdir().unwrap();
    let dir = guard.path().canonicalize().unwrap();
    for name in ["etc/sandbox/managed.d", "home", "w", "s/deep", "run", "m"] {
        std::fs::create_dir_all(dir.join(name)).unwrap();
    }
    for name in ["etc/sandbox", "etc/sandbox/managed.d"] {
        std::fs::set_permissions(dir.join(name), PermissionsExt::from_mode(0o755)).unwrap();
    }
    let managed = format!("version = 1\n[files]\nread.deny = ['{}/m']\n", dir.display());
    let file = dir.join("etc/sandbox/managed.d/a.toml");
    std::fs::write(&file, managed).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    let named = dir.join("policy.toml");
    std::fs::write(&named, own.replace('@', &dir.display().to_string())).unwrap();
    let user = rustix::process::geteuid().as_raw();
    let setting = Setting {
        managed: dir.join("etc/sandbox/managed.d"),
        root: user,
        home: dir.join("home"),
        user,
        workspace: dir.join("w"),
        named: Some(named.clone()),
    };
    let registry = Registry::open(dir.join("run")).unwrap();
    let state = state("0123abcd");
    let entry = registry.enter(&state).unwrap();
    let policy = policy::load(Some(&named)).unwrap();
    let (policy, _) = layers::over(policy, &setting).unwrap();
    let context = Context {
        home: dir.join("home"),
        workspace: dir.join("w"),
        tmpdir: dir.join("tmp"),
        terminal: None,
        surroundings: policy::services::Surroundings::default(),
    };
    let changes = Changes::open().unwrap();
    let table = MountTable::read(None).unwrap();
    let placed = expand(&policy, &context).unwrap();
    let (compiled, _) = compile_placed(&policy, &context, &placed, &table, &[]).unwrap();
    let rules = SharedRules::new(RwLock::new(compiled.rules.clone()));
    let of = LiveOf {
        registry: registry.clone(),
        id: state.id.clone(),
        setting,
        policy: policy.clone(),
        rules: rules.clone(),
    };
    let live = of.begin().unwrap();
    let table = SharedTable::new(RwLock::new(table));
    let plan = Plan { policy, context, placed, table, changes, registry: registry.clone() };
    let mut follower = Follower::new(plan, compiled, Some(live));
    let mut kept = Kept::default();
    follower.begin(&mut kept).unwrap();
    let id = state.id;
    let mut machine = Machine {
        _guard: guard,
        _entry: entry,
        dir,
        registry,
        id,
        follower,
        kept,
        names: Some(Answers::default()),
        rules,
    };
    // So that something is kept.
    machine.follower.follow(&mut machine.kept, None, &[0]);
    machine
}

impl Machine {
    /// Waits for something to follow.
    fn follow(&mut self) -> Vec<Told> {
        let wait = self.follower.wait_on();
        let mut fds: Vec<_> = wait.iter().map(|(fd, flags)| PollFd::new(fd, *flags)).collect();
        let patience = Timespec { tv_sec: 60, tv_nsec: 0 };
        poll(&mut fds, Some(&patience)).unwrap();
        let woken: Vec<usize> =
            (0..fds.len()).filter(|number| !fds[*number].revents().is_empty()).collect();
        assert!(!woken.is_empty(), "nothing comes");
        drop(fds);
        drop(wait);
        let names = self.names.as_mut().map(|names| names as &mut dyn Names);
        self.follower.follow(&mut self.kept, names, &woken)
    }

    /// Follows until something is told of.
    fn told(&mut self) -> Told {
        loop {
            if let Some(told) = self.follow().into_iter().next() {
                return told;
            }
        }
    }

    fn ask(&mut self, request: Request) -> Answer {
        let (registry, id) = (self.registry.clone(), self.id.clone());
        let asking = std::thread::spawn(move || ask(&registry, &id, &request).unwrap());
        while !asking.is_finished() {
            if self.is_asked() {
                self.follow();
            }
        }
        asking.join().unwrap()
    }

    /// Whether a request waits.
    fn is_asked(&self) -> bool {
        let entries = std::fs::read_dir(self.registry.directory(&self.id)).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name());
        names.into_iter().any(|name| name.to_string_lossy().starts_with("request-"))
    }

    fn grant(&mut self, key: &str, rule: &str, seconds: Option<u64>) -> Answer {
        let rule = rule.replace('@', &self.dir.display().to_string());
        self.ask(Request::Grant { key: key.to_owned(), rule, seconds })
    }

    fn allows(&self, kind: Kind, path: &str) -> bool {
        let policy = self.kept.0.as_ref().unwrap();
        let table = MountTable::read(None).unwrap();
        let (dev, place) = table.locate(&to_components(&self.dir.join(path))).unwrap();
        decision(Walker::new(policy).walk(dev, &place, false).unwrap(), kind).allow
    }
}

#[test]
fn a_grant_opens_the_place_that_it_names_and_is_taken_back() {
    let mut machine = machine();
    for (path, rule) in [("s/deep", "@/s/deep"), ("s", "@/s"), ("t", "@/t"), ("w/.env", "@/w/.env")]
    {
        assert!(path == "s" || !machine.allows(Kind::Read, path), "{path}");
        let answer = machine.grant("files.read.allow", rule, None);
        assert!(answer.done, "{answer:?}");
        assert!(machine.allows(Kind::Read, path), "{path}");
    }
    assert!(machine.allows(Kind::Read, "s/x"));
    assert!(!machine.allows(Kind::Read, "x/.env"));
    assert!(!machine.allows(Kind::Write, "v"));
    assert!(machine.grant("files.write.allow", "@/v", None).done);
    assert!(machine.allows(Kind::Write, "v/x"));
    assert!(machine.grant("network.allow", "192.0.2.1:443/tcp", None).done);
    let granted = std::net::Ipv4Addr::new(192, 0, 2, 1);
    let net4 = &machine.kept.0.as_ref().unwrap().net4;
    assert!(net4.iter().any(|prefix| prefix.address == granted));
    let key = Some("files.read.allow".to_owned());
    let rule = Some(machine.dir.join("t").display().to_string());
    assert!(machine.ask(Request::Revoke { key: key.clone(), rule: rule.clone() }).done);
    assert!(!machine.allows(Kind::Read, "t") && machine.allows(Kind::Read, "s/deep"));
    assert!(!machine.ask(Request::Revoke { key, rule }).done);
    assert!(machine.ask(Request::Revoke { key: None, rule: None }).done);
    assert!(!machine.allows(Kind::Read, "s/deep") && !machine.allows(Kind::Write, "v/x"));
    let net4 = &machine.kept.0.as_ref().unwrap().net4;
    assert!(net4.iter().all(|prefix| prefix.address != granted));

    // Every rule that was ever in force has a number of its own.
    let rules = machine.rules.read().unwrap();
    assert!(rules.windows(2).all(|pair| pair[0].id < pair[1].id));
    let granted: Vec<_> = rules.iter().filter(|rule| rule.layer == "grant").collect();
    assert_eq!(granted.len(), 6);
    assert_eq!(machine.registry.read(&machine.id).unwrap().rules, *rules);
}

#[test]
fn names_are_granted_and_taken_back() {
    let mut machine = machine();
    let named = |machine: &Machine| -> Vec<(String, bool)> {
        let names = machine.names.as_ref().unwrap();
        let entries = names.0.iter().flat_map(|layer| &layer.entries);
        entries.map(|entry| (entry.name.clone(), entry.allow)).collect()
    };
    assert!(machine.grant("network.allow", "api.example.com:443", None).done);
    assert_eq!(named(&machine), [("api.example.com".to_owned(), true)]);
    assert!(machine.grant("network.allow", "192.0.2.1", None).done);
    let within = &machine.names.as_ref().unwrap().1;
    assert!(within.contains(&"192.0.2.1/32".parse().unwrap()), "{within:?}");
    let key = Some("network.allow".to_owned());
    let rule = Some("api.example.com:443".to_owned());
    assert!(machine.ask(Request::Revoke { key, rule }).done);
    assert_eq!(named(&machine), []);

    // The policy's own.
    let other = machine.dir.join("other.toml");
    let text = "version = 1\n[network]\nallow = ['*.example.org']\ndeny = ['b.example.org']\n";
    std::fs::write(&other, text).unwrap();
    assert!(machine.ask(Request::Set { policy: other.clone() }).done);
    let own = [("example.org".to_owned(), true), ("b.example.org".to_owned(), false)];
    assert_eq!(named(&machine), own);
    let answer = machine.grant("network.allow", "b.example.org:443", None);
    assert!(!answer.done && answer.text.contains("stays closed by"), "{answer:?}");
    assert!(machine.grant("network.allow", "a.example.org:443", None).done);

    // It dies of the change: what rules had opened that are no more is closed all the same, at once.
    assert!(machine.kept.3.is_none());
    machine.names.as_mut().unwrap().2 = true;
    std::fs::write(&other, "version = 1\n[network]\nallow = ['c.example.org']\n").unwrap();
    let answer = machine.ask(Request::Set { policy: other });
    assert!(answer.done, "{answer:?}");
    let layers = &machine.names.as_ref().unwrap().0;
    let rules = layers.iter().flat_map(|layer| &layer.entries).map(|entry| entry.rule);
    assert_eq!(machine.kept.3, Some(rules.collect()));

    // Nobody answers: then no rule about names changes, but others do.
    machine.names = None;
    let answer = machine.grant("network.allow", "api.example.com:443", None);
    assert!(!answer.done && answer.text.contains("no resolver of names"), "{answer:?}");
    assert!(machine.grant("files.read.allow", "@/s/deep", None).done);
}

#[test]
fn a_grant_goes_not_beyond_the_layers_above() {
    let mut machine = machine();
    let before = machine.kept.1;
    for (key, rule) in [
        ("files.read.allow", "@/m"),
        ("files.read.allow", "@/m/deep/er"),
        ("files.write.allow", "@/policy.toml"),
        ("files.write.allow", "@/home/.config/sandbox/trusted.json"),
    ] {
        let answer = machine.grant(key, rule, None);
        assert!(!answer.done && answer.text.contains("stays closed by"), "{answer:?}");
    }
    for (key, rule) in
        [("files.read.allow", "relative"), ("files.raed.allow", "/x"), ("mode", "audit")]
    {
        assert!(!machine.grant(key, rule, None).done, "{key}");
    }
    assert_eq!(machine.kept.1, before, "nothing was put in force");
}

#[test]
fn a_grant_is_over_by_itself() {
    let mut machine = machine();
    assert!(machine.grant("files.read.allow", "@/s/deep", Some(1)).done);
    assert!(machine.allows(Kind::Read, "s/deep"));
    let Told::Info(text) = machine.told() else { panic!() };
    assert!(text.starts_with("over: files.read.allow"), "{text}");
    assert!(!machine.allows(Kind::Read, "s/deep"));
}

#[test]
fn another_policy_takes_the_place_of_the_first_and_a_broken_one_does_not() {
    let mut machine = machine();
    assert!(machine.grant("files.read.allow", "@/s/deep", None).done);
    let other = machine.dir.join("other.toml");
    std::fs::write(&other, "version = 1\n[fil]\n").unwrap();
    let answer = machine.ask(Request::Set { policy: other.clone() });
    assert!(!answer.done && answer.text.contains("other.toml:2:"), "{answer:?}");
    assert!(!machine.allows(Kind::Read, "s/x") && machine.allows(Kind::Write, "w/x"));
    let audit = "version = 1\nmode = 'audit'\n";
    std::fs::write(&other, audit).unwrap();
    let answer = machine.ask(Request::Set { policy: other.clone() });
    assert!(answer.done, "the administrator's policy keeps it from mattering: {answer:?}");
    let text = format!("version = 1\n[files]\nread.deny = ['{}/w/q']\n", machine.dir.display());
    std::fs::write(&other, text).unwrap();
    assert!(machine.ask(Request::Set { policy: other.clone() }).done);
    // What the first one closed is open, what it opened is closed, and the layers above are as they were.
    assert!(machine.allows(Kind::Read, "s/x") && !machine.allows(Kind::Write, "w/x"));
    assert!(!machine.allows(Kind::Read, "w/q") && !machine.allows(Kind::Read, "m"));
    assert!(machine.allows(Kind::Read, "s/deep"));
}

#[test]
fn a_changed_file_is_read_and_a_broken_one_keeps_the_policy() {
    let mut machine = machine();
    let named = machine.dir.join("policy.toml");
    std::fs::write(&named, "version = 1\n[files]\nread.deny = ['relative']\n").unwrap();
    let Told::Warning(text) = machine.told() else { panic!() };
    assert!(
        text.contains("the policy stays as it was") && text.contains("relative path"),
        "{text}"
    );
    assert!(!machine.allows(Kind::Read, "s/x"));
    // As editors do it.
    let new = machine.dir.join("policy.toml.new");
    std::fs::write(&new, "version = 1\n").unwrap();
    std::fs::rename(&new, &named).unwrap();
    let Told::Info(text) = machine.told() else { panic!() };
    assert!(text.contains("have changed"), "{text}");
    assert!(machine.allows(Kind::Read, "s/x") && !machine.allows(Kind::Read, "m/x"));
    // The administrator's too.
    let managed = machine.dir.join("etc/sandbox/managed.d/a.toml");
    let text = format!("version = 1\n[files]\nread.deny = ['{}/s']\n", machine.dir.display());
    std::fs::write(&managed, text).unwrap();
    assert!(matches!(machine.told(), Told::Info(_)));
    assert!(!machine.allows(Kind::Read, "s/x"));
    assert!(load_text("p", std::fs::read_to_string(&named).unwrap()).is_ok());
}

/// From when a request is seen to when the kernel is given the new policy. For a quiet machine, by `--ignored
/// --nocapture`: the numbers of docs/benchmarks.md.
#[test]
#[ignore = "says times"]
fn how_long_a_grant_takes() {
    let mut machine = machine_under("version = 1\nextends = ['default']\n");
    for number in 0..10 {
        let rule = machine.dir.join(format!("s/{number}")).display().to_string();
        let (registry, id) = (machine.registry.clone(), machine.id.clone());
        let request = Request::Grant { key: "files.read.allow".into(), rule, seconds: None };
        let asking = std::thread::spawn(move || ask(&registry, &id, &request).unwrap());
        while !machine.is_asked() {
            std::thread::yield_now();
        }
        let (begin, before) = (Instant::now(), machine.kept.1);
        while machine.kept.1 == before {
            machine.follow();
        }
        println!("{:?}", machine.kept.2.unwrap() - begin);
        assert!(asking.join().unwrap().done);
    }
}
