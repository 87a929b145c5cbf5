//! Who, at hand: what the label of a running member says, where no helper is needed to find it.
//!
//! A task is named by its address and the time of its birth: another of the same address is born later. (A
//! thread that runs a program takes its leader's time over, `de_thread`, fs/exec.c; that is one process, and
//! one label.) A seat counts in the generation in which it was taken, as a label's copy of its subject does.
//!
//! Seats are written without a lock, like the entries of `path::cache`: a mixture has another sum. Whoever
//! has no seat is asked for its label.

use crate::kernel::task::Current;
use crate::maps::CONTROL;
use crate::subject::Member;
use core::cell::UnsafeCell;
use core::ptr;

/// A power of two. Two running tasks of one place take it from each other, which costs time only.
const SEATS: usize = 4096;
/// Odd, its bits well mixed (the fraction of the golden ratio).
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// | word | |
/// |---|---|
/// | 0 | address of the `task_struct` |
/// | 1 | `start_boottime`, nanoseconds |
/// | 2 | `Control::generation`, never 0 |
/// | 3 | 32 `Subject::patterns`, 32 `Subject::slot` below |
/// | 4 | sum over 0 to 3 |
type Words = [u64; 5];

struct Seats(UnsafeCell<[Words; SEATS]>);

// SAFETY: read and written word by word, by volatile accesses.
unsafe impl Sync for Seats {}

static OF_TASKS: Seats = Seats(UnsafeCell::new([[0; 5]; SEATS]));

/// What of a member's subject says what it may open.
#[derive(Clone, Copy)]
pub(crate) struct Seat {
    /// Policy slot.
    pub(crate) slot: u32,
    /// Where the policy's patterns are.
    pub(crate) patterns: u32,
}

/// The current task's; none of one that is no member, or whose seat another has.
#[inline(always)]
pub(crate) fn current() -> Option<Seat> {
    // Bystanders end here.
    let task = Current::task();
    if !task.has_storage() {
        return None;
    }
    let born = task.born();
    let generation = CONTROL.get(0)?.generation;
    let seat = place(born);
    // SAFETY: within the seat. Another task may write meanwhile, which the sum tells.
    let word = |at: usize| unsafe { ptr::read_volatile(seat.add(at)) };
    let (address, of, sum) = (task.address(), word(3), word(4));
    let differs = word(0) ^ address
        | word(1) ^ born
        | word(2) ^ generation
        | sum ^ total(address, born, generation, of);
    if crate::path::opaque(differs) != 0 {
        return None;
    }
    Some(Seat { slot: of as u32, patterns: (of >> 32) as u32 })
}

/// Gives the current task the seat that its label says; none where that holds no copy of its subject yet, or
/// nothing may be allowed.
#[inline(always)]
pub(crate) fn take(member: &Member) -> Option<Seat> {
    let generation = member.generation()?;
    let task = Current::task();
    let (address, born) = (task.address(), task.born());
    let (slot, patterns) = (member.subject.slot, member.subject.patterns);
    let of = u64::from(patterns) << 32 | u64::from(slot);
    let words = place(born);
    // SAFETY: within the seat.
    let set = |at: usize, word: u64| unsafe { ptr::write_volatile(words.add(at), word) };
    set(0, address);
    set(1, born);
    set(2, generation);
    set(3, of);
    set(4, total(address, born, generation, of));
    Some(Seat { slot, patterns })
}

/// The seat for tasks of a time of birth.
#[inline(always)]
fn place(born: u64) -> *mut u64 {
    let index = (mixed(born) >> 52) as usize & (SEATS - 1);
    OF_TASKS.0.get().cast::<Words>().wrapping_add(index).cast()
}

#[inline(always)]
fn mixed(born: u64) -> u64 {
    born.wrapping_mul(FACTOR)
}

/// No secret, see `path::cache`: the words are compared besides. With the task's own address, for two tasks
/// may be born at once, in sessions of different rights.
#[inline(always)]
fn total(address: u64, born: u64, generation: u64, of: u64) -> u64 {
    mixed(born) ^ generation ^ address ^ of
}
