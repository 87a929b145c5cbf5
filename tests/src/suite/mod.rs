//! The kernel suite: one file a promise.

mod agreement;
mod aliases;
mod amounts;
mod asks;
mod attributes;
mod audits;
mod bad_input;
mod coexistence;
mod daemons;
mod deleting;
mod devices;
mod doctor;
mod engine;
mod folding;
mod fuse;
mod greed;
mod guards;
mod layers;
mod learn;
mod leaving;
mod limits;
mod links;
mod listen;
mod live;
mod lockdown;
mod lsm;
mod many;
mod moves;
mod names;
mod names_world;
mod namespaces;
mod network;
mod objects;
mod orphans;
mod outsiders;
mod overlays;
mod passing;
mod patterns;
mod preemption;
mod prerequisites;
mod running;
mod selinux;
mod server_names;
mod siege;
mod sockets;
mod subvolumes;
mod superblocks;
mod surface;
mod unix;
mod verdicts;
mod verifier;
mod writes;

pub(crate) use running::two_sessions as two_sessions_do_not_disturb_each_other;

use libtest_mimic::Trial;

/// Which test shows which technique: a row of the table of techniques ("A34") or a case from real
/// life ("D2.30", part and number), and the name of a test as `--list` prints it.
pub(crate) fn rows() -> Vec<(&'static str, &'static str)> {
    [
        doctor::ROWS,
        objects::ROWS,
        writes::ROWS,
        aliases::ROWS,
        links::ROWS,
        superblocks::ROWS,
        folding::ROWS,
        moves::ROWS,
        namespaces::ROWS,
        patterns::ROWS,
        attributes::ROWS,
        passing::ROWS,
        overlays::ROWS,
        fuse::ROWS,
        subvolumes::ROWS,
        guards::ROWS,
        leaving::ROWS,
        daemons::ROWS,
        prerequisites::ROWS,
        lsm::ROWS,
        bad_input::ROWS,
        running::ROWS,
        orphans::ROWS,
        siege::ROWS,
        outsiders::ROWS,
        lockdown::ROWS,
        surface::ROWS,
        limits::ROWS,
        devices::ROWS,
        network::ROWS,
        listen::ROWS,
        names::ROWS,
        sockets::ROWS,
        unix::ROWS,
        names_world::ROWS,
        layers::ROWS,
        crate::differential::ROWS,
        crate::race::ROWS,
    ]
    .concat()
}

/// Every test of the suite.
pub(crate) fn trials() -> Vec<Trial> {
    [
        doctor::trials_without_engine(),
        engine::trials_without_engine(),
        coexistence::trials_without_engine(),
        doctor::trials(),
        engine::trials(),
        coexistence::trials(),
        objects::trials(),
        aliases::trials(),
        links::trials(),
        superblocks::trials(),
        folding::trials(),
        writes::trials(),
        moves::trials(),
        namespaces::trials(),
        patterns::trials(),
        attributes::trials(),
        deleting::trials(),
        passing::trials(),
        overlays::trials(),
        fuse::trials(),
        subvolumes::trials(),
        guards::trials(),
        leaving::trials(),
        outsiders::trials(),
        surface::trials(),
        limits::trials(),
        greed::trials(),
        layers::trials(),
        asks::trials(),
        audits::trials(),
        agreement::trials(),
        learn::trials(),
        live::trials(),
        devices::trials(),
        network::trials(),
        amounts::trials(),
        verdicts::trials(),
        listen::trials(),
        names::trials(),
        names_world::trials(),
        server_names::trials(),
        sockets::trials(),
        unix::trials(),
        daemons::trials(),
        running::trials(),
        orphans::trials(),
        siege::trials(),
        bad_input::trials(),
        preemption::trials(),
        prerequisites::trials(),
        lsm::trials(),
        selinux::trials(),
        lockdown::trials_at_boot(),
        verifier::trials(),
        many::trials(),
        crate::differential::trials(),
        crate::race::trials(),
        // The last of all: a kernel does not come back from it.
        lockdown::trials(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_way_to_change_a_file_has_a_test() {
        let rows = super::rows();
        let techniques = (29..=45).map(|number| format!("A{number}"));
        let cases = [20, 22, 26].map(|number| format!("D1.{number}"));
        let writes = [28, 29, 30, 31, 33, 34, 35, 36, 37, 42, 43, 44, 45];
        let writes = writes.map(|number| format!("D2.{number}"));
        for wanted in techniques.chain(cases).chain(writes) {
            assert!(rows.iter().any(|(row, _)| *row == wanted), "no test for {wanted}");
        }
    }
}
