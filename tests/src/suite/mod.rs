//! The kernel suite: one file a promise.

mod bad_input;
mod daemons;
mod devices;
mod doctor;
mod limits;
mod lsm;
mod moves;
mod network;
mod objects;
mod orphans;
mod patterns;
mod prerequisites;
mod running;
mod sockets;
mod unix;
mod writes;

pub(crate) use running::two_sessions as two_sessions_do_not_disturb_each_other;

use libtest_mimic::Trial;

/// Every test of the suite.
pub(crate) fn trials() -> Vec<Trial> {
    [
        doctor::trials(),
        objects::trials(),
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
    ]
    .into_iter()
    .flatten()
    .collect()
}
