//! What came of the attempts, for people and as JSON.

use super::{Attempt, Ended, Expected, Group};
use crate::sinks::escape::printable;
use anstyle::{AnsiColor, Style};
use serde::Serialize;
use serde_json::Value;
use std::collections::HashMap;
use std::fmt::Write as _;

const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();
const NOTE: Style = AnsiColor::Yellow.on_default();
const DIM: Style = Style::new().dimmed();

/// How an attempt came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Refused, as it has to be.
    Refused,
    /// It got through, and must not have.
    GotThrough,
    /// The policy permits it; whether it went on from there is the machine's affair.
    Permitted,
    /// This machine has nothing of the kind, so it could not be tried.
    Absent,
    /// A harmless twin worked.
    Works,
    /// A harmless twin did not work: that its attack was refused shows nothing.
    Broken,
}

/// One line of the table.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    group: Group,
    /// The technique's number in docs/coverage.md; empty for twins.
    row: String,
    name: String,
    outcome: Outcome,
    /// What the session's event says; absent where the kernel's own rules refused it before any hook was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    told: Option<String>,
    /// The error's text.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// All of it. The JSON object is this.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    r#type: &'static str,
    kernel: String,
    /// The agent's user.
    user: String,
    attempts: Vec<Line>,
    /// Decoys that were changed or made all the same.
    changed: Vec<String>,
    /// Nothing got through, and every twin worked.
    passed: bool,
}

impl Report {
    /// `denials` are the session's events by process id.
    pub fn new(
        kernel: String,
        user: String,
        attempts: &[Attempt],
        ended: &[Ended],
        denials: &HashMap<u64, Value>,
        changed: Vec<String>,
    ) -> Self {
        let lines: Vec<Line> = attempts
            .iter()
            .zip(ended)
            .map(|(attempt, ended)| Line::new(attempt, *ended, denials))
            .collect();
        let bad = |line: &Line| matches!(line.outcome, Outcome::GotThrough | Outcome::Broken);
        let permitted = |attempt: &Attempt| {
            attempt.group == Group::Changing && attempt.expected == Expected::Permitted
        };
        // Where the policy opens the decoys' place, they may be changed.
        let changed = if attempts.iter().any(permitted) { Vec::new() } else { changed };
        let passed = !lines.iter().any(bad) && changed.is_empty();
        Self { r#type: "selftest", kernel, user, attempts: lines, changed, passed }
    }

    /// Whether nothing got through and every twin worked.
    pub fn passed(&self) -> bool {
        self.passed
    }

    fn count(&self, outcome: Outcome) -> usize {
        self.attempts.iter().filter(|line| line.outcome == outcome).count()
    }

    /// The table.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let mut group = None;
        for line in &self.attempts {
            if group != Some(line.group) {
                writeln!(out, "{}{}", if group.is_some() { "\n" } else { "" }, line.group.title())?;
                group = Some(line.group);
            }
            let (style, word) = match line.outcome {
                Outcome::Refused => (GOOD, "refused"),
                Outcome::GotThrough => (BAD, "GOT THROUGH"),
                Outcome::Permitted => (NOTE, "permitted"),
                Outcome::Absent => (DIM, "not here"),
                Outcome::Works => (GOOD, "works"),
                Outcome::Broken => (BAD, "DOES NOT WORK"),
            };
            let why = match (&line.told, &line.error, line.outcome) {
                (Some(told), ..) => told.clone(),
                (None, _, Outcome::Refused) => "by the kernel's own rules".to_owned(),
                (None, _, Outcome::Permitted) => "the policy says so".to_owned(),
                (None, Some(error), Outcome::Absent | Outcome::Broken) => error.clone(),
                _ => String::new(),
            };
            let (row, name) = (&line.row, printable(line.name.as_bytes()));
            let text =
                format!("  {DIM}{row:<6}{DIM:#} {name:<48} {style}{word:<13}{style:#} {why}");
            writeln!(out, "{}", text.trim_end())?;
        }
        for change in &self.changed {
            writeln!(out, "  {BAD}a decoy was changed{BAD:#}: {change}")?;
        }
        let [refused, through, permitted, absent, works, broken] = [
            Outcome::Refused,
            Outcome::GotThrough,
            Outcome::Permitted,
            Outcome::Absent,
            Outcome::Works,
            Outcome::Broken,
        ]
        .map(|outcome| self.count(outcome));
        writeln!(
            out,
            "\nLinux {}, as {}: {refused} refused, {through} got through, {permitted} permitted by the \
             policy, {absent} not here; {works} of {} harmless twins work.",
            self.kernel,
            self.user,
            works + broken
        )?;
        match self.passed {
            true => writeln!(out, "{GOOD}Nothing got through.{GOOD:#}"),
            false if through > 0 || !self.changed.is_empty() => {
                writeln!(out, "{BAD}Not everything was refused.{BAD:#}")
            }
            false => {
                writeln!(out, "{BAD}Where a twin does not work, a refusal shows nothing.{BAD:#}")
            }
        }
    }
}

