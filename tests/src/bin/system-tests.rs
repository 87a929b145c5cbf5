//! The suite of everyday programs.

fn main() -> std::process::ExitCode {
    sandbox_tests::system_tests()
}
