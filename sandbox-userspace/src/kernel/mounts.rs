//! The mount table: which place of which superblock a path means.
//!
//! Format and escapes: `Documentation/filesystems/proc.rst`, section 3.5, and `fs/proc_namespace.c`.

use sandbox_common::path::kernel_dev;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// A path beneath some root: names without `/`, outermost first; empty is the root itself.
pub type Components = Vec<Vec<u8>>;

/// Why a mount table could not be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The file could not be read.
    #[error("cannot read the mount table {path}: {source}; is /proc mounted?")]
    Read {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The file does not look as proc(5) says.
    #[error("line {line} of the mount table has no readable {field}")]
    Parse {
        /// Line, from 1.
        line: usize,
        /// What is missing or malformed.
        field: &'static str,
    },
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount's id, unique in the table.
    pub id: u32,
    /// The id of the mount that it is mounted on.
    pub parent: u32,
    /// `super_block.s_dev`, kernel encoding.
    pub dev: u32,
    /// The directory of the superblock that is visible at `point`.
    pub root: Components,
    /// Where it is mounted, from the root of the process whose table this is.
    pub point: Components,
    /// The file system's type.
    pub fs_type: String,
}

/// The mounts of one mount namespace as one process sees them.
#[derive(Clone, Debug, Default)]
pub struct MountTable {
    mounts: Vec<Mount>,
    /// Visible mounts by mount point: indices into `mounts`.
    visible: BTreeMap<Components, usize>,
    /// The last names of their mount points: most components of a path are none of them.
    names: HashSet<Vec<u8>>,
}

impl MountTable {
    /// Reads the table of a process; `None` is the calling one.
    pub fn read(pid: Option<u32>) -> Result<Self, MountError> {
        let process = pid.map_or_else(|| "self".to_owned(), |pid| pid.to_string());
        let path = format!("/proc/{process}/mountinfo");
        match std::fs::read(&path) {
            Ok(text) => Self::parse(&text),
            Err(source) => Err(MountError::Read { path, source }),
        }
    }

    /// Reads the text of a `mountinfo` file.
    pub fn parse(text: &[u8]) -> Result<Self, MountError> {
        let lines = text.split(|byte| *byte == b'\n').enumerate();
        let mounts = lines
            .filter(|(_, line)| !line.is_empty())
            .map(|(index, line)| {
                mount(line).map_err(|field| MountError::Parse { line: index + 1, field })
            })
            .collect::<Result<Vec<_>, _>>()?;
        let visible = visible(&mounts);
        let names = visible.keys().filter_map(|point| point.last().cloned()).collect();
        Ok(Self { mounts, visible, names })
    }

    /// Every mount, in the order of the table, hidden ones too.
    pub fn mounts(&self) -> &[Mount] {
        &self.mounts
    }

    /// The mounts that a path can reach, by mount point.
    pub fn visible(&self) -> impl Iterator<Item = &Mount> {
        self.visible.values().map(|index| &self.mounts[*index])
    }

    /// The mount that the object of a path lies on: at a mount point, what is mounted there.
    pub fn holder(&self, path: &[Vec<u8>]) -> Option<&Mount> {
        (0..=path.len())
            .rev()
            .filter(|depth| {
                depth.checked_sub(1).is_none_or(|last| self.names.contains(&path[last]))
            })
            .find_map(|depth| self.visible.get(&path[..depth]))
            .map(|index| &self.mounts[*index])
    }

    /// The place of an absolute path: its superblock and the components from its root. The path is
    /// taken as it is: symbolic links must have been resolved.
    ///
    /// `None` when no mount of the table holds it, as in a chroot that is no mount.
    pub fn locate(&self, path: &[Vec<u8>]) -> Option<(u32, Components)> {
        let mount = self.holder(path)?;
        let rest = &path[mount.point.len()..];
        Some((mount.dev, [mount.root.as_slice(), rest].concat()))
    }

    /// The visible mounts whose mount point lies strictly beneath a path.
    pub fn beneath<'a>(&'a self, path: &'a [Vec<u8>]) -> impl Iterator<Item = &'a Mount> {
        self.visible()
            .filter(|mount| mount.point.len() > path.len() && mount.point.starts_with(path))
    }

