//! The policy that a session here would have.

use crate::kernel::mounts::MountTable;
use crate::policy::diagnostic::{Diagnostic, Severity};
use crate::policy::layers::{self, Setting};
use crate::policy::services::Surroundings;
use crate::policy::{self, Context, Policy, PolicyError, workspace, worktree};
use crate::session::user::User;
use std::path::{Path, PathBuf};

/// Which policy, and where.
#[derive(Clone, Debug, clap::Args)]
pub(in crate::cli) struct Where {
    /// The policy file, or the name of a preset; without it the one that `sandbox run` would take
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) policy: Option<PathBuf>,
    /// The workspace; the current directory without it
    #[arg(long, value_name = "DIR")]
    pub(in crate::cli) workspace: Option<PathBuf>,
}

/// A policy with all its layers, tied to this machine.
pub(in crate::cli) struct Look {
    pub(in crate::cli) policy: Policy,
    pub(in crate::cli) context: Context,
    pub(in crate::cli) table: MountTable,
    pub(in crate::cli) warnings: Vec<Diagnostic>,
}

/// Whose sessions are meant: as root the one who called sudo, else the caller's.
pub(in crate::cli) fn user() -> Result<User, PolicyError> {
    let home = std::env::var_os("HOME");
    let uid = rustix::process::geteuid().as_raw();
    let fail = |error: String| Diagnostic::file("/etc/passwd", error, "set HOME to the agent's");
    if uid == 0 {
        let sudo = std::env::var_os("SUDO_USER");
        return User::choose(None, sudo.as_deref(), home)
            .map_err(|error| fail(error.to_string()).into());
    }
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    let home = home.ok_or_else(|| fail("the calling user has no home directory".to_owned()))?;
    let gid = rustix::process::getegid().as_raw();
    Ok(User {
        name: uid.to_string(),
        uid,
        gid,
        groups: vec![gid],
        home,
        shell: "/bin/sh".into(),
        changed: false,
    })
}

/// What a session of the caller would have.
pub(super) fn look(at: &Where) -> Result<Look, PolicyError> {
    look_as(at, &user()?)
}

/// What a session of a user would have.
pub(in crate::cli) fn look_as(at: &Where, user: &User) -> Result<Look, PolicyError> {
    let named = at.policy.as_deref();
    let policy = opening(named, user)?;
    let dir = at.workspace.as_deref().unwrap_or(Path::new("."));
    let over = |policy: &Policy| -> Result<PathBuf, PolicyError> {
        workspace::check(dir, &user.home, policy).map_err(|error| match error {
            workspace::WorkspaceError::Policy(error) => error,
            other => Diagnostic::file(
                &dir.display().to_string(),
                other.to_string(),
                "the workspace is where the agent may write: name one project's directory",
            )
            .into(),
        })
    };
    let workspace = over(&policy)?;
    let setting = Setting::new(&user.home, user.uid, &workspace, named);
    let (policy, untrusted) = layers::over(policy, &setting)?;
    over(&policy)?;
    // A session makes its temporary directory itself; this one stands for it.
    let tmpdir = std::env::temp_dir().join("sandbox-check");
    let surroundings = Surroundings::own(user.uid);
    let context =
        Context { home: user.home.clone(), workspace, tmpdir, terminal: None, surroundings };
    let (policy, refusal) = worktree::extend(policy, &context, user.uid)?;
    let table = MountTable::read(None).map_err(|error| {
        Diagnostic::file("/proc/self/mountinfo", error.to_string(), "mount /proc")
    })?;
    let warning = |file: &str, message: String, help: &str| Diagnostic {
        severity: Severity::Warning,
        ..Diagnostic::file(file, message, help)
    };
    let mut warnings: Vec<Diagnostic> = refusal
        .map(|refusal| warning(worktree::NAME, refusal.message(), worktree::HELP))
        .into_iter()
        .collect();
    warnings.extend(
        untrusted.map(|message| {
            warning(layers::PROJECT, message, "read it, then: sandbox policy trust")
        }),
    );
    Ok(Look { policy, context, table, warnings })
}

/// The policy that opens what is open: the one that was named, or the user's own, or the default.
pub(in crate::cli) fn opening(named: Option<&Path>, user: &User) -> Result<Policy, PolicyError> {
    let own = if named.is_none() { layers::user_policy(&user.home, user.uid)? } else { None };
    own.map_or_else(|| policy::load(named), Ok)
}
