//! A linked git worktree as the workspace: what git must write of the repository that it shares.
//!
//! There `.git` is a file that names a directory of another repository, and `git add` and `git
//! commit` write in that one. Whoever could write the workspace may have written that file, an
//! earlier session's agent too, so it is believed only where the other repository says the same
//! and belongs to the agent's user, and only what git needs there is opened: never `config`, hooks,
//! or anything else that makes git run a program.

use super::decide::{self, Decision};
use super::expand::{self, Context, Placed};
use super::rule::{Kind, Origin, Policy};
use super::source::Source;
use super::{PolicyError, parse};
use crate::kernel::mounts::to_components;
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The layer of the rules that are made here.
pub const LAYER: &str = "workspace";

/// What events call the text of those rules.
pub const NAME: &str = "workspace:git";

/// Bytes of a file that holds one path, at most (`PATH_MAX`, and what git writes around it).
const LIMIT: u64 = 4096 + 64;

/// What git writes in the shared part, and when; seen with git 2.47 and git-lfs 3.3.
const SHARED: [(&str, &str); 11] = [
    ("objects/**", "content"),
    ("refs/**", "branches, tags, notes, the stash"),
    ("reftable/**", "the same in the newer format"),
    ("logs/refs", "their history"),
    ("packed-refs", "refs that were packed: removing one rewrites it"),
    ("packed-refs.lock", "held whenever a ref is written"),
    ("packed-refs.new", "its next content"),
    ("shallow", "where a shallow history ends: fetch"),
    ("shallow.lock", "held by fetch"),
    ("rr-cache", "recorded conflict resolutions: merge, commit"),
    ("lfs", "content that git-lfs keeps"),
];

/// What stays closed within: files by which git finds its configuration, and whole repositories of
/// submodules, which have hooks.
const OWN_CLOSED: [&str; 6] =
    ["gitdir", "commondir", "config", "config.worktree", "hooks", "modules"];

/// A linked worktree whose two ends agree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worktree {
    /// The workspace.
    workspace: PathBuf,
    /// Its own directory in the shared repository: `…/worktrees/NAME`.
    own: PathBuf,
    /// The shared repository.
    common: PathBuf,
}

/// What to do about a [`Refusal`].
pub const HELP: &str = "if that is not as you left it, an agent may have changed it: compare with \
    `git worktree list` in the repository; else let rules of your own name what git may write";

/// Why the workspace's `.git` opens nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A file or directory cannot be looked at.
    #[error("{path} cannot be read: {source}")]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A file is not what git would have written.
    #[error("{path} {what}")]
    Odd {
        /// Which.
        path: PathBuf,
        /// What is odd about it.
        what: &'static str,
    },
    /// `.git` leads to a repository that is not a linked worktree's.
    #[error("the repository {path} is not one that linked worktrees share")]
    Alone {
        /// Where it leads.
        path: PathBuf,
    },
    /// The other end names another worktree, or another repository.
    #[error("{path} names {named}, not {expected}")]
    Disagree {
        /// The file at the other end.
        path: PathBuf,
        /// What it names.
        named: PathBuf,
        /// What it should name.
        expected: PathBuf,
    },
    /// Something belongs to somebody else than the agent's user.
    #[error("{path} belongs to user {owner}, and the agent runs as user {user}")]
    Owner {
        /// Which.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The agent's user.
        user: u32,
    },
    /// A rule closes the repository.
    #[error("{path} is closed by {rule}")]
    Closed {
        /// A place of it.
        path: PathBuf,
        /// The rule, and where it stands.
        rule: String,
    },
    /// The agent may write the place where the repository lies, so that it may be the agent's work.
    #[error("the agent may write {path}, by {rule}")]
    Writable {
        /// A place of it.
        path: PathBuf,
        /// The rule, and where it stands.
        rule: String,
    },
}

impl Refusal {
    /// As a message of its own.
    pub fn message(&self) -> String {
        format!(
            "the workspace's repository lies elsewhere, and git cannot write there: {self}; nothing \
             of it was opened"
        )
    }
}

