//! What runs inside the machine.

mod count;
mod ground;
mod hand;
mod landlock;
mod machine;
mod operations;
mod policies;
mod serve;

pub(crate) use machine::{machine, verifier};
pub(crate) use serve::serve;
