//! As whom a row is tried: by agents that are root, and by those of an ordinary user.

use super::subjects::UNTESTED;
use crate::harness::ORDINARY;

/// Whose agent it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    Root,
    Ordinary,
}

/// Tests whose agents, or whose caller, are an ordinary user's only.
const ORDINARY_ONLY: &[&str] = &[
    "forbidden::own_rules_are_named_with_their_line",
    "manager::of_the_user_does_not_act_for_a_member",
    "nested::bubblewrap_of_an_ordinary_user",
    "outsiders::are_out_of_reach_of_their_user",
    "prerequisites::not_root",
    "running::setuid_programs_give_nothing_of_an_ordinary_user",
    "surface::ordinary_user",
];

/// Tests that have an agent of either.
const EITHER: &[&str] =
    &["persistence::nothing_is_left_to_be_run", "selftest::nothing_gets_through"];

const STARTS: &str = "starts are root's alone: `T prerequisites::not_root`";
const SAME: &str = "no verdict looks at who asks; root's agents, who may do more, are tried";

/// Rows that are not tried as an ordinary user, and why.
const NOT_ORDINARY: &[(&str, &str)] =
    &[("A9", STARTS), ("D5.93", STARTS), ("D6.94", STARTS), ("D6.100", SAME), ("D6.101", SAME)];

/// Tests, with whether they are of the kernel suite, and rows as they are listed by the suites.
pub(super) struct Tried {
    rows: Vec<(&'static str, &'static str, bool)>,
    /// Of tests that are made once for either.
    ordinary: Vec<String>,
}

impl Tried {
    pub(super) fn new() -> Self {
        let kernel = crate::suite::rows().into_iter().map(|(row, test)| (row, test, true));
        let system = crate::system::rows().into_iter().map(|(row, test)| (row, test, false));
        let mut rows: Vec<_> = kernel.chain(system).collect();
        rows.sort_unstable_by_key(|(row, test, is_kernel)| (*row, *is_kernel, *test));
        rows.dedup();
        let names = crate::suite::trials().into_iter().map(|trial| trial.name().to_owned());
        Self { rows, ordinary: names.filter(|name| name.ends_with(ORDINARY)).collect() }
    }

    /// The tests of a row as one of the two, as the document shows them.
    pub(super) fn tests(&self, id: &str, who: Who) -> Vec<String> {
        let of_row = self.rows.iter().filter(|(row, ..)| *row == id);
        let tests = of_row.filter_map(|(_, test, is_kernel)| {
            let twice = format!("{test}{ORDINARY}");
            let only = ORDINARY_ONLY.contains(test);
            let name = match who {
                Who::Root => (!only).then(|| (*test).to_owned()),
                Who::Ordinary if only || EITHER.contains(test) => Some((*test).to_owned()),
                Who::Ordinary => self.ordinary.contains(&twice).then_some(twice),
            };
            name.map(|name| format!("`{} {name}`", if *is_kernel { 'T' } else { 'S' }))
        });
        tests.collect()
    }

    /// The tests of a row as one of the two, or why there is none; empty where neither is known.
    pub(super) fn shown(&self, id: &str, who: Who) -> String {
        let tests = self.tests(id, who);
        let mut reasons = NOT_ORDINARY.iter().filter(|_| who == Who::Ordinary).chain(UNTESTED);
        match reasons.find(|(row, _)| *row == id) {
            Some((_, reason)) if tests.is_empty() => (*reason).to_owned(),
            _ => tests.join(", "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_tried_as_either_or_says_why_not() {
        let tried = Tried::new();
        for id in super::super::subjects::twofold() {
            for who in [Who::Root, Who::Ordinary] {
                assert!(!tried.shown(id, who).is_empty(), "{id} is not tried as {who:?}");
            }
        }
        for (id, _) in NOT_ORDINARY {
            assert!(tried.tests(id, Who::Ordinary).is_empty(), "{id} is tried: take it off");
        }
    }

    #[test]
    fn named_tests_exist() {
        let trials = crate::suite::trials().into_iter().chain(crate::system::trials());
        let trials: Vec<_> = trials.map(|trial| trial.name().to_owned()).collect();
        for name in ORDINARY_ONLY.iter().chain(EITHER) {
            assert!(trials.iter().any(|trial| trial == name), "there is no test {name}");
        }
    }
}
