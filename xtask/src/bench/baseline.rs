//! The committed numbers, and what is different now.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use super::results::Results;
use super::{committed, series};

/// A number that changed by more than either of these is told of.
const INSTRUCTIONS: f64 = 15.0;
const PERCENT: f64 = 2.0;
/// What the counting itself cannot tell apart: so many times the distance of the two least batches.
const SPREADS: f64 = 3.0;

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

    /// The numbers of these results that changed.
    pub(crate) fn drifts(&self, results: &Results) -> Vec<Drift> {
        let saved = series(&results.release).ok().and_then(|series| self.0.get(&series));
        let Some(saved) = saved else { return Vec::new() };
        let drift = |(row, who, now): (String, String, &sandbox_benches::Measurement)| {
            let was = *saved.rows.get(&row)?.get(&who)?;
            let is = now.instructions;
            let change = (is - was).abs();
            let much = change > INSTRUCTIONS || 100.0 * change > PERCENT * was;
            (much && change > SPREADS * now.spread).then_some(Drift { row, who, was, is })
        };
        results.all().filter_map(drift).collect()
    }
}

/// Writes the results over those of the same series.
pub(crate) fn save(path: &Path, results: &Results) -> Result<()> {
    let mut baseline = Baseline::read(path)?;
    let mut numbers = Numbers { release: results.release.clone(), rows: BTreeMap::new() };
    for (row, who, one) in results.all() {
        let rounded = (one.instructions * 10.0).round() / 10.0;
        numbers.rows.entry(row).or_default().insert(who, rounded);
    }
    baseline.0.insert(series(&results.release)?, numbers);
    let text = serde_json::to_string_pretty(&baseline)? + "\n";
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::super::goals::tests::results;
    use super::*;
    use sandbox_benches::{Operation, Who};

    #[test]
    fn what_was_saved_is_compared_with() -> Result<()> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("baseline.json");
        let open = |member| results(Operation::Open { depth: 2 }, 7205.0, &[(Who::Member, member)]);
        assert!(Baseline::read(&path)?.drifts(&open(7700.0)).is_empty());
        save(&path, &open(7700.0))?;
        let saved = Baseline::read(&path)?;
        assert!(saved.drifts(&open(7715.0)).is_empty());
        let drifts = saved.drifts(&open(7716.0));
        assert_eq!(drifts.len(), 1);
        assert_eq!(drifts[0].to_string(), "open+close d2, member: 7700 to 7716 (+16, +0.2 %)");
        // Small numbers by their percentage.
        let small = |member| results(Operation::Getppid, 322.0, &[(Who::Member, member)]);
        save(&path, &small(322.0))?;
        assert_eq!(Baseline::read(&path)?.drifts(&small(330.0)).len(), 1);
        Ok(())
    }
}
