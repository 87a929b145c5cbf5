//! `sandbox policy`: look at policies, and change that of a running session.

mod diff;
mod explain;
pub(in crate::cli) mod look;
mod show;
mod trust;

use crate::policy::diagnostic::Diagnostic;
use crate::policy::rule::FileRule;
use crate::policy::{self, Policy, PolicyError};
use clap::{Args, Subcommand};
pub(super) use diff::{differences, show as show_differences};
use look::{Look, Where, look};
pub(super) use look::{opening, user};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit code of our own failures.
const FAILURE: u8 = 125;

/// Arguments of `sandbox policy`.
#[derive(Args, Debug)]
pub struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, Subcommand)]
enum PolicyCommand {
    /// Read a policy file and report everything that is wrong with it.
    Check(CheckArgs),
    /// Print a policy with everything that it extends.
    Show(show::ShowArgs),
    /// Say what an agent could do with a file or an address, by which rule, and what would turn it.
    Explain(explain::ExplainArgs),
    /// Print what one policy says that another one does not.
    Diff(diff::DiffArgs),
    /// Put another policy in the place of the one that a running session has.
    Set(super::grant::SetArgs),
    /// Let the policy of a project open what it says, as long as it stays as it is.
    Trust(trust::TrustArgs),
    /// Print the JSON schema of the language, for editors.
    Schema,
}

#[derive(Args, Debug)]
struct CheckArgs {
    /// The policy file.
    file: PathBuf,
    /// Also check this directory as the workspace of an agent that runs as the calling user, and
    /// the policy against this machine's files and mounts.
    #[arg(long, value_name = "DIR")]
    workspace: Option<PathBuf>,
    /// Print one JSON object on standard output.
    #[arg(long)]
    json: bool,
}

/// Runs the verb. The report goes to standard output, what is wrong to standard error.
pub fn execute(args: &PolicyArgs) -> ExitCode {
    let args = match &args.command {
        PolicyCommand::Check(args) => args,
        PolicyCommand::Show(args) => return show::execute(args),
        PolicyCommand::Explain(args) => return explain::execute(args),
        PolicyCommand::Diff(args) => return diff::execute(args),
        PolicyCommand::Set(args) => return super::grant::set(args),
        PolicyCommand::Trust(args) => return trust::execute(args),
        PolicyCommand::Schema => {
            anstream::println!("{:#}", policy::schema::schema());
            return ExitCode::SUCCESS;
        }
    };
    let found = check(&args.file, args.workspace.as_deref());
    if args.json {
        anstream::println!("{}", json(&args.file, &found));
    } else {
        print(&args.file, &found);
    }
    if found.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(FAILURE) }
}

/// A policy that can be used, and what is odd about it.
struct Checked {
    policy: Policy,
    warnings: Vec<Diagnostic>,
}

fn check(file: &Path, dir: Option<&Path>) -> Result<Checked, PolicyError> {
    let policy = policy::load(Some(file))?;
    let Some(dir) = dir else { return Ok(Checked { policy, warnings: Vec::new() }) };
    let at = Where { policy: Some(file.to_owned()), workspace: Some(dir.to_owned()) };
    let Look { policy, context, table, mut warnings } = look(&at)?;
    let (_, compiled) = policy::compile(&policy, &context, &table)?;
    warnings.splice(0..0, compiled);
    Ok(Checked { policy, warnings })
}

/// How many rules each list has: key, those of the file, those of presets.
fn counts(policy: &Policy) -> Vec<(&'static str, usize, usize)> {
    policy::LIST_KEYS
        .into_iter()
        .map(|key| {
            let of = |preset: bool| {
                let is = |layer: &str| (layer == policy::preset::LAYER) == preset;
                policy.origins().filter(|o| o.key == key && is(o.place.source.layer)).count()
            };
            (key, of(false), of(true))
        })
        .collect()
}

