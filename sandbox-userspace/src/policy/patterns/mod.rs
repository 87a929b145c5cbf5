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
use super::rule::{Kind, Scope, Step};
use crate::kernel::mounts::Components;
use anchor::Anchored;
use dfa::{Minimal, Numbers, Set, determinise, minimise, numbered, set};
use names::Names;
use sandbox_common::path::Said;
use sandbox_common::pattern::{CELLS, OVERLAYS, Overlay, Patterns};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::{Mutex, PoisonError};

/// Most kinds of names that the rules may tell apart.
const NAMES: usize = 255;
/// Most cells of the automaton over components while it is built: minimal it has less.
const BUILDING: usize = 64 * CELLS;
/// Most states of it.
const STATES: usize = 4_096;
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

/// A place that a layer closes: no pattern of another layer opens anything in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Barrier {
    pub(super) dev: u32,
    pub(super) layer: u16,
    pub(super) kind: Kind,
    pub(super) path: Components,
}

/// The patterns of a policy in the kernel's terms.
#[derive(Clone)]
pub(super) struct Compiled {
    pub(super) patterns: Box<Patterns>,
    /// By superblock the state of its root.
    pub(super) starts: BTreeMap<u32, u32>,
}

/// The components of all patterns, as states of one nondeterministic automaton: tries, so that what
/// begins alike is followed once.
#[derive(Default)]
struct Paths {
    states: Vec<State>,
    /// What the ends of patterns say.
    rules: Vec<Placed>,
    /// The layers and kinds of patterns that allow.
    allowing: HashSet<(u16, Kind)>,
}

/// A place in a trie of patterns.
#[derive(Default)]
struct State {
    /// Stands behind a `**`: no component leaves it.
    stays: bool,
    /// What a `**` leads to, without any component.
    deep: Option<u32>,
    /// What any component leads to.
    any: Option<u32>,
    /// By glob, what a matching component leads to.
    names: HashMap<u32, u32>,
    /// Patterns that end here, as indices of rules.
    ends: Vec<u32>,
    /// A pattern that closes for writing goes on from here, and not as it does from anywhere beneath the place where
    /// it begins: no link may take such a name.
    guards: bool,
    /// What ends above: no pattern of another layer than this one opens anything of the kind.
    barriers: Vec<(u16, Kind)>,
}

/// What was compiled last, and from what.
struct Last {
    anchored: Vec<Anchored>,
    barriers: Vec<Barrier>,
    compiled: Compiled,
}

/// Patterns are what takes most of the time, and seldom change while a session runs: a grant names a place.
static LAST: Mutex<Option<Last>> = Mutex::new(None);

/// Compiles the patterns of all superblocks. `None` where there are none.
pub(super) fn compile(
    anchored: &[Anchored],
    barriers: &[Barrier],
) -> Result<Option<Compiled>, TooMuch> {
    if anchored.is_empty() {
        return Ok(None);
    }
    let last = || LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(Last { compiled, .. }) =
        last().as_ref().filter(|last| last.anchored == anchored && last.barriers == barriers)
    {
        return Ok(Some(compiled.clone()));
    }
    let compiled = compile_anew(anchored, barriers)?;
    *last() = Some(Last {
        anchored: anchored.to_vec(),
        barriers: barriers.to_vec(),
        compiled: compiled.clone(),
    });
    Ok(Some(compiled))
}

