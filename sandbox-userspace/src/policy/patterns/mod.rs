//! Patterns to the automaton of `sandbox_common::pattern`.
//!
//! Each pattern is anchored at places of superblocks (`anchor`), its components become states; what a
//! name matches is found out by automata over bytes (`names`); both are made deterministic and as small
//! as can be (`dfa`) and laid out in one table (`table`).

pub(super) mod anchor;
mod dfa;
mod names;
mod table;

use super::expand::Placed;
use super::glob::Glob;
use super::rule::{Scope, Step};
use anchor::Anchored;
use dfa::{Minimal, Numbers, Set, determinise, minimise, numbered, set};
use names::Names;
use sandbox_common::path::Said;
use sandbox_common::pattern::{CELLS, OVERLAYS, Overlay, Patterns};
use std::collections::BTreeMap;
use std::fmt;

/// Most kinds of names that the rules may tell apart.
const NAMES: usize = 255;
/// Most states of the automaton over components while it is built.
const STATES: usize = 8_192;
/// Most sets of globs that a name can match, before those are joined that mean the same.
const MATCHED: usize = 4_096;

/// What the tables have no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TooMuch {
    /// Kinds of names.
    Names,
    /// States of paths.
    States,
    /// Different verdicts.
    Overlays,
    /// The tables as a whole.
    Cells,
}

impl fmt::Display for TooMuch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Names => write!(f, "they tell more than {NAMES} kinds of names apart"),
            Self::States => write!(f, "they tell too many kinds of directories apart"),
            Self::Overlays => write!(f, "they come to more than {} verdicts", OVERLAYS - 1),
            Self::Cells => write!(f, "their tables have more than {CELLS} cells"),
        }
    }
}

/// The patterns of a policy in the kernel's terms.
pub(super) struct Compiled {
    pub(super) patterns: Box<Patterns>,
    /// By superblock the state of its root.
    pub(super) starts: BTreeMap<u32, u32>,
}

/// The components of all patterns, as states of one nondeterministic automaton.
#[derive(Default)]
struct Paths {
    /// By state what it waits for; `None` is the end of a pattern.
    steps: Vec<Option<Wait>>,
    /// By state the rule, an index.
    rules: Vec<u32>,
}

#[derive(Clone, Copy)]
enum Wait {
    Deep,
    Any,
    /// A name that the glob of this number matches.
    Name(u32),
}

/// Compiles the patterns of all superblocks. `None` where there are none.
pub(super) fn compile(anchored: &[Anchored]) -> Result<Option<Compiled>, TooMuch> {
    if anchored.is_empty() {
        return Ok(None);
    }
    let mut paths = Paths::default();
    let mut globs = Numbers::default();
    let mut begun: Numbers<&Placed> = Numbers::default();
    let mut first = Vec::new();
    let mut starts: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for Anchored { dev, rule } in anchored {
        let number = begun.of(rule);
        if number as usize == first.len() {
            first.push(paths.add(rule, number, &mut globs));
        }
        starts.entry(*dev).or_default().push(first[number as usize]);
    }
    let names = Names::build(&globs.list)?;
    let matched = names.matched.list.len();
    if matched > MATCHED {
        return Err(TooMuch::Names);
    }
    let has: Vec<Vec<bool>> = names
        .matched
        .list
        .iter()
        .map(|found| {
            let mut has = vec![false; globs.list.len()];
            found.iter().for_each(|glob| has[*glob as usize] = true);
            has
        })
        .collect();
    let sets: Vec<Set> = starts
        .values()
        .map(|states| set(states.iter().flat_map(|state| paths.closure(*state)).collect()))
        .collect();
    let automaton = determinise(&sets, matched, STATES, |from, name| paths.step(from, &has[name]))
        .ok_or(TooMuch::States)?;

    let mut overlays = vec![Overlay::default()];
    let mut said = Vec::with_capacity(automaton.sets.len());
    for states in &automaton.sets {
        let overlay = paths.overlay(states, &begun.list);
        let known = overlays.iter().position(|known| *known == overlay);
        let number = known.unwrap_or(overlays.len());
        if known.is_none() {
            overlays.push(overlay);
        }
        said.push(u32::try_from(number).unwrap_or(u32::MAX));
        if overlays.len() > OVERLAYS {
            return Err(TooMuch::Overlays);
        }
    }
    let Minimal { rows, outputs, number } = minimise(&automaton.rows, &said);
    // Names after which every state goes on alike are one class.
    let columns = (0..matched).map(|name| rows.iter().map(|row| row[name]).collect::<Vec<_>>());
    let class = numbered(columns);
    let states = table::States { rows, outputs, class, overlays };
    let (patterns, at) = table::lay_out(&names, &states)?;
    let starts = starts
        .keys()
        .zip(&automaton.starts)
        .map(|(dev, state)| (*dev, at[number[*state as usize] as usize]))
        .collect();
    Ok(Some(Compiled { patterns, starts }))
}

impl Paths {
    /// Adds a pattern; returns its first state.
    fn add(&mut self, rule: &Placed, number: u32, globs: &mut Numbers<Glob>) -> u32 {
        // Rules and their lengths are bounded far below this.
        let first = u32::try_from(self.steps.len()).unwrap_or(u32::MAX);
        for name in &rule.path {
            self.steps.push(Some(Wait::Name(globs.of(Glob::literal(name)))));
        }
        for step in &rule.tail {
            self.steps.push(Some(match step {
                Step::Deep => Wait::Deep,
                Step::Any => Wait::Any,
                Step::Name(glob) => Wait::Name(globs.of(glob.clone())),
            }));
        }
        self.steps.push(None);
        self.rules.resize(self.steps.len(), number);
        first
    }

    /// A state and those that it is as well, `**` being no component too.
    fn closure(&self, state: u32) -> impl Iterator<Item = u32> {
        let more = (state..).take_while(|at| matches!(self.steps[*at as usize], Some(Wait::Deep)));
        std::iter::once(state).chain(more.map(|at| at + 1))
    }

    fn step(&self, from: &[u32], has: &[bool]) -> Set {
        let next = from.iter().filter_map(|state| match self.steps[*state as usize]? {
            Wait::Deep => Some(*state),
            Wait::Any => Some(state + 1),
            Wait::Name(glob) => has[glob as usize].then_some(state + 1),
        });
        set(next.flat_map(|state| self.closure(state)).collect())
    }

    /// What the patterns that end in these states say: deny wins, then the earlier rule.
    fn overlay(&self, states: &[u32], rules: &[&Placed]) -> Overlay {
        let ends = states.iter().filter(|state| self.steps[**state as usize].is_none());
        let mut ended: Vec<&Placed> =
            ends.map(|state| rules[self.rules[*state as usize] as usize]).collect();
        ended.sort_by_key(|rule| (rule.allow, rule.id));
        let mut overlay = Overlay::default();
        for rule in ended {
            say(&mut overlay.below, rule);
            if rule.scope == Scope::Tree {
                say(&mut overlay.own, rule);
            }
        }
        overlay
    }
}

/// Adds what a rule says where nothing was said of its kind.
fn say(said: &mut Said, rule: &Placed) {
    let bits = rule.kind.access().bits();
    if said.mask & bits == 0 {
        said.mask |= bits;
        said.allow |= if rule.allow { bits } else { 0 };
        said.rules[rule.kind as usize] = rule.id;
    }
}
