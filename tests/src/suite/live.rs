//! The policy of a running session changes in one step: every verdict is that of one policy or of the other.

use crate::harness::{Ground, Policy, Session, trial, verb, write};
use crate::probe::{Operation, Place};
use anyhow::{Context as _, bail, ensure};
use libtest_mimic::Trial;

/// How often the policy changes.
const CHANGES: usize = 16;

pub(super) fn trials() -> Vec<Trial> {
    // Not seen on every kernel yet: by `--ignored`.
    vec![
        trial("live::no_verdict_is_of_two_policies", mixed).with_ignored_flag(true),
        trial("live::limits_are_the_sessions", limits).with_ignored_flag(true),
    ]
}

/// Two policies, of which each opens one of two directories: to rename from one into the other takes both, and
/// is never possible, though each of them is open half of the time.
fn mixed() -> anyhow::Result<()> {
    let ground = Ground::new("mixed")?;
    let outside = ground.outside();
    let (one, other) = (outside.join("one"), outside.join("other"));
    let until = outside.join("until");
    for directory in [&one, &other] {
        std::fs::create_dir(directory.path())?;
        write(&directory.join("file"), "content")?;
        for thread in 0..8 {
            write(&directory.join(format!("moved-{thread}")), "content")?;
        }
    }
    let papers = ground.papers("policies");
    std::fs::create_dir_all(&papers)?;
    let policy = |name: &str, directory: &Place| -> anyhow::Result<String> {
        let file = papers.join(name);
        let text = format!("version = 1\n[files]\nwrite.allow = [\"{directory}/**\"]\n");
        std::fs::write(&file, text)?;
        Ok(file.display().to_string())
    };
    let policies = [policy("one.toml", &one)?, policy("other.toml", &other)?];
    let mut session = Session::start(&ground, &Policy::preset())?;
    let id = session.id()?;
    let (set, after) = (papers.join("set"), until.clone());
    let changes = std::thread::spawn(move || -> anyhow::Result<()> {
        let changed = (0..CHANGES).try_for_each(|change| {
            let finished = verb(&set, &["policy", "set", "--session", &id, &policies[change % 2]])?;
            ensure!(finished.code() == Some(0), "{}", finished.report());
            Ok(())
        });
        // In any case: the member works until then.
        write(&after, "")?;
        changed
    });
    let answer = session.perform(&Operation::Between {
        one: one.clone(),
        other: other.clone(),
        until,
        threads: 8,
    })?;
    let Ok(outcome) = changes.join() else { bail!("the changes panicked") };
    outcome?;
    let count = |what: &str| answer.data[what].as_u64().context("a count");
    let (both, first, second) = (count("both")?, count("first")?, count("second")?);
    ensure!(first > 0 && second > 0, "both policies must have been seen: {answer}");
    ensure!(both == 0, "{both} renames took the rights of two policies: {answer}");
    // Where both are open it works.
    let open = papers.join("open.toml");
    std::fs::write(&open, format!("version = 1\nfiles.write.allow = [\"{outside}/**\"]\n"))?;
    let open = open.display().to_string();
    let finished = verb(&papers, &["policy", "set", &open])?;
    ensure!(finished.code() == Some(0), "{}", finished.report());
    let (from, to) = (one.join("moved-0"), other.join("moved-0"));
    session.allowed("a rename where both are open", &Operation::Rename { from, to, flags: 0 })?;
    session.finish()
}

/// `[limits]` are those of the session's cgroup, under all layers; where they cannot be had nothing starts.
fn limits() -> anyhow::Result<()> {
    let ground = Ground::new("limited")?;
    let runner = crate::harness::Runner::new(&ground, &Policy::preset())?;
    let text = "version = 1\nextends = [\"default\"]\n[limits]\nmemory = \"512MiB\"\npids = 24\ncpu = \"150%\"\n";
    std::fs::write(&runner.policy, text)?;
    let mut session = runner.open()?;
    let started = session.events().state("started", crate::harness::PATIENCE);
    let started = started.context("no event tells of the start")?;
    let cgroup = started["cgroup"].as_str().context("the event names the cgroup")?;
    for (file, value) in
        [("memory.max", "536870912"), ("pids.max", "24"), ("cpu.max", "150000 100000")]
    {
        let path = Place::from(format!("{cgroup}/{file}"));
        let found = std::fs::read_to_string(path.path()).with_context(|| file.to_owned())?;
        ensure!(found.trim() == value, "{file} is {found:?}, not {value:?}");
    }
    // Processes beyond the limit are not born; an ordinary number is.
    let threads = |threads| {
        let [one, other, until] = std::array::from_fn(|_| ground.workspace());
        Operation::Between { one, other, until, threads }
    };
    session.allowed("eight threads", &threads(8))?;
    let answer = session.perform(&threads(40))?;
    ensure!(answer.errno == libc::EAGAIN, "forty threads must be too many: {answer}");
    session.allowed("eight threads, afterwards", &threads(8))?;
    session.finish()
}
