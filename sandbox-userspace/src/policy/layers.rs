//! Who may say what: the administrator, the user, the project, and `sandbox` itself.
//!
//! The policy that a user names or has in the home is the one that opens things. Over it stand ceilings,
//! each of which can only close: every file of the administrator in `managed.d`, a project's own file as
//! long as nobody trusts it, and what `sandbox` keeps for itself. Allowed is what all of them allow.

use super::check::path::spelled_out;
use super::diagnostic::{Diagnostic, PolicyError};
use super::parse;
use super::rule::Policy;
use super::source::Source;
use super::trust::Trust;
use rustix::fs::{Mode, OFlags};
use std::fmt::Write as _;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Where the administrator's policies are.
pub const MANAGED: &str = "/etc/sandbox/managed.d";
/// The user's own policy, beneath the home; it holds where none is named.
pub const USER: &str = ".config/sandbox/policy.toml";
/// A project's policy, in the workspace.
pub const PROJECT: &str = ".sandbox.toml";

/// Layers of the rules.
pub const MANAGED_LAYER: &str = "managed";
/// See [`PROJECT`].
pub const PROJECT_LAYER: &str = "project";
/// What no session may do, whatever its policy.
pub const OWN_LAYER: &str = "sandbox";
/// What events call the text of those rules.
const OWN: &str = "sandbox:own";

/// Most bytes of a policy file.
const LIMIT: u64 = 64 << 20;
/// Write permission of group and others.
const OTHERS: u32 = 0o022;

/// Whose session it is, and where.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Normally [`MANAGED`].
    pub managed: PathBuf,
    /// Whom administrators' files must belong to: 0.
    pub root: u32,
    /// The agent user's home.
    pub home: PathBuf,
    /// The agent's user.
    pub user: u32,
    /// The workspace, canonical.
    pub workspace: PathBuf,
    /// The policy file that was named.
    pub named: Option<PathBuf>,
}

impl Setting {
    /// For a session on this host.
    pub fn new(home: &Path, user: u32, workspace: &Path, named: Option<&Path>) -> Self {
        Self {
            managed: MANAGED.into(),
            root: 0,
            home: home.to_owned(),
            user,
            workspace: workspace.to_owned(),
            named: named.map(Path::to_owned),
        }
    }
}

/// The policy file that holds where none is named, if the user has one: it must belong to the user or
/// to root, and nobody else may write it.
pub fn user_policy(home: &Path, user: u32) -> Result<Option<Policy>, PolicyError> {
    user_policy_after(home, user, 0)
}

/// The same; its rules are numbered from the one after `numbered`.
pub fn user_policy_after(
    home: &Path,
    user: u32,
    numbered: u32,
) -> Result<Option<Policy>, PolicyError> {
    let path = home.join(USER);
    let Some(text) = read(&path, &[0, user])? else { return Ok(None) };
    let source = Source::new(path.display().to_string(), super::USER_LAYER, text);
    parse::parse_after(source, numbered).map(Some)
}

/// Puts the ceilings over a policy. The text says where a project's file only narrows.
pub fn over(policy: Policy, setting: &Setting) -> Result<(Policy, Option<String>), PolicyError> {
    let mut policy = policy;
    for source in managed(setting)? {
        policy = parse::limit(policy, source)?;
    }
    policy = parse::limit(policy, own(setting))?;
    let path = setting.workspace.join(PROJECT);
    // It is anybody's who may write the workspace.
    let Some(text) = read(&path, &[])? else { return Ok((policy, None)) };
    let trusted = Trust::open(&setting.home, setting.user)?.has(&setting.workspace, &text);
    let source = Source::new(path.display().to_string(), PROJECT_LAYER, text);
    if trusted {
        return Ok((parse::append(policy, source)?, None));
    }
    let notice =
        format!("{} is not trusted: it closes what it says, and opens nothing", path.display());
    Ok((parse::limit(policy, source)?, Some(notice)))
}

