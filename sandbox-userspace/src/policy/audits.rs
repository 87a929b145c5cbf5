//! What a policy wants to have noted though it is allowed.

use super::check::{Problem, nearest};
use super::rule::{Origin, Policy};
use sandbox_common::subject::{NOTES_CONNECTIONS, NOTES_EXECS, NOTES_WRITES};

/// The key.
pub(super) const KEY: &str = "audit";

/// A class of operations that can be noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Class {
    /// Programs that run.
    Exec = NOTES_EXECS,
    /// Whom it connects and sends to.
    Connect = NOTES_CONNECTIONS,
    /// Every change of a file or a name.
    Write = NOTES_WRITES,
}

/// The words for them.
pub(super) const WORDS: [&str; 3] = ["exec", "connect", "write"];

/// One entry of `audit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRule {
    /// Where it comes from.
    pub origin: Origin,
    /// What it speaks of.
    pub class: Class,
}

/// The class of a word.
pub(super) fn parse(text: &str) -> Result<Class, Problem> {
    match text {
        "exec" => Ok(Class::Exec),
        "connect" => Ok(Class::Connect),
        "write" => Ok(Class::Write),
        _ => {
            let help = match nearest(text, &WORDS) {
                Some(known) => format!("did you mean `{known}`?"),
                None => format!("known classes: `{}`", WORDS.join("`, `")),
            };
            Err(Problem::new(format!("unknown class `{text}`"), help))
        }
    }
}

/// What any layer wants to have noted, for the kernel: a layer can add to it, none can take away.
pub(super) fn noted(policy: &Policy) -> u32 {
    let rules = policy.layers().flat_map(|layer| &layer.audits);
    rules.fold(0, |noted, rule| noted | rule.class as u32)
}

#[cfg(test)]
mod tests {
    use super::super::layers::MANAGED_LAYER;
    use super::super::source::Source;
    use super::super::{load_text, parse};
    use super::*;

    fn of(text: &str) -> Result<Policy, String> {
        load_text("p", format!("version = 1\n{text}")).map_err(|error| error.to_string())
    }

    #[test]
    fn reads_classes() {
        let noted = |text: &str| noted(&of(text).unwrap());
        assert_eq!(noted(""), 0);
        assert_eq!(noted("audit = []"), 0);
        assert_eq!(noted("audit = ['exec', 'exec']"), NOTES_EXECS);
        assert_eq!(
            noted("audit = ['connect', 'write', 'exec']"),
            NOTES_EXECS | NOTES_CONNECTIONS | NOTES_WRITES
        );
        let json = load_text("p", r#"{"version": 1, "audit": ["write"]}"#.to_owned()).unwrap();
        assert_eq!(super::noted(&json), NOTES_WRITES);
    }

    #[test]
    fn what_is_no_class_is_refused() {
        for (text, part) in [
            ("audit = ['exe']", "did you mean `exec`?"),
            ("audit = ['writes']", "did you mean `write`?"),
            ("audit = ['everything']", "known classes: `exec`, `connect`, `write`"),
            ("audit = 'exec'", "write `[\"exec\"]`"),
            ("audit = [1]", "not a string"),
            ("audits = ['exec']", "did you mean `audit`?"),
        ] {
            let told = of(text).expect_err(text);
            assert!(told.contains(part), "{text}: {told}");
        }
    }

    #[test]
    fn layers_add_and_take_nothing_away() {
        let text = |text: &str| format!("version = 1\n{text}");
        let own = of("audit = ['connect']").unwrap();
        let over = |text: String| Source::new("m", MANAGED_LAYER, text);
        let managed = parse::limit(own.clone(), over(text("audit = ['exec']"))).unwrap();
        assert_eq!(noted(&managed), NOTES_EXECS | NOTES_CONNECTIONS);
        let silent = parse::limit(own.clone(), over(text("audit = []"))).unwrap();
        assert_eq!(noted(&silent), NOTES_CONNECTIONS);
        let added = parse::append(own, over(text("audit = ['write']"))).unwrap();
        assert_eq!(noted(&added), NOTES_CONNECTIONS | NOTES_WRITES);
        let origins: Vec<_> = managed.origins().filter(|origin| origin.key == KEY).collect();
        assert_eq!(origins.len(), 2);
        assert!(origins.iter().all(|origin| origin.denies()));
    }
}