/// Adds to a policy what git needs where the workspace is a linked worktree. `context` is the
/// session's, its workspace canonical; `user` is the agent's.
///
/// Where the workspace has a `.git` file that is not to be believed nothing is added, and the reason
/// returned. A policy that does not let the agent write the workspace, or its `.git`, gets nothing
/// either.
pub fn extend(
    policy: Policy,
    context: &Context,
    user: u32,
) -> Result<(Policy, Option<Refusal>), PolicyError> {
    let worktree = match find(&context.workspace, user) {
        Ok(None) => return Ok((policy, None)),
        Ok(Some(worktree)) => worktree,
        Err(refusal) => return Ok((policy, Some(refusal))),
    };
    let placed = expand::expand(&policy, context)?;
    if !decided(&policy, &placed, Kind::Write, &context.workspace.join(".git")).allow {
        return Ok((policy, None));
    }
    match worktree.fits(&policy, &placed).and_then(|()| worktree.source()) {
        Ok(source) => Ok((parse::append(policy, source)?, None)),
        Err(refusal) => Ok((policy, Some(refusal))),
    }
}

/// The linked worktree that a canonical directory is; `None` where it has no `.git` file.
fn find(workspace: &Path, user: u32) -> Result<Option<Worktree>, Refusal> {
    let link = workspace.join(".git");
    match link.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Ok(meta) if meta.is_dir() => return Ok(None),
        // It opens nothing, and needs nothing when it stays inside.
        Ok(meta)
            if meta.is_symlink()
                && link.canonicalize().is_ok_and(|target| target.starts_with(workspace)) =>
        {
            return Ok(None);
        }
        _ => {}
    }
    let text = content(&link, user)?;
    let target = text.strip_prefix(b"gitdir: ").ok_or_else(|| Refusal::Odd {
        path: link.clone(),
        what: "does not begin with `gitdir: `",
    })?;
    let own = canonical(&workspace.join(OsStr::from_bytes(target)))?;
    let alone = || Refusal::Alone { path: own.clone() };
    let (worktrees, _) = own.parent().zip(own.file_name()).ok_or_else(alone)?;
    let common = worktrees.parent().ok_or_else(alone)?.to_owned();
    if worktrees.file_name() != Some(OsStr::new("worktrees")) {
        return Err(alone());
    }
    for directory in [&own, &common, &common.join("objects"), &common.join("refs")] {
        is_directory(directory, user)?;
    }
    for file in [own.join("HEAD"), common.join("HEAD")] {
        content(&file, user)?;
    }
    agrees(&own, "commondir", user, &common)?;
    agrees(&own, "gitdir", user, &link)?;
    let worktree = Worktree { workspace: workspace.to_owned(), own, common };
    worktree.has_no_links()?;
    Ok(Some(worktree))
}

/// Whether a file in `own`, that holds a path, names `expected`.
fn agrees(own: &Path, file: &str, user: u32, expected: &Path) -> Result<(), Refusal> {
    let path = own.join(file);
    let named = own.join(OsStr::from_bytes(&content(&path, user)?));
    // The last component is compared as it stands: `.git` of the workspace is no link.
    let resolved = match (named.parent(), named.file_name()) {
        (Some(parent), Some(name)) => canonical(parent)?.join(name),
        _ => canonical(&named)?,
    };
    if resolved == expected {
        Ok(())
    } else {
        Err(Refusal::Disagree { path, named, expected: expected.to_owned() })
    }
}

/// The bytes of a small regular file of the user, without the end of the line.
fn content(path: &Path, user: u32) -> Result<Vec<u8>, Refusal> {
    let unreadable = |source| Refusal::Unreadable { path: path.to_owned(), source };
    // A pipe or device must not hold this process up.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file =
        rustix::fs::open(path, flags, Mode::empty()).map_err(|error| unreadable(error.into()))?;
    let mut file = File::from(file);
    let meta = file.metadata().map_err(unreadable)?;
    let odd = |what| Refusal::Odd { path: path.to_owned(), what };
    if !meta.is_file() {
        return Err(odd("is no regular file"));
    }
    is_owner(path, &meta, user)?;
    let mut bytes = Vec::new();
    file.by_ref().take(LIMIT + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > LIMIT {
        return Err(odd("is longer than a path can be"));
    }
    while bytes.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
        bytes.pop();
    }
    if bytes.is_empty() || bytes.contains(&0) || bytes.contains(&b'\n') {
        return Err(odd("does not hold one line"));
    }
    Ok(bytes)
}

fn is_directory(path: &Path, user: u32) -> Result<(), Refusal> {
    let unreadable = |source| Refusal::Unreadable { path: path.to_owned(), source };
    let meta = path.symlink_metadata().map_err(unreadable)?;
    if !meta.is_dir() {
        return Err(Refusal::Odd { path: path.to_owned(), what: "is no directory" });
    }
    is_owner(path, &meta, user)
}

