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
        for skip in skips {
            writeln!(f, "skipped: {skip}")?;
        }
        for failure in failures {
            writeln!(f, "\nfailed: {failure}")?;
        }
        // Once more without what each had to say, which may be long.
        writeln!(f)?;
        for failure in failures {
            for line in brief(failure) {
                writeln!(f, "failed: {line}")?;
            }
        }
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
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

/// Lines of each failed test that are repeated.
const BRIEF: usize = 3;

/// The name of the run with each failed test and the beginning of what it said, as far as that fits a screen.
fn brief(failure: &str) -> Vec<String> {
    let mut lines = failure.lines();
    let run = lines.next().unwrap_or_default();
    let mut brief = vec![cut(run)];
    let mut left = 0;
    for line in lines.filter(|line| !line.trim().is_empty()) {
        if line.starts_with("---- ") {
            left = BRIEF + 1;
        }
        if left > 0 {
            left -= 1;
            brief.push(format!("  {}", cut(line)));
        }
    }
    brief
}

/// The beginning of a long line.
fn cut(line: &str) -> String {
    const LONGEST: usize = 300;
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_is_repeated_in_brief() {
        let said = format!(
            "\n---- a::b ----\none\n\n{}\nthree\nfour\n\nfailures:\n    a::b\n",
            "x".repeat(400)
        );
        let mut tally = Tally::default();
        tally.add("suite on 6.1", Results { failed: 1, failures: said, ..Results::default() });
        tally.skip("suite on 7", "no machine");
        let text = tally.to_string();
        let end: Vec<_> = text.lines().rev().take(6).collect();
        assert_eq!(end[0], "0 passed, 1 failed, 1 skipped");
        assert_eq!(end[5], "failed: suite on 6.1:");
        assert_eq!(end[4], "failed:   ---- a::b ----");
        assert_eq!(end[3], "failed:   one");
        assert_eq!(end[2].chars().count(), 311, "{}", end[2]);
        assert_eq!(end[1], "failed:   three");
    }

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
