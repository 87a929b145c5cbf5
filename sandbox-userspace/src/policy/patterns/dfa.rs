//! Deterministic automata: subset construction and minimisation, for bytes and for components alike.

use std::collections::HashMap;
use std::hash::Hash;

/// Members in ascending order, each once.
pub(super) type Set = Vec<u32>;

/// An automaton whose states are sets; state 0 is the empty set, which nothing leaves.
pub(super) struct Automaton {
    /// By state and symbol the next state.
    pub(super) rows: Vec<Vec<u32>>,
    /// What each state is a set of.
    pub(super) sets: Vec<Set>,
    /// The states of the sets that it was built from.
    pub(super) starts: Vec<u32>,
}

/// Builds the automaton of all sets that are reached from `starts`. `None` where there are more than
/// `most`.
pub(super) fn determinise(
    starts: &[Set],
    symbols: usize,
    most: usize,
    step: impl Fn(&[u32], usize) -> Set,
) -> Option<Automaton> {
    let mut numbers: Numbers<Set> = Numbers::default();
    numbers.of(Set::new());
    let starts = starts.iter().map(|set| numbers.of(set.clone())).collect();
    let mut rows = vec![vec![0; symbols]];
    while rows.len() < numbers.list.len() {
        let from = numbers.list[rows.len()].clone();
        rows.push((0..symbols).map(|symbol| numbers.of(step(&from, symbol))).collect());
        if numbers.list.len() > most {
            return None;
        }
    }
    Some(Automaton { rows, sets: numbers.list, starts })
}

/// Joins states that no input tells apart by the outputs. Returns for each state its new number, state
/// 0 staying 0, and the rows of the new states; and the outputs of these.
pub(super) fn minimise(rows: &[Vec<u32>], outputs: &[u32]) -> Minimal {
    let mut block = numbered(outputs.iter());
    loop {
        let refined = numbered(rows.iter().zip(&block).map(|(row, own)| {
            let next: Vec<u32> = row.iter().map(|state| block[*state as usize]).collect();
            (*own, next)
        }));
        // A refinement with as many blocks is the same.
        let same = refined.iter().max() == block.iter().max();
        block = refined;
        if same {
            break;
        }
    }
    let (mut kept, mut new_outputs) = (Vec::new(), Vec::new());
    for (state, number) in block.iter().enumerate() {
        if *number as usize == kept.len() {
            kept.push(rows[state].iter().map(|next| block[*next as usize]).collect());
            new_outputs.push(outputs[state]);
        }
    }
    Minimal { rows: kept, outputs: new_outputs, number: block }
}

/// See [`minimise`].
pub(super) struct Minimal {
    pub(super) rows: Vec<Vec<u32>>,
    pub(super) outputs: Vec<u32>,
    /// By old state the new one.
    pub(super) number: Vec<u32>,
}

/// Numbers for values in the order of their first appearance.
pub(super) struct Numbers<T> {
    pub(super) list: Vec<T>,
    known: HashMap<T, u32>,
}

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Self { list: Vec::new(), known: HashMap::new() }
    }
}

impl<T: Clone + Eq + Hash> Numbers<T> {
    pub(super) fn of(&mut self, value: T) -> u32 {
        // What is numbered here is bounded far below this.
        let next = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
        *self.known.entry(value).or_insert_with_key(|value| {
            self.list.push(value.clone());
            next
        })
    }

    pub(super) fn find(&self, value: &T) -> Option<u32> {
        self.known.get(value).copied()
    }
}

/// Equal values get equal numbers, by first appearance.
pub(super) fn numbered<T: Clone + Eq + Hash>(values: impl Iterator<Item = T>) -> Vec<u32> {
    let mut numbers = Numbers::default();
    values.map(|value| numbers.of(value)).collect()
}

/// Sorts and removes what is there twice.
pub(super) fn set(mut members: Vec<u32>) -> Set {
    members.sort_unstable();
    members.dedup();
    members
}
