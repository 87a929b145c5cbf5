//! What a session tells of what it refused: the rule of each denial must be the reference's.

use super::model::{Last, Model, Spot, followed};
use super::operation::{Action, Op};
use super::reference::{Reference, RuleName, Say};
use sandbox_userspace::policy::rule::Kind;
use sandbox_userspace::sinks::escape;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

/// Reasons that are about moving: rules forbid it, but it is not one of them that does.
const MOVING: [&str; 2] = ["gain", "rule_beneath"];

/// One way in which an event may explain why an operation is refused.
#[derive(Clone)]
struct Cause {
    /// The object, by every path at which it is seen.
    paths: Vec<Vec<u8>>,
    /// Something in that object, by a name that only the kernel knows.
    within: bool,
    /// One of these rules, `None` the default; nothing where the reason is that it would move.
    rules: Option<Vec<Option<RuleName>>>,
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<String> = self.paths.iter().map(|path| escape::text(path)).collect();
        match &self.rules {
            Some(rules) => write!(f, "{paths:?} is closed by one of {rules:?}"),
            None => write!(f, "{paths:?} is about moving"),
        }
    }
}

/// An operation about which there is an event, or may be.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    /// Index in the operations of the zone.
    pub(crate) at: usize,
    /// There must be an event: only the session can have refused it.
    pub(crate) must: bool,
    /// How it ended for the bystander and for the member.
    pub(crate) bystander: i32,
    pub(crate) member: i32,
    causes: Vec<Cause>,
    /// What is told is left open: a mount point is concerned, which no path leads to, or a link on the way
    /// is not followed.
    open: bool,
}

impl Note {
    /// Of an operation that the reference denies, before it is done.
    pub(crate) fn of(reference: &Reference, model: &Model, op: &Op, at: usize) -> Self {
        let (causes, covered) = causes(reference, model, op);
        let open = covered || reference.through_links(model, op) != Say::Allow;
        Self { at, must: false, bystander: 0, member: 0, causes, open }
    }

    /// The same, with how it ended.
    pub(crate) fn ended(self, must: bool, bystander: i32, member: i32) -> Self {
        Self { must: must && !self.open, bystander, member, ..self }
    }

    fn explains(&self, event: &Told) -> bool {
        self.open
            || self.causes.iter().any(|cause| {
                let right = match &cause.rules {
                    Some(rules) => match event.reason.as_str() {
                        "rule" => event.rule.is_some() && rules.contains(&event.rule),
                        "default" => event.rule.is_none() && rules.contains(&None),
                        _ => false,
                    },
                    None => MOVING.contains(&event.reason.as_str()),
                };
                right && cause.paths.iter().any(|path| event.is_about(path, cause.within))
            })
    }
}

/// An event about a denial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    path: String,
    reason: String,
    rule: Option<RuleName>,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is closed by {}", self.path, self.reason)?;
        self.rule.iter().try_for_each(|(key, text)| write!(f, " {key} = [{text:?}]"))
    }
}

impl Told {
    /// Of a line of the events file; `None` where it is about something else.
    pub(crate) fn of(event: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        if event["type"] != "denial" {
            return None;
        }
        let rule = &event["rule"];
        Some(Self {
            path: text(&event["object"]["path"])?,
            reason: text(&event["reason"])?,
            rule: text(&rule["key"]).zip(text(&rule["text"])),
        })
    }

    /// What is known of a path whose beginning is missing.
    fn end(&self) -> Option<&str> {
        self.path.strip_prefix('[')?.split_once("]/...").map(|(_, end)| end)
    }

    /// Whether it is about this object, or something directly in it.
    fn is_about(&self, path: &[u8], within: bool) -> bool {
        let path = escape::text(path);
        let told = if within {
            self.path.rsplit_once('/').map_or("", |(directory, _)| directory)
        } else {
            &self.path
        };
        match self.end() {
            Some(_) if within => true,
            Some(end) => path.ends_with(end),
            None => told == path,
        }
    }

