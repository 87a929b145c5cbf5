//! `cargo xtask test`: all suites that this machine can run, and why it could not run the others.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::build::{self, Profile};
use crate::command::{find, line, progress, run};
use crate::kernel::SERIES;
use crate::machine::{Copied, Machine, Outcome};
use crate::packages;
use crate::results::Results;
use crate::tally::Tally;
use crate::toolchain;
use crate::vm;

/// The two ways in which the hooks are attached: `bpf` an active LSM, as by default, and not.
const WAYS: [(&str, &str); 2] = [("", ""), (" without bpf", "lsm=landlock,lockdown,yama,apparmor")];

/// The tests for a kernel on which the second way would not hold, see `kernel::preemption`.
const REFUSAL: &str = "preemption::";

/// Tests that take long in a machine without KVM, most of them because they load the engine anew, most of a minute each:
/// the oldest kernel shows them, unless all is to be shown.
const LONG: [&str; 6] = [
    "engine::",
    "siege::",
    "doctor::everything",
    "coexistence::another_tool",
    "agreement::of_files",
    "limits::depth",
];

/// Machines of their own for a few tests: what is said of them, their kernel's parameters, the tests' names.
const WORLDS: [(&str, &str, &str); 2] = [
    (" locked down", "lockdown=confidentiality", "locked_at_boot::"),
    (" with SELinux", "lsm=landlock,lockdown,yama,selinux,bpf selinux=1", "selinux::"),
];

/// A suite takes half an hour and more where processors are emulated and the host is busy.
const TIMEOUT: u64 = 4000;

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Suite {
    /// Unit and property tests; no privileges
    Host,
    /// Every hook and attack, in a small machine
    Kernel,
    /// Everyday programs, in a Debian machine
    System,
}

impl Suite {
    /// The test program in the machines.
    fn program(self) -> &'static str {
        match self {
            Self::System => "system-tests",
            Self::Kernel | Self::Host => "kernel-tests",
        }
    }
}

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The suite; all by default
    suite: Option<Suite>,
    /// Only tests whose name contains this
    filter: Option<String>,
    /// Kernel series for the machines; repeatable
    #[arg(long = "kernel", value_name = "SERIES", default_values = SERIES)]
    kernels: Vec<String>,
    /// All tests on every kernel, in both ways of attaching
    #[arg(long)]
    all: bool,
    /// Seconds that a machine may take
    #[arg(long, value_name = "SECONDS", default_value_t = TIMEOUT)]
    timeout: u64,
}

pub(crate) fn main(args: &Args) -> ExitCode {
    let mut tally = Tally::default();
    let wanted = |suite| args.suite.is_none_or(|only| only == suite);
    if wanted(Suite::Host) {
        host(args, &mut tally);
    }
    let suites: Vec<_> =
        [Suite::Kernel, Suite::System].into_iter().filter(|&suite| wanted(suite)).collect();
    if !suites.is_empty() {
        match build::build(Profile::Tests) {
            Ok(_) => in_machines(&suites, args, &mut tally),
            Err(error) => tally.broken("build", &format!("{error:#}")),
        }
    }
    println!("{tally}");
    if tally.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn host(args: &Args, tally: &mut Tally) {
    progress("testing on this host");
    match cargo_test(args) {
        Ok((results, true)) => tally.add("host", results),
        Ok((results, false)) => {
            let explained = results.failed > 0;
            tally.add("host", results);
            if !explained {
                tally.broken("host", "cargo test failed before all test programs had ended");
            }
        }
        Err(error) => tally.broken("host", &format!("{error:#}")),
    }
}

/// The results, and whether cargo ended well.
fn cargo_test(args: &Args) -> Result<(Results, bool)> {
    let mut cargo = toolchain::cargo();
    cargo.current_dir(build::workspace()).args(["test", "--no-fail-fast"]);
    cargo.arg("--target-dir").arg(build::target_directory());
    cargo.args(&args.filter).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = cargo.spawn().with_context(|| format!("cannot start: {}", line(&cargo)))?;
    let mut output = String::new();
    for line in BufReader::new(child.stdout.take().context("no output of cargo")?).lines() {
        let line = line.context("reading what cargo prints")?;
        println!("{line}");
        output.push_str(&line);
        output.push('\n');
    }
    let ended_well = child.wait()?.success();
    Ok((Results::read(&output), ended_well))
}

/// Runs suites with each kernel, several machines at a time. A kernel that cannot be had is skipped,
/// but not all of them: nothing is tested then.
fn in_machines(suites: &[Suite], args: &Args, tally: &mut Tally) {
    let mut jobs = Vec::new();
    for &suite in suites {
        let before = jobs.len();
        for series in &args.kernels {
            for (index, way) in WAYS.iter().enumerate() {
                let second = index > 0;
                let Some((filter, skipped)) = tests(suite, series, second, args) else { continue };
                match Job::prepare(suite, series, way, (filter, skipped), args) {
                    Ok(job) => jobs.push(job),
                    Err(error) => {
                        let run = format!("{} on {series}{}", suite.program(), way.0);
                        tally.skip(&run, &format!("no machine: {error:#}"));
                    }
                }
            }
        }
        for series in args.kernels.iter().filter(|_| suite == Suite::Kernel) {
            for (name, cmdline, tests) in WORLDS {
                // A filter is for these only where it names one.
                let wanted = args.filter.as_deref().unwrap_or(tests);
                let (oldest, newest) = ends(series);
                let shown = args.all || args.filter.is_some() || oldest || newest;
                if !shown || !wanted.starts_with(tests) {
                    continue;
                }
                match Job::prepare(suite, series, &(name, cmdline), (Some(wanted), &[]), args) {
                    Ok(job) => jobs.push(job),
                    Err(error) => {
                        let run = format!("{} on {series}{name}", suite.program());
                        tally.skip(&run, &format!("no machine: {error:#}"));
                    }
                }
            }
        }
        if jobs.len() == before {
            tally.broken(suite.program(), "no kernel at all could be had to run it with");
        }
    }
    // A machine is busy most of its time: the verifier follows millions of instructions.
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let workers = processors.min(jobs.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some((place, job)) = take(&jobs, &next) {
            done.push((place, job.run()));
        }
        done
    };
    let mut done = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_default()).collect::<Vec<_>>()
    });
    done.sort_by_key(|(place, _)| *place);
    if done.len() < jobs.len() {
        tally.broken("machines", "a thread that ran some of them panicked, see above");
    }
    for (place, result) in done {
        let run = &jobs[place].name;
        match result {
            Ok((results, problem)) => {
                tally.add(run, results);
                if let Some(problem) = problem {
                    tally.broken(run, &problem);
                }
            }
            Err(error) => tally.broken(run, &format!("{error:#}")),
        }
    }
}

