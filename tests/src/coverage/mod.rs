//! `docs/coverage.md`: which test tries which way around the rules.

mod identity;
mod subjects;

use identity::{Tried, Who};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::ExitCode;
use subjects::{GROUPS, TWOFOLD, UNTESTED};

const HEAD: &str = "\
# Coverage

Which test tries which way around the rules and out of the session, and which cases from practice. Written by
`cargo xtask coverage` from the tables in `tests/src`; a test on the host fails where it is out of date,
where a test that is named here does not exist, and where a row has neither a test nor a reason.

`T NAME` is a test of the kernel suite (`cargo xtask test kernel NAME`), `S NAME` one of the suite of
everyday programs (`cargo xtask test system NAME`). What is about leaving, about the sandbox itself and about its
start is tried by agents that are root, and by those of an ordinary user.
";

/// Row and test of both suites, the test as the document shows it.
fn rows() -> BTreeSet<(&'static str, String)> {
    let kernel = crate::suite::rows().into_iter().map(|(row, test)| (row, format!("`T {test}`")));
    let system = crate::system::rows().into_iter().map(|(row, test)| (row, format!("`S {test}`")));
    kernel.chain(system).collect()
}

/// The text of the document.
fn document() -> String {
    let (rows, tried) = (rows(), Tried::new());
    let mut text = HEAD.to_owned();
    for (heading, group) in GROUPS {
        if TWOFOLD.contains(heading) {
            twofold(&mut text, heading, group, &tried);
            continue;
        }
        let _ = write!(text, "\n## {heading}\n\n| row | what | tried by |\n|---|---|---|\n");
        for (id, what) in *group {
            let tests: Vec<&str> =
                rows.iter().filter(|(row, _)| row == id).map(|(_, test)| test.as_str()).collect();
            let reason = UNTESTED.iter().find(|(row, _)| row == id).map(|(_, reason)| *reason);
            let by = match reason {
                Some(reason) if tests.is_empty() => reason.to_owned(),
                _ => tests.join(", "),
            };
            let _ = writeln!(text, "| {id} | {what} | {by} |");
        }
    }
    text
}

/// A group with a column for either whose agents try it.
fn twofold(text: &mut String, heading: &str, group: &[(&str, &str)], tried: &Tried) {
    let columns = "| row | what | as root | as an ordinary user |\n|---|---|---|---|";
    let _ = write!(text, "\n## {heading}\n\n{columns}\n");
    for (id, what) in group {
        let [root, ordinary] = [Who::Root, Who::Ordinary].map(|who| tried.shown(id, who));
        let _ = writeln!(text, "| {id} | {what} | {root} | {ordinary} |");
    }
}

/// `kernel-tests coverage` prints the document.
pub(crate) fn command() -> ExitCode {
    print!("{}", document());
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;
    use libtest_mimic::Trial;

    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/coverage.md");

    fn ids() -> Vec<&'static str> {
        GROUPS.iter().flat_map(|(_, group)| group.iter().map(|(id, _)| *id)).collect()
    }

    #[test]
    fn document_is_up_to_date() -> anyhow::Result<()> {
        let found = std::fs::read_to_string(FILE)?;
        assert!(found == document(), "docs/coverage.md has drifted: run `cargo xtask coverage`");
        Ok(())
    }

    /// Every `T NAME` and `S NAME` of a document is a test, or the beginning of some tests' names.
    #[test]
    fn tests_of_the_threat_model_exist() -> anyhow::Result<()> {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/threat-model.md");
        let text = std::fs::read_to_string(file)?;
        let names = |trials: Vec<Trial>| -> Vec<String> {
            trials.iter().map(|trial| trial.name().to_owned()).collect()
        };
        let (kernel, system) = (names(crate::suite::trials()), names(crate::system::trials()));
        let mut seen = 0;
        for quoted in text.split('`').skip(1).step_by(2) {
            let (names, wanted) = match quoted.split_once(' ') {
                Some(("T", wanted)) if wanted != "NAME" => (&kernel, wanted),
                Some(("S", wanted)) if wanted != "NAME" => (&system, wanted),
                _ => continue,
            };
            assert!(names.iter().any(|name| name.starts_with(wanted)), "{quoted} is no test");
            seen += 1;
        }
        assert!(seen > 30, "only {seen} tests are named");
        Ok(())
    }

    #[test]
    fn named_tests_exist() {
        let exists = |trials: &[Trial], test| trials.iter().any(|trial| trial.name() == test);
        let (kernel, system) = (crate::suite::trials(), crate::system::trials());
        for (row, test) in crate::suite::rows() {
            assert!(exists(&kernel, test), "{row} names {test}, which the kernel suite lacks");
        }
        for (row, test) in crate::system::rows() {
            assert!(exists(&system, test), "{row} names {test}, which the system suite lacks");
        }
    }

    #[test]
    fn every_row_has_a_test_or_a_reason() {
        let rows = rows();
        for id in ids() {
            let tested = rows.iter().any(|(row, _)| *row == id);
            let reason = UNTESTED.iter().any(|(row, _)| *row == id);
            assert!(tested || reason, "{id} has neither a test nor a reason");
            assert!(!(tested && reason), "{id} has a test: take it off the list of those without");
        }
    }

    #[test]
    fn every_row_is_known_once() {
        let ids = ids();
        assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len(), "a row is listed twice");
        let used =
            rows().into_iter().map(|(row, _)| row).chain(UNTESTED.iter().map(|(row, _)| *row));
        for row in used {
            assert!(ids.contains(&row), "nobody knows a row {row}");
        }
    }
}