    /// Every path at which a place can be seen: the mount and the path. Mounts of the whole
    /// superblock come first, then by mount point.
    pub fn views<'a>(
        &'a self,
        dev: u32,
        place: &'a [Vec<u8>],
    ) -> impl Iterator<Item = (&'a Mount, Components)> {
        let mut mounts: Vec<&Mount> = self
            .visible()
            .filter(|mount| mount.dev == dev && place.starts_with(&mount.root))
            .collect();
        mounts.sort_by_key(|mount| mount.root.len());
        mounts.into_iter().filter_map(move |mount| {
            let path = [mount.point.as_slice(), &place[mount.root.len()..]].concat();
            let reached = self.holder(&path).is_some_and(|holder| holder.id == mount.id);
            reached.then_some((mount, path))
        })
    }

    /// A path at which a place can be seen, for people.
    pub fn show(&self, dev: u32, place: &[Vec<u8>]) -> Option<PathBuf> {
        self.views(dev, place).next().map(|(_, path)| to_path(&path))
    }
}

/// The components of an absolute path, or of the part of it that is normal.
pub fn to_components(path: &Path) -> Components {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.as_bytes().to_vec()),
            _ => None,
        })
        .collect()
}

/// The absolute path of components.
pub fn to_path(components: &[Vec<u8>]) -> PathBuf {
    let mut path = PathBuf::from("/");
    path.extend(components.iter().map(|name| OsStr::from_bytes(name)));
    path
}

/// Reads one line; the error names the field.
fn mount(line: &[u8]) -> Result<Mount, &'static str> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut next = |field| fields.next().filter(|text| !text.is_empty()).ok_or(field);
    let id = number(next("mount id")?).ok_or("mount id")?;
    let parent = number(next("parent id")?).ok_or("parent id")?;
    let dev = next("device")?;
    let colon = dev.iter().position(|byte| *byte == b':').ok_or("device")?;
    let major = number(&dev[..colon]).filter(|major| *major < 1 << 12).ok_or("device")?;
    let minor = number(&dev[colon + 1..]).filter(|minor| *minor < 1 << 20).ok_or("device")?;
    let root = components(next("root")?);
    let point = components(next("mount point")?);
    next("options")?;
    while next("separator")? != b"-" {}
    let fs_type = String::from_utf8_lossy(&unescape(next("file system type")?)).into_owned();
    Ok(Mount { id, parent, dev: kernel_dev(major, minor), root, point, fs_type })
}

fn number(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Splits an escaped path. The kernel appends `//deleted` to the path of a removed directory, which
/// is none of its components.
fn components(text: &[u8]) -> Components {
    text.strip_suffix(b"//deleted")
        .unwrap_or(text)
        .split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty())
        .map(unescape)
        .collect()
}

/// Replaces `\ooo`, three octal digits, by the byte it stands for.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let escaped = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &rest[4..] } else { tail };
    }
    bytes
}

