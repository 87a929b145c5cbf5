//! Counting: the least of several batches.

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use std::arch::x86_64::_rdtsc;
use std::io;

/// A batch should end before the next tick of the timer (4,000,000 instructions at 250 Hz) more
/// often than not.
const BATCH: u64 = 1_500_000;
/// How many operations a batch may have. Few sizes, so that a small difference between two who are
/// compared does not give them batches of different sizes.
const SIZES: [u32; 7] = [200, 100, 50, 25, 10, 5, 1];
/// The least of so many batches is taken.
const BATCHES: usize = 40;

/// Instructions of one operation.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Counted {
    /// The least.
    pub(crate) instructions: f64,
    /// How much more the second least took.
    pub(crate) spread: f64,
}

/// The time-stamp counter; in this machine it counts instructions.
pub(crate) fn now() -> u64 {
    // SAFETY: reads a register that the kernel lets programs read.
    unsafe { _rdtsc() }
}

/// Counts the operation; the first error ends it.
pub(crate) fn count(mut operation: impl FnMut() -> io::Result<()>) -> Result<Counted> {
    let mut batch = |size: u32| -> Result<u64> {
        let start = now();
        for _ in 0..size {
            operation()?;
        }
        Ok(now() - start)
    };
    let empty = (0..BATCHES).map(|_| batch(0)).collect::<Result<Vec<_>>>()?;
    let empty = empty.into_iter().min().context("no batches")?;
    // What is done for the first time is not what is to be counted.
    let about = (batch(5)?, batch(5)?).1 / 5;
    let fitting = SIZES.into_iter().find(|&size| u64::from(size) * about <= BATCH);
    let size = fitting.unwrap_or(SIZES[SIZES.len() - 1]);
    batch(size)?;
    let counts = (0..BATCHES).map(|_| batch(size)).collect::<Result<Vec<_>>>()?;
    of(counts.into_iter().map(|count| count.saturating_sub(empty)).collect(), size)
}

/// The least of some counts of `size` operations each.
pub(crate) fn of(mut counts: Vec<u64>, size: u32) -> Result<Counted> {
    counts.sort_unstable();
    let [least, ..] = counts[..] else { bail!("nothing was counted") };
    let second = counts.get(1).copied().unwrap_or(least);
    let each = |count: u64| -> Result<f64> {
        let count = u32::try_from(count).context("a batch of more than 4,294,967,295")?;
        Ok(f64::from(count) / f64::from(size))
    };
    Ok(Counted { instructions: each(least)?, spread: each(second - least)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_counts() {
        let counted = of(vec![1200, 1000, 1010], 10).expect("three counts");
        assert!((counted.instructions - 100.0).abs() < 1e-9);
        assert!((counted.spread - 1.0).abs() < 1e-9);
        assert!(of(Vec::new(), 1).is_err());
    }

    #[test]
    fn an_operation_that_fails_is_no_number() {
        assert!(count(|| Err(io::ErrorKind::PermissionDenied.into())).is_err());
    }
}
