//! Which of the policy's globs a name matches.

use aya_ebpf::helpers::generated::bpf_loop;
use core::ffi::{c_long, c_void};
use sandbox_common::path::LONG_NAME;
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
    if start == 0 {
        return 0;
    }
    let mut context = Context { patterns, name, state: start, len, backward: u32::from(backward) };
    // SAFETY: the context outlives the call, and the verifier follows `byte`.
    unsafe { bpf_loop(LONG_NAME as u32, byte as *mut c_void, (&raw mut context).cast(), 0) };
    if context.state == 0 {
        return 0;
    }
    u32::from(patterns.cells[(context.state + patterns.bytes) as usize & (CELLS - 1)])
}

struct Context {
    patterns: *const Patterns,
    name: *const [u8; 256],
    state: u32,
    len: u32,
    /// 1: the last byte comes first.
    backward: u32,
}

/// One byte. Returns 1 to stop. A plain loop would be followed byte by byte, at every call; and a place in
/// the context that is counted on would be a new state each time: `index` is a number that the verifier
/// does not know.
unsafe extern "C" fn byte(index: u32, context: *mut Context) -> c_long {
    // SAFETY: `run` passes its own context, and the verifier follows the pointers.
    let (context, patterns, name) =
        unsafe { (&mut *context, &*(*context).patterns, &*(*context).name) };
    if index >= context.len || context.state == 0 {
        return 1;
    }
    let at = if context.backward != 0 { context.len - 1 - index } else { index };
    let class = patterns.classes[usize::from(name[at as usize & 255])];
    let cell = (context.state + u32::from(class)) as usize & (CELLS - 1);
    context.state = u32::from(patterns.cells[cell]);
    0
}
