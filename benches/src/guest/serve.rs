//! The hand: does what it is told on its standard input, and answers on its standard output.

use super::count::Counted;
use super::operations::{connect, open, path, perform, socket};
use super::{ground, landlock};
use anyhow::{Context as _, Result};
use sandbox_benches::Operation;
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead as _, Write as _};
use std::path::{Path, PathBuf};

/// What a hand is told, one JSON value a line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Count an operation, in the tree of this number where it is a pass.
    Count(Operation, u32),
    /// Open every file of a tree, so that nothing is new for the kernel itself.
    Warm(u32),
    /// Open a file; the answer is how it went.
    Open(PathBuf),
    /// Connect to a port of the loopback over TCP; the answer is how it went.
    Connect(u16),
}

/// Its answer, one JSON value a line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// It waits for orders.
    Ready,
    Counted(Counted),
    Done,
    /// The number of the system call's error; 0 is success.
    Errno(i32),
    Failed(String),
}

/// Serves until its input ends. With a place, confined to it by Landlock.
pub(crate) fn serve(confined: Option<&Path>) -> Result<()> {
    if let Some(place) = confined {
        landlock::confine(place)?;
    }
    answer(&Answer::Ready)?;
    for line in io::stdin().lock().lines() {
        let order: Order = serde_json::from_str(&line?).context("reading an order")?;
        answer(&follow(order).unwrap_or_else(|error| Answer::Failed(format!("{error:#}"))))?;
    }
    Ok(())
}

fn answer(answer: &Answer) -> Result<()> {
    let mut line = serde_json::to_string(answer)?;
    line.push('\n');
    let mut out = io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).context("answering")
}

fn follow(order: Order) -> Result<Answer> {
    let errno = |result: io::Result<()>| match result {
        Ok(()) => Answer::Errno(0),
        Err(error) => Answer::Errno(error.raw_os_error().unwrap_or(-1)),
    };
    Ok(match order {
        Order::Count(operation, tree) => Answer::Counted(perform(operation, tree)?),
        Order::Warm(tree) => {
            for file in ground::tree(tree) {
                open(&path(&file)?, libc::O_RDONLY)?;
            }
            Answer::Done
        }
        Order::Open(file) => errno(open(&path(&file)?, libc::O_RDONLY).map(drop)),
        Order::Connect(port) => errno(connect(&socket(libc::SOCK_STREAM)?, port)),
    })
}