/// Which tests of a suite a kernel runs in the first or the second way of attaching, as a filter and what of it is
/// left out; `None` is none.
///
/// The oldest kernel shows the second way, the others the first. The newest must refuse the second way. Everyday
/// programs do not care how the hooks are attached; the oldest kernel and the newest show them.
fn tests<'a>(
    suite: Suite,
    series: &str,
    second: bool,
    args: &'a Args,
) -> Option<(Option<&'a str>, &'static [&'static str])> {
    let (oldest, newest) = ends(series);
    let filter = args.filter.as_deref();
    let all = args.all || filter.is_some();
    if suite == Suite::System {
        return (!second && (all || oldest || newest)).then_some((filter, &[]));
    }
    if newest && second {
        let asked = filter.is_none_or(|filter| filter.starts_with(REFUSAL));
        return asked.then_some((filter.or(Some(REFUSAL)), &[]));
    }
    let skipped = if all || oldest { &[][..] } else { &LONG };
    (args.all || second == oldest).then_some((filter, skipped))
}

/// Whether it is the oldest kernel, and whether the newest.
fn ends(series: &str) -> (bool, bool) {
    (SERIES.first() == Some(&series), SERIES.last() == Some(&series))
}

fn take<'a>(jobs: &'a [Job], next: &AtomicUsize) -> Option<(usize, &'a Job)> {
    let place = next.fetch_add(1, Ordering::Relaxed);
    jobs.get(place).map(|job| (place, job))
}

/// Empty file systems that the machine has no program to make: an ext4 on which directories can be made to
/// disregard case, and the smallest btrfs.
fn disks() -> Result<Vec<Copied>> {
    packages::ensure(packages::DISKS)?;
    let ext4 = ["-q", "-t", "ext4", "-O", "casefold,^has_journal", "-E", "encoding=utf8"];
    let btrfs = ["-q", "--mixed", "--metadata", "single", "--data", "single"];
    Ok(vec![
        disk("casefold.ext4", 2 << 20, "mke2fs", &ext4)?,
        disk("empty.btrfs", 24 << 20, "mkfs.btrfs", &btrfs)?,
    ])
}

/// The policy of the machine with `SELinux`.
fn selinux() -> Result<Copied> {
    packages::ensure(packages::POLICY)?;
    let (name, source) = ("selinux.policy", "tests/src/suite/selinux.conf");
    let host = Path::new("target/vm").join(name);
    fs::create_dir_all("target/vm").context("making target/vm")?;
    let new = host.with_extension(std::process::id().to_string());
    let program = find("checkpolicy").context("no checkpolicy")?;
    // Of a version that all kernels read.
    let arguments = ["-c", "31", "-U", "allow", "-o"];
    run(Command::new(program).args(arguments).arg(&new).arg(build::workspace().join(source)))?;
    fs::rename(&new, &host).with_context(|| format!("making {}", host.display()))?;
    Ok(Copied { host, guest: Path::new("/var").join(name) })
}

