//! Lines for people, on stderr.

use super::denial::{Audit, Denial, Hint, RuleRef, Target, Verdict};
use super::escape::printable;
use super::explain::rule_text;
use super::{Event, Level, Notice, SessionEvent, SessionState, Sink, Traffic};
use crate::policy::check::amount::shown;
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use rustix::termios::OutputModes;
use std::collections::HashSet;
use std::io::{self, Write};

/// Before every line.
const PREFIX: &str = "sandbox: ";
/// Different denials that are remembered; more are counted only.
const DISTINCT: usize = 10_000;

const RED: Style = AnsiColor::Red.on_default().bold();
const YELLOW: Style = AnsiColor::Yellow.on_default().bold();
const DIM: Style = Style::new().dimmed();

/// Prints every denial and every note that is unlike those before, and at the end how many there were.
pub struct Terminal<W: Write> {
    to: W,
    colour: bool,
    quiet: bool,
    seen: HashSet<Key>,
    hinted: HashSet<String>,
    overflow: bool,
    noted: HashSet<(Vec<String>, Target)>,
}

/// Denials with the same key are the same to people.
#[derive(PartialEq, Eq, Hash)]
struct Key(Vec<String>, String, Verdict, Target, Option<u32>);

impl Terminal<io::Stderr> {
    /// On stderr; only notices of errors where `quiet`. Colours where people see them.
    pub fn stderr(quiet: bool) -> Self {
        let colour = AutoStream::choice(&io::stderr()) != ColorChoice::Never;
        Self { colour, ..Self::new(io::stderr(), quiet) }
    }
}

impl<W: Write> Terminal<W> {
    fn new(to: W, quiet: bool) -> Self {
        let (seen, hinted) = (HashSet::new(), HashSet::new());
        let noted = HashSet::new();
        Self { to, colour: false, quiet, seen, hinted, overflow: false, noted }
    }

    fn denial(&mut self, denial: &Denial) -> io::Result<()> {
        let rule = denial.rule.as_ref().map(|rule| match rule {
            RuleRef::Known(rule) => rule.id,
            RuleRef::Unknown { id } => *id,
        });
        let key = Key(
            denial.access.clone(),
            denial.reason.clone(),
            denial.verdict,
            denial.object.clone(),
            rule,
        );
        if self.seen.contains(&key) {
            return Ok(());
        }
        if self.seen.len() >= DISTINCT {
            if self.overflow {
                return Ok(());
            }
            self.overflow = true;
            let text = format!("more than {DISTINCT} different denials; more are only counted");
            return self.line(&format!("{YELLOW}warning:{YELLOW:#} {text}"));
        }
        self.seen.insert(key);
        let mut line = match denial.message.split_once(' ') {
            Some(("denied", rest)) => format!("{RED}denied{RED:#} {rest}"),
            _ => denial.message.clone(),
        };
        if let Some(Hint { key, add }) = &denial.hint
            && self.hinted.insert(key.clone())
        {
            let add = printable(add.as_bytes());
            line.extend([format!("{DIM} — to allow it: add \"{add}\" to {key}{DIM:#}")]);
        }
        if let Some(command) = denial.grant() {
            line.extend([format!(
                "{DIM} — to let it run: {}{DIM:#}",
                printable(command.as_bytes())
            )]);
        }
        self.line(&line)
    }

    fn audit(&mut self, audit: &Audit) -> io::Result<()> {
        if self.noted.len() > DISTINCT
            || !self.noted.insert((audit.access.clone(), audit.object.clone()))
        {
            return Ok(());
        }
        if self.noted.len() > DISTINCT {
            let text = format!("more than {DISTINCT} different notes; more are only counted");
            return self.line(&format!("{YELLOW}warning:{YELLOW:#} {text}"));
        }
        self.line(&audit.message)
    }

