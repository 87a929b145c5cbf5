//! Which directories may be a workspace.

use super::decide;
use super::expand::{self, Context};
use super::rule::{Base, Policy};
use crate::kernel::mounts::{to_components, to_path};
use sandbox_common::Access;
use std::io;
use std::path::{Path, PathBuf};

/// Why a directory cannot be a workspace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkspaceError {
    /// It cannot be looked at.
    #[error("cannot use {path} as the workspace: {source}")]
    Unreachable {
        /// As given.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no directory.
    #[error("the workspace {path} is no directory: name the project's directory")]
    NotDirectory {
        /// As given.
        path: PathBuf,
    },
    /// It is the root directory.
    #[error(
        "the workspace cannot be /: the agent could write everywhere; name the project's directory"
    )]
    Root,
    /// It is the agent user's home, or a directory above it.
    #[error(
        "the workspace {path} is or contains the home {home}: the agent could write all of it; \
         name the project's directory"
    )]
    Home {
        /// The workspace, symbolic links resolved.
        path: PathBuf,
        /// The home.
        home: PathBuf,
    },
    /// A place that the policy closes to reading lies in it.
    #[error(
        "the workspace {path} contains {place}, which {rule} closes: name a directory beside it, or \
         write the rule from ${{WORKSPACE}} if both are meant"
    )]
    Contains {
        /// The workspace, symbolic links resolved.
        path: PathBuf,
        /// The place.
        place: PathBuf,
        /// The rule, and where it stands.
        rule: String,
    },
    /// It lies in a place that the policy closes to reading.
    #[error("the workspace {path} lies in {place}, which {rule} closes: name another directory")]
    Within {
        /// The workspace, symbolic links resolved.
        path: PathBuf,
        /// The place.
        place: PathBuf,
        /// The rule, and where it stands.
        rule: String,
    },
    /// A rule of the policy cannot be resolved.
    #[error(transparent)]
    Policy(#[from] super::PolicyError),
}

