//! Puts the compiled BPF object where `engine` includes it.

fn main() {}