fn disk(name: &str, bytes: u64, program: &str, arguments: &[&str]) -> Result<Copied> {
    let host = Path::new("target/vm").join(name);
    if !host.exists() {
        // A fresh checkout has no such directory yet.
        fs::create_dir_all("target/vm").context("making target/vm")?;
        // Whoever else makes it at the same time makes the same.
        let new = host.with_extension(std::process::id().to_string());
        let make = || -> Result<()> {
            fs::File::create(&new)?.set_len(bytes)?;
            let program = find(program).with_context(|| format!("no {program}"))?;
            run(Command::new(program).args(arguments).arg(&new))?;
            Ok(fs::rename(&new, &host)?)
        };
        make().with_context(|| format!("making {}", host.display()))?;
    }
    Ok(Copied { host, guest: Path::new("/var").join(name) })
}

/// One suite with one kernel.
struct Job {
    /// As the report calls it.
    name: String,
    program: &'static str,
    machine: Machine,
}

impl Job {
    /// Gets the machine; what is missing for it is fetched.
    fn prepare(
        suite: Suite,
        series: &str,
        way: &(&str, &str),
        (filter, skipped): (Option<&str>, &[&str]),
        args: &Args,
    ) -> Result<Self> {
        let program = suite.program();
        let skipped = skipped.iter().flat_map(|tests| ["--skip", tests]);
        let command = std::iter::once(program).chain(filter).chain(skipped);
        let is_kernel = suite == Suite::Kernel;
        let mut copies = if is_kernel { disks()? } else { Vec::new() };
        if way.1.contains("selinux") {
            copies.push(selinux()?);
        }
        let machine = Machine {
            copies,
            modules: if is_kernel { vec!["btrfs".to_owned()] } else { Vec::new() },
            command: command.map(Into::into).collect(),
            timeout: Duration::from_secs(args.timeout),
            cmdline: way.1.to_owned(),
            ..vm::prepare(series, suite == Suite::System)?
        };
        let name = format!("{program} on {}{}", machine.kernel.release, way.0);
        Ok(Self { name, program, machine })
    }

    /// The results, and what is wrong besides failed tests.
    fn run(&self) -> Result<(Results, Option<String>)> {
        if !self.machine.programs.join(self.program).exists() {
            bail!("there is no such program: sandbox-tests has no binary {}", self.program);
        }
        progress(&format!("{} begins", self.name));
        let since = Instant::now();
        let prefix = format!("[{}] ", self.name);
        let mut lines = Lines::default();
        let mut boot = || {
            lines = Lines::default();
            self.machine.boot(|bytes| {
                for line in lines.add(bytes) {
                    vm::to_stdout(format!("{prefix}{line}\n").as_bytes())?;
                }
                Ok(())
            })
        };
        let mut report = boot()?;
        if matches!(report.outcome, Outcome::Died(_)) && report.misled {
            // A fault of the emulator; no second one is forgiven.
            let name = &self.name;
            progress(&format!("{name} died of a breakpoint that was no more; all of it once more"));
            report = boot()?;
        }
        progress(&format!("{} ended after {} s", self.name, since.elapsed().as_secs()));
        let results = Results::read(&String::from_utf8_lossy(&lines.all));
        let problem = match report.outcome {
            Outcome::Exited(status) if results.programs == 0 => {
                Some(format!("it ended with status {status} and printed no result"))
            }
            Outcome::Exited(status) if status != 0 && results.failed == 0 => {
                Some(format!("it ended with status {status} although no test failed"))
            }
            Outcome::Exited(_) => None,
            Outcome::Died(_) | Outcome::TimedOut(_) => {
                let why = report.outcome.problem().unwrap_or_default();
                let printed = lines.tail();
                let console = report.console_tail;
                Some(format!("{why}\nIts last lines:\n{printed}\nIts console:\n{console}"))
            }
        };
        Ok((results, problem))
    }
}

/// Everything a machine printed, handed out line by line.
#[derive(Default)]
struct Lines {
    all: Vec<u8>,
    /// How much of it was handed out.
    given: usize,
}

impl Lines {
    /// The lines that these bytes complete.
    fn add(&mut self, bytes: &[u8]) -> Vec<String> {
        self.all.extend_from_slice(bytes);
        let fresh = &self.all[self.given..];
        let Some(end) = fresh.iter().rposition(|&byte| byte == b'\n') else { return Vec::new() };
        let lines = String::from_utf8_lossy(&fresh[..end]);
        self.given += end + 1;
        lines.split('\n').map(str::to_owned).collect()
    }

    /// The last lines, also one that was not completed.
    fn tail(&self) -> String {
        let text = String::from_utf8_lossy(&self.all);
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_handed_out_when_complete() {
        let mut lines = Lines::default();
        assert!(lines.add(b"on").is_empty());
        assert_eq!(lines.add(b"e\n\ntwo\nth"), ["one", "", "two"]);
        assert_eq!(lines.tail(), "one\n\ntwo\nth");
        assert_eq!(lines.add(b"ree\n"), ["three"]);
    }
}