impl Line {
    fn new(attempt: &Attempt, ended: Ended, denials: &HashMap<u64, Value>) -> Self {
        let refused = matches!(ended.errno, libc::EACCES | libc::EPERM);
        let passed = attempt.act.passed(ended.errno);
        let outcome = match attempt.expected {
            Expected::Permitted => Outcome::Permitted,
            Expected::Works if passed => Outcome::Works,
            Expected::Works => Outcome::Broken,
            Expected::Refused if passed => Outcome::GotThrough,
            Expected::Refused if refused => Outcome::Refused,
            Expected::Refused => Outcome::Absent,
        };
        let told = denials.get(&u64::from(ended.pid)).and_then(|event| {
            let hook = event["hook"].as_str()?;
            let rule = &event["rule"];
            let why = match (rule["key"].as_str(), rule["text"].as_str()) {
                (Some(key), Some(text)) => format!("{key} \"{text}\""),
                _ => event["reason"].as_str()?.replace('_', " "),
            };
            Some(printable(format!("{hook}: {why}").as_bytes()))
        });
        let error =
            (ended.errno != 0).then(|| std::io::Error::from_raw_os_error(ended.errno).to_string());
        let told = told.filter(|_| outcome != Outcome::Works);
        Self {
            group: attempt.group,
            row: attempt.row.clone(),
            name: attempt.name.clone(),
            outcome,
            told,
            error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Act;
    use super::*;

    fn attempt(expected: Expected, act: Act) -> Attempt {
        let (row, name) = ("A1".to_owned(), "try".to_owned());
        Attempt { group: Group::Kernel, row, name, expected, act }
    }

    fn report(expected: Expected, errno: i32) -> Report {
        let (attempt, ended) = (attempt(expected, Act::Perf), Ended { pid: 7, errno });
        let event = serde_json::json!({
            "type": "denial", "pid": 7, "hook": "perf_event_open", "reason": "never", "rule": null
        });
        let denials = [(7, event)].into();
        Report::new("6.1".into(), "ann".into(), &[attempt], &[ended], &denials, Vec::new())
    }

    #[test]
    fn each_end_has_its_word() {
        for (expected, errno, outcome, passed) in [
            (Expected::Refused, libc::EACCES, Outcome::Refused, true),
            (Expected::Refused, libc::EPERM, Outcome::Refused, true),
            (Expected::Refused, 0, Outcome::GotThrough, false),
            (Expected::Refused, libc::ENOSYS, Outcome::Absent, true),
            (Expected::Permitted, 0, Outcome::Permitted, true),
            (Expected::Works, 0, Outcome::Works, true),
            (Expected::Works, libc::EACCES, Outcome::Broken, false),
        ] {
            let report = report(expected, errno);
            assert_eq!(report.attempts[0].outcome, outcome);
            assert_eq!(report.passed(), passed, "{outcome:?}");
            assert_eq!(report.render().contains("Nothing got through."), passed);
        }
        assert!(report(Expected::Refused, libc::EPERM).render().contains("perf_event_open: never"));
    }

    #[test]
    fn a_changed_decoy_is_not_passed() {
        let ended = Ended { pid: 7, errno: libc::EPERM };
        let attempts = [attempt(Expected::Refused, Act::Perf)];
        let changed = vec!["file was emptied".to_owned()];
        let report =
            Report::new("6.1".into(), "ann".into(), &attempts, &[ended], &HashMap::new(), changed);
        assert!(!report.passed() && report.render().contains("file was emptied"));
    }

    #[test]
    fn what_later_failed_had_got_through() {
        let to = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
        for (act, errno) in [
            (Act::Tcp(to), libc::EINPROGRESS),
            (Act::Mount("/x".into()), libc::ENODEV),
            (Act::VmRead(1), libc::EFAULT),
            (Act::Daemon(Box::new(Act::Tcp(to))), libc::ECONNREFUSED),
        ] {
            assert!(act.passed(errno) && !act.passed(libc::EPERM), "{act:?}");
        }
    }
}
