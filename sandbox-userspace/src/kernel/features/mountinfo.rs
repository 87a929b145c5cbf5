//! The few things that are needed of a mount table before any policy exists.

use sandbox_common::path::kernel_dev;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

/// A line of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// `super_block.s_dev`, kernel encoding.
    pub(crate) dev: u32,
    /// The directory of the superblock that is mounted.
    pub(crate) root: PathBuf,
    /// Where.
    pub(crate) at: PathBuf,
    /// Type of the file system.
    pub(crate) kind: String,
}

/// Reads the table (`proc_pid_mountinfo(5)`); lines that do not have its form are left out.
pub(crate) fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(line).collect()
}

fn line(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|byte| *byte == b' ').skip(2);
    let (major, minor) = std::str::from_utf8(words.next()?).ok()?.split_once(':')?;
    let dev = kernel_dev(major.parse().ok()?, minor.parse().ok()?);
    let (root, at) = (unescape(words.next()?), unescape(words.next()?));
    let kind = words.skip_while(|word| *word != b"-").nth(1)?;
    Some(Mount { dev, root, at, kind: String::from_utf8_lossy(kind).into_owned() })
}

/// The place of a path without symbolic links: its superblock, and the names from its root down.
pub(crate) fn locate(mounts: &[Mount], path: &Path) -> Option<(u32, Vec<Vec<u8>>)> {
    // Of those mounted at the deepest place, the last is the one that is seen.
    let mount = mounts
        .iter()
        .filter(|mount| path.starts_with(&mount.at))
        .max_by_key(|mount| mount.at.components().count())?;
    let place = mount.root.join(path.strip_prefix(&mount.at).ok()?);
    let names = place.iter().skip(1).map(|name| name.as_bytes().to_vec()).collect();
    Some((mount.dev, names))
}

/// `\040` and the like become the bytes they stand for.
fn unescape(word: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, tail @ ..] = rest {
        if let [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] = rest {
            out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
            rest = after;
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    OsString::from_vec(out).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
27 1 254:1 / / rw,relatime - ext4 /dev/vda rw
31 23 0:28 /sub /run rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /run rw,relatime shared:4 master:2 - tmpfs tmpfs rw,cpu
41 31 0:38 / /sys/fs/cgroup/uni\\040fied rw,relatime shared:9 - cgroup2 cgroup2 rw
42 31 0:39 /a/b /mnt rw - btrfs x rw
garbage
43 31 0-39 / /mnt rw - btrfs x rw
";

    #[test]
    fn the_table() {
        let mounts = parse(TABLE.as_bytes());
        assert_eq!(mounts.len(), 5);
        assert_eq!(mounts[0].dev, 254 << 20 | 1);
        assert_eq!(mounts[1].root, Path::new("/sub"));
        assert_eq!(mounts[2].kind, "tmpfs");
        assert_eq!(mounts[3].at, Path::new("/sys/fs/cgroup/uni fied"));
        assert_eq!(unescape(b"a\\134\\040b\\9\\04"), Path::new("a\\ b\\9\\04"));
    }

    #[test]
    fn places() {
        let mounts = parse(TABLE.as_bytes());
        let locate = |path: &str| {
            let (dev, names) = locate(&mounts, Path::new(path)).unwrap();
            (
                dev,
                names
                    .iter()
                    .map(|name| String::from_utf8_lossy(name))
                    .collect::<Vec<_>>()
                    .join("/"),
            )
        };
        assert_eq!(locate("/run/x"), (29, "x".into()));
        assert_eq!(locate("/runner/x"), (254 << 20 | 1, "runner/x".into()));
        assert_eq!(locate("/mnt/c/d"), (39, "a/b/c/d".into()));
        assert_eq!(locate("/mnt"), (39, "a/b".into()));
        assert_eq!(locate("/"), (254 << 20 | 1, String::new()));
    }
}
