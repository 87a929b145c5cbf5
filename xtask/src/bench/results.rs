//! The numbers of one run, and what follows from them.

use std::collections::BTreeMap;

use sandbox_benches::{Line, Measurement, Operation, Policy, Row, Who, rows};

/// Less than this is the counting's own: batches of different sizes.
const NOISE: f64 = 0.5;

/// The numbers of one run.
pub(crate) struct Results {
    /// What `uname -r` says.
    pub(crate) release: String,
    numbers: BTreeMap<(Operation, Option<Policy>, Who), Measurement>,
    /// Policies that could not be measured, and why.
    pub(crate) unmeasured: Vec<(Policy, String)>,
}

impl Results {
    pub(crate) fn new(release: String, lines: impl IntoIterator<Item = Line>) -> Self {
        let (mut numbers, mut unmeasured) = (BTreeMap::new(), Vec::new());
        for line in lines {
            match line {
                Line::Measured(one) => {
                    numbers.insert((one.operation, one.policy, one.who), one);
                }
                Line::Unmeasured { policy, why } => unmeasured.push((policy, why)),
                Line::Progress(_) | Line::Verified(_) => {}
            }
        }
        Self { release, numbers, unmeasured }
    }

    /// The rows of which there is anything besides the price without a session.
    pub(crate) fn rows(&self) -> Vec<Row> {
        let mut rows = rows();
        rows.retain(|row| Who::COMPARED.iter().any(|who| self.cost(*row, *who).is_some()));
        rows
    }

    /// Those who are compared in this run.
    pub(crate) fn columns(&self) -> Vec<Who> {
        let told = |who: &Who| self.numbers.keys().any(|(_, _, one)| one == who);
        Who::COMPARED.into_iter().filter(told).collect()
    }

    /// Instructions of the row's operation. Where no session is, there is no policy; Landlock's and
    /// the bare price stand in the rows of the default policy only.
    pub(crate) fn cost(&self, row: Row, who: Who) -> Option<f64> {
        let policy = match who {
            Who::None => None,
            Who::Landlock if row.policy == Policy::Default => None,
            Who::Landlock => return None,
            Who::Member | Who::Uncached | Who::Bystander => Some(row.policy),
        };
        self.numbers.get(&(row.operation, policy, who)).map(|one| one.instructions)
    }

    /// Instructions more than without any session.
    pub(crate) fn added(&self, row: Row, who: Who) -> Option<f64> {
        let added = self.cost(row, who)? - self.cost(row, Who::None)?;
        Some(if added.abs() < NOISE { 0.0 } else { added })
    }

    /// The same in percent.
    pub(crate) fn percent(&self, row: Row, who: Who) -> Option<f64> {
        Some(100.0 * self.added(row, who)? / self.cost(row, Who::None)?)
    }

    /// Every number, with its row and who it is about. What is the same under every policy stands
    /// in the row of the default policy.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Row, Who, f64)> {
        self.numbers.values().map(|one| {
            let policy = one.policy.unwrap_or(Policy::Default);
            (Row { operation: one.operation, policy }, one.who, one.instructions)
        })
    }
}
