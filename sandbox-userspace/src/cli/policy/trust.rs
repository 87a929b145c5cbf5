//! `sandbox policy trust`: let a project's own policy open what it says, as long as it stays as it is.

use super::FAILURE;
use super::look::user;
use crate::policy::diagnostic::Diagnostic;
use crate::policy::layers::PROJECT;
use crate::policy::trust::Trust;
use crate::policy::{PolicyError, load_text};
use crate::sinks::escape::printable;
use clap::Args;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args, Debug)]
pub(super) struct TrustArgs {
    /// The workspace whose `.sandbox.toml` is meant; the current directory without it
    dir: Option<PathBuf>,
    /// Trust it no more
    #[arg(long)]
    revoke: bool,
}

/// To be called by the user whose agents it is for.
pub(super) fn execute(args: &TrustArgs) -> ExitCode {
    match trust(args) {
        Ok(text) => {
            anstream::println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            anstream::eprintln!("{}", error.coloured());
            ExitCode::from(FAILURE)
        }
    }
}

fn trust(args: &TrustArgs) -> Result<String, PolicyError> {
    let user = user()?;
    let given = args.dir.clone().unwrap_or_else(|| ".".into());
    let fail = |what: &std::path::Path, error: std::io::Error| -> PolicyError {
        Diagnostic::file(&what.display().to_string(), error.to_string(), "check the name").into()
    };
    let workspace = given.canonicalize().map_err(|error| fail(&given, error))?;
    let path = workspace.join(PROJECT);
    let mut trust = Trust::open(&user.home, user.uid)?;
    let shown = printable(path.as_os_str().as_bytes());
    let said = if args.revoke {
        trust.remove(&workspace);
        format!("{shown} is not trusted: it only closes what it says")
    } else {
        let text = std::fs::read_to_string(&path).map_err(|error| fail(&path, error))?;
        let policy = load_text(&shown, text.clone())?;
        trust.add(&workspace, &text);
        let opens = policy.origins().filter(|origin| !origin.denies());
        let opens: Vec<String> = opens
            .map(|origin| format!("\n  {} \"{}\"", origin.key, printable(origin.text.as_bytes())))
            .collect();
        format!(
            "{shown} is trusted as it is now; it opens{}",
            match opens.as_slice() {
                [] => " nothing".to_owned(),
                opens => format!(":{}", opens.concat()),
            }
        )
    };
    let owner = (rustix::process::geteuid().as_raw() != user.uid).then_some((user.uid, user.gid));
    let saved = trust.save(owner);
    saved.map_err(|error| fail(&user.home, error))?;
    Ok(said)
}
