//! What must be reached.

use sandbox_benches::report::{FEW_NETWORKS, MANY_NETWORKS};
use sandbox_benches::{Operation, Policy, Row, Who};
use serde::Serialize;

use super::results::Results;

/// What is demanded of a row.
#[derive(Clone, Copy, Debug)]
enum Demand {
    /// So many instructions more at the most.
    Added(f64),
    /// So many percent more at the most.
    Percent(f64),
    /// Not one instruction more.
    Nothing,
    /// What is added differs from what is added in this row by so many percent at the most.
    Like(Row, f64),
    /// Landlock adds so many times as much at the least.
    LandlockTimes(f64),
}

const fn row(operation: Operation) -> Row {
    Row { operation, policy: Policy::Default }
}

const fn open(depth: u32, policy: Policy) -> Row {
    Row { operation: Operation::Open { depth }, policy }
}

const fn networks(operation: Operation, count: u32) -> Row {
    Row { operation, policy: Policy::Prefixes(count) }
}

const NETWORKS_ALIKE: Demand = Demand::Like(networks(Operation::TcpConnect, FEW_NETWORKS), 5.0);

const DEFAULT: Policy = Policy::Default;
const FEW: Policy = Policy::Rules(10);
const MANY: Policy = Policy::Rules(10_000);

/// The goals: warm, a member's price for opening a file depends neither on depth nor on the number
/// of rules; what no hook is in the way of costs nothing; bystanders pay next to nothing.
const GOALS: &[(Row, Who, Demand)] = &[
    (open(2, DEFAULT), Who::Member, Demand::Added(600.0)),
    (open(5, DEFAULT), Who::Member, Demand::Added(600.0)),
    (open(10, DEFAULT), Who::Member, Demand::Added(600.0)),
    (open(20, DEFAULT), Who::Member, Demand::Added(600.0)),
    (open(40, DEFAULT), Who::Member, Demand::Added(600.0)),
    (open(2, FEW), Who::Member, Demand::Added(600.0)),
    (open(40, FEW), Who::Member, Demand::Added(600.0)),
    (open(2, MANY), Who::Member, Demand::Added(600.0)),
    (open(40, MANY), Who::Member, Demand::Added(600.0)),
    (open(40, DEFAULT), Who::Member, Demand::Like(open(2, DEFAULT), 5.0)),
    (open(40, FEW), Who::Member, Demand::Like(open(2, FEW), 5.0)),
    (open(40, MANY), Who::Member, Demand::Like(open(2, MANY), 5.0)),
    (open(2, MANY), Who::Member, Demand::Like(open(2, FEW), 5.0)),
    (open(40, MANY), Who::Member, Demand::Like(open(40, FEW), 5.0)),
    (open(40, Policy::Patterns), Who::Member, Demand::Like(open(2, Policy::Patterns), 5.0)),
    (open(10, DEFAULT), Who::Member, Demand::LandlockTimes(4.0)),
    (open(5, DEFAULT), Who::Bystander, Demand::Percent(4.5)),
    (Row { operation: Operation::FirstPass, policy: FEW }, Who::Member, Demand::Percent(9.0)),
    (row(Operation::FirstPass), Who::Member, Demand::Percent(9.0)),
    (row(Operation::CreateUnlink), Who::Member, Demand::Percent(5.0)),
    (row(Operation::Rename), Who::Member, Demand::Percent(5.0)),
    (row(Operation::Stat), Who::Member, Demand::Nothing),
    (row(Operation::Stat), Who::Bystander, Demand::Nothing),
    (row(Operation::Read), Who::Member, Demand::Nothing),
    (row(Operation::Read), Who::Bystander, Demand::Nothing),
    (row(Operation::Write), Who::Member, Demand::Nothing),
    (row(Operation::Write), Who::Bystander, Demand::Nothing),
    (row(Operation::Getppid), Who::Member, Demand::Nothing),
    (row(Operation::Getppid), Who::Bystander, Demand::Nothing),
    (row(Operation::ForkExec), Who::Member, Demand::Percent(1.0)),
    (row(Operation::TcpConnect), Who::Member, Demand::Percent(2.5)),
    (networks(Operation::TcpConnect, MANY_NETWORKS), Who::Member, NETWORKS_ALIKE),
];

/// A goal and how far it was reached.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Judged {
    /// The row's name.
    pub(crate) row: String,
    /// Whose number it is about.
    pub(crate) who: Who,
    /// What is demanded: `≤ +600`.
    pub(crate) demand: String,
    /// What there is, in the same unit.
    pub(crate) value: f64,
    /// Whether that is what is demanded.
    pub(crate) met: bool,
}

/// Judges every goal that the results say anything about.
pub(crate) fn judge(results: &Results) -> Vec<Judged> {
    GOALS.iter().filter_map(|&(row, who, demand)| judge_one(results, row, who, demand)).collect()
}

