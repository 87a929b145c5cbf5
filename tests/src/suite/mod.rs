//! The kernel suite: one file a promise.

mod aliases;
mod bad_input;
mod daemons;
mod devices;
mod doctor;
mod engine;
mod folding;
mod limits;
mod lsm;
mod many;
mod moves;
mod network;
mod objects;
mod orphans;
mod patterns;
mod prerequisites;
mod running;
mod sockets;
mod superblocks;
mod unix;
mod writes;

pub(crate) use running::two_sessions as two_sessions_do_not_disturb_each_other;

use libtest_mimic::Trial;

/// Rows of the threat tables, each with a test that tries it.
#[cfg_attr(not(test), expect(dead_code, reason = "for those who list what is covered"))]
pub(crate) fn rows() -> Vec<(&'static str, &'static str)> {
    [objects::ROWS, aliases::ROWS, superblocks::ROWS, folding::ROWS, moves::ROWS, limits::ROWS]
        .concat()
}

/// Every test of the suite.
pub(crate) fn trials() -> Vec<Trial> {
    [
        doctor::trials(),
        engine::trials(),
        objects::trials(),
        aliases::trials(),
        superblocks::trials(),
        folding::trials(),
        writes::trials(),
        moves::trials(),
        patterns::trials(),
        limits::trials(),
        devices::trials(),
        network::trials(),
        sockets::trials(),
        unix::trials(),
        daemons::trials(),
        running::trials(),
        orphans::trials(),
        bad_input::trials(),
        prerequisites::trials(),
        lsm::trials(),
        many::trials(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_row_has_its_test() {
        let trials = super::trials();
        for (row, test) in super::rows() {
            assert!(trials.iter().any(|trial| trial.name() == test), "{row}: no test {test}");
        }
    }
}
