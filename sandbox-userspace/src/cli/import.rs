//! `sandbox import`: another tool's settings as a policy.

use super::Failure;
use crate::import::{Tool, read};
use crate::sinks::escape::printable;
use crate::sinks::{Level, Output};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments of `sandbox import`.
#[derive(Debug, clap::Args)]
pub struct ImportArgs {
    /// Whose settings
    tool: Tool,
    /// The file of the settings
    file: PathBuf,
    /// Presets that the policy extends; `persistence` stands for what some tools close by themselves
    #[arg(long, value_name = "PRESET", value_delimiter = ',', default_value = "persistence")]
    extends: Vec<String>,
    /// Fail where something is lost
    #[arg(long)]
    strict: bool,
    /// Print one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// Runs the verb: the policy goes to standard output, what was lost to standard error.
pub fn execute(args: &ImportArgs) -> ExitCode {
    let mut output = Output::stderr(args.json, false);
    let text = std::fs::read_to_string(&args.file).map_err(|error| error.to_string());
    let import = match text.and_then(|text| read(args.tool, &text)) {
        Ok(import) => import,
        Err(error) => {
            let file = args.file.display();
            let failure = Failure::new(format!("cannot read the settings in {file}: {error}"));
            return Failure { code: 1, ..failure }.tell(&mut output);
        }
    };
    let extends: Vec<&str> = args.extends.iter().map(String::as_str).collect();
    let policy = import.policy(&extends);
    if args.json {
        let json = serde_json::json!({ "policy": policy, "losses": import.losses });
        anstream::println!("{json}");
    } else {
        anstream::print!("{policy}");
        for loss in &import.losses {
            let (key, value) = (printable(loss.key.as_bytes()), printable(loss.value.as_bytes()));
            output.notice(Level::Warning, &format!("{key} {value}: {}", loss.why));
        }
    }
    if args.strict && !import.losses.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
