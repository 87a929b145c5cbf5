//! Builds, boots and tests the project. `cargo xtask --help` lists the verbs; one file each.

mod agents;
mod apt;
mod bench;
mod build;
mod cache;
mod command;
mod console;
mod coverage;
mod cpio;
mod fuzz;
mod image;
mod initramfs;
mod kernel;
mod lint;
mod machine;
mod modules;
mod packages;
mod results;
mod run;
mod setup;
mod tally;
mod test;
mod toolchain;
mod vm;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Builds, boots and tests the project", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Fetch everything the other verbs need: toolchain parts, kernels, the Debian image
    Setup(setup::Args),
    /// Build the BPF programs, `sandbox` and the test programs into target/dist
    Build(build::Args),
    /// Run a command in a virtual machine
    Vm(vm::Args),
    /// Run the tests: on this host, and in machines with each kernel
    Test(test::Args),
    /// Count what enforcement costs, in instructions; status 1 when a goal is missed
    Bench(bench::Args),
    /// Run `sandbox run`, in a machine where this host cannot enforce; a demonstration by default
    Run(run::Args),
    /// Run published coding agents under their presets, in a full machine; installs them with npm and pip
    Agents(agents::Args),
    /// Run the fuzz targets, led by which code they reach
    Fuzz(fuzz::Args),
    /// Write docs/coverage.md: which test tries what
    Coverage,
    /// Check format, lints, and licences and sources of dependencies
    Lint,
}

fn main() -> ExitCode {
    let done = match Cli::parse().verb {
        Verb::Setup(args) => setup::main(&args),
        Verb::Build(args) => build::main(&args),
        Verb::Vm(args) => vm::main(&args),
        Verb::Test(args) => Ok(test::main(&args)),
        Verb::Bench(args) => bench::main(&args),
        Verb::Run(args) => run::main(&args),
        Verb::Agents(args) => agents::main(&args),
        Verb::Fuzz(args) => fuzz::main(&args),
        Verb::Coverage => coverage::main(),
        Verb::Lint => lint::main(),
    };
    done.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        super::Cli::command().debug_assert();
    }
}
