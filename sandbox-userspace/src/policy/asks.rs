//! Programs that a person is asked about, for the kernel.

use super::check::program::Words;
use super::diagnostic::Diagnostic;
use super::rule::{AskRule, Policy};
use sandbox_common::ask::{Ask, Asks, RULES, WORDS, Word};
use std::collections::BTreeMap;

/// The key of what a person has granted: it stands in no policy, only a running session can be given it.
pub const GRANTED: &str = "files.exec.granted";

/// A program and the rules about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskEntry {
    /// Its name.
    pub program: Word,
    /// The rules, in the order in which they are told of.
    pub asks: Asks,
}

/// The rules that ask, of all layers, without those that were granted.
pub fn asking(policy: &Policy) -> impl Iterator<Item = &AskRule> {
    let granted: Vec<&Words> =
        policy.asks.iter().filter(|rule| rule.granted).map(|rule| &rule.words).collect();
    let all = policy.layers().flat_map(|layer| &layer.asks);
    all.filter(move |rule| !rule.granted && !granted.contains(&&rule.words))
}

/// Every program that is asked about.
pub(super) fn compile(policy: &Policy) -> Result<Vec<AskEntry>, Diagnostic> {
    let mut found: BTreeMap<&str, Vec<Ask>> = BTreeMap::new();
    for rule in asking(policy) {
        let Some((ask, program)) = ask(rule) else { continue };
        let asks = found.entry(program).or_default();
        // The same words in several layers are one rule.
        if asks.iter().any(|known| (known.words, known.word) == (ask.words, ask.word)) {
            continue;
        }
        if asks.len() == RULES {
            let message = format!("more than {RULES} rules about `{program}`");
            let help = format!("join some, or ask about `{program}` whatever its arguments");
            return Err(rule.origin.place.error(message, help));
        }
        asks.push(ask);
    }
    let entry = |(program, found): (&str, Vec<Ask>)| {
        let mut asks = Asks::default();
        asks.rules.iter_mut().zip(found).for_each(|(place, ask)| *place = ask);
        Some(AskEntry { program: Word::of(program.as_bytes())?, asks })
    };
    Ok(found.into_iter().filter_map(entry).collect())
}

/// A rule for the kernel, and the program that it speaks of. Rules were checked when they were read.
fn ask(rule: &AskRule) -> Option<(Ask, &str)> {
    let (program, behind) = rule.words.split_first()?;
    let words = u32::try_from(behind.len()).ok().filter(|_| behind.len() <= WORDS)?;
    let mut ask = Ask { rule: rule.origin.id, words, ..Ask::default() };
    for (place, word) in ask.word.iter_mut().zip(behind) {
        *place = Word::of(word.as_bytes())?;
    }
    Some((ask, program))
}

/// The rule that asks about a command: its program, by the name that it is called by, and its arguments.
pub fn meet(policy: &Policy, command: &[impl AsRef<[u8]>]) -> Option<u32> {
    let (program, arguments) = command.split_first()?;
    let name = program.as_ref().rsplit(|byte| *byte == b'/').next()?;
    let program = Word::cut(name);
    let entries = compile(policy).ok()?;
    let entry = entries.into_iter().find(|entry| entry.program == program)?;
    entry.asks.meet(arguments.iter().map(AsRef::as_ref))
}

#[cfg(test)]
mod tests {
    use super::super::layers::MANAGED_LAYER;
    use super::super::source::Source;
    use super::super::{grant, load_text, parse};
    use super::*;

    fn policy(text: &str) -> Policy {
        load_text("p", format!("version = 1\n{text}")).unwrap()
    }

    fn asked(policy: &Policy, command: &str) -> Option<String> {
        let words: Vec<&str> = command.split(' ').collect();
        Some(policy.origin(meet(policy, &words)?)?.text.clone())
    }

    #[test]
    fn a_command_meets_its_rule() {
        let own = policy("files.exec.ask = ['git push', 'npm publish', 'terraform']\n");
        assert_eq!(asked(&own, "git push origin").as_deref(), Some("git push"));
        assert_eq!(asked(&own, "/usr/bin/git -C x push").as_deref(), Some("git push"));
        assert_eq!(asked(&own, "terraform").as_deref(), Some("terraform"));
        assert_eq!(asked(&own, "git status"), None);
        assert_eq!(asked(&own, "gitk push"), None);
        assert_eq!(compile(&own).unwrap().len(), 3);
    }

    #[test]
    fn any_layer_asks_and_a_grant_lifts_it_in_all() {
        let own = policy("files.exec.ask = ['git push', 'git tag']\n");
        let text = "version = 1\nfiles.exec.ask = ['git push', 'npm publish']\n";
        let ceiling = Source::new("c", MANAGED_LAYER, text.to_owned());
        let both = parse::limit(own, ceiling).unwrap();
        assert!(asked(&both, "git push").is_some() && asked(&both, "npm publish").is_some());
        assert_eq!(compile(&both).unwrap().len(), 2);
        let granted = grant(both, "grant:9", GRANTED, "git  push").unwrap();
        assert_eq!(asked(&granted, "git push"), None);
        assert!(asked(&granted, "git tag").is_some() && asked(&granted, "npm publish").is_some());
        assert!(grant(granted, "grant:9", GRANTED, "a/b").is_err());
    }

    #[test]
    fn rules_about_one_program_have_an_end() {
        let rules: Vec<String> = (0..=RULES).map(|n| format!("'git c{n}'")).collect();
        let of =
            |count: usize| policy(&format!("files.exec.ask = [{}]\n", rules[..count].join(",")));
        assert_eq!(compile(&of(RULES)).unwrap().len(), 1);
        let error = compile(&of(RULES + 1)).unwrap_err();
        assert!(error.message.contains("more than 8 rules about `git`"), "{error:?}");
    }
}
