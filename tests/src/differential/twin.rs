//! The bystander: the same operation on a copy of the tree, and undone again where the member is to
//! be refused.

use super::model::{Last, Model, Target};
use super::operation::{ATTRIBUTE, Action, Op, at};
use super::reference::Say;
use anyhow::{bail, ensure};
use std::path::Path;

/// Keeps what an operation takes away. No other name of the test begins so.
const STASH: &[u8] = b"\x01stash";

/// Performs an operation on the copy whose zone root is `zone`, before `model` knows of it; gives 0 or
/// the error's number. Afterwards the copy is as the member's tree should be.
pub(crate) fn perform(zone: &Path, model: &Model, op: &Op, say: Say) -> anyhow::Result<i32> {
    if say != Say::Deny {
        return Ok(op.perform(zone));
    }
    let lost = lost(model, op);
    let (path, stash) = lost.as_ref().map_or_else(Default::default, spelled);
    let is_directory = lost.as_ref().and_then(|target| target.object);
    let is_directory = is_directory.is_some_and(|id| model.is_directory(id));
    if lost.is_some() && !is_directory {
        must(zone, &Op::new(Action::Link, path.clone()).second(stash.clone()))?;
    }
    let itself = op.action == Action::Chown && op.number == 1;
    let changed = match op.action {
        Action::Chmod | Action::Chown | Action::SetAttribute | Action::RemoveAttribute => {
            Some(op.path.clone())
        }
        _ => is_directory.then(|| path.clone()),
    };
    let changed = changed.and_then(|path| Some((Attributes::of(&at(zone, &path), itself)?, path)));
    let errno = op.perform(zone);
    if errno == 0 {
        if let Some(undo) = undo(model, op) {
            must(zone, &undo)?;
        }
        if lost.is_some() && is_directory {
            must(zone, &Op::new(Action::Mkdir, path))?;
        } else if lost.is_some() {
            must(zone, &Op::new(Action::Rename, stash).second(path))?;
        }
        if let Some((attributes, path)) = changed {
            attributes.restore(&at(zone, &path), itself)?;
        }
    } else if lost.is_some() && !is_directory {
        must(zone, &Op::new(Action::Unlink, stash))?;
    }
    Ok(errno)
}

/// Mode and owner, which are compared in the end, and whether there is the extended attribute, which
/// errors tell of.
struct Attributes {
    stat: rustix::fs::Stat,
    extended: bool,
}

impl Attributes {
    fn of(path: &Path, itself: bool) -> Option<Self> {
        let found = if itself { rustix::fs::lstat(path) } else { rustix::fs::stat(path) };
        // A symbolic link itself cannot have one.
        Some(Self { stat: found.ok()?, extended: !itself && extended(path) })
    }

    fn restore(&self, path: &Path, itself: bool) -> anyhow::Result<()> {
        use rustix::fs::{AtFlags, CWD, Mode, Uid, XattrFlags, chmod, chownat};
        let nofollow = if itself { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() };
        chownat(CWD, path, Some(Uid::from_raw(self.stat.st_uid)), None, nofollow)?;
        if !itself {
            chmod(path, Mode::from_raw_mode(self.stat.st_mode))?;
            match (self.extended, extended(path)) {
                (true, false) => rustix::fs::setxattr(path, ATTRIBUTE, b"x", XattrFlags::empty())?,
                (false, true) => rustix::fs::removexattr(path, ATTRIBUTE)?,
                _ => {}
            }
        }
        Ok(())
    }
}

fn extended(path: &Path) -> bool {
    rustix::fs::getxattr(path, ATTRIBUTE, &mut [0u8; 0]).is_ok()
}

/// What the operation takes away for good.
fn lost(model: &Model, op: &Op) -> Option<Target> {
    let named = |path| model.resolve(path, Last::Name).ok();
    let target = match op.action {
        Action::Unlink | Action::Rmdir => named(&op.path)?,
        Action::Rename if op.number & libc::RENAME_EXCHANGE == 0 => {
            let from = named(&op.path)?;
            named(&op.second).filter(|to| to.object != from.object)?
        }
        _ => return None,
    };
    let object = target.object?;
    // Nobody can take a mount point away.
    (!model.is_mount_point(object)).then_some(target)
}

/// The paths of an object and of the stash beside it.
fn spelled(target: &Target) -> (Vec<u8>, Vec<u8>) {
    let beside = |name: &[u8]| {
        let mut path = target.view.join(&b'/');
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend(name);
        path
    };
    (beside(&target.name), beside(STASH))
}

/// What takes back an operation that succeeded, but for what was lost.
fn undo(model: &Model, op: &Op) -> Option<Op> {
    let absent = |path: &[u8], last| {
        let target = model.resolve(path, last).ok()?;
        target.object.is_none().then(|| spelled(&target).0)
    };
    match op.action {
        Action::Open if op.flags() & libc::O_CREAT != 0 => {
            let path = absent(&op.path, super::model::followed(op.flags()))?;
            Some(Op::new(Action::Unlink, path))
        }
        Action::Mknod | Action::Symlink => {
            Some(Op::new(Action::Unlink, absent(&op.path, Last::Name)?))
        }
        Action::Mkdir => Some(Op::new(Action::Rmdir, absent(&op.path, Last::Name)?)),
        Action::Link => Some(Op::new(Action::Unlink, absent(&op.second, Last::Name)?)),
        Action::Rename => {
            let (from, to) =
                (model.resolve(&op.path, Last::Name), model.resolve(&op.second, Last::Name));
            let (from, to) = (from.ok()?, to.ok()?);
            if from.object == to.object {
                return None;
            }
            let exchange = op.number & libc::RENAME_EXCHANGE;
            let (from, to) = (spelled(&from).0, spelled(&to).0);
            Some(Op::new(Action::Rename, to).second(from).number(exchange))
        }
        _ => None,
    }
}

