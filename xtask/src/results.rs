//! What test programs print, read back: the lines of libtest and of libtest-mimic.

/// The results of one or several test programs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Results {
    pub(crate) passed: u32,
    pub(crate) failed: u32,
    pub(crate) ignored: u32,
    /// How many programs came to their end.
    pub(crate) programs: u32,
    /// Ignored tests, each with the reason it gives.
    pub(crate) skips: Vec<String>,
    /// What was printed about the failures.
    pub(crate) failures: String,
}

impl Results {
    /// Reads all output of a run; what is no result is skipped.
    pub(crate) fn read(output: &str) -> Self {
        let mut results = Self::default();
        let mut in_failures = false;
        for line in output.lines() {
            if let Some(counts) = line.strip_prefix("test result: ") {
                results.add(counts);
                in_failures = false;
            } else if line == "failures:" {
                in_failures = true;
            } else if in_failures {
                results.failures.push_str(line);
                results.failures.push('\n');
            } else if let Some(skip) = skip(line) {
                results.skips.push(skip);
            }
        }
        results
    }

    /// `ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.11s`
    fn add(&mut self, counts: &str) {
        self.programs += 1;
        let counts = counts.split_once(". ").map_or(counts, |(_, counts)| counts);
        for count in counts.split("; ") {
            let Some((number, what)) = count.split_once(' ') else { continue };
            let Ok(number) = number.parse::<u32>() else { continue };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }
}

/// `test NAME ... ignored, REASON` of libtest, `test NAME ... ignored (REASON)` of libtest-mimic.
fn skip(line: &str) -> Option<String> {
    let (name, outcome) = line.strip_prefix("test ")?.rsplit_once(" ... ignored")?;
    let outcome = outcome.trim();
    let reason = outcome
        .strip_prefix(',')
        .or_else(|| outcome.strip_prefix('(')?.strip_suffix(')'))
        .map_or("no reason given", str::trim);
    Some(format!("{}: {reason}", name.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 4 tests
test a::b           ... ok
test c ... ignored, needs a daemon
test d ... ignored (no io_uring in this kernel (6.1))
test e ... ignored
test f ... FAILED

failures:

---- f ----
expected 1, found 2

failures:
    f

test result: FAILED. 1 passed; 1 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.01s

test result: ok. 41 passed; 0 failed; 0 ignored; 0 measured; 2 filtered out; finished in 1.00s
";

    #[test]
    fn results_of_several_programs_are_summed() {
        let results = Results::read(OUTPUT);
        assert_eq!((results.passed, results.failed, results.ignored), (42, 1, 3));
        assert_eq!(results.programs, 2);
    }

    #[test]
    fn skips_keep_their_reasons() {
        assert_eq!(
            Results::read(OUTPUT).skips,
            ["c: needs a daemon", "d: no io_uring in this kernel (6.1)", "e: no reason given"]
        );
    }

    #[test]
    fn failures_are_kept_as_printed() {
        let failures = Results::read(OUTPUT).failures;
        assert!(failures.contains("---- f ----\nexpected 1, found 2\n"), "{failures}");
    }

    #[test]
    fn a_run_that_broke_off_has_no_program() {
        assert_eq!(Results::read("running 4 tests\ntest a ... ok\n"), Results::default());
    }
}
