//! The automata as the kernel reads them: one table of cells.

use super::dfa::{Numbers, Set, minimise, set};
use super::names::Names;
use super::{NAMES, TooMuch};
use sandbox_common::pattern::{CELLS, Overlay, Patterns};
use zerocopy::FromZeros as _;

/// The automaton over components, minimal.
pub(super) struct States {
    /// By state and set of globs the next state; state 0 is dead.
    pub(super) rows: Vec<Vec<u32>>,
    /// By state the number of its overlay.
    pub(super) outputs: Vec<u32>,
    /// By set of globs the class of names.
    pub(super) class: Vec<u32>,
    pub(super) overlays: Vec<Overlay>,
}

/// Lays the tables out; returns them and where the row of each state is.
pub(super) fn lay_out(
    names: &Names,
    states: &States,
) -> Result<(Box<Patterns>, Vec<u32>), TooMuch> {
    let count = states.class.iter().max().map_or(0, |most| *most as usize + 1);
    if count > NAMES {
        return Err(TooMuch::Names);
    }
    // Sets of the two automata, joined where they come to the same class with every other one.
    let classes = Classes { names, states };
    let (forward, backward) = (sets(&names.forward_sets), sets(&names.backward_sets));
    let before = joined(&forward, |set| backward.list.iter().map(|b| classes.of(set, b)).collect());
    let behind = joined(&backward, |set| forward.list.iter().map(|f| classes.of(f, set)).collect());

    let mut patterns = Box::new(Patterns::new_zeroed());
    let mut cells = Cells { cells: &mut patterns.cells, used: 0 };
    // Row of the dead state, in case it is read.
    cells.take(names.bytes.max(count) + 1)?;
    let outputs = |sets: &[Set], numbers: &Numbers<Set>, joined: &Joined| -> Vec<u32> {
        let of = |set| numbers.find(set).map_or(0, |number| joined.number[number as usize]);
        sets.iter().map(of).collect()
    };
    let mut starts = [[0; 2]; 2];
    for (side, (automaton, outputs)) in [
        (&names.forward, outputs(&names.forward_sets, &forward, &before)),
        (&names.backward, outputs(&names.backward_sets, &backward, &behind)),
    ]
    .into_iter()
    .enumerate()
    {
        let minimal = minimise(&automaton.rows, &outputs);
        let at = cells.rows(&minimal.rows, &minimal.outputs)?;
        for (which, state) in automaton.starts.iter().enumerate() {
            starts[side][which] = at[minimal.number[*state as usize] as usize];
        }
    }
    let pairs = cells.take(before.examples.len() * behind.examples.len())?;
    for (row, f) in before.examples.iter().enumerate() {
        for (column, b) in behind.examples.iter().enumerate() {
            let class = classes.of(&forward.list[*f], &backward.list[*b]);
            cells.set(pairs + row * behind.examples.len() + column, class)?;
        }
    }
    // One column of each class.
    let columns: Vec<usize> = (0..count)
        .filter_map(|class| states.class.iter().position(|of| *of as usize == class))
        .collect();
    let rows: Vec<Vec<u32>> =
        states.rows.iter().map(|row| columns.iter().map(|column| row[*column]).collect()).collect();
    let at = cells.rows(&rows, &states.outputs)?;

    // All of these are below `CELLS`.
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
    patterns.bytes = number(names.bytes);
    patterns.backward_sets = number(behind.examples.len());
    patterns.pairs = number(pairs);
    patterns.names = number(count);
    patterns.exact.forward = starts[0][0];
    patterns.exact.backward = starts[1][0];
    patterns.folded.forward = starts[0][1];
    patterns.folded.backward = starts[1][1];
    patterns.classes = names.classes;
    for (place, overlay) in patterns.overlays.iter_mut().zip(&states.overlays) {
        *place = *overlay;
    }
    Ok((patterns, at))
}

/// The classes of names.
struct Classes<'a> {
    names: &'a Names,
    states: &'a States,
}

impl Classes<'_> {
    /// Of those that match these globs read forwards and those read backwards. No name does where the
    /// class is not known.
    fn of(&self, forward: &Set, backward: &Set) -> u32 {
        let globs = set([forward.as_slice(), backward].concat());
        let found = self.names.matched.find(&globs);
        found.map_or(0, |found| self.states.class[found as usize])
    }
}

/// The different sets; the empty one, that of the dead state, comes first.
fn sets(of: &[Set]) -> Numbers<Set> {
    let mut numbers = Numbers::default();
    for found in of {
        numbers.of(found.clone());
    }
    numbers
}

/// Sets that mean the same, joined.
struct Joined {
    /// By number of a set the new one.
    number: Vec<u32>,
    /// By new number one of its sets.
    examples: Vec<usize>,
}

fn joined(sets: &Numbers<Set>, meaning: impl Fn(&Set) -> Vec<u32>) -> Joined {
    let number = super::numbered(sets.list.iter().map(meaning));
    let mut examples = Vec::new();
    for (set, joined) in number.iter().enumerate() {
        if *joined as usize == examples.len() {
            examples.push(set);
        }
    }
    Joined { number, examples }
}

/// The table, being filled.
struct Cells<'a> {
    cells: &'a mut [u16; CELLS],
    used: usize,
}

impl Cells<'_> {
    fn take(&mut self, count: usize) -> Result<usize, TooMuch> {
        let at = self.used;
        self.used = at.checked_add(count).filter(|used| *used <= CELLS).ok_or(TooMuch::Cells)?;
        Ok(at)
    }

    fn set(&mut self, at: usize, value: u32) -> Result<(), TooMuch> {
        self.cells[at] = u16::try_from(value).map_err(|_| TooMuch::Cells)?;
        Ok(())
    }

    /// Rows of an automaton, each with its output behind; returns where they are. The first is that
    /// of the dead state, which has none.
    fn rows(&mut self, rows: &[Vec<u32>], outputs: &[u32]) -> Result<Vec<u32>, TooMuch> {
        let mut at = vec![0];
        for row in rows.iter().skip(1) {
            // Below `CELLS`.
            at.push(u32::try_from(self.take(row.len() + 1)?).unwrap_or(u32::MAX));
        }
        for ((row, output), begin) in rows.iter().zip(outputs).zip(&at).skip(1) {
            let begin = *begin as usize;
            for (symbol, next) in row.iter().enumerate() {
                self.set(begin + symbol, at[*next as usize])?;
            }
            self.set(begin + row.len(), *output)?;
        }
        Ok(at)
    }
}
