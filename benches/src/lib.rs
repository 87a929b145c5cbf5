//! What enforcement costs, in instructions.
//!
//! The program `bench` runs in a machine whose time-stamp counter counts retired instructions
//! (`cargo xtask bench` boots it) and prints [`Line`]s. This library is what the two share, and
//! how the verifier's own counts are read. See `docs/benchmarks.md`.

pub mod report;
pub mod verifier;

pub use report::{Line, Measurement, Operation, Policy, Row, Who, rows};