    /// Whether it can be about something in a zone, of which these are the notes.
    pub(crate) fn is_of(&self, zone: &Path, notes: &[Note]) -> bool {
        let inside = |rest: &str| rest.is_empty() || rest.starts_with('/');
        if self.end().is_some() {
            return notes.iter().any(|note| !note.open && note.explains(self));
        }
        self.path.strip_prefix(&*zone.to_string_lossy()).is_some_and(inside)
    }
}

/// The first operation of a zone whose event is missing, wrong or one too many, and how.
pub(crate) fn disagreement<'a>(notes: &'a [Note], events: &[Told]) -> Option<(&'a Note, String)> {
    // How many events the operations so far may have had.
    let mut had = BTreeSet::from([0]);
    for note in notes {
        let more = had.iter().filter(|at| events.get(**at).is_some_and(|e| note.explains(e)));
        let mut now: BTreeSet<usize> = more.map(|at| at + 1).collect();
        if !note.must {
            now.extend(&had);
        }
        if now.is_empty() {
            let next = had.last().and_then(|at| events.get(*at));
            let next =
                next.map_or("there is none".to_owned(), |event| format!("the next: {event}"));
            return Some((note, format!("no event gives the cause {:?}; {next}", note.causes)));
        }
        had = now;
    }
    if had.contains(&events.len()) {
        return None;
    }
    let last = notes.last()?;
    let more = had.last().and_then(|at| events.get(*at))?;
    Some((last, format!("nothing that was done explains the event: {more}")))
}

/// Everything that denies an operation, and whether a mount point is concerned.
fn causes(reference: &Reference, model: &Model, op: &Op) -> (Vec<Cause>, bool) {
    const WRITE: &[Kind] = &[Kind::Write];
    const MOVE: &[Kind] = &[Kind::Write, Kind::Delete];
    let spot = |path: &[u8], last| {
        let target = model.resolve(path, last).ok()?;
        Some(match last {
            // The name decides, whatever has it.
            Last::Name if !target.name.is_empty() => {
                model.spot_of_directory(target.directory).join(&[target.name])
            }
            _ => model.spot(&target),
        })
    };
    let itself = if op.number == 1 { Last::Itself } else { Last::Followed };
    let places: Vec<(Option<Spot>, Vec<Kind>)> = match op.action {
        Action::Open => {
            vec![(spot(&op.path, followed(op.flags())), kinds_of(op.flags()))]
        }
        Action::Mkdir | Action::Mknod | Action::Symlink => {
            vec![(spot(&op.path, Last::Name), WRITE.to_vec())]
        }
        Action::Unlink | Action::Rmdir => vec![(spot(&op.path, Last::Name), vec![Kind::Delete])],
        Action::Chown | Action::Times => vec![(spot(&op.path, itself), vec![Kind::Attributes])],
        Action::Chmod | Action::SetAttribute | Action::RemoveAttribute => {
            vec![(spot(&op.path, Last::Followed), vec![Kind::Attributes])]
        }
        Action::Execute => {
            vec![(spot(&op.path, Last::Followed), vec![Kind::Read, Kind::Execute])]
        }
        Action::Link => vec![
            (spot(&op.second, Last::Name), WRITE.to_vec()),
            (spot(&op.path, Last::Itself), vec![Kind::Read, Kind::Write]),
        ],
        Action::Rename => vec![
            (spot(&op.path, Last::Name), MOVE.to_vec()),
            (spot(&op.second, Last::Name), MOVE.to_vec()),
        ],
        _ => vec![(spot(&op.path, Last::Followed), WRITE.to_vec())],
    };
    let within = op.action == Action::Open && op.flags() & libc::O_TMPFILE == libc::O_TMPFILE;
    let mut causes = Vec::new();
    let mut seen = Vec::new();
    let mut covered = false;
    for (spot, kinds) in places {
        let Some(spot) = spot else { continue };
        let paths: Vec<Vec<u8>> = reference.paths(model, &spot);
        covered |= paths.is_empty();
        let judged = if within { spot.join(&[b"#1".to_vec()]) } else { spot };
        let rules = kinds.iter().flat_map(|kind| reference.closing(model, &judged, *kind));
        let rules: Vec<Option<RuleName>> = rules.collect();
        seen.extend(paths.iter().cloned());
        if !rules.is_empty() {
            causes.push(Cause { paths, within, rules: Some(rules) });
        }
    }
    if matches!(op.action, Action::Link | Action::Rename | Action::Symlink) {
        causes.push(Cause { paths: seen, within: false, rules: None });
    }
    (causes, covered)
}

