//! `cargo xtask bench`: what enforcement costs, in instructions.

mod baseline;
mod goals;
mod results;
mod table;
mod verifier;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use sandbox_benches::Line;

use crate::build::{self, Profile};
use crate::command::progress;
use crate::kernel::DEFAULT_SERIES;
use crate::machine::Machine;
use crate::vm;
use results::Results;

/// Addresses decide how long the chains of the kernel's hash tables are, and how many page tables
/// a process has: they are the same in every boot, and for everyone who is compared.
const CMDLINE: &str = "nokaslr norandmaps";
const TIMEOUT: Duration = Duration::from_mins(30);

#[derive(clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags of a command line")]
pub(crate) struct Args {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Kernel series; goals are meant for the default
    #[arg(long, value_name = "SERIES", default_value = DEFAULT_SERIES)]
    kernel: String,
    /// Write the numbers into benches/baseline.json (with --verifier, into benches/verifier.json)
    #[arg(long, conflicts_with = "filter")]
    save: bool,
    /// Also count with `SANDBOX_NODE_CACHE=off` in the environment of `sandbox run`
    #[arg(long)]
    no_cache: bool,
    /// Count what the verifier followed of each program instead, on every kernel
    #[arg(long, conflicts_with_all = ["filter", "no_cache"])]
    verifier: bool,
    /// Use the programs in target/dist as they are
    #[arg(long)]
    no_build: bool,
    /// Only rows whose name contains this
    filter: Option<String>,
}

/// Status 1 when a goal is missed.
pub(crate) fn main(args: &Args) -> Result<ExitCode> {
    if !args.no_build {
        build::build(Profile::Release)?;
    }
    if args.verifier {
        return verifier::main(args.save, args.json);
    }
    let mut words = vec!["machine".to_owned()];
    words.extend(args.no_cache.then(|| "--no-cache".to_owned()));
    words.extend(args.filter.clone());
    let (release, lines) = measure(&args.kernel, &words)?;
    let results = Results::new(release, lines);
    let goals = goals::judge(&results);
    let place = baseline::path();
    let drifts = baseline::Baseline::read(&place)?.drifts(&results);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&table::json(&results, &goals, &drifts))?);
    } else {
        print!("{}", table::Table { results: &results, goals: &goals, drifts: &drifts });
    }
    if args.save {
        baseline::save(&place, &results)?;
        progress(&format!("wrote {}", place.display()));
    }
    let met = goals.iter().all(|goal| goal.met);
    Ok(if met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A file of this checkout's `benches`.
fn committed(name: &str) -> PathBuf {
    build::workspace().join("benches").join(name)
}

/// Boots a machine that counts instructions, runs `bench` in it, and gives the kernel's release and
/// what was told.
fn measure(series: &str, words: &[String]) -> Result<(String, Vec<Line>)> {
    let command = std::iter::once("bench").chain(words.iter().map(String::as_str));
    let machine = Machine {
        command: command.map(Into::into).collect(),
        cmdline: CMDLINE.to_owned(),
        icount: true,
        timeout: TIMEOUT,
        ..vm::prepare(series, false)?
    };
    let release = machine.kernel.release.clone();
    progress(&format!("counting on {release}"));
    let mut reader = Reader::default();
    let report = machine.boot(|bytes| {
        reader.add(bytes);
        Ok(())
    })?;
    let status = vm::conclude(&report);
    if status != 0 {
        bail!("counting failed on {release} (status {status}); what it said is above");
    }
    Ok((release, reader.lines))
}

/// Takes the lines apart as they come; what is none of ours goes to stderr.
#[derive(Default)]
struct Reader {
    lines: Vec<Line>,
    rest: Vec<u8>,
}

impl Reader {
    fn add(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            match serde_json::from_slice(&line) {
                Ok(Line::Progress(text)) => progress(&text),
                Ok(line) => self.lines.push(line),
                Err(_) => eprint!("{}", String::from_utf8_lossy(&line)),
            }
        }
    }
}

/// The series of a release as the committed files call it: `6.12` of `6.12.117+deb13-cloud-amd64`.
fn series(release: &str) -> Result<String> {
    let mut parts = release.split('.');
    let numbers = parts.next().zip(parts.next());
    let (major, minor) = numbers.with_context(|| format!("no kernel release: {release}"))?;
    let minor: String = minor.chars().take_while(char::is_ascii_digit).collect();
    Ok(format!("{major}.{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_come() {
        let mut reader = Reader::default();
        reader.add(b"{\"verified\":{\"file_o");
        assert!(reader.lines.is_empty());
        reader.add(b"pen\":2230}}\nnoise\n{\"progress\":\"x\"}\n");
        assert!(
            matches!(&reader.lines[..], [Line::Verified(counts)] if counts["file_open"] == 2230)
        );
    }

    #[test]
    fn a_release_belongs_to_a_series() -> Result<()> {
        assert_eq!(series("6.12.117+deb13-cloud-amd64")?, "6.12");
        assert_eq!(series("7.3+deb14-amd64")?, "7.3");
        assert!(series("linux").is_err());
        Ok(())
    }
}
