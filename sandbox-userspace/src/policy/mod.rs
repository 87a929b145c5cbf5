//! What a user writes, and what the kernel gets: source, check, compile.

pub mod compiled;