/// What an open with these flags wants.
fn kinds_of(flags: i32) -> Vec<Kind> {
    let mut kinds = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => vec![Kind::Read],
        libc::O_WRONLY => vec![Kind::Write],
        _ => vec![Kind::Read, Kind::Write],
    };
    let changes = libc::O_CREAT | libc::O_TRUNC;
    if flags & changes != 0 || flags & libc::O_TMPFILE == libc::O_TMPFILE {
        kinds.push(Kind::Write);
    }
    kinds
}

/// The bytes of a path of these components.
pub(crate) fn joined(components: &[Vec<u8>]) -> Vec<u8> {
    components.iter().flat_map(|name| [b"/", name.as_slice()].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rule(text: &str) -> RuleName {
        ("files.read.deny".to_owned(), text.to_owned())
    }

    fn note(at: usize, must: bool, path: &str, rules: Option<&[Option<RuleName>]>) -> Note {
        let rules = rules.map(<[_]>::to_vec);
        let causes = vec![Cause { paths: vec![path.into()], within: false, rules }];
        Note { at, must, bystander: 0, member: libc::EACCES, causes, open: false }
    }

    fn told(path: &str, reason: &str, rule: Option<&str>) -> Told {
        let rule = rule.map(|text| json!({"key": "files.read.deny", "text": text}));
        let object = json!({"path": path});
        let event = json!({"type": "denial", "object": object, "reason": reason, "rule": rule});
        Told::of(&event).expect("it is a denial")
    }

    fn wrong(notes: &[Note], events: &[Told]) -> Option<usize> {
        disagreement(notes, events).map(|(note, _)| note.at)
    }

    #[test]
    fn each_denial_needs_the_event_that_names_its_rule() {
        let notes = [
            note(0, true, "/z/a", Some(&[Some(rule("/z/a"))])),
            note(1, false, "/z/b", Some(&[None])),
            note(2, true, "/z/b", Some(&[None])),
            note(3, true, "/z/c", None),
        ];
        let a = told("/z/a", "rule", Some("/z/a"));
        let (b, c) = (told("/z/b", "default", None), told("/z/c", "gain", Some("/z/a")));
        let right = [a.clone(), b.clone(), c.clone()];
        assert_eq!(wrong(&notes, &right), None);
        // What fails for everyone may be told of or not.
        assert_eq!(wrong(&notes, &[a.clone(), b.clone(), b.clone(), c.clone()]), None);
        for (events, at) in [
            (vec![], 0),
            (vec![b.clone(), c.clone()], 0),
            (vec![told("/z/a", "rule", Some("/z/**")), b.clone(), c.clone()], 0),
            (vec![told("/z/a", "default", None), b.clone(), c.clone()], 0),
            (vec![told("/z/x", "rule", Some("/z/a")), b.clone(), c.clone()], 0),
            (vec![a.clone(), c.clone()], 2),
            (vec![a.clone(), told("/z/b", "rule", Some("/z/b")), c.clone()], 2),
            (vec![a.clone(), b.clone()], 3),
            (vec![a.clone(), b.clone(), told("/z/c", "default", None)], 3),
            (vec![a, b, c.clone(), c], 3),
        ] {
            assert_eq!(wrong(&notes, &events), Some(at), "{events:?}");
        }
    }

    #[test]
    fn an_event_belongs_to_the_zone_of_its_object() {
        let notes = [note(0, true, "/w/z1/deep/file", Some(&[None]))];
        let is_of = |path: &str| told(path, "default", None).is_of(Path::new("/w/z1"), &notes);
        assert!(is_of("/w/z1") && is_of("/w/z1/other"));
        assert!(!is_of("/w/z10/file") && !is_of("/etc/passwd"));
        // Where the beginning is missing, the rest tells.
        assert!(is_of("[0:25]/.../deep/file") && !is_of("[0:25]/.../deep/other"));
        assert!(Told::of(&json!({"type": "notice", "message": "x"})).is_none());
    }
}
