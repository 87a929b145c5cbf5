//! What came of all suites together, and the report of it.

use std::fmt;

use crate::results::Results;

/// What came of everything.
#[derive(Default)]
pub(crate) struct Tally {
    passed: u32,
    pub(crate) failed: u32,
    failures: Vec<String>,
    skipped: u32,
    skips: Vec<String>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, failures, skipped, skips } = self;
        for failure in failures {
            writeln!(f, "\nfailed: {failure}")?;
        }
        if !skips.is_empty() {
            writeln!(f)?;
        }
        for skip in skips {
            writeln!(f, "skipped: {skip}")?;
        }
        write!(f, "\n{passed} passed, {failed} failed, {skipped} skipped")
    }
}

impl Tally {
    /// Counts a run that came to an end, well or not.
    pub(crate) fn add(&mut self, run: &str, results: Results) {
        let Results { passed, failed, ignored, programs: _, skips, failures } = results;
        self.passed += passed;
        self.failed += failed;
        self.skipped += ignored;
        self.skips.extend(skips.into_iter().map(|skip| format!("{run}: {skip}")));
        if failed > 0 {
            self.failures.push(format!("{run}:\n{}", failures.trim_end()));
        }
    }

    /// Counts what cannot be told as a test's failure: a machine that died, a build that failed.
    pub(crate) fn broken(&mut self, run: &str, why: &str) {
        self.failed += 1;
        self.failures.push(format!("{run}: {why}"));
    }

    pub(crate) fn skip(&mut self, run: &str, why: &str) {
        self.skipped += 1;
        self.skips.push(format!("{run}: {why}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_stands_alone_and_says_everything() {
        let mut tally = Tally::default();
        tally.add("host", Results { passed: 3, ignored: 1, ..Results::default() });
        tally.broken("kernel-tests on 6.1", "the machine died");
        tally.skip("kernel-tests on 7", "no machine");
        let text = tally.to_string();
        assert_eq!(text.lines().last(), Some("3 passed, 1 failed, 2 skipped"));
        assert!(text.contains("failed: kernel-tests on 6.1: the machine died"), "{text}");
        assert!(text.contains("skipped: kernel-tests on 7: no machine"), "{text}");
    }
}
