//! Builds, boots and tests the project.
fn main() {}
