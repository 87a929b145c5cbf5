//! From a disagreement to the smallest case that shows it.

use super::model::Model;
use super::operation::Op;
use super::round::{Case, Disagreement, Round};
use super::rules::Language;

/// Sessions that are spent on it at most.
const SESSIONS: usize = 30;
/// Candidates that share a session, each in a zone of its own.
const TOGETHER: usize = 24;

/// Makes a case smaller as long as the last of its operations still disagrees.
pub(crate) fn shrink(case: Case, language: &Language) -> anyhow::Result<Case> {
    let mut shrinker = Shrinker { language, sessions: 0 };
    let mut best = case;
    // Mostly the history does not matter, only what it left.
    if let Some(bare) = shrinker.first(vec![without_history(&best)])? {
        best = bare;
    }
    loop {
        let before = size(&best);
        for part in [Part::Rules, Part::Ops, Part::Setup] {
            best = shrinker.part(best, part)?;
        }
        if size(&best) == before || shrinker.sessions >= SESSIONS {
            return Ok(best);
        }
    }
}

fn size(case: &Case) -> usize {
    case.rules.len() + case.setup.len() + case.ops.len()
}

/// The last operation alone, on the tree that the others made.
fn without_history(case: &Case) -> Case {
    let mut model = Model::new();
    let Some((last, history)) = case.ops.split_last() else { return case.clone() };
    for op in case.setup.iter().chain(history) {
        // What the member was refused is in the history too; such a candidate may just not show it.
        let _ = model.apply(op);
    }
    Case { rules: case.rules.clone(), setup: model.recipe(), ops: vec![last.clone()] }
}

#[derive(Clone, Copy)]
enum Part {
    Rules,
    Setup,
    Ops,
}

struct Shrinker<'a> {
    language: &'a Language,
    sessions: usize,
}

impl Shrinker<'_> {
    /// Leaves out as much of one part as possible: halves first, then single elements.
    fn part(&mut self, mut best: Case, part: Part) -> anyhow::Result<Case> {
        let length = |case: &Case| match part {
            Part::Rules => case.rules.len(),
            Part::Setup => case.setup.len(),
            // The last one is what it is about.
            Part::Ops => case.ops.len() - 1,
        };
        let mut chunk = length(&best).div_ceil(2);
        while chunk > 0 && self.sessions < SESSIONS {
            let starts: Vec<usize> = (0..length(&best)).step_by(chunk).collect();
            let mut smaller = None;
            for starts in starts.rchunks(TOGETHER) {
                let candidates = starts.iter().map(|start| {
                    let mut case = best.clone();
                    let end = (start + chunk).min(length(&best));
                    match part {
                        Part::Rules => drop(case.rules.drain(*start..end)),
                        Part::Setup => drop(case.setup.drain(*start..end)),
                        Part::Ops => drop(case.ops.drain(*start..end)),
                    }
                    case
                });
                smaller = self.first(candidates.rev().collect())?;
                if smaller.is_some() || self.sessions >= SESSIONS {
                    break;
                }
            }
            match smaller {
                Some(case) => {
                    best = case;
                    chunk = chunk.min(length(&best));
                }
                None => chunk /= 2,
            }
        }
        Ok(best)
    }

    /// The first of the candidates whose last operation disagrees.
    fn first(&mut self, candidates: Vec<Case>) -> anyhow::Result<Option<Case>> {
        self.sessions += 1;
        let mut round = Round::new(&candidates, self.language)?;
        // That the trees differ besides is no news.
        if round.run(None, 0).is_err() && round.findings().all(|(found, _)| found.is_none()) {
            return Ok(None);
        }
        let found: Vec<bool> = round.findings().map(|(found, _)| found.is_some()).collect();
        let mut shown = candidates.into_iter().zip(found).filter(|(_, found)| *found);
        Ok(shown.next().map(|(case, _)| case))
    }
}

/// The case for people, and the disagreement.
pub(crate) fn report(case: &Case, found: &Disagreement) -> String {
    let ops = |ops: &[Op]| ops.iter().map(|op| format!("{op:?}")).collect();
    let mut lines = vec![found.to_string()];
    let lists: [(&str, Vec<String>); 3] = [
        ("policy", case.rules.iter().map(super::rules::Line::shown).collect()),
        ("tree, from the zone's root", ops(&case.setup)),
        ("operations", ops(&case.ops)),
    ];
    for (heading, list) in lists {
        lines.push(format!("  {heading}:"));
        lines.extend(list.into_iter().map(|line| format!("    {line}")));
    }
    lines.join("\n")
}
