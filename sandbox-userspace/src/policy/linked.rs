//! Hard links that exist before a session.
//!
//! The kernel side judges a file by the name through which it was reached. A file in a protected place
//! that already has another name, perhaps in the workspace, would be open by that one. So files with
//! more than one name in the places that rules close are looked for when a session starts, and told to
//! the kernel by number.

use super::compiled::LinkedFile;
use super::decide::{self, Decision};
use super::expand::Placed;
use super::rule::{Defaults, Kind};
use crate::kernel::mounts::{Components, MountTable, to_path};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl;
use sandbox_common::Access;
use sandbox_common::path::{Linked, Rights};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

/// Most directory entries that are looked at when a session starts.
pub const ENTRIES: usize = 100_000;

/// File systems in which no file has a second name: the kernel's own views, and the FAT family.
const WITHOUT_LINKS: &[&str] = &[
    "proc",
    "sysfs",
    "cgroup",
    "cgroup2",
    "securityfs",
    "debugfs",
    "tracefs",
    "bpf",
    "devpts",
    "vfat",
    "msdos",
    "exfat",
];

/// `FS_IOC_GETVERSION`, include/uapi/linux/fs.h
const VERSION: ioctl::Opcode = ioctl::opcode::read::<libc::c_long>(b'v', 1);

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The files, by number.
    pub files: Vec<LinkedFile>,
    /// What could not be looked at.
    pub gaps: Vec<Gap>,
}

/// A part of a protected place that was not looked at.
#[derive(Debug, Clone)]
pub struct Gap {
    /// Where it begins.
    pub path: PathBuf,
    why: Why,
}

#[derive(Debug, Clone)]
enum Why {
    /// The limit on entries.
    Limit(usize),
    Error(String),
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match &self.why {
            Why::Limit(entries) => write!(
                f,
                "protected places hold more than {entries} entries: the search for hard links \
                 stopped at `{path}`"
            )?,
            Why::Error(error) => write!(f, "cannot search `{path}` for hard links: {error}")?,
        }
        f.write_str(
            "; a second name, made before this session, of a protected file there is judged by that \
             name alone",
        )
    }
}

/// Looks for files with several names in the places that rules close, at most `entries` directory
/// entries of them. What rules forbid to read comes first.
pub fn find(placed: &[Placed], defaults: Defaults, table: &MountTable, entries: usize) -> Found {
    let mut search = Search {
        placed,
        defaults,
        table,
        left: entries,
        entries,
        files: BTreeMap::new(),
        gaps: Vec::new(),
    };
    // Patterns that hold everywhere have no place where to look.
    // Nor is a default searched.
    let denying = || placed.iter().filter(|rule| !rule.allow && !rule.everywhere && rule.id != 0);
    for pattern in [false, true] {
        // Deleting is about a name, not about the file.
        for access in [Access::READ, Access::WRITES, Access::EXECUTE, Access::ATTRIBUTES] {
            let of = |rule: &&Placed| rule.access == access && rule.tail.is_empty() != pattern;
            for rule in denying().filter(of) {
                if !search.tree(rule.path.clone()) {
                    return search.end();
                }
            }
        }
    }
    search.end()
}

struct Search<'a> {
    placed: &'a [Placed],
    defaults: Defaults,
    table: &'a MountTable,
    left: usize,
    entries: usize,
    files: BTreeMap<(u32, u64), Linked>,
    gaps: Vec<Gap>,
}

impl Search<'_> {
    fn end(self) -> Found {
        let files = self.files.into_iter();
        let files = files.map(|((dev, ino), linked)| LinkedFile { dev, ino, linked }).collect();
        Found { files, gaps: self.gaps }
    }

    fn gap(&mut self, path: &Components, why: Why) {
        self.gaps.push(Gap { path: to_path(path), why });
    }

    /// Everything at and beneath a path. False when the limit was reached.
    fn tree(&mut self, root: Components) -> bool {
        let mut waiting = vec![root];
        while let Some(path) = waiting.pop() {
            if self.left == 0 {
                self.gap(&path, Why::Limit(self.entries));
                return false;
            }
            self.left -= 1;
            let seen = std::fs::symlink_metadata(to_path(&path));
            let entered = seen.and_then(|seen| self.entry(&path, &seen, &mut waiting));
            match entered {
                Ok(()) => {}
                // Never there, or gone since it was listed.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                    ) => {}
                Err(error) => self.gap(&path, Why::Error(error.to_string())),
            }
        }
        true
    }

    fn entry(
        &mut self,
        path: &Components,
        seen: &Metadata,
        waiting: &mut Vec<Components>,
    ) -> io::Result<()> {
        if seen.is_dir() {
            let holder = self.table.holder(path);
            if holder.is_some_and(|mount| WITHOUT_LINKS.contains(&mount.fs_type.as_str())) {
                return Ok(());
            }
            for entry in std::fs::read_dir(to_path(path))? {
                let mut inner = path.clone();
                inner.push(entry?.file_name().into_vec());
                waiting.push(inner);
            }
        } else if seen.is_file() && seen.nlink() > 1 {
            self.file(path, seen)?;
        }
        Ok(())
    }

    fn file(&mut self, path: &Components, seen: &Metadata) -> io::Result<()> {
        let points: Vec<&[Vec<u8>]> =
            self.table.visible().map(|mount| mount.point.as_slice()).collect();
        let Some(rights) = rights(self.placed, self.defaults, path, &points) else {
            return Ok(());
        };
        let Some(mount) = self.table.holder(path) else { return Ok(()) };
        let generation = generation(path, seen)?;
        let linked = Linked {
            rights,
            generation: generation.unwrap_or_default(),
            any_generation: u32::from(generation.is_none()),
        };
        // A file may have several names in protected places.
        self.files
            .entry((mount.dev, seen.ino()))
            .and_modify(|known| known.rights.restrict(&rights))
            .or_insert(linked);
        Ok(())
    }
}

