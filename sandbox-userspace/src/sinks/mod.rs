//! Where events go: lines for people, JSON. See `docs/events.md` for the objects.

pub mod denial;
pub mod escape;
pub mod explain;
pub mod json;
pub mod kept;
pub mod terminal;

use crate::dns::message::Word;
use crate::dns::parent::Heard;
use crate::engine::Passed;
use crate::engine::events::{DecodeError, Record};
use crate::policy::check::amount::UNLIMITED;
use crate::session::SessionId;
use crate::session::resources::Lost;
use denial::{Audit, Denial, Moved, RuleRef};
use explain::Explainer;
use serde::Serialize;
use std::io;
use std::path::Path;

/// How grave a notice is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Good to know.
    Info,
    /// Something is not as it should be; the session goes on.
    Warning,
    /// Something failed.
    Error,
}

/// What a sink gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum Event {
    /// The kernel denied something.
    Denial(Box<Denial>),
    /// The kernel allowed something that the policy has noted.
    Audit(Box<Audit>),
    /// A member was moved to another cgroup.
    Moved(Box<Moved>),
    /// A session began or ended.
    Session(SessionEvent),
    /// The program has something to say.
    Notice(Notice),
}

/// A session began or ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SessionEvent {
    /// Which of the two.
    pub state: SessionState,
    /// The session.
    pub session: SessionId,
    /// When started: directory of its cgroup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// When started: directory of its pins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pins: Option<String>,
    /// When started: process id of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// When ended: exit status of the agent's command, 128 and the number of the signal that
    /// ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit: Option<u8>,
    /// When ended: denials that were reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denials: Option<u64>,
    /// When ended: denials that could not be reported; absent where that is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// When ended: notes that were reported; absent where there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audits: Option<u64>,
    /// When ended: notes that could not be reported; absent where there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audits_lost: Option<u64>,
    /// When ended: what the rules that count have let pass.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub passed: Vec<Traffic>,
}

/// What a rule has let pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// The rule.
    pub rule: RuleRef,
    /// Bytes sent, headers included.
    pub sent: u64,
    /// Bytes received by TCP.
    pub received: u64,
    /// The most of both together; absent where they are only counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<u64>,
}

/// State of a session in a [`SessionEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionState {
    /// Its agent runs.
    Started,
    /// Its command has ended and nothing of it runs.
    Ended,
}

/// The program has something to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Notice {
    /// How grave it is.
    pub level: Level,
    /// What.
    pub message: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
}

/// One place where events go.
pub trait Sink {
    /// Takes one event.
    fn write(&mut self, event: &Event) -> io::Result<()>;
}

/// All places where the events of this process go.
#[derive(Default)]
pub struct Output {
    /// The first is stderr, for complaints about the others.
    sinks: Vec<Box<dyn Sink>>,
    explainer: Option<Explainer>,
    denials: u64,
    audits: u64,
    undecoded: u64,
    failed: bool,
}

impl Output {
    /// To stderr as lines or as JSON, errors only where `quiet`.
    pub fn stderr(json: bool, quiet: bool) -> Self {
        let stderr: Box<dyn Sink> = if json {
            Box::new(json::Json::new(io::stderr(), quiet))
        } else {
            Box::new(terminal::Terminal::stderr(quiet))
        };
        Self::to(vec![stderr])
    }

    /// As [`stderr`](Self::stderr), and to the end of `file` as JSON.
    pub fn new(json: bool, quiet: bool, file: Option<&Path>) -> io::Result<Self> {
        let mut output = Self::stderr(json, quiet);
        if let Some(path) = file {
            output.sinks.push(Box::new(json::Json::append(path)?));
        }
        Ok(output)
    }

    /// To these sinks.
    pub fn to(sinks: Vec<Box<dyn Sink>>) -> Self {
        Self { sinks, ..Self::default() }
    }

