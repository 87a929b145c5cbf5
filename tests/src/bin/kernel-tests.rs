//! The kernel suite.

fn main() -> std::process::ExitCode {
    sandbox_tests::kernel_tests()
}
