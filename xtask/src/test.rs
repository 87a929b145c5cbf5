//! `cargo xtask test`: all suites that this machine can run, and why it could not run the others.

use std::fmt;
use std::io::{BufRead as _, BufReader};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::build;
use crate::command::{line, progress};
use crate::kernel::SERIES;
use crate::machine::{Machine, Outcome};
use crate::results::Results;
use crate::toolchain;
use crate::vm;

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Suite {
    /// Unit and property tests; no privileges
    Host,
    /// Every hook and attack, in a small machine
    Kernel,
    /// Everyday programs, in a Debian machine
    System,
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
    /// Seconds that a machine may take
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    timeout: u64,
}

impl Default for Args {
    fn default() -> Self {
        let kernels = SERIES.iter().map(|&series| series.to_owned()).collect();
        Self { suite: None, filter: None, kernels, timeout: 900 }
    }
}

/// What came of everything.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u32,
    failures: Vec<String>,
    skipped: u32,
    skips: Vec<String>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, failures, skipped, skips } = self;
        for failure in failures {
            writeln!(f, "\nfailed: {failure}")?;
        }
        if !skips.is_empty() {
            writeln!(f)?;
        }
        for skip in skips {
            writeln!(f, "skipped: {skip}")?;
        }
        write!(f, "\n{passed} passed, {failed} failed, {skipped} skipped")
    }
}

impl Tally {
    /// Counts a run that came to an end, well or not.
    fn add(&mut self, run: &str, results: Results) {
        let Results { passed, failed, ignored, programs: _, skips, failures } = results;
        self.passed += passed;
        self.failed += failed;
        self.skipped += ignored;
        self.skips.extend(skips.into_iter().map(|skip| format!("{run}: {skip}")));
        if failed > 0 {
            self.failures.push(format!("{run}:\n{}", failures.trim_end()));
        }
    }

    /// Counts what cannot be told as a test's failure: a machine that died, a build that failed.
    fn broken(&mut self, run: &str, why: &str) {
        self.failed += 1;
        self.failures.push(format!("{run}: {why}"));
    }

    fn skip(&mut self, run: &str, why: &str) {
        self.skipped += 1;
        self.skips.push(format!("{run}: {why}"));
    }
}

pub(crate) fn main(args: &Args) -> ExitCode {
    let mut tally = Tally::default();
    let wanted = |suite| args.suite.is_none_or(|only| only == suite);
    if wanted(Suite::Host) {
        host(args, &mut tally);
    }
    if wanted(Suite::Kernel) || wanted(Suite::System) {
        match build::build(false) {
            Ok(_) => {
                for suite in [Suite::Kernel, Suite::System] {
                    if wanted(suite) {
                        in_machines(suite, args, &mut tally);
                    }
                }
            }
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

/// Runs a suite with each kernel. A kernel that cannot be had is skipped, but not all of them:
/// nothing is tested then.
fn in_machines(suite: Suite, args: &Args, tally: &mut Tally) {
    let (program, full) = match suite {
        Suite::System => ("system-tests", true),
        Suite::Kernel | Suite::Host => ("kernel-tests", false),
    };
    let mut obtained = false;
    for series in &args.kernels {
        let run = format!("{program} on {series}");
        let machine = match vm::prepare(series, full) {
            Ok(machine) => machine,
            Err(error) => {
                tally.skip(&run, &format!("no machine: {error:#}"));
                continue;
            }
        };
        obtained = true;
        let run = format!("{program} on {}", machine.kernel.release);
        progress(&format!("{run}:"));
        match in_machine(machine, program, args) {
            Ok((results, None)) => tally.add(&run, results),
            Ok((results, Some(problem))) => {
                tally.add(&run, results);
                tally.broken(&run, &problem);
            }
            Err(error) => tally.broken(&run, &format!("{error:#}")),
        }
    }
    if !obtained {
        tally.broken(program, "no kernel at all could be had to run it with");
    }
}

/// The results, and what is wrong besides failed tests.
fn in_machine(machine: Machine, program: &str, args: &Args) -> Result<(Results, Option<String>)> {
    if !machine.programs.join(program).exists() {
        bail!("there is no such program: the package sandbox-tests has no binary {program}");
    }
    let command = std::iter::once(program.to_owned()).chain(args.filter.clone());
    let machine = Machine {
        command: command.map(Into::into).collect(),
        timeout: Duration::from_secs(args.timeout),
        ..machine
    };
    let mut output = Vec::new();
    let report = machine.boot(|bytes| {
        output.extend_from_slice(bytes);
        vm::to_stdout(bytes)
    })?;
    let results = Results::read(&String::from_utf8_lossy(&output));
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
            Some(format!("{why}; the end of its console:\n{}", report.console_tail))
        }
    };
    Ok((results, problem))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_stands_alone_and_says_everything() {
        let mut tally = Tally::default();
        tally.add("host", Results { passed: 3, ignored: 1, ..Results::default() });
        tally.broken("kernel-tests on 6.1", "the machine died");
        tally.skip("kernel-tests on 7", "no machine");
        let text = tally.to_string();
        assert_eq!(text.lines().last(), Some("3 passed, 1 failed, 2 skipped"));
        assert!(text.contains("failed: kernel-tests on 6.1: the machine died"), "{text}");
        assert!(text.contains("skipped: kernel-tests on 7: no machine"), "{text}");
    }
}