/// What the rules say of a path; `None` where none closes it.
fn rights(
    placed: &[Placed],
    defaults: Defaults,
    path: &[Vec<u8>],
    points: &[&[Vec<u8>]],
) -> Option<Rights> {
    let mut rights = Rights::NONE;
    let mut closed = false;
    for kind in Kind::ALL {
        let Decision { allow, rule } = decide::path_across(placed, defaults, kind, path, points);
        rights.allow |= if allow { kind.access().bits() } else { 0 };
        rights.rules[kind as usize] = rule;
        closed |= !allow && rule != 0 && kind != Kind::Delete;
    }
    closed.then_some(rights)
}

/// `inode.i_generation`; `None` where the file system does not tell it.
fn generation(path: &[Vec<u8>], seen: &Metadata) -> io::Result<Option<u32>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::open(to_path(path), flags, Mode::empty())?;
    let opened = rustix::fs::fstat(&file)?;
    if (opened.st_dev, opened.st_ino) != (seen.dev(), seen.ino()) {
        return Err(io::Error::other("it was replaced while it was looked at"));
    }
    // SAFETY: the kernel writes an `int` for this request, whatever its number says of a `long`.
    let version = unsafe { ioctl::ioctl(&file, ioctl::Getter::<VERSION, u32>::new()) };
    match version {
        Ok(version) => Ok(Some(version)),
        Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::expand::{self, Context};
    use crate::policy::load_text;
    use std::fs;
    use std::path::Path;

    /// A home `h` with `h/.ssh`, a workspace `w`, and what is found there with so many entries.
    fn search(prepare: impl FnOnce(&Path), entries: usize) -> (tempfile::TempDir, Found) {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        for name in ["h/.ssh/deep", "w"] {
            fs::create_dir_all(at.join(name)).unwrap();
        }
        prepare(&at);
        let text = "version = 1\nfiles.read.deny = ['~/.ssh/**']\n\
                    files.write.allow = ['${WORKSPACE}/**']\n\
                    files.write.deny = ['${WORKSPACE}/hooks/**']\n";
        let policy = load_text("p", text.into()).unwrap();
        let context = Context {
            home: at.join("h"),
            workspace: at.join("w"),
            tmpdir: at.join("t"),
            terminal: None,
            surroundings: crate::policy::services::Surroundings::default(),
        };
        let placed = expand::expand(&policy, &context).unwrap();
        let found = find(&placed, policy.defaults, &MountTable::read(None).unwrap(), entries);
        (dir, found)
    }

    #[test]
    fn files_with_two_names_in_closed_places_are_found() {
        let (dir, found) = search(
            |at| {
                for name in ["h/.ssh/alone", "h/.ssh/deep/key", "h/other"] {
                    fs::write(at.join(name), name).unwrap();
                }
                fs::hard_link(at.join("h/.ssh/deep/key"), at.join("w/alias")).unwrap();
                fs::hard_link(at.join("h/other"), at.join("w/other")).unwrap();
                fs::create_dir(at.join("w/hooks")).unwrap();
                fs::write(at.join("w/hooks/hook"), "").unwrap();
                fs::hard_link(at.join("w/hooks/hook"), at.join("w/hook")).unwrap();
                // Where a link leads is not followed: the rules do that.
                std::os::unix::fs::symlink(at.join("h"), at.join("h/.ssh/up")).unwrap();
            },
            ENTRIES,
        );
        assert!(found.gaps.is_empty(), "{:?}", found.gaps);
        let ino = |name: &str| fs::metadata(dir.path().join(name)).unwrap().ino();
        let rights = |name: &str| {
            let file = found.files.iter().find(|file| file.ino == ino(name));
            file.map(|file| file.linked.rights)
        };
        assert_eq!(found.files.len(), 2, "{:?}", found.files);
        let key = rights("w/alias").unwrap();
        assert_eq!((key.allow & Access::READ.bits(), key.rules[0]), (0, 1));
        let hook = rights("w/hook").unwrap();
        assert_eq!(hook.allow, (Access::READ | Access::EXECUTE).bits());
        assert_eq!(hook.rules[1], 3);
    }

    #[test]
    fn the_limit_is_told() {
        let many = |at: &Path| {
            for number in 0..20 {
                fs::write(at.join(format!("h/.ssh/{number}")), "").unwrap();
            }
        };
        let (_dir, found) = search(many, 10);
        assert_eq!(found.gaps.len(), 1);
        let text = found.gaps[0].to_string();
        assert!(text.contains("more than 10 entries") && text.contains(".ssh"), "{text}");
        let (_dir, found) = search(many, 100);
        assert!(found.gaps.is_empty());
    }
}
