//! Which project files the user trusts, by their exact content.

use super::diagnostic::{Diagnostic, PolicyError};
use super::layers;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Beneath the home.
const FILE: &str = ".config/sandbox/trusted.json";

/// What was trusted: by workspace and digest.
#[derive(Debug)]
pub struct Trust {
    path: PathBuf,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// In hexadecimal digits: of the workspace's path, a zero byte, and the file's content.
    sha256: String,
    /// For people.
    workspace: String,
}

impl Trust {
    /// Reads what a user trusts. The file must be the user's or root's.
    pub fn open(home: &Path, user: u32) -> Result<Self, PolicyError> {
        let path = home.join(FILE);
        let entries = match layers::read(&path, &[0, user])? {
            None => Vec::new(),
            Some(text) => serde_json::from_str(&text).map_err(|error| {
                let help = "remove it and trust again what you trust";
                Diagnostic::file(
                    &path.display().to_string(),
                    format!("cannot read it: {error}"),
                    help,
                )
            })?,
        };
        Ok(Self { path, entries })
    }

    /// Whether the policy of a workspace is trusted as it is.
    pub fn has(&self, workspace: &Path, text: &str) -> bool {
        let digest = digest(workspace, text);
        self.entries.iter().any(|entry| entry.sha256 == digest)
    }

    /// Trusts this content, in this workspace, and no other there.
    pub fn add(&mut self, workspace: &Path, text: &str) {
        self.remove(workspace);
        let workspace_text = workspace.to_string_lossy().into_owned();
        self.entries.push(Entry { sha256: digest(workspace, text), workspace: workspace_text });
    }

    /// Trusts nothing in this workspace any more.
    pub fn remove(&mut self, workspace: &Path) {
        let workspace = workspace.to_string_lossy();
        self.entries.retain(|entry| entry.workspace != workspace);
    }

    /// Writes it down, for the user alone to write; returns where.
    pub fn save(&self, owner: Option<(u32, u32)>) -> io::Result<&Path> {
        if let Some(directory) = self.path.parent() {
            fs::create_dir_all(directory)?;
        }
        let new = self.path.with_extension("new");
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        serde_json::to_writer_pretty(&file, &self.entries)?;
        file.write_all(b"\n")?;
        if let Some((user, group)) = owner {
            std::os::unix::fs::fchown(&file, Some(user), Some(group))?;
        }
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        Ok(&self.path)
    }
}

fn digest(workspace: &Path, text: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(workspace.as_os_str().as_bytes());
    hash.update([0]);
    hash.update(text.as_bytes());
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
