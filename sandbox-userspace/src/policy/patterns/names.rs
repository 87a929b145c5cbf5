//! The automata over the bytes of names: which globs a name matches.

use super::TooMuch;
use super::dfa::{Automaton, Numbers, Set, determinise, numbered, set};
use crate::policy::glob::{Atom, Glob};
use std::collections::HashMap;

/// Most states of an automaton while it is built.
const STATES: usize = 4_096;

/// The two automata, before they are minimised, and what names they tell apart.
pub(super) struct Names {
    /// Class of each byte.
    pub(super) classes: [u8; 256],
    /// Number of byte classes.
    pub(super) bytes: usize,
    /// Starts: exact, folded.
    pub(super) forward: Automaton,
    /// By state of `forward` the globs that a name ending there matches.
    pub(super) forward_sets: Vec<Set>,
    pub(super) backward: Automaton,
    pub(super) backward_sets: Vec<Set>,
    /// Which sets of globs a name can match, the empty one first.
    pub(super) matched: Numbers<Set>,
}

/// A set of bytes.
type Bytes = [u64; 4];

/// A nondeterministic automaton over bytes, of all globs.
#[derive(Default)]
struct Nfa {
    /// By state: bytes, and the state behind them.
    edges: Vec<Vec<(Bytes, u32)>>,
    /// By state the glob that ends there.
    ends: Vec<Option<u32>>,
}

impl Names {
    /// Builds them for globs that are named by their index.
    pub(super) fn build(globs: &[Glob]) -> Result<Self, TooMuch> {
        let folded: Vec<Glob> = globs.iter().map(Glob::folded).collect();
        // What ends plainly and may begin with anything is told from the end after a byte or two.
        let backwards =
            |glob: &Glob| glob.0.first() == Some(&Atom::Star) && glob.0.last() != Some(&Atom::Star);
        let (mut forward, mut backward, mut all) = (Nfa::default(), Nfa::default(), Nfa::default());
        // Of the exact and of the folded globs; where no glob has an upper letter they are the same.
        let mut starts = [const { [const { Vec::new() }; 2] }; 3];
        for (which, globs) in [globs, &folded].into_iter().enumerate() {
            for (index, glob) in (0..).zip(globs) {
                if backwards(glob) {
                    starts[1][which].push(backward.add(glob, index, true));
                } else {
                    starts[0][which].push(forward.add(glob, index, false));
                }
                starts[2][which].push(all.add(glob, index, false));
            }
            if folded == globs && which == 0 {
                for starts in &mut starts {
                    starts[1] = starts[0].clone();
                }
                break;
            }
        }
        let (classes, examples) = classes(forward.bytes().chain(backward.bytes()));
        let [of_forward, of_backward, of_all] = starts;
        let forward_dfa = forward.determinise(&of_forward, &examples).ok_or(TooMuch::Names)?;
        let backward_dfa = backward.determinise(&of_backward, &examples).ok_or(TooMuch::Names)?;
        let forward_sets = forward.matched(&forward_dfa);
        let backward_sets = backward.matched(&backward_dfa);
        let mut matched = Numbers::default();
        matched.of(Set::new());
        if let Some(dfa) = all.determinise(&of_all, &examples) {
            for found in all.matched(&dfa) {
                matched.of(found);
            }
        } else {
            // Too much to find out which sets never meet in one name.
            for before in distinct(&forward_sets) {
                for behind in distinct(&backward_sets) {
                    matched.of(set([before.clone(), behind].concat()));
                    if matched.list.len() > STATES {
                        return Err(TooMuch::Names);
                    }
                }
            }
        }
        Ok(Self {
            classes,
            bytes: examples.len(),
            forward: forward_dfa,
            forward_sets,
            backward: backward_dfa,
            backward_sets,
            matched,
        })
    }
}

fn distinct(sets: &[Set]) -> Vec<Set> {
    let mut numbers = Numbers::default();
    for found in sets {
        numbers.of(found.clone());
    }
    numbers.list
}

impl Nfa {
    fn state(&mut self) -> u32 {
        self.edges.push(Vec::new());
        self.ends.push(None);
        // Rules and their lengths are bounded far below this.
        u32::try_from(self.edges.len() - 1).unwrap_or(u32::MAX)
    }