    /// Another place where events go.
    pub fn also(&mut self, sink: Box<dyn Sink>) {
        self.sinks.push(sink);
    }

    /// Sets how records are explained from now on.
    pub fn explain_with(&mut self, explainer: Explainer) {
        self.explainer = Some(explainer);
    }

    /// Takes a record of the ring.
    pub fn record(&mut self, record: Result<Record, DecodeError>) {
        match (record, &mut self.explainer) {
            (Ok(Record::Moved { header, moved }), Some(explainer)) => {
                let moved = explainer.moved(&header, &moved);
                self.emit(&Event::Moved(Box::new(moved)));
            }
            (Ok(record), Some(explainer)) if record.is_note() => {
                let audit = explainer.note(&record);
                self.audits += 1;
                self.emit(&Event::Audit(Box::new(audit)));
            }
            (Ok(record), Some(explainer)) => {
                let denial = explainer.explain(&record);
                self.denials += 1;
                self.emit(&Event::Denial(Box::new(denial)));
            }
            (Ok(_), None) => self.undecoded += 1,
            (Err(error), _) => {
                self.undecoded += 1;
                if self.undecoded == 1 {
                    self.notice(Level::Warning, &format!("a denial cannot be shown: {error}"));
                }
            }
        }
    }

    /// Takes what came up about the session's resolver.
    pub fn resolver(&mut self, heard: Heard) {
        match (heard, &mut self.explainer) {
            (Heard::Word(Word::Known { name, address }), Some(explainer)) => {
                explainer.known.note(address, name);
            }
            (Heard::Word(Word::Refused { name, kind, rule, count }), Some(explainer)) => {
                let denial = explainer.refused(&name, &kind, rule, count);
                self.denials += 1;
                self.emit(&Event::Denial(Box::new(denial)));
            }
            (Heard::Word(Word::Withheld { name, addresses }), Some(explainer)) => {
                let denial = explainer.withheld(&name, addresses);
                self.denials += 1;
                self.emit(&Event::Denial(Box::new(denial)));
            }
            (Heard::Word(Word::Warning(text) | Word::Failed(text)), _) => {
                self.notice(Level::Warning, &text);
            }
            (Heard::Word(_), _) => {}
            (Heard::Restarted, _) => {
                let text =
                    "the resolver of names died and was started again; what was open stays so";
                self.notice(Level::Warning, text);
            }
            (Heard::Lost(why), _) => {
                let text =
                    format!("the resolver of names died, no name is answered any more: {why}");
                self.notice(Level::Error, &text);
            }
        }
    }

    /// The session's agent runs.
    pub fn started(&mut self, session: &SessionId, cgroup: &Path, pins: &Path, pid: i32) {
        self.emit(&Event::Session(SessionEvent {
            state: SessionState::Started,
            session: session.clone(),
            cgroup: Some(cgroup.display().to_string()),
            pins: Some(pins.display().to_string()),
            pid: Some(pid),
            exit: None,
            denials: None,
            lost: None,
            audits: None,
            audits_lost: None,
            passed: Vec::new(),
        }));
    }

    fn traffic(&self, Passed { rule, count }: &Passed) -> Traffic {
        let known = self.explainer.as_ref().and_then(|explainer| explainer.rule(*rule));
        Traffic {
            rule: known.unwrap_or(RuleRef::Unknown { id: *rule }),
            sent: count.sent,
            received: count.received,
            max: Some(count.max).filter(|max| *max != UNLIMITED),
        }
    }

