//! Which of the policy's globs a name matches.

use aya_ebpf::helpers::generated::bpf_loop;
use core::ffi::{c_long, c_void};
use sandbox_common::path::LONG_NAME;
use sandbox_common::pattern::{CELLS, Patterns, Starts};

/// The class of a name of `len` bytes, not none, from the start states for the kind of directory. Both
/// automata run at once; most names end them after a byte or two, so the first two are not worth a loop.
#[inline(always)]
pub(super) fn classify(patterns: &Patterns, starts: &Starts, name: &[u8; 256], len: u32) -> u32 {
    // The compiler would leave out the masks that the verifier wants.
    let len = super::opaque(len);
    let mut context =
        Context { patterns, name, forward: starts.forward, backward: starts.backward, len };
    context.advance(patterns, name, 0);
    if context.forward | context.backward != 0 && len > 1 {
        context.advance(patterns, name, 1);
        if context.forward | context.backward != 0 {
            // SAFETY: the context outlives the call, and the verifier follows `byte`.
            unsafe {
                bpf_loop(LONG_NAME as u32, byte as *mut c_void, (&raw mut context).cast(), 0);
            }
        }
    }
    if context.forward | context.backward == 0 {
        return u32::from(patterns.cells[patterns.pairs as usize & (CELLS - 1)]);
    }
    let forward = set(patterns, context.forward);
    let backward = set(patterns, context.backward);
    let pair = patterns.pairs + forward * patterns.backward_sets + backward;
    u32::from(patterns.cells[pair as usize & (CELLS - 1)])
}

struct Context {
    patterns: *const Patterns,
    name: *const [u8; 256],
    forward: u32,
    backward: u32,
    len: u32,
}

impl Context {
    /// One byte from each end. The dead state leads to itself: its row is empty.
    #[inline(always)]
    fn advance(&mut self, patterns: &Patterns, name: &[u8; 256], index: u32) {
        self.forward = next(patterns, self.forward, name[index as usize & 255]);
        let last = self.len - 1 - index;
        self.backward = next(patterns, self.backward, name[last as usize & 255]);
    }
}

/// The bytes after the first two. Returns 1 to stop.
///
/// A plain loop would be followed byte by byte, at every call; and a place in the context that is counted
/// on would be a new state each time: `index` is a number that the verifier does not know.
unsafe extern "C" fn byte(index: u32, context: *mut Context) -> c_long {
    // SAFETY: `classify` passes its own context, and the verifier follows the pointers.
    let (context, patterns, name) =
        unsafe { (&mut *context, &*(*context).patterns, &*(*context).name) };
    let index = index + 2;
    if index >= context.len || context.forward | context.backward == 0 {
        return 1;
    }
    context.advance(patterns, name, index);
    0
}

#[inline(always)]
fn next(patterns: &Patterns, state: u32, byte: u8) -> u32 {
    let class = u32::from(patterns.classes[usize::from(byte)]);
    u32::from(patterns.cells[(state + class) as usize & (CELLS - 1)])
}

/// The set that an automaton ended with.
#[inline(always)]
fn set(patterns: &Patterns, state: u32) -> u32 {
    u32::from(patterns.cells[(state + patterns.bytes) as usize & (CELLS - 1)])
}