    fn edge(&mut self, from: u32, bytes: Bytes, to: u32) {
        self.edges[from as usize].push((bytes, to));
    }

    /// Adds a glob; returns where it begins, which is its end where it is read `backward`.
    fn add(&mut self, glob: &Glob, index: u32, backward: bool) -> u32 {
        let start = self.state();
        let mut at = start;
        let atoms: Box<dyn Iterator<Item = &Atom>> =
            if backward { Box::new(glob.0.iter().rev()) } else { Box::new(glob.0.iter()) };
        for atom in atoms {
            match *atom {
                Atom::Star => self.edge(at, [u64::MAX; 4], at),
                Atom::Byte(byte) => {
                    let next = self.state();
                    self.edge(at, range(byte, byte), next);
                    at = next;
                }
                Atom::One { set, negated } => {
                    let next = self.state();
                    self.one(at, set, negated, backward, next);
                    at = next;
                }
            }
        }
        self.ends[at as usize] = Some(index);
        start
    }

    /// One character: see [`character`](crate::policy::glob::character).
    fn one(&mut self, at: u32, set: u128, negated: bool, backward: bool, next: u32) {
        let mut ascii = [0; 4];
        for byte in (0..128).filter(|byte| Atom::has(set, negated, *byte)) {
            insert(&mut ascii, byte);
        }
        self.edge(at, ascii, next);
        if !negated {
            return;
        }
        let leads = [range(0xc2, 0xdf), range(0xe0, 0xef), range(0xf0, 0xf4)];
        let more = range(0x80, 0xbf);
        // Behind (or before) one, two and three continuing bytes.
        let mut near = if backward { at } else { next };
        for lead in leads {
            let middle = self.state();
            if backward {
                self.edge(near, more, middle);
                self.edge(middle, lead, next);
            } else {
                self.edge(middle, more, near);
                self.edge(at, lead, middle);
            }
            near = middle;
        }
    }

    fn bytes(&self) -> impl Iterator<Item = &Bytes> {
        self.edges.iter().flatten().map(|(bytes, _)| bytes)
    }

    fn determinise(&self, starts: &[Vec<u32>; 2], examples: &[u8]) -> Option<Automaton> {
        let starts = [set(starts[0].clone()), set(starts[1].clone())];
        determinise(&starts, examples.len(), STATES, |from, class| {
            let edges = from.iter().flat_map(|state| &self.edges[*state as usize]);
            let taken = edges.filter(|(bytes, _)| contains(bytes, examples[class]));
            set(taken.map(|(_, to)| *to).collect())
        })
    }

    /// By state of the deterministic automaton the globs that end there.
    fn matched(&self, dfa: &Automaton) -> Vec<Set> {
        let ends = |states: &Set| {
            set(states.iter().filter_map(|state| self.ends[*state as usize]).collect())
        };
        dfa.sets.iter().map(ends).collect()
    }
}

fn range(first: u8, last: u8) -> Bytes {
    let mut bytes = [0; 4];
    for byte in first..=last {
        insert(&mut bytes, byte);
    }
    bytes
}

const fn insert(bytes: &mut Bytes, byte: u8) {
    bytes[byte as usize / 64] |= 1 << (byte % 64);
}

const fn contains(bytes: &Bytes, byte: u8) -> bool {
    bytes[byte as usize / 64] >> (byte % 64) & 1 == 1
}

/// The class of each byte, bytes being alike that no set tells apart, and a byte of each class.
fn classes<'a>(sets: impl Iterator<Item = &'a Bytes>) -> ([u8; 256], Vec<u8>) {
    let mut class = vec![0; 256];
    let mut done: HashMap<Bytes, ()> = HashMap::new();
    for bytes in sets {
        if done.insert(*bytes, ()).is_none() {
            class = numbered(
                (0..=u8::MAX).map(|byte| (class[usize::from(byte)], contains(bytes, byte))),
            );
        }
    }
    let mut found = [0; 256];
    let mut examples = Vec::new();
    for byte in 0..=u8::MAX {
        let number = class[usize::from(byte)];
        if number as usize == examples.len() {
            examples.push(byte);
        }
        // There are no more classes than bytes.
        found[usize::from(byte)] = u8::try_from(number).unwrap_or(u8::MAX);
    }
    (found, examples)
}
