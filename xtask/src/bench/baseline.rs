//! The committed numbers, and what is different now.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use sandbox_benches::{Operation, Policy, Row, Who};
use serde::{Deserialize, Serialize};

use super::results::Results;
use super::{committed, series};

/// A price without any session is the kernel's: told of when it changed by more than so many
/// percent.
const PERCENT: f64 = 2.0;

/// What is added to it is ours: told of when it changed by more than so many instructions. Two
/// boots do not agree better where memory is freed behind the back of who is counted.
fn tolerance(operation: Operation) -> f64 {
    match operation {
        Operation::ForkExec => 1000.0,
        Operation::Socket => 250.0,
        Operation::TcpConnect => 100.0,
        _ => 15.0,
    }
}

pub(crate) fn path() -> PathBuf {
    committed("baseline.json")
}

/// `benches/baseline.json`: by series of the kernel.
#[derive(Default, Serialize, Deserialize)]
pub(crate) struct Baseline(BTreeMap<String, Numbers>);

#[derive(Default, Serialize, Deserialize)]
struct Numbers {
    /// The kernel they were counted on.
    release: String,
    /// Instructions by row and by who did it.
    rows: BTreeMap<String, BTreeMap<String, f64>>,
}

/// A number that is not what it was.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Drift {
    row: String,
    who: String,
    /// Instructions then and now.
    was: f64,
    is: f64,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row, who, was, is } = self;
        let (more, percent) = (is - was, 100.0 * (is - was) / was);
        write!(f, "{row}, {who}: {was:.0} to {is:.0} ({more:+.0}, {percent:+.1} %)")
    }
}

impl Baseline {
    /// Empty where nothing was saved yet.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        match fs::read_to_string(path) {
            Ok(text) => serde_json::from_str(&text)
                .with_context(|| format!("{} is not what --save writes", path.display())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// The numbers of these results that changed: of a row's price without session, and of what
    /// others add to it.
    pub(crate) fn drifts(&self, results: &Results) -> Vec<Drift> {
        let saved = series(&results.release).ok().and_then(|series| self.0.get(&series));
        let Some(saved) = saved else { return Vec::new() };
        let mut drifts = Vec::new();
        for (row, who, is) in results.all() {
            let of = |row: Row, who: Who| saved.rows.get(&row.to_string())?.get(&who.to_string());
            let Some(&was) = of(row, who) else { continue };
            let drifted = if who == Who::None {
                100.0 * (is - was).abs() > PERCENT * was
            } else {
                let bare = Row { policy: Policy::Default, ..row };
                let bare = of(bare, Who::None).zip(results.cost(bare, Who::None));
                let Some((none_was, none_is)) = bare else { continue };
                ((is - none_is) - (was - none_was)).abs() > tolerance(row.operation)
            };
            if drifted {
                drifts.push(Drift { row: row.to_string(), who: who.to_string(), was, is });
            }
        }
        drifts
    }
}

/// Writes the results over those of the same series.
pub(crate) fn save(path: &Path, results: &Results) -> Result<()> {
    let mut baseline = Baseline::read(path)?;
    let mut numbers = Numbers { release: results.release.clone(), rows: BTreeMap::new() };
    for (row, who, instructions) in results.all() {
        let rounded = (instructions * 10.0).round() / 10.0;
        numbers.rows.entry(row.to_string()).or_default().insert(who.to_string(), rounded);
    }
    baseline.0.insert(series(&results.release)?, numbers);
    let text = serde_json::to_string_pretty(&baseline)? + "\n";
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::super::goals::tests::results;
    use super::*;

    #[test]
    fn what_was_saved_is_compared_with() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("baseline.json");
        let open =
            |none, member| results(Operation::Open { depth: 2 }, none, &[(Who::Member, member)]);
        assert!(Baseline::read(&path)?.drifts(&open(7205.0, 7700.0)).is_empty());
        save(&path, &open(7205.0, 7700.0))?;
        let saved = Baseline::read(&path)?;
        assert!(saved.drifts(&open(7205.0, 7715.0)).is_empty());
        let drifts = saved.drifts(&open(7205.0, 7716.0));
        assert_eq!(drifts.len(), 1);
        assert_eq!(drifts[0].to_string(), "open+close d2, member: 7700 to 7716 (+16, +0.2 %)");
        // The kernel itself became dearer, and we did not.
        assert!(saved.drifts(&open(7305.0, 7800.0)).is_empty());
        let drifts = saved.drifts(&open(7405.0, 7900.0));
        assert_eq!(drifts.len(), 1);
        assert_eq!(drifts[0].who, "none");
        Ok(())
    }
}
