//! The verbs, one file each.

pub mod doctor;
mod enforce;
pub mod engine;
pub mod grant;
pub mod import;
pub mod learn;
pub mod policy;
pub mod run;
pub mod selftest;
pub mod sessions;
pub mod why;

use crate::dns;
use crate::selftest as attacks;
use crate::session::canary;
use crate::sinks::{Level, Output};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Exit status of `sandbox run` when `sandbox` itself failed.
pub const FAILED: u8 = 125;

/// Confine AI coding agents in the kernel.
#[derive(Debug, Parser)]
#[command(name = "sandbox", version, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

const EXAMPLES: &str = "\
Examples:
  sudo sandbox doctor                       what this kernel can enforce, proved by real denials
  sudo sandbox selftest                     the known attacks, tried on this machine
  sudo sandbox run -- claude                confine an agent with the default policy
  sudo sandbox run --policy p.toml -- sh    with a policy of your own
  sudo sandbox why                          the last denial: its rule, and what would allow it
  sandbox policy explain ~/.ssh             what an agent could do there
  sudo sandbox sessions                     what runs, and what was left behind";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run an agent that cannot do what its policy does not allow
    Run(run::RunArgs),
    /// Show what this kernel can enforce, proved by real denials
    Doctor(doctor::DoctorArgs),
    /// Try the known ways out and around, in a session on this machine
    Selftest(selftest::SelftestArgs),
    /// Look at policies, and change that of a running session
    Policy(policy::PolicyArgs),
    /// Write another tool's settings as a policy
    Import(import::ImportArgs),
    /// Propose a policy that allows what sessions were denied
    Learn(learn::LearnArgs),
    /// Say why something was denied, and what would allow it
    Why(why::WhyArgs),
    /// Allow a running session something more, perhaps for some time
    Grant(grant::GrantArgs),
    /// Take back what a running session was granted
    Revoke(grant::RevokeArgs),
    /// List sessions, or end one
    Sessions(sessions::SessionsArgs),
    /// Look at the programs in the kernel, or keep them loaded between sessions
    Engine(engine::EngineArgs),
    /// What `run` and `doctor` start to see this kernel deny
    #[command(hide = true)]
    Canary,
    /// What `selftest` runs as the agent of a session
    #[command(hide = true, name = attacks::MEMBER)]
    Member,
    /// What `selftest` starts for its agent to attack
    #[command(hide = true, name = attacks::DECOY)]
    Decoy,
    /// What answers a session's questions about names; `run` starts it
    #[command(hide = true, name = dns::parent::VERB)]
    Resolver,
}

/// Parses the arguments and runs the verb.
pub fn main() -> ExitCode {
    diagnostics();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // A reader of the help may be gone already.
            let _ = error.print();
            let is_run = std::env::args_os().nth(1).is_some_and(|verb| verb == "run");
            return match error.use_stderr() {
                false => ExitCode::SUCCESS,
                true if is_run => FAILED.into(),
                true => 2.into(),
            };
        }
    };
    match arguments.verb {
        Verb::Run(args) => run::execute(args),
        Verb::Doctor(args) => doctor::execute(&args),
        Verb::Policy(args) => policy::execute(&args),
        Verb::Import(args) => import::execute(&args),
        Verb::Learn(args) => learn::execute(&args),
        Verb::Why(args) => why::execute(&args),
        Verb::Grant(args) => grant::grant(&args),
        Verb::Revoke(args) => grant::revoke(&args),
        Verb::Engine(args) => engine::execute(&args),
        Verb::Selftest(args) => selftest::execute(&args),
        Verb::Canary => canary::child(),
        Verb::Member => attacks::member::main(),
        Verb::Decoy => attacks::decoys::main(),
        Verb::Resolver => dns::child::main(),
        Verb::Sessions(args) => sessions::execute(&args),
    }
}

/// Sends what the program says about its own work to stderr, if `SANDBOX_LOG` asks for it.
fn diagnostics() {
    if let Ok(filter) = tracing_subscriber::EnvFilter::try_from_env("SANDBOX_LOG") {
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
}

/// Why a verb could not do its work.
#[derive(Debug)]
pub struct Failure {
    /// Exit status.
    pub code: u8,
    /// What was attempted and what went wrong.
    pub message: String,
    /// How to mend it.
    pub help: Option<String>,
}

impl Failure {
    /// Ours, with the status [`FAILED`].
    pub fn new(message: impl std::fmt::Display) -> Self {
        Self { code: FAILED, message: message.to_string(), help: None }
    }

    /// With a remedy.
    #[must_use]
    pub fn help(self, help: impl Into<String>) -> Self {
        Self { help: Some(help.into()), ..self }
    }

    /// Tells it and gives its exit status.
    pub fn tell(self, output: &mut Output) -> ExitCode {
        output.notice_with_help(Level::Error, &self.message, self.help);
        self.code.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn options_of_the_agent_are_its_own() {
        for line in ["sandbox run --json -- sh --policy x", "sandbox run --json sh --policy x"] {
            let Verb::Run(args) = Arguments::try_parse_from(line.split(' ')).unwrap().verb else {
                panic!()
            };
            assert!(args.json && args.policy.is_none());
            assert_eq!(args.command, ["sh", "--policy", "x"]);
        }
        assert!(Arguments::try_parse_from(["sandbox", "run"]).is_err());
        assert!(Arguments::try_parse_from(["sandbox", "sessions", "end", "../x"]).is_err());
    }
}
