//! Writes an initramfs: the "newc" format of the kernel's
//! `Documentation/driver-api/early-userspace/buffer-format.rst`.

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};

/// Six digits of magic and thirteen fields of eight.
const HEADER: usize = 6 + 13 * 8;
const DIRECTORY: u32 = 0o040_000;
const FILE: u32 = 0o100_000;
const CHARACTER_DEVICE: u32 = 0o020_000;

/// An archive being written; everything in it belongs to root.
pub(crate) struct Archive<W> {
    sink: W,
    next_inode: u32,
    directories: HashSet<PathBuf>,
}

struct Entry<'a> {
    name: &'a [u8],
    mode: u32,
    device: (u32, u32),
    data: &'a [u8],
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(sink: W) -> Self {
        Self { sink, next_inode: 1, directories: HashSet::new() }
    }

    /// A file at an absolute path, with its permission bits; its directories are made as needed.
    pub(crate) fn file(&mut self, path: &Path, mode: u32, data: &[u8]) -> io::Result<()> {
        self.parents(path)?;
        let mode = FILE | (mode & 0o7777);
        self.entry(&Entry { name: name(path)?, mode, device: (0, 0), data })
    }

    /// A directory at an absolute path; once is enough.
    pub(crate) fn directory(&mut self, path: &Path) -> io::Result<()> {
        if path == Path::new("/") || self.directories.contains(path) {
            return Ok(());
        }
        self.parents(path)?;
        self.directories.insert(path.to_owned());
        let mode = DIRECTORY | 0o755;
        self.entry(&Entry { name: name(path)?, mode, device: (0, 0), data: &[] })
    }

    /// A character device, by major and minor number.
    pub(crate) fn character_device(&mut self, path: &Path, device: (u32, u32)) -> io::Result<()> {
        self.parents(path)?;
        self.entry(&Entry { name: name(path)?, mode: CHARACTER_DEVICE | 0o600, device, data: &[] })
    }

    /// Writes the end mark and gives the sink back.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.entry(&Entry { name: b"TRAILER!!!", mode: 0, device: (0, 0), data: &[] })?;
        Ok(self.sink)
    }

    fn parents(&mut self, path: &Path) -> io::Result<()> {
        path.parent().map_or(Ok(()), |parent| self.directory(parent))
    }

    fn entry(&mut self, entry: &Entry<'_>) -> io::Result<()> {
        let too_large = |_| io::Error::other("too large for an initramfs");
        let size = u32::try_from(entry.data.len()).map_err(too_large)?;
        let name_size = u32::try_from(entry.name.len() + 1).map_err(too_large)?;
        let inode = self.next_inode;
        self.next_inode += 1;
        let (major, minor) = entry.device;
        // ino mode uid gid nlink mtime filesize devmajor devminor rdevmajor rdevminor namesize check
        let fields = [inode, entry.mode, 0, 0, 1, 0, size, 0, 0, major, minor, name_size, 0];
        write!(self.sink, "070701")?;
        for field in fields {
            write!(self.sink, "{field:08X}")?;
        }
        self.sink.write_all(entry.name)?;
        self.sink.write_all(b"\0")?;
        self.pad(HEADER + entry.name.len() + 1)?;
        self.sink.write_all(entry.data)?;
        self.pad(entry.data.len())
    }

    fn pad(&mut self, written: usize) -> io::Result<()> {
        self.sink.write_all(&[0; 3][..written.next_multiple_of(4) - written])
    }
}

/// The path as the archive has it: relative to the root, with nothing to resolve.
fn name(path: &Path) -> io::Result<&[u8]> {
    let plain = path.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
    match path.strip_prefix("/") {
        Ok(name) if plain => Ok(name.as_os_str().as_encoded_bytes()),
        _ => Err(io::Error::other(format!("not a plain absolute path: {}", path.display()))),
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    fn sample() -> Vec<u8> {
        let mut archive = Archive::new(Vec::new());
        archive.file(Path::new("/init"), 0o755, b"12345").expect("file");
        archive.file(Path::new("/a/b/c"), 0o600, b"").expect("file");
        archive.file(Path::new("/a/b/d"), 0o600, b"x").expect("file");
        archive.character_device(Path::new("/dev/console"), (5, 1)).expect("device");
        archive.finish().expect("trailer")
    }

    /// Reads the archive back: (name, mode, rdev minor, data).
    fn entries(mut bytes: &[u8]) -> Vec<(String, u32, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        loop {
            let text = std::str::from_utf8(&bytes[..110]).expect("header is text");
            assert_eq!(&text[..6], "070701");
            let field = |index: usize| {
                let at = 6 + 8 * index;
                u32::from_str_radix(&text[at..at + 8], 16).expect("hexadecimal")
            };
            let (size, name_size) = (field(6) as usize, field(11) as usize);
            let name = String::from_utf8(bytes[110..110 + name_size - 1].to_vec()).expect("name");
            let data = (110 + name_size).next_multiple_of(4);
            if name == "TRAILER!!!" {
                assert_eq!(bytes.len(), data, "nothing after the end mark");
                return entries;
            }
            entries.push((name, field(1), field(10), bytes[data..data + size].to_vec()));
            bytes = &bytes[(data + size).next_multiple_of(4)..];
        }
    }

    #[test]
    fn directories_come_before_what_is_in_them_and_once() {
        let found = entries(&sample());
        let names: Vec<_> = found.iter().map(|entry| entry.0.as_str()).collect();
        assert_eq!(names, ["init", "a", "a/b", "a/b/c", "a/b/d", "dev", "dev/console"]);
        assert_eq!(found[0].1, 0o100_755);
        assert_eq!(found[0].3, b"12345");
        assert_eq!(found[1].1, 0o040_755);
        assert_eq!((found[6].1, found[6].2), (0o020_600, 1));
    }

    #[test]
    fn paths_with_something_to_resolve_are_refused() {
        let mut archive = Archive::new(Vec::new());
        assert!(archive.file(Path::new("relative"), 0o644, b"").is_err());
        assert!(archive.file(Path::new("/a/../b"), 0o644, b"").is_err());
    }

    /// Another reader agrees, where there is one.
    #[test]
    fn the_cpio_program_reads_it() {
        let Ok(mut child) = Command::new("cpio")
            .args(["--list", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
        else {
            return;
        };
        child.stdin.take().expect("piped").write_all(&sample()).expect("cpio reads");
        let output = child.wait_with_output().expect("cpio ends");
        assert!(output.status.success());
        assert_eq!(output.stdout, b"init\na\na/b\na/b/c\na/b/d\ndev\ndev/console\n");
    }
}