fn is_owner(path: &Path, meta: &Metadata, user: u32) -> Result<(), Refusal> {
    let owner = meta.uid();
    if owner == user { Ok(()) } else { Err(Refusal::Owner { path: path.to_owned(), owner, user }) }
}

fn canonical(path: &Path) -> Result<PathBuf, Refusal> {
    path.canonicalize().map_err(|source| Refusal::Unreadable { path: path.to_owned(), source })
}

fn decided(policy: &Policy, placed: &[Placed], kind: Kind, path: &Path) -> Decision {
    decide::path(placed, policy.defaults, kind, &to_components(path))
}

impl Worktree {
    /// An allow rule covers what a symbolic link leads to, so that none may stand for a part.
    fn has_no_links(&self) -> Result<(), Refusal> {
        for (pattern, _) in SHARED {
            let mut path = self.common.clone();
            for name in pattern.trim_end_matches("/**").split('/') {
                path.push(name);
                if path.is_symlink() {
                    return Err(Refusal::Odd { path, what: "is a symbolic link" });
                }
            }
        }
        Ok(())
    }

    /// Whether the policy leaves the repository as it is: closed to writing because no rule speaks
    /// of it, and open to reading.
    fn fits(&self, policy: &Policy, placed: &[Placed]) -> Result<(), Refusal> {
        let rule = |decision: Decision| {
            let origins = || policy.files.iter().map(|rule| &rule.origin);
            origins().find(|origin| origin.id == decision.rule).map(named).unwrap_or_default()
        };
        let inside = ["config", "objects", "refs"].map(|name| self.common.join(name));
        let dirs = inside.iter().chain([&self.own]).map(PathBuf::as_path);
        for path in dirs.chain(self.common.ancestors()) {
            let write = decided(policy, placed, Kind::Write, path);
            if write.allow {
                return Err(Refusal::Writable { path: path.to_owned(), rule: rule(write) });
            }
            let read = decided(policy, placed, Kind::Read, path);
            let closed = [write, read].into_iter().find(|by| !by.allow && by.rule != 0);
            // What stays closed anyway a rule may close, too.
            let is_needed = path.starts_with(&self.common) && !path.ends_with("config");
            if let Some(by) = closed.filter(|_| is_needed) {
                return Err(Refusal::Closed { path: path.to_owned(), rule: rule(by) });
            }
        }
        Ok(())
    }

    /// The rules, as the text of a policy.
    fn source(&self) -> Result<Source, Refusal> {
        let mut text = format!(
            "# The workspace is a linked git worktree. These parts of the repository that it shares\n\
             # are written by git add, commit, branch, merge, fetch and their like.\n\
             version = 1\n\n[files]\nwrite.allow = [\n    {}, # what is its own\n",
            quoted(&self.own, "/**")?
        );
        for (pattern, what) in SHARED {
            let name = pattern.trim_end_matches("/**");
            let rest = &pattern[name.len()..];
            let path = quoted(&self.common.join(name), rest)?;
            let _ = writeln!(text, "    {path}, # {what}");
        }
        text.push_str(
            "]\n\
             # Whoever writes these chooses what git believes and runs, also outside the session.\n\
             write.deny = [\n",
        );
        let own = OWN_CLOSED.iter().map(|name| self.own.join(name));
        let alternates = self.common.join("objects/info/alternates");
        for path in own.chain([alternates, self.workspace.join(".git")]) {
            let _ = writeln!(text, "    {},", quoted(&path, "")?);
        }
        text.push_str("]\n");
        Ok(Source::new(NAME, LAYER, text))
    }
}

/// A path as a rule in a policy's text.
fn quoted(path: &Path, rest: &str) -> Result<String, Refusal> {
    let odd = |what| Refusal::Odd { path: path.to_owned(), what };
    let name = path.to_str().ok_or_else(|| odd("is not UTF-8, which no rule can be"))?;
    let mut rule = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            '*' | '?' | '[' | ']' | '{' | '}' | '\\' | '$' => rule.extend(['\\', character]),
            control if control.is_control() => return Err(odd("has a control character")),
            plain => rule.push(plain),
        }
    }
    // Without control characters a JSON string is a TOML string.
    Ok(serde_json::Value::from(format!("{rule}{rest}")).to_string())
}

/// A rule as messages name it.
fn named(origin: &Origin) -> String {
    let line = origin.place.source.position(origin.place.span.clone()).line;
    format!("{} \"{}\" ({}:{line})", origin.key, origin.text, origin.place.source.name)
}

#[cfg(test)]
mod tests;