/// The mounts that a path walk from the root can reach, by mount point.
///
/// A walk enters what is mounted on a mount's own root (stacked mounts), and never sees a mount
/// whose mount point another mount of the same parent covers.
fn visible(mounts: &[Mount]) -> BTreeMap<Components, usize> {
    let index: HashMap<u32, usize> =
        mounts.iter().enumerate().map(|(index, mount)| (mount.id, index)).collect();
    let mut children: HashMap<Option<usize>, Vec<usize>> = HashMap::new();
    for (child, mount) in mounts.iter().enumerate() {
        // The root's parent lies outside the table, or is the root itself.
        let parent = index.get(&mount.parent).copied().filter(|parent| *parent != child);
        children.entry(parent).or_default().push(child);
    }
    let mut reached = BTreeMap::new();
    let mut parents = vec![None];
    while let Some(parent) = parents.pop() {
        let mut points: BTreeMap<&[Vec<u8>], usize> = BTreeMap::new();
        for child in children.remove(&parent).unwrap_or_default() {
            points.insert(&mounts[child].point, child);
        }
        // Sorted by components, a covering mount point comes right before what it covers.
        let mut last: Option<&[Vec<u8>]> = None;
        for (point, child) in points {
            if last.is_some_and(|cover| point.starts_with(cover)) {
                continue;
            }
            last = Some(point);
            reached.insert(point.to_vec(), child);
            parents.push(Some(child));
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fmt::Write as _;

    fn table(lines: &[&str]) -> MountTable {
        let text: String = lines.iter().fold(String::new(), |mut text, line| {
            let _ = writeln!(text, "{line} rw,relatime shared:1 master:2 - ext4 /dev/x rw");
            text
        });
        MountTable::parse(text.as_bytes()).unwrap()
    }

    fn at(path: &str) -> Components {
        to_components(Path::new(path))
    }

    fn locate(table: &MountTable, path: &str) -> Option<(u32, PathBuf)> {
        table.locate(&at(path)).map(|(dev, place)| (dev, to_path(&place)))
    }

    fn place(major: u32, minor: u32, path: &str) -> (u32, PathBuf) {
        (kernel_dev(major, minor), PathBuf::from(path))
    }

    #[test]
    fn reads_a_line() {
        let line = b"36 35 98:0 /mnt1\\040x /mnt\\011\\134\\0402 rw,noatime master:1 - fuse.x\\040y /dev/root rw\n";
        let table = MountTable::parse(line).unwrap();
        assert_eq!(
            table.mounts(),
            [Mount {
                id: 36,
                parent: 35,
                dev: 98 << 20,
                root: at("/mnt1 x"),
                point: vec![b"mnt\t\\ 2".to_vec()],
                fs_type: "fuse.x y".into(),
            }]
        );
    }

    #[test]
    fn a_removed_directory_keeps_its_name() {
        let table = table(&["1 0 8:1 /a/b//deleted /mnt"]);
        assert_eq!(table.mounts()[0].root, at("/a/b"));
    }

    #[test]
    fn refuses_malformed_lines() {
        for (line, field) in [
            ("x 35 98:0 / / rw - a b c", "mount id"),
            ("36 35 98 / / rw - a b c", "device"),
            ("36 35 4096:0 / / rw - a b c", "device"),
            ("36 35 98:1048576 / / rw - a b c", "device"),
            ("36 35 98:0 /", "mount point"),
            ("36 35 98:0 / / rw master:1", "separator"),
            ("36 35 98:0 / / rw -", "file system type"),
        ] {
            let text = format!("1 0 8:1 / / rw - a b c\n{line}\n");
            let error = MountTable::parse(text.as_bytes()).expect_err(line);
            assert!(
                matches!(error, MountError::Parse { line: 2, field: found } if found == field),
                "{line}: {error}"
            );
        }
    }

    #[test]
    fn the_deepest_mount_holds_a_path() {
        let table = table(&["1 1 8:1 / /", "2 1 8:2 / /home", "3 2 8:3 /sub/dir /home/u/mnt"]);
        assert_eq!(locate(&table, "/"), Some(place(8, 1, "/")));
        assert_eq!(locate(&table, "/homes/x"), Some(place(8, 1, "/homes/x")));
        assert_eq!(locate(&table, "/home"), Some(place(8, 2, "/")));
        assert_eq!(locate(&table, "/home/u"), Some(place(8, 2, "/u")));
        assert_eq!(locate(&table, "/home/u/mnt/x"), Some(place(8, 3, "/sub/dir/x")));
        let beneath = |path| table.beneath(&at(path)).map(|mount| mount.id).collect::<Vec<_>>();
        assert_eq!(beneath("/"), [2, 3]);
        assert_eq!(beneath("/home"), [3]);
        assert_eq!(beneath("/home/u/mnt"), [] as [u32; 0]);
    }

    #[test]
    fn a_later_mount_hides_an_earlier_one() {
        // 3 lies on the root of 2; 4 was mounted on 2 before that and cannot be reached.
        let table = table(&["1 0 8:1 / /", "2 1 8:2 / /a", "4 2 8:4 / /a/b", "3 2 8:3 / /a"]);
        assert_eq!(locate(&table, "/a/b/c"), Some(place(8, 3, "/b/c")));
        assert_eq!(table.show(kernel_dev(8, 2), &at("/x")), None);
        assert_eq!(table.show(kernel_dev(8, 4), &at("/x")), None);
        assert_eq!(table.show(kernel_dev(8, 3), &at("/x")), Some("/a/x".into()));
    }

    #[test]
    fn a_mount_over_a_parent_hides_what_lies_beneath() {
        let table = table(&["1 0 8:1 / /", "2 1 8:2 / /a/b", "3 1 8:3 / /a", "4 3 8:4 / /a/b/c"]);
        assert_eq!(locate(&table, "/a/b"), Some(place(8, 3, "/b")));
        assert_eq!(locate(&table, "/a/b/c/d"), Some(place(8, 4, "/d")));
        assert_eq!(table.show(kernel_dev(8, 1), &at("/a/x")), None);
        assert_eq!(table.show(kernel_dev(8, 1), &at("/ax")), Some("/ax".into()));
    }

    #[test]
    fn shows_the_whole_file_system_first() {
        let table = table(&["1 0 8:1 / /", "2 1 8:2 /data /mnt", "3 1 8:2 / /srv"]);
        assert_eq!(table.show(kernel_dev(8, 2), &at("/data/x")), Some("/srv/data/x".into()));
        assert_eq!(table.show(kernel_dev(8, 9), &at("/data/x")), None);
        let views: Vec<_> =
            table.views(kernel_dev(8, 2), &at("/data")).map(|(m, _)| m.id).collect();
        assert_eq!(views, [3, 2]);
    }

    #[test]
    fn without_a_root_mount_there_is_no_place() {
        let table = table(&["7 3 0:5 / /proc"]);
        assert_eq!(locate(&table, "/etc"), None);
        assert_eq!(locate(&table, "/proc/1"), Some(place(0, 5, "/1")));
    }

    #[test]
    fn reads_this_machines_table() {
        let table = MountTable::read(None).unwrap();
        let dev = rustix::fs::stat("/proc").unwrap().st_dev;
        let expected = kernel_dev(rustix::fs::major(dev), rustix::fs::minor(dev));
        assert_eq!(table.locate(&at("/proc")), Some((expected, vec![])));
    }

    fn name() -> impl Strategy<Value = Vec<u8>> {
        let byte = any::<u8>().prop_filter("no name has it", |byte| *byte != 0 && *byte != b'/');
        proptest::collection::vec(byte, 1..12)
            .prop_filter("no name", |name| name != b"." && name != b"..")
    }

    /// As `mangle` of `fs/seq_file.c` with the set of `show_mountinfo`.
    fn escape(components: &[Vec<u8>]) -> Vec<u8> {
        let mut text = Vec::new();
        for component in components {
            text.push(b'/');
            for byte in component {
                if b" \t\n\\#".contains(byte) {
                    text.extend_from_slice(format!("\\{byte:03o}").as_bytes());
                } else {
                    text.push(*byte);
                }
            }
        }
        if text.is_empty() { b"/".to_vec() } else { text }
    }

    proptest! {
        #[test]
        fn reads_back_what_the_kernel_writes(
            id in any::<u32>(), parent in any::<u32>(),
            major in 0u32..1 << 12, minor in 0u32..1 << 20,
            root in proptest::collection::vec(name(), 0..5),
            point in proptest::collection::vec(name(), 0..5),
            tags in 0usize..3,
        ) {
            let mut line = format!("{id} {parent} {major}:{minor} ").into_bytes();
            line.extend(escape(&root));
            line.push(b' ');
            line.extend(escape(&point));
            line.extend(b" rw".iter().chain(b" shared:7".repeat(tags).iter()));
            line.extend(b" - tmpfs none rw\n");
            let table = MountTable::parse(&line).unwrap();
            let dev = kernel_dev(major, minor);
            let mount = Mount { id, parent, dev, root, point, fs_type: "tmpfs".into() };
            prop_assert_eq!(table.mounts(), std::slice::from_ref(&mount));
            prop_assert_eq!(table.locate(&mount.point), Some((dev, mount.root)));
        }

        #[test]
        fn never_panics(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = MountTable::parse(&text);
        }
    }
}