/// Checks a directory that shall be the workspace of a user's agent; returns it with symbolic links
/// resolved.
///
/// Rules that start from `${WORKSPACE}` are meant to lie in it and refuse nothing.
pub fn check(dir: &Path, home: &Path, policy: &Policy) -> Result<PathBuf, WorkspaceError> {
    let unreachable = |source| WorkspaceError::Unreachable { path: dir.to_owned(), source };
    let path = dir.canonicalize().map_err(unreachable)?;
    if !path.metadata().map_err(unreachable)?.is_dir() {
        return Err(WorkspaceError::NotDirectory { path: dir.to_owned() });
    }
    if path == Path::new("/") {
        return Err(WorkspaceError::Root);
    }
    // A home that does not exist is taken as named.
    let home = home.canonicalize().unwrap_or_else(|_| home.to_owned());
    if home.starts_with(&path) {
        return Err(WorkspaceError::Home { path, home });
    }
    let workspace = to_components(&path);
    let context = Context {
        home,
        workspace: path.clone(),
        tmpdir: std::env::temp_dir(),
        terminal: None,
        surroundings: crate::policy::services::Surroundings::default(),
    };
    let mut machine = expand::Machine::new(&context);
    let rules = policy.layers().flat_map(|layer| &layer.files);
    let closed = rules.filter(|rule| rule.access == Access::READ && !rule.allow);
    for rule in closed {
        let mut placed = Vec::new();
        machine.place(rule, &mut placed).map_err(super::PolicyError::from)?;
        let own = |base| matches!(base, Base::Workspace | Base::Tmpdir);
        if rule.patterns.iter().any(|pattern| own(pattern.base)) {
            continue;
        }
        let origin = &rule.origin;
        let name = || {
            let line = origin.place.source.position(origin.place.span.clone()).line;
            format!("{} \"{}\" ({}:{line})", origin.key, origin.text, origin.place.source.name)
        };
        for place in placed {
            // Of a pattern what it closes within the workspace is meant so.
            if let Some(depth) = decide::matched(&place, &workspace) {
                let place = to_path(&workspace[..depth]);
                return Err(WorkspaceError::Within { path, place, rule: name() });
            }
            let shown = to_path(&place.path);
            let inside = place.tail.is_empty() && place.path.starts_with(&workspace);
            if inside && shown.symlink_metadata().is_ok() {
                return Err(WorkspaceError::Contains { path, place: shown, rule: name() });
            }
        }
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{load, load_text};

    struct Machine {
        _guard: tempfile::TempDir,
        home: PathBuf,
    }

    fn machine() -> Machine {
        let guard = tempfile::tempdir().unwrap();
        let home = guard.path().canonicalize().unwrap().join("home/u");
        for dir in ["proj/sub", ".ssh/keys", ".config/gh"] {
            std::fs::create_dir_all(home.join(dir)).unwrap();
        }
        std::fs::write(home.join(".config/gh/hosts.yml"), "token").unwrap();
        Machine { _guard: guard, home }
    }

    fn refused(machine: &Machine, dir: &Path) -> String {
        let policy = load(None).unwrap();
        check(dir, &machine.home, &policy).unwrap_err().to_string()
    }

    #[test]
    fn a_project_is_a_workspace() {
        let machine = machine();
        let policy = load(None).unwrap();
        let project = machine.home.join("proj");
        assert_eq!(check(&project, &machine.home, &policy).unwrap(), project);
        let link = machine.home.join("link");
        std::os::unix::fs::symlink("proj", &link).unwrap();
        assert_eq!(check(&link, &machine.home, &policy).unwrap(), project);
    }

    #[test]
    fn what_is_wider_than_a_project_is_refused() {
        let machine = machine();
        let home = &machine.home;
        assert!(refused(&machine, Path::new("/")).contains("cannot be /"));
        for dir in [home.clone(), home.join(".."), home.join("proj/..")] {
            assert!(refused(&machine, &dir).contains("is or contains the home"));
        }
        std::os::unix::fs::symlink("..", home.join("proj/up")).unwrap();
        assert!(refused(&machine, &home.join("proj/up")).contains("is or contains the home"));
    }

    #[test]
    fn what_holds_or_lies_in_credentials_is_refused() {
        let machine = machine();
        let home = &machine.home;
        let text = refused(&machine, &home.join(".config"));
        assert!(text.contains("contains") && text.contains("gh/hosts.yml"), "{text}");
        assert!(
            text.contains("files.read.deny \"~/.config/gh/hosts.yml\" (preset:credentials:"),
            "{text}"
        );
        for dir in [".ssh", ".ssh/keys"] {
            assert!(refused(&machine, &home.join(dir)).contains("lies in"));
        }
    }

    #[test]
    fn what_is_no_directory_is_refused() {
        let machine = machine();
        let file = machine.home.join(".config/gh/hosts.yml");
        assert!(refused(&machine, &file).contains("is no directory"));
        assert!(refused(&machine, &machine.home.join("none")).contains("No such file"));
    }

    #[test]
    fn patterns_may_close_what_a_workspace_contains_but_not_the_workspace() {
        let machine = machine();
        let project = machine.home.join("proj");
        std::fs::write(project.join(".env"), "SECRET=1").unwrap();
        let of = |dir: &Path, text: &str| {
            let policy = format!("version = 1\nfiles.read.deny = ['{text}']\n");
            check(dir, &machine.home, &load_text("p", policy).unwrap())
        };
        for inside in ["**/.env", "~/proj/**/sub", "~/*/.env", "**/proj/*"] {
            assert!(of(&project, inside).is_ok(), "{inside}");
        }
        for around in ["~/pro*", "**/proj", "~/*", "~/proj*/**", "~/{x,proj}"] {
            let text = of(&project.join("sub"), around).unwrap_err().to_string();
            assert!(text.contains("lies in") || text.contains("contains"), "{around}: {text}");
        }
        let text = of(&project.join("sub"), "~/pro*").unwrap_err().to_string();
        assert!(text.contains("home/u/proj, which files.read.deny"), "{text}");
        assert!(of(&project, "~/.s*").is_ok());
    }

    #[test]
    fn a_policy_may_close_places_in_the_workspace() {
        let machine = machine();
        let secret = machine.home.join("proj/sub");
        let deny = |text: &str| {
            let policy = format!("version = 1\nfiles.read.deny = ['{text}']\n");
            let policy = load_text("p", policy).unwrap();
            check(&machine.home.join("proj"), &machine.home, &policy)
        };
        assert!(deny("${WORKSPACE}/sub/**").is_ok());
        assert!(deny(&secret.join("none").display().to_string()).is_ok());
        let text = deny(&secret.display().to_string()).unwrap_err().to_string();
        assert!(text.contains("${WORKSPACE}"), "{text}");
    }
}