    /// The session's command has ended; all its records were given to [`record`](Self::record).
    pub fn ended(&mut self, session: &SessionId, exit: u8, lost: Option<Lost>, passed: &[Passed]) {
        if self.undecoded > 1 {
            let text = format!("{} denials could not be shown", self.undecoded);
            self.notice(Level::Warning, &text);
        }
        if let Some(Lost { denials: lost @ 1.., .. }) = lost {
            let text = format!(
                "{lost} denials were not reported: they came faster than they were read; \
                 they were denied all the same"
            );
            self.notice(Level::Warning, &text);
        }
        if let Some(Lost { notes: lost @ 1.., .. }) = lost {
            let text = format!(
                "{lost} allowed operations were not noted: they came faster than they were read"
            );
            self.notice(Level::Warning, &text);
        }
        self.emit(&Event::Session(SessionEvent {
            state: SessionState::Ended,
            session: session.clone(),
            cgroup: None,
            pins: None,
            pid: None,
            exit: Some(exit),
            denials: Some(self.denials),
            lost: lost.map(|lost| lost.denials),
            audits: Some(self.audits).filter(|count| *count > 0),
            audits_lost: lost.map(|lost| lost.notes).filter(|count| *count > 0),
            passed: passed.iter().map(|passed| self.traffic(passed)).collect(),
        }));
    }

    /// Says something.
    pub fn notice(&mut self, level: Level, message: &str) {
        self.notice_with_help(level, message, None);
    }

    /// Says something and what to do about it.
    pub fn notice_with_help(&mut self, level: Level, message: &str, help: Option<String>) {
        self.emit(&Event::Notice(Notice { level, message: message.into(), help }));
    }

    fn emit(&mut self, event: &Event) {
        let mut first_error = None;
        for sink in &mut self.sinks {
            if let Err(error) = sink.write(event) {
                first_error = first_error.or(Some(error));
            }
        }
        if let Some(error) = first_error
            && !self.failed
        {
            // Once: what fails now fails again. Where stderr itself fails nobody is left to tell.
            self.failed = true;
            let message = format!("events cannot be written: {error}");
            let event = Event::Notice(Notice { level: Level::Error, message, help: None });
            if let Some(stderr) = self.sinks.first_mut() {
                let _ = stderr.write(&event);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    struct Memory(Rc<RefCell<Vec<String>>>);

    impl Sink for Memory {
        fn write(&mut self, event: &Event) -> io::Result<()> {
            self.0.borrow_mut().push(serde_json::to_string(event).unwrap());
            Ok(())
        }
    }

    #[test]
    fn what_cannot_be_decoded_is_counted_and_told() {
        let lines = Rc::new(RefCell::new(Vec::new()));
        let mut output = Output::to(vec![Box::new(Memory(lines.clone()))]);
        let id = "0123abcd".parse().unwrap();
        for _ in 0..3 {
            output.record(Err(DecodeError { len: 7, what: "too short" }));
        }
        output.ended(&id, 3, Some(Lost { denials: 2, notes: 5 }), &[]);
        let lines = lines.borrow();
        assert_eq!(lines.len(), 5, "{lines:?}");
        assert!(lines[0].contains("event record of 7 bytes: too short"));
        assert!(lines[1].contains("3 denials could not be shown"));
        assert!(lines[2].contains("2 denials were not reported"));
        assert!(lines[3].contains("5 allowed operations were not noted"));
        assert_eq!(
            lines[4],
            r#"{"type":"session","state":"ended","session":"0123abcd","exit":3,"denials":0,"lost":2,"audits_lost":5}"#
        );
    }

    #[test]
    fn session_and_notice_objects() {
        let lines = Rc::new(RefCell::new(Vec::new()));
        let mut output = Output::to(vec![Box::new(Memory(lines.clone()))]);
        output.started(&"0123abcd".parse().unwrap(), Path::new("/c"), Path::new("/p"), 7);
        output.notice(Level::Info, "hello");
        output.notice_with_help(Level::Error, "no", Some("yes".into()));
        assert_eq!(
            *lines.borrow(),
            [
                r#"{"type":"session","state":"started","session":"0123abcd","cgroup":"/c","pins":"/p","pid":7}"#,
                r#"{"type":"notice","level":"info","message":"hello"}"#,
                r#"{"type":"notice","level":"error","message":"no","help":"yes"}"#,
            ]
        );
    }
}
