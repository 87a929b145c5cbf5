//! Which file a command's name means.

use super::user::User;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// No program to run.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// No such file.
    #[error("command not found: {}", .0.display())]
    NotFound(OsString),
    /// A file that the agent's user may not execute.
    #[error("not an executable file for user {user}: {}", .path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
        /// The user.
        user: String,
    },
}

/// The file that `command` means for `user`: itself if it has a slash, else looked up along
/// `search` (the agent's `PATH`), relative places counting from `directory`.
pub fn find(
    command: &OsStr,
    search: &OsStr,
    directory: &Path,
    user: &User,
) -> Result<PathBuf, ProgramError> {
    let not_executable = |path| ProgramError::NotExecutable { path, user: user.name.clone() };
    if command.as_bytes().contains(&b'/') {
        let path = directory.join(command);
        return match state(&path, user) {
            Candidate::Missing => Err(ProgramError::NotFound(command.into())),
            Candidate::NotExecutable => Err(not_executable(path)),
            Candidate::Executable => Ok(path),
        };
    }
    let mut seen = None;
    if !command.is_empty() {
        for place in std::env::split_paths(search) {
            let path = directory.join(place).join(command);
            match state(&path, user) {
                Candidate::Missing => {}
                Candidate::NotExecutable => seen = seen.or(Some(path)),
                Candidate::Executable => return Ok(path),
            }
        }
    }
    Err(seen.map_or_else(|| ProgramError::NotFound(command.into()), not_executable))
}

enum Candidate {
    Missing,
    NotExecutable,
    Executable,
}

fn state(path: &Path, user: &User) -> Candidate {
    match fs::metadata(path) {
        Err(_) => Candidate::Missing,
        Ok(found) if found.is_file() && user.may(found.mode(), found.uid(), found.gid(), 1) => {
            Candidate::Executable
        }
        Ok(_) => Candidate::NotExecutable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn lookup_follows_the_path() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path();
        for (name, mode) in [("a/tool", 0o644), ("b/tool", 0o755), ("a/text", 0o644)] {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::create_dir(root.join("a/dir")).unwrap();
        let user = User {
            name: "ann".into(),
            uid: 4_000_000,
            gid: 4_000_000,
            groups: vec![4_000_000],
            home: "/".into(),
            shell: "/bin/sh".into(),
            changed: true,
        };
        let find = |name: &str| find(name.as_ref(), "a:missing:b".as_ref(), root, &user);
        assert_eq!(find("tool").unwrap(), root.join("b/tool"));
        assert_eq!(find("./b/tool").unwrap(), root.join("./b/tool"));
        for name in ["text", "dir", "a/text", "./a"] {
            let got = find(name);
            assert!(matches!(got, Err(ProgramError::NotExecutable { .. })), "{name}: {got:?}");
        }
        for name in ["nothing", "", "a/nothing"] {
            assert_eq!(find(name), Err(ProgramError::NotFound(name.into())));
        }
    }
}
