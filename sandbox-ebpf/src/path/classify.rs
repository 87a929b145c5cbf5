//! Which of the policy's globs a name matches.

use sandbox_common::pattern::{CELLS, Patterns};

/// The class of a name of `len` bytes.
#[inline(always)]
pub(super) fn classify(patterns: &Patterns, name: &[u8; 256], len: u32) -> u32 {
    let starts = &patterns.exact;
    let forward = run(patterns, starts.forward, name, len, false);
    let backward = run(patterns, starts.backward, name, len, true);
    let pair = patterns.pairs + forward * patterns.backward_sets + backward;
    u32::from(patterns.cells[pair as usize & (CELLS - 1)])
}

/// The set that an automaton over bytes ends with. Most names end it after a byte or two.
#[inline(always)]
fn run(patterns: &Patterns, start: u32, name: &[u8; 256], len: u32, backward: bool) -> u32 {
    let mut state = start;
    let mut index = 0;
    while index < 255 {
        if state == 0 {
            return 0;
        }
        if index >= len {
            break;
        }
        let at = if backward { len - 1 - index } else { index };
        let class = patterns.classes[usize::from(name[at as usize & 255])];
        state = u32::from(patterns.cells[(state + u32::from(class)) as usize & (CELLS - 1)]);
        index += 1;
    }
    if state == 0 {
        return 0;
    }
    u32::from(patterns.cells[(state + patterns.bytes) as usize & (CELLS - 1)])
}