fn print(file: &Path, found: &Result<Checked, PolicyError>) {
    match found {
        Err(error) => anstream::eprintln!("{}", error.coloured()),
        Ok(Checked { policy, warnings }) => {
            if !warnings.is_empty() {
                let warnings = PolicyError { diagnostics: warnings.clone() };
                anstream::eprintln!("{}\n", warnings.coloured());
            }
            let total = policy.count();
            anstream::println!("{}: ok, {}", file.display(), rules(total));
            let closed = |allow: bool, kind: &str| {
                if !allow {
                    anstream::println!("  files.{kind}.default: deny");
                }
            };
            closed(policy.defaults.read, "read");
            closed(policy.defaults.execute, "exec");
            for (key, own, preset) in counts(policy) {
                match (own, preset) {
                    (0, 0) => {}
                    (own, 0) => anstream::println!("  {key}: {own}"),
                    (0, preset) => anstream::println!("  {key}: {preset} of presets"),
                    (own, preset) => anstream::println!("  {key}: {own}, and {preset} of presets"),
                }
            }
            match patterns(policy) {
                0 => {}
                count => anstream::println!("  with wildcards: {count}"),
            }
        }
    }
}

/// How many rules have wildcards.
fn patterns(policy: &Policy) -> usize {
    let wild = |rule: &&FileRule| rule.patterns.iter().any(|pattern| !pattern.tail.is_empty());
    policy.layers().flat_map(|layer| &layer.files).filter(wild).count()
}

fn rules(count: usize) -> String {
    if count == 1 { "1 rule".to_owned() } else { format!("{count} rules") }
}

fn word(allow: bool) -> &'static str {
    if allow { "allow" } else { "deny" }
}

fn json(file: &Path, found: &Result<Checked, PolicyError>) -> serde_json::Value {
    let file = file.display().to_string();
    match found {
        Err(error) => {
            serde_json::json!({ "file": file, "ok": false, "diagnostics": error.diagnostics })
        }
        Ok(Checked { policy, warnings }) => {
            let rules: serde_json::Map<String, serde_json::Value> = counts(policy)
                .into_iter()
                .map(|(key, own, preset)| {
                    (key.to_owned(), serde_json::json!({ "own": own, "presets": preset }))
                })
                .collect();
            serde_json::json!({
                "file": file, "ok": true, "rules": rules, "patterns": patterns(policy),
                "defaults": { "files.read": word(policy.defaults.read),
                              "files.exec": word(policy.defaults.execute) },
                "diagnostics": warnings,
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, text: &str) -> PathBuf {
        let file = dir.join("p.toml");
        std::fs::write(&file, text).unwrap();
        file
    }

    #[test]
    fn a_good_policy_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let text = "version = 1\nextends = ['default']\nnetwork.allow = ['10.0.0.0/8']\n";
        let file = write(dir.path(), text);
        let found = check(&file, None);
        let json = json(&file, &found);
        assert_eq!(json["ok"], true);
        assert_eq!(json["rules"]["network.allow"], serde_json::json!({"own": 1, "presets": 0}));
        assert_eq!(json["rules"]["files.write.allow"]["presets"], 3);
        assert_eq!(json["diagnostics"], serde_json::json!([]));
        assert!(json["patterns"].as_u64().unwrap() > 3);
        assert_eq!(json["defaults"]["files.read"], "allow");
    }

    #[test]
    fn a_bad_policy_is_explained() {
        let dir = tempfile::tempdir().unwrap();
        let file = write(dir.path(), "version = 1\n[file]\n");
        let json = json(&file, &check(&file, None));
        assert_eq!(json["ok"], false);
        assert_eq!(json["diagnostics"][0]["line"], 2);
        assert_eq!(json["diagnostics"][0]["help"], "did you mean `files`?");
    }

    #[test]
    fn a_workspace_is_checked_against_this_machine() {
        let dir = tempfile::tempdir().unwrap();
        let file = write(dir.path(), "version = 1\nextends = ['default']\n");
        assert!(check(&file, Some(dir.path())).is_ok());
        let error = check(&file, Some(Path::new("/"))).err().unwrap();
        assert!(error.to_string().contains("the workspace cannot be /"), "{error}");
    }
}
