//! The numbers for people, and for programs.

use std::fmt;

use sandbox_benches::{Row, Who};
use serde_json::{Value, json};

use super::baseline::Drift;
use super::goals::Judged;
use super::results::Results;

/// Everything as a table, with what is to be said about it below.
pub(crate) struct Table<'a> {
    pub(crate) results: &'a Results,
    pub(crate) goals: &'a [Judged],
    pub(crate) drifts: &'a [Drift],
}

/// Goals that stand in the table beside their row; others compare rows and stand below.
fn beside(goal: &Judged) -> bool {
    !goal.demand.starts_with("within")
}

fn verdict(goal: &Judged) -> &'static str {
    if goal.met { "ok" } else { "OVER" }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { results, goals, drifts } = self;
        let columns = results.columns();
        writeln!(f, "Linux {}, instructions of one operation\n", results.release)?;
        write!(f, "{:<33}{:>9}", "", Who::None)?;
        for who in &columns {
            write!(f, "{who:>20}")?;
        }
        writeln!(f, "   goal")?;
        for row in results.rows() {
            write!(f, "{row:<33}")?;
            match results.cost(row, Who::None) {
                Some(cost) => write!(f, "{cost:>9.0}")?,
                None => write!(f, "{:>9}", "-")?,
            }
            for who in &columns {
                write!(f, "{:>20}", change(results, row, *who))?;
            }
            let name = row.to_string();
            let goals = goals.iter().filter(|goal| goal.row == name && beside(goal));
            let goals: Vec<_> = goals
                .map(|goal| format!("{} {} {}", goal.who, goal.demand, verdict(goal)))
                .collect();
            writeln!(f, "   {}", goals.join(", "))?;
        }
        writeln!(f)?;
        for goal in goals.iter().filter(|goal| !beside(goal)) {
            let Judged { row, who, demand, value, met: _ } = goal;
            writeln!(f, "{row}: {who} adds {demand}: {value:.1} % apart, {}", verdict(goal))?;
        }
        for (policy, why) in &results.unmeasured {
            let why = why.lines().next().unwrap_or_default();
            writeln!(f, "not counted: {policy}: `sandbox` refuses the policy: {why}")?;
        }
        for drift in *drifts {
            writeln!(f, "drifted: {drift}")?;
        }
        let missed = goals.iter().filter(|goal| !goal.met).count();
        writeln!(f, "\n{} goals, {missed} missed", goals.len())
    }
}

/// `+685   +9.6 %`
fn change(results: &Results, row: Row, who: Who) -> String {
    match (results.added(row, who), results.percent(row, who)) {
        (Some(added), Some(percent)) => format!("{added:+.0} {:>9}", format!("{percent:+.1} %")),
        _ => "-".to_owned(),
    }
}

/// The same as one JSON object.
pub(crate) fn json(results: &Results, goals: &[Judged], drifts: &[Drift]) -> Value {
    let rows: Vec<_> = results
        .rows()
        .into_iter()
        .map(|row| {
            let mut object = json!({
                "row": row.to_string(),
                "operation": row.operation.to_string(),
                "policy": row.policy.to_string(),
                "none": results.cost(row, Who::None),
            });
            for who in results.columns() {
                object[who.to_string()] = json!({
                    "instructions": results.cost(row, who),
                    "added": results.added(row, who),
                    "percent": results.percent(row, who),
                });
            }
            object
        })
        .collect();
    let unmeasured: Vec<_> = results
        .unmeasured
        .iter()
        .map(|(policy, why)| json!({"policy": policy.to_string(), "why": why}))
        .collect();
    json!({
        "kernel": results.release,
        "rows": rows,
        "goals": goals,
        "drifted": drifts,
        "unmeasured": unmeasured,
    })
}

#[cfg(test)]
mod tests {
    use super::super::goals;
    use super::super::goals::tests::results;
    use super::*;
    use sandbox_benches::Operation;

    #[test]
    fn a_row_shows_price_goal_and_verdict() {
        let others = [(Who::Member, 10_700.0), (Who::Landlock, 13_000.0)];
        let results = results(Operation::Open { depth: 10 }, 10_000.0, &others);
        let goals = goals::judge(&results);
        let text = Table { results: &results, goals: &goals, drifts: &[] }.to_string();
        let row = text.lines().find(|line| line.starts_with("open+close d10 "));
        let words: Vec<_> = row.expect("the row is there").split_whitespace().collect();
        assert_eq!(words[..7], ["open+close", "d10", "10000", "+700", "+7.0", "%", "+3000"]);
        assert!(text.contains("member ≤ +600 OVER, member landlock ≥ 4 × ok"), "{text}");
        assert!(text.ends_with("\n2 goals, 1 missed\n"), "{text}");
    }

    #[test]
    fn programs_get_the_same() {
        let results = results(Operation::Stat, 6406.0, &[(Who::Member, 6406.0)]);
        let object = json(&results, &goals::judge(&results), &[]);
        assert_eq!(object["rows"][0]["member"]["added"], 0.0);
        assert_eq!(object["goals"][0]["met"], true);
    }
}
