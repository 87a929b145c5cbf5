//! Following symbolic links, for paths that need not exist.

use crate::kernel::mounts::{Components, to_path};
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Symbolic links that one path may lead through (`MAXSYMLINKS`, linux/namei.h).
const LINKS: usize = 40;

/// Follows symbolic links; each place is looked at once.
#[derive(Default)]
pub(super) struct Resolver {
    /// Where the links lead; `None` is no link, or nothing.
    seen: HashMap<PathBuf, Option<PathBuf>>,
}

/// A path without symbolic links.
pub(super) struct Resolved {
    pub(super) path: Components,
    /// The links that were followed, each by its own place.
    pub(super) links: Vec<Components>,
}

impl Resolver {
    /// Follows the symbolic links of a path as far as it exists; what does not exist yet is taken as
    /// written. The last component is followed only on request.
    pub(super) fn resolve(&mut self, path: &[Vec<u8>], follow_last: bool) -> io::Result<Resolved> {
        let mut done = Components::new();
        // The same as a path.
        let mut place = PathBuf::from("/");
        let mut rest: Vec<Vec<u8>> = path.iter().rev().cloned().collect();
        let mut links = Vec::new();
        while let Some(name) = rest.pop() {
            if name == b".." {
                done.pop();
                place.pop();
                continue;
            }
            place.push(std::ffi::OsStr::from_bytes(&name));
            done.push(name);
            if rest.is_empty() && !follow_last {
                break;
            }
            if let Some(target) = self.link(&place)? {
                links.push(done.clone());
                if links.len() > LINKS {
                    return Err(rustix::io::Errno::LOOP.into());
                }
                done.pop();
                if target.is_absolute() {
                    done.clear();
                }
                place = to_path(&done);
                rest.extend(target.components().rev().filter_map(|component| match component {
                    Component::Normal(name) => Some(name.as_bytes().to_vec()),
                    Component::ParentDir => Some(b"..".to_vec()),
                    _ => None,
                }));
            }
        }
        Ok(Resolved { path: done, links })
    }

    fn link(&mut self, place: &Path) -> io::Result<Option<PathBuf>> {
        if let Some(known) = self.seen.get(place) {
            return Ok(known.clone());
        }
        let target = match std::fs::read_link(place) {
            Ok(target) => Some(target),
            // Not a link, or not there.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::InvalidInput | ErrorKind::NotFound | ErrorKind::NotADirectory
                ) =>
            {
                None
            }
            Err(error) => return Err(error),
        };
        self.seen.insert(place.to_owned(), target.clone());
        Ok(target)
    }
}