fn compile_anew(anchored: &[Anchored], barriers: &[Barrier]) -> Result<Compiled, TooMuch> {
    let allowing = anchored.iter().map(|of| &of.rule).filter(|rule| rule.allow);
    let allowing =
        allowing.flat_map(|rule| Kind::of(rule.access).map(|kind| (rule.layer, kind))).collect();
    let mut paths = Paths { allowing, ..Paths::default() };
    let mut globs = Numbers::default();
    // What holds in all superblocks has a trie of its own; the rest of each has another.
    let common = paths.state();
    let mut roots: BTreeMap<u32, u32> = BTreeMap::new();
    let mut everywhere = HashSet::new();
    for Anchored { dev, rule } in anchored {
        let own = *roots.entry(*dev).or_insert_with(|| paths.state());
        if !rule.everywhere {
            paths.add(own, rule, &mut globs);
        } else if everywhere.insert(rule) {
            paths.add(common, rule, &mut globs);
        }
    }
    for Barrier { dev, layer, kind, path } in barriers {
        if let Some(own) = roots.get(dev) {
            let at = path.iter().fold(*own, |at, name| {
                paths.follow(at, &Step::Name(Glob::literal(name)), &mut globs)
            });
            paths.end(at, *layer, *kind, &mut globs);
        }
    }
    let names = Names::build(&globs.list)?;
    let matched = names.matched.list.len();
    if matched > MATCHED {
        return Err(TooMuch::Names);
    }
    let sets: Vec<Set> = roots
        .values()
        .map(|own| set(paths.closure(common).chain(paths.closure(*own)).collect()))
        .collect();
    let most = STATES.min(BUILDING / matched);
    let automaton =
        determinise(&sets, matched, most, |from, name| paths.step(from, &names.matched.list[name]))
            .ok_or(TooMuch::States)?;

    let mut overlays = vec![Overlay::default()];
    let mut said = Vec::with_capacity(automaton.sets.len());
    for states in &automaton.sets {
        let overlay = paths.overlay(states);
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
    let starts = roots
        .keys()
        .zip(&automaton.starts)
        .map(|(dev, state)| (*dev, at[number[*state as usize] as usize]))
        .collect();
    Ok(Compiled { patterns, starts })
}

impl Paths {
    fn state(&mut self) -> u32 {
        self.states.push(State::default());
        // Rules and their lengths are bounded far below this.
        u32::try_from(self.states.len() - 1).unwrap_or(u32::MAX)
    }

    /// Adds a pattern to the trie that begins at `root`.
    fn add(&mut self, root: u32, rule: &Placed, globs: &mut Numbers<Glob>) {
        let mut at = root;
        let literal = rule.path.iter().map(|name| Step::Name(Glob::literal(name)));
        let closes = !rule.allow && rule.speaks_of(Kind::Write);
        let steps = rule.path.len() + rule.tail.len();
        for (number, step) in literal.chain(rule.tail.iter().cloned()).enumerate() {
            at = self.follow(at, &step, globs);
            let is_anywhere = number == rule.path.len() && step == Step::Deep;
            self.states[at as usize].guards |= closes && number + 1 < steps && !is_anywhere;
        }
        let number = u32::try_from(self.rules.len()).unwrap_or(u32::MAX);
        self.rules.push(rule.clone());
        self.states[at as usize].ends.push(number);
        for kind in Kind::of(rule.access) {
            // Only where another layer has patterns that it could end.
            let mut allowing = self.allowing.iter();
            if !rule.allow && allowing.any(|of| of.1 == kind && of.0 != rule.layer) {
                self.end(at, rule.layer, kind, globs);
            }
        }
    }

    /// Patterns of other layers open nothing of a kind at a state and beneath.
    fn end(&mut self, at: u32, layer: u16, kind: Kind, globs: &mut Numbers<Glob>) {
        let beneath = self.follow(at, &Step::Deep, globs);
        let barriers = &mut self.states[beneath as usize].barriers;
        if !barriers.contains(&(layer, kind)) {
            barriers.push((layer, kind));
        }
    }

    /// Where a step leads.
    fn follow(&mut self, at: u32, step: &Step, globs: &mut Numbers<Glob>) -> u32 {
        let from = &self.states[at as usize];
        let glob = match step {
            Step::Name(glob) => Some(globs.of(glob.clone())),
            Step::Deep | Step::Any => None,
        };
        let known = match (step, glob) {
            (_, Some(glob)) => from.names.get(&glob).copied(),
            (Step::Deep, _) => from.deep,
            _ => from.any,
        };
        known.unwrap_or_else(|| {
            let next = self.state();
            let from = &mut self.states[at as usize];
            match (step, glob) {
                (_, Some(glob)) => {
                    from.names.insert(glob, next);
                }
                (Step::Deep, _) => from.deep = Some(next),
                _ => from.any = Some(next),
            }
            self.states[next as usize].stays = *step == Step::Deep;
            next
        })
    }

    /// A state and that which it is as well, `**` being no component too; there are never two in a
    /// row.
    fn closure(&self, state: u32) -> impl Iterator<Item = u32> {
        std::iter::once(state).chain(self.states[state as usize].deep)
    }

    /// Where a name leads that matches these globs.
    fn step(&self, from: &[u32], globs: &[u32]) -> Set {
        let mut next = Vec::new();
        for number in from {
            let state = &self.states[*number as usize];
            next.extend(state.stays.then_some(*number));
            next.extend(state.any.iter().flat_map(|any| self.closure(*any)));
            let named = globs.iter().filter_map(|glob| state.names.get(glob));
            next.extend(named.flat_map(|state| self.closure(*state)));
        }
        set(next)
    }

    /// What the patterns that end in these states say: deny wins, then the earlier rule.
    fn overlay(&self, states: &[u32]) -> Overlay {
        let states = || states.iter().map(|state| &self.states[*state as usize]);
        let barred = |rule: &Placed, kind| {
            let mut barriers = states().flat_map(|state| &state.barriers);
            rule.allow && barriers.any(|(layer, of)| *of == kind && *layer != rule.layer)
        };
        let ends = states().flat_map(|state| &state.ends).map(|rule| &self.rules[*rule as usize]);
        let kinds = ends.flat_map(|rule| Kind::of(rule.access).map(move |kind| (rule, kind)));
        let mut ended: Vec<(&Placed, Kind)> =
            kinds.filter(|(rule, kind)| !barred(rule, *kind)).collect();
        ended.sort_by_key(|(rule, _)| (rule.allow, rule.id));
        let guards = states().any(|state| state.guards).into();
        let mut overlay = Overlay { guards, ..Overlay::default() };
        for (rule, kind) in ended {
            say(&mut overlay.below, rule, kind);
            if rule.scope == Scope::Tree {
                say(&mut overlay.own, rule, kind);
            }
        }
        overlay
    }
}

/// Adds what a rule says of a kind where nothing was said of it.
fn say(said: &mut Said, rule: &Placed, kind: Kind) {
    if said.mask & kind.access().bits() == 0 {
        said.say(kind as usize, rule.allow, rule.id);
    }
}
