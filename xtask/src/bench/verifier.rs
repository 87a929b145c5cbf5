//! How much of each program the verifier follows, on every kernel. The kernel suite's test
//! `verifier` fails when a program grows beyond what is committed.

use std::collections::BTreeMap;
use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use sandbox_benches::Line;

use super::{committed, measure, series};
use crate::command::progress;
use crate::kernel::SERIES;

/// Counts by kernel and program: what `benches/verifier.json` holds.
type Counts = BTreeMap<String, BTreeMap<String, u32>>;

pub(crate) fn main(save: bool, json: bool) -> Result<ExitCode> {
    let mut counts = Counts::new();
    for kernel in SERIES {
        let (release, lines) = measure(kernel, &["verifier".to_owned()])?;
        let told = lines.into_iter().find_map(|line| match line {
            Line::Verified(counts) => Some(counts),
            _ => None,
        });
        counts.insert(series(&release)?, told.context("the machine told no counts")?);
    }
    if json {
        println!("{}", serde_json::to_string_pretty(&counts)?);
    } else {
        print!("{}", table(&counts));
    }
    if save {
        let place = committed("verifier.json");
        let text = serde_json::to_string_pretty(&counts)? + "\n";
        fs::write(&place, text).with_context(|| format!("cannot write {}", place.display()))?;
        progress(&format!("wrote {}", place.display()));
    }
    Ok(ExitCode::SUCCESS)
}

/// Programs down, kernels across.
fn table(counts: &Counts) -> String {
    use std::fmt::Write as _;
    let mut names: Vec<_> = counts.values().flat_map(BTreeMap::keys).collect();
    names.sort_unstable();
    names.dedup();
    let mut text = format!("{:<24}", "instructions followed");
    let line = |text: &mut String, name: &str, of: &dyn Fn(&BTreeMap<String, u32>) -> String| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{name:<24}");
        for programs in counts.values() {
            let _ = write!(text, "{:>10}", of(programs));
        }
        text.push('\n');
    };
    for kernel in counts.keys() {
        let _ = write!(text, "{kernel:>10}");
    }
    text.push('\n');
    for name in names {
        line(&mut text, name, &|programs| {
            programs.get(name).map_or_else(|| "-".to_owned(), u32::to_string)
        });
    }
    line(&mut text, "all", &|programs| programs.values().sum::<u32>().to_string());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_a_kernel_lacks_is_a_dash() {
        let kernel = |programs: &[(&str, u32)]| {
            programs.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        let counts = Counts::from([
            ("6.1".to_owned(), kernel(&[("file_open", 2230)])),
            ("6.12".to_owned(), kernel(&[("file_open", 2200), ("file_truncate", 30)])),
        ]);
        let table = table(&counts);
        let lines: Vec<Vec<_>> =
            table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[2], ["file_truncate", "-", "30"]);
        assert_eq!(lines[3], ["all", "2230", "2230"]);
    }
}