fn must(zone: &Path, op: &Op) -> anyhow::Result<()> {
    let errno = op.perform(zone);
    if errno != 0 {
        let error = std::io::Error::from_raw_os_error(errno);
        bail!("the bystander cannot tidy up: {op:?} in {}: {error}", zone.display());
    }
    Ok(())
}

/// What differs between two trees: names, types, modes, owners, numbers of links, targets.
pub(crate) fn differences(one: &Path, other: &Path) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    let mut waiting = vec![Vec::new()];
    while let Some(path) = waiting.pop() {
        let (a, b) = (look(one, &path)?, look(other, &path)?);
        if a.text != b.text {
            let shown = path.escape_ascii();
            found.push(format!(
                "\"{shown}\": {} for the member, {} for the bystander",
                a.text, b.text
            ));
        }
        let mut names: Vec<_> = a.names.into_iter().chain(b.names).collect();
        names.sort();
        names.dedup();
        for name in names {
            let mut path = path.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend(name);
            waiting.push(path);
        }
        ensure!(waiting.len() < 100_000, "the trees have no end");
    }
    Ok(found)
}

#[derive(Default)]
struct Seen {
    text: String,
    names: Vec<Vec<u8>>,
}

fn look(zone: &Path, path: &[u8]) -> anyhow::Result<Seen> {
    use std::os::unix::ffi::OsStringExt as _;
    use std::os::unix::fs::MetadataExt as _;
    let path = at(zone, path);
    let meta = match std::fs::symlink_metadata(&path) {
        Ok(meta) => meta,
        Err(error) => return Ok(Seen { text: error.to_string(), ..Default::default() }),
    };
    let mut seen = Seen::default();
    // A directory's number of links is the model's affair no more than the file system's.
    let links = if meta.is_dir() { 0 } else { meta.nlink() };
    seen.text = format!("mode {:o} uid {} links {links}", meta.mode(), meta.uid());
    if meta.is_symlink() {
        let target = std::fs::read_link(&path)?;
        let target = target.strip_prefix(zone).unwrap_or(&target);
        seen.text = format!("link to {}", target.display());
    } else if meta.is_dir() {
        for entry in std::fs::read_dir(&path)? {
            seen.names.push(entry?.file_name().into_vec());
        }
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::super::generate;
    use super::super::model::Lost;
    use super::super::rules::Language;
    use super::*;
    use fastrand::Rng;

    /// Without a session: what the model says of a path is what the kernel does with it, and what is
    /// taken back leaves no trace.
    #[test]
    fn model_and_bystander_follow_the_kernel() -> anyhow::Result<()> {
        let base = std::env::temp_dir().join(format!("differential-{}", std::process::id()));
        let language = Language::of_this_program();
        for seed in 0..12 {
            let rng = &mut Rng::with_seed(seed);
            let [one, other] = ["one", "other"].map(|name| base.join(format!("{seed}-{name}")));
            let mut model = Model::new();
            std::fs::create_dir_all(&one)?;
            std::fs::create_dir_all(&other)?;
            for op in generate::zone(rng, &mut model) {
                assert_eq!([op.perform(&one), op.perform(&other)], [0, 0], "{op:?}");
            }
            for _ in 0..600 {
                let op = generate::operation(rng, &model, &[], &language);
                let leads = |path: &[u8]| model.resolve(path, Last::Followed).err();
                if [&op.path, &op.second].map(|path| leads(path)).contains(&Some(Lost::Outside)) {
                    continue;
                }
                let say = if rng.bool() { Say::Allow } else { Say::Deny };
                let errno = perform(&other, &model, &op, say)?;
                if say == Say::Allow {
                    assert_eq!(op.perform(&one), errno, "{op:?}");
                    if errno == 0 {
                        assert_eq!(model.apply(&op), Ok(()), "{op:?}");
                    }
                }
            }
            assert_eq!(differences(&one, &other)?, Vec::<String>::new(), "seed {seed}");
            // The model's recipe makes the same tree once more.
            let again = base.join(format!("{seed}-again"));
            std::fs::create_dir_all(&again)?;
            for op in model.recipe() {
                assert_eq!(op.perform(&again), 0, "{op:?}");
            }
            let names = |differences: Vec<String>| {
                let missing = differences.iter().filter(|text| text.contains("os error 2)"));
                missing.cloned().collect::<Vec<_>>()
            };
            assert_eq!(names(differences(&one, &again)?), Vec::<String>::new(), "seed {seed}");
        }
        std::fs::remove_dir_all(&base)?;
        Ok(())
    }
}
