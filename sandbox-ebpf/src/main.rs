//! The programs.
fn main() {}