/// The administrator's files, in the order of their names. No directory is no policy; anything that is
/// not as it should be is an error: half a ceiling is none.
fn managed(setting: &Setting) -> Result<Vec<Source>, PolicyError> {
    let directory = &setting.managed;
    let fail = |path: &Path, message: String, help: &str| -> PolicyError {
        Diagnostic::file(&path.display().to_string(), message, help).into()
    };
    let cannot = |path: &Path, error: &io::Error| {
        fail(path, format!("cannot read the administrator's policy: {error}"), "mend it as root")
    };
    let parent = directory.parent().unwrap_or(directory);
    for path in [parent, directory] {
        let meta = match path.symlink_metadata() {
            Ok(meta) => meta,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(cannot(path, &error)),
        };
        if !meta.is_dir() {
            let help = "make it a directory that root alone can write";
            return Err(fail(path, "is no directory".to_owned(), help));
        }
        is_safe(path, &meta, &[setting.root])?;
    }
    let mut paths = Vec::new();
    for entry in directory.read_dir().map_err(|error| cannot(directory, &error))? {
        paths.push(entry.map_err(|error| cannot(directory, &error))?.path());
    }
    paths.sort_unstable();
    let mut sources = Vec::new();
    for path in paths {
        let known = path.extension().is_some_and(|kind| kind == "toml" || kind == "json");
        if !known {
            let help = "policies end in `.toml` or `.json`: rename it, or move it away";
            return Err(fail(&path, "is no policy, but lies among them".to_owned(), help));
        }
        let Some(text) = read(&path, &[setting.root])? else {
            let help = "start again when nobody changes the directory";
            return Err(fail(&path, "has just gone".to_owned(), help));
        };
        sources.push(Source::new(path.display().to_string(), MANAGED_LAYER, text));
    }
    Ok(sources)
}

/// What no session may write: where policies, trust and the states of sessions are.
fn own(setting: &Setting) -> Source {
    let mut text = String::from("version = 1\n\n[files]\nwrite.deny = [\n");
    let own = ["/etc/sandbox", "/run/sandbox", "~/.config/sandbox", "${WORKSPACE}/.sandbox.toml"];
    let managed = setting.managed.parent().unwrap_or(&setting.managed);
    let named = setting.named.as_deref().and_then(|path| std::path::absolute(path).ok());
    let places =
        [Some(managed.to_owned()), named.clone(), named.and_then(|n| n.canonicalize().ok())];
    let mut places: Vec<String> =
        places.iter().flatten().filter_map(|path| path.to_str()).map(spelled_out).collect();
    // A path that is no text cannot be a rule.
    places.retain(|place| !own.contains(&place.as_str()));
    places.dedup();
    for place in own.into_iter().map(str::to_owned).chain(places) {
        // Writing to a string cannot fail. Rust's escapes of control characters are not TOML's.
        let _ = writeln!(text, "    {},", toml::Value::String(place));
    }
    text.push_str("]\n");
    Source::new(OWN, OWN_LAYER, text)
}

/// The text of a small regular file that belongs to one of `owners` (to anybody where there are none), and
/// that nobody else may write. `None` where there is none.
pub(super) fn read(path: &Path, owners: &[u32]) -> Result<Option<String>, PolicyError> {
    let shown = path.display().to_string();
    let fail = |message: String, help: &str| -> PolicyError {
        Diagnostic::file(&shown, message, help).into()
    };
    let cannot = |error: io::Error| fail(format!("cannot read it: {error}"), "mend or remove it");
    // A pipe or device must not hold this process up.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(file) => File::from(file),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
        Err(rustix::io::Errno::LOOP) => {
            let help = "put the file itself there: a link can be led elsewhere";
            return Err(fail("is a symbolic link".to_owned(), help));
        }
        Err(error) => return Err(cannot(error.into())),
    };
    let meta = file.metadata().map_err(cannot)?;
    if !meta.is_file() {
        return Err(fail("is no regular file".to_owned(), "put a policy there, or remove it"));
    }
    if !owners.is_empty() {
        is_safe(path, &meta, owners)?;
    }
    let mut bytes = Vec::new();
    file.take(LIMIT + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > LIMIT {
        return Err(fail(format!("is larger than {LIMIT} bytes"), "name directories, not files"));
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(fail("is not UTF-8".to_owned(), "save it as UTF-8")),
    }
}

/// Whether only those may write a file who should.
fn is_safe(path: &Path, meta: &Metadata, owners: &[u32]) -> Result<(), PolicyError> {
    let shown = path.display().to_string();
    if !owners.contains(&meta.uid()) {
        let owner = owners.last().copied().unwrap_or_default();
        let message = format!("belongs to user {}, who is not trusted with it", meta.uid());
        let help = format!("if it is as it should be: chown {owner} {shown}");
        return Err(Diagnostic::file(&shown, message, help).into());
    }
    if meta.mode() & OTHERS != 0 {
        let message =
            format!("others than its owner may write it (mode {:o})", meta.mode() & 0o7777);
        let help = format!("if it is as it should be: chmod go-w {shown}");
        return Err(Diagnostic::file(&shown, message, help).into());
    }
    Ok(())
}