    fn session(&mut self, event: &SessionEvent) -> io::Result<()> {
        if event.state == SessionState::Started {
            return Ok(());
        }
        for Traffic { rule, sent, received, max } in &event.passed {
            let most = max.map(|max| format!(" of {}", shown(max))).unwrap_or_default();
            let rule = rule_text(rule);
            self.line(&format!(
                "{} sent, {} received{most} by {rule}",
                shown(*sent),
                shown(*received)
            ))?;
        }
        let exit = event.exit.map_or_else(|| "unknown".into(), |code| code.to_string());
        let lost = event.lost.map_or_else(|| "unknown".into(), |lost| lost.to_string());
        let denials = match event.denials {
            Some(1) => "1 denial".into(),
            denials => format!("{} denials", denials.unwrap_or(0)),
        };
        let noted = match (event.audits, event.audits_lost) {
            (None, None) => String::new(),
            (noted, lost) => {
                format!("; {} noted, {} lost", noted.unwrap_or(0), lost.unwrap_or(0))
            }
        };
        let distinct = self.seen.len();
        let more = if self.overflow { "+" } else { "" };
        let session = &event.session;
        self.line(&format!(
            "session {session} ended: exit {exit}, {denials} ({distinct}{more} distinct), {lost} lost{noted}"
        ))
    }

    fn notice(&mut self, notice: &Notice) -> io::Result<()> {
        let Notice { level, message, help } = notice;
        match level {
            Level::Info => self.lines("", message)?,
            Level::Warning => self.lines(&format!("{YELLOW}warning:{YELLOW:#} "), message)?,
            Level::Error => self.lines(&format!("{RED}error:{RED:#} "), message)?,
        }
        help.iter().try_for_each(|help| self.lines("help: ", help))
    }

    /// A text of one or more lines, every one with our prefix.
    fn lines(&mut self, mark: &str, text: &str) -> io::Result<()> {
        let mut lines = text.lines();
        let first = lines.next().unwrap_or_default();
        self.line(&format!("{mark}{}", printable_line(first)))?;
        lines.try_for_each(|line| self.line(&printable_line(line)))
    }

