//! The suite of everyday programs, on a full system.

mod agents;
mod clients;
mod coexistence;
mod forbidden;
mod machine;
mod manager;
mod needs;
mod nested;
mod network;
mod persistence;
mod selftest;
mod terminal;
mod tls_names;
mod units;
mod work;
mod worktree;

use crate::harness::trial;
use libtest_mimic::Trial;

/// Rows of the coverage table, each with a test that tries it.
pub(crate) fn rows() -> Vec<(&'static str, &'static str)> {
    [
        work::ROWS,
        needs::ROWS,
        worktree::ROWS,
        persistence::ROWS,
        forbidden::ROWS,
        manager::ROWS,
        nested::ROWS,
        selftest::ROWS,
        clients::ROWS,
    ]
    .concat()
}

/// Every test of the suite.
pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = work::trials();
    trials.extend(needs::trials());
    trials.extend(worktree::trials());
    trials.extend(persistence::trials());
    trials.extend(forbidden::trials());
    trials.extend(manager::trials());
    trials.extend(coexistence::trials());
    trials.extend(nested::trials());
    trials.extend(selftest::trials());
    trials.extend(agents::trials());
    trials.extend(network::trials());
    trials.extend(clients::trials());
    trials.extend(tls_names::trials());
    trials.extend(units::trials());
    trials.extend(terminal::trials());
    trials.push(trial(
        "sessions::two_do_not_disturb_each_other",
        crate::suite::two_sessions_do_not_disturb_each_other,
    ));
    trials
}