fn judge_one(results: &Results, row: Row, who: Who, demand: Demand) -> Option<Judged> {
    let added = results.added(row, who)?;
    let (text, value, met) = match demand {
        Demand::Added(most) => (format!("≤ +{most}"), added, added <= most),
        Demand::Percent(most) => {
            let percent = results.percent(row, who)?;
            (format!("≤ +{most} %"), percent, percent <= most)
        }
        Demand::Nothing => ("+0".to_owned(), added, added == 0.0),
        Demand::Like(other, most) => {
            let other_added = results.added(other, who)?;
            let apart = 100.0 * (added - other_added).abs() / added.abs().min(other_added.abs());
            // Two that add nothing are alike.
            let apart = if apart.is_nan() { 0.0 } else { apart };
            (format!("within {most} % of {other}"), apart, apart <= most)
        }
        Demand::LandlockTimes(least) => {
            let times = results.added(row, Who::Landlock)? / added;
            (format!("landlock ≥ {least} ×"), times, added <= 0.0 || times >= least)
        }
    };
    Some(Judged { row: row.to_string(), who, demand: text, value, met })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use sandbox_benches::{Line, Measurement, rows};
    use std::collections::BTreeSet;

    /// One operation: its cost without session, and for some others.
    pub(crate) fn results(operation: Operation, none: f64, others: &[(Who, f64)]) -> Results {
        let line = |who, instructions| {
            let policy = (!matches!(who, Who::None | Who::Landlock)).then_some(Policy::Default);
            Line::Measured(Measurement { operation, policy, who, instructions, spread: 0.0 })
        };
        let mut lines = vec![line(Who::None, none)];
        lines.extend(others.iter().map(|&(who, instructions)| line(who, instructions)));
        Results::new("6.12.1-test".to_owned(), lines)
    }

    #[track_caller]
    fn verdicts(results: &Results, expected: &[(&str, bool)]) {
        let found: Vec<_> =
            judge(results).into_iter().map(|goal| (goal.demand, goal.met)).collect();
        let expected: Vec<_> =
            expected.iter().map(|&(demand, met)| (demand.to_owned(), met)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn every_goal_is_about_a_row_that_exists() {
        let rows: BTreeSet<Row> = rows().into_iter().collect();
        for (row, _, demand) in GOALS {
            assert!(rows.contains(row), "{row}");
            if let Demand::Like(other, _) = demand {
                assert!(rows.contains(other), "{other}");
            }
        }
    }

    #[test]
    fn added_instructions_and_landlock() {
        let ten = Operation::Open { depth: 10 };
        let both = |member, landlock| {
            results(ten, 10_000.0, &[(Who::Member, member), (Who::Landlock, landlock)])
        };
        verdicts(&both(10_600.0, 12_400.0), &[("≤ +600", true), ("landlock ≥ 4 ×", true)]);
        verdicts(&both(10_601.0, 12_400.0), &[("≤ +600", false), ("landlock ≥ 4 ×", false)]);
    }

    #[test]
    fn nothing_means_nothing() {
        let stat = |member| results(Operation::Stat, 6406.0, &[(Who::Member, member)]);
        verdicts(&stat(6406.04), &[("+0", true)]);
        verdicts(&stat(6407.0), &[("+0", false)]);
        // Less is as suspicious as more.
        verdicts(&stat(6405.0), &[("+0", false)]);
    }

    #[test]
    fn percent() {
        let bystander =
            |cost| results(Operation::Open { depth: 5 }, 1000.0, &[(Who::Bystander, cost)]);
        verdicts(&bystander(1045.0), &[("≤ +4.5 %", true)]);
        verdicts(&bystander(1046.0), &[("≤ +4.5 %", false)]);
    }

    #[test]
    fn depths_are_alike() {
        let lines = |deep| {
            [(2, Who::None, 7000.0), (2, Who::Member, 7500.0), (40, Who::None, 20_000.0)]
                .into_iter()
                .chain([(40, Who::Member, deep)])
                .map(|(depth, who, instructions)| {
                    let policy = (who == Who::Member).then_some(Policy::Default);
                    let operation = Operation::Open { depth };
                    Line::Measured(Measurement {
                        operation,
                        policy,
                        who,
                        instructions,
                        spread: 0.0,
                    })
                })
        };
        for (deep, met) in [(20_525.0, true), (20_526.0, false), (20_476.0, false)] {
            let judged = judge(&Results::new(String::new(), lines(deep)));
            let like = judged.iter().find(|goal| goal.demand.starts_with("within"));
            let like = like.expect("there is such a goal");
            assert_eq!((like.met, like.row.as_str()), (met, "open+close d40"), "{like:?}");
        }
    }
}