    /// One line, whose untrusted parts are escaped.
    fn line(&mut self, line: &str) -> io::Result<()> {
        let end = if is_raw() { "\r\n" } else { "\n" };
        let mut line = format!("{PREFIX}{line}{end}");
        if !self.colour {
            line = anstream::adapter::strip_str(&line).to_string();
        }
        // In one piece: the agent writes to the same terminal.
        match self.to.write_all(line.as_bytes()) {
            // The reader has had enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }
}

/// The agent has set the terminal, if stderr is one, so that a new line does not begin at the left.
fn is_raw() -> bool {
    rustix::termios::tcgetattr(io::stderr())
        .is_ok_and(|modes| !modes.output_modes.contains(OutputModes::OPOST))
}

impl<W: Write> Sink for Terminal<W> {
    fn write(&mut self, event: &Event) -> io::Result<()> {
        match event {
            Event::Notice(notice) if !self.quiet || notice.level == Level::Error => {
                self.notice(notice)
            }
            Event::Denial(denial) if !self.quiet => self.denial(denial),
            Event::Audit(audit) if !self.quiet => self.audit(audit),
            Event::Moved(moved) if !self.quiet => {
                self.lines(&format!("{YELLOW}warning:{YELLOW:#} "), &moved.message)
            }
            Event::Session(event) if !self.quiet => self.session(event),
            _ => Ok(()),
        }
    }
}

/// Our own text: only what a terminal would obey is escaped, backslashes stay.
fn printable_line(text: &str) -> String {
    text.chars()
        .flat_map(|char| match char {
            '\\' | '\'' | '"' => vec![char],
            _ => char.escape_debug().collect(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(path: &str) -> Denial {
        Denial {
            time: "2026-11-29T12:00:00Z".into(),
            session: "0123abcd".parse().unwrap(),
            hook: "file_open".into(),
            access: vec!["write".into()],
            reason: "default".into(),
            verdict: Verdict::Denied,
            pid: 1,
            tid: 1,
            uid: 0,
            comm: "sh".into(),
            object: Target::Path { path: path.into(), exists: true },
            rule: None,
            message: format!("denied write of {path} by sh[1]: no rule allows it"),
            hint: Some(Hint { key: "files.write.allow".into(), add: path.into() }),
        }
    }

    fn event(path: &str) -> Event {
        Event::Denial(Box::new(denial(path)))
    }

    fn print(quiet: bool, events: &[Event]) -> String {
        let mut terminal = Terminal::new(Vec::new(), quiet);
        for event in events {
            terminal.write(event).unwrap();
        }
        String::from_utf8(terminal.to).unwrap()
    }

    fn ended(denials: u64) -> Event {
        Event::Session(SessionEvent {
            state: SessionState::Ended,
            session: "0123abcd".parse().unwrap(),
            cgroup: None,
            pins: None,
            pid: None,
            exit: Some(0),
            denials: Some(denials),
            lost: Some(0),
            audits: None,
            audits_lost: None,
            passed: Vec::new(),
        })
    }

    #[test]
    fn what_is_noted_is_printed_once_and_counted() {
        let note = |path: &str| {
            Event::Audit(Box::new(Audit {
                time: "2026-11-29T12:00:00Z".into(),
                session: "0123abcd".parse().unwrap(),
                class: "exec",
                hook: "bprm_check_security".into(),
                access: vec!["execute".into()],
                pid: 12,
                tid: 12,
                uid: 0,
                comm: "bash".into(),
                object: Target::Path { path: path.into(), exists: true },
                message: format!("noted execution of {path} by bash[12]"),
            }))
        };
        let Event::Session(end) = ended(0) else { unreachable!() };
        let end = SessionEvent { audits: Some(3), audits_lost: Some(2), ..end };
        let events =
            [note("/usr/bin/git"), note("/usr/bin/git"), note("/bin/ls"), Event::Session(end)];
        assert_eq!(
            print(false, &events),
            "sandbox: noted execution of /usr/bin/git by bash[12]\n\
             sandbox: noted execution of /bin/ls by bash[12]\n\
             sandbox: session 0123abcd ended: exit 0, 0 denials (0 distinct), 0 lost; 3 noted, 2 lost\n"
        );
        assert_eq!(print(true, &events), "");
        let flood: Vec<Event> = (0..DISTINCT + 5).map(|n| note(&format!("/{n}"))).collect();
        let text = print(false, &flood);
        assert_eq!(text.lines().count(), DISTINCT + 1);
        assert!(text.ends_with("more than 10000 different notes; more are only counted\n"));
    }

    #[test]
    fn the_same_is_printed_once_and_counted() {
        let mut other = denial("/etc/x");
        other.pid = 99;
        let events = [event("/etc/x"), Event::Denial(Box::new(other)), event("/etc/y"), ended(3)];
        assert_eq!(
            print(false, &events),
            "sandbox: denied write of /etc/x by sh[1]: no rule allows it \
             — to allow it: add \"/etc/x\" to files.write.allow\n\
             sandbox: denied write of /etc/y by sh[1]: no rule allows it\n\
             sandbox: session 0123abcd ended: exit 0, 3 denials (2 distinct), 0 lost\n"
        );
    }

    #[test]
    fn a_flood_of_different_denials_is_cut_and_told() {
        let mut events: Vec<Event> = (0..DISTINCT + 5).map(|n| event(&format!("/{n}"))).collect();
        events.push(ended(10_005));
        let text = print(false, &events);
        assert_eq!(text.lines().count(), DISTINCT + 2);
        let end: Vec<&str> = text.lines().skip(DISTINCT).collect();
        assert_eq!(
            end,
            [
                "sandbox: warning: more than 10000 different denials; more are only counted",
                "sandbox: session 0123abcd ended: exit 0, 10005 denials (10000+ distinct), 0 lost",
            ]
        );
    }

    #[test]
    fn notices_and_quiet() {
        let notice = |level, message: &str, help: Option<&str>| {
            Event::Notice(Notice { level, message: message.into(), help: help.map(Into::into) })
        };
        let events = [
            notice(Level::Info, "hello", None),
            notice(Level::Warning, "a\u{1b}[1m \"b\"", None),
            notice(Level::Error, "no\n  here", Some("try")),
            event("/x"),
            ended(1),
        ];
        let errors = "sandbox: error: no\nsandbox:   here\nsandbox: help: try\n";
        assert_eq!(print(true, &events), errors);
        let all = print(false, &events);
        assert!(all.starts_with("sandbox: hello\nsandbox: warning: a\\u{1b}[1m \"b\"\n"), "{all}");
        assert!(all.ends_with("exit 0, 1 denial (1 distinct), 0 lost\n"), "{all}");
    }
}
