//! The places: all in one memory file system, the workspace three directories down in it.

use anyhow::{Context as _, Result};
use sandbox_benches::report::DEPTHS;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// A memory file system of its own, and the home of the user.
const HOME: &str = "/root";
/// Three directories down.
const WORKSPACE: &str = "/root/src/bench/app";
/// Where rules lead that deny.
const ELSEWHERE: &str = "/root/elsewhere";

/// How many trees there are to be visited for the first time.
pub(crate) const TREES: u32 = 4;
/// Directories of a tree on each of its levels, and files in each of the last.
const FAN: [u32; 4] = [5, 5, 8, 10];

pub(crate) fn home() -> &'static Path {
    Path::new(HOME)
}

pub(crate) fn workspace() -> &'static Path {
    Path::new(WORKSPACE)
}

/// A file that the policies with spelled-out rules deny.
pub(crate) fn secret() -> PathBuf {
    Path::new(ELSEWHERE).join("secret")
}

/// A file that the preset denies.
pub(crate) fn key() -> PathBuf {
    home().join(".ssh/id_ed25519")
}

/// A file that the patterns deny.
pub(crate) fn dotenv() -> PathBuf {
    workspace().join("level-1/.env")
}

/// A place for the rule of this number; nothing is there.
pub(crate) fn place(number: u32) -> PathBuf {
    let (directory, file) = (number / 100, number % 100);
    Path::new(ELSEWHERE).join(format!("place-{directory}/file-{file}"))
}

/// A program of two instructions.
pub(crate) fn program() -> PathBuf {
    workspace().join("program")
}

/// The file that lies so many components beneath the workspace.
pub(crate) fn file(depth: u32) -> PathBuf {
    directory(depth).join("file")
}

/// Its directory.
pub(crate) fn directory(depth: u32) -> PathBuf {
    (1..depth).fold(workspace().to_owned(), |path, level| path.join(format!("level-{level}")))
}

/// The files of a tree, directory by directory, each five components beneath the workspace.
pub(crate) fn tree(number: u32) -> Vec<PathBuf> {
    let [first, second, third, files] = FAN;
    let root = workspace().join(format!("tree-{number}"));
    let mut paths = Vec::new();
    for directory in 0..first * second * third {
        let [a, b, c] =
            [directory / (second * third), directory / third % second, directory % third];
        let directory = root.join(format!("a-{a}/b-{b}/c-{c}"));
        paths.extend((0..files).map(|file| directory.join(format!("file-{file}"))));
    }
    paths
}

/// Makes everything.
pub(crate) fn make() -> Result<()> {
    for depth in DEPTHS {
        write(&file(depth), b"content")?;
    }
    for number in 0..TREES {
        for file in tree(number) {
            write(&file, b"content")?;
        }
    }
    for file in [secret(), key(), dotenv()] {
        write(&file, b"secret")?;
    }
    write(&program(), &elf())?;
    fs::set_permissions(program(), fs::Permissions::from_mode(0o755))?;
    Ok(())
}

fn write(file: &Path, content: &[u8]) -> Result<()> {
    let directory = file.parent().context("a file without a directory")?;
    fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    fs::write(file, content).with_context(|| format!("writing {}", file.display()))
}

/// A static program that ends at once: the headers of elf(5) and `exit(0)`.
fn elf() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u16 = 64 + 56;
    // xor edi, edi; mov eax, 60; syscall
    const CODE: [u8; 9] = [0x31, 0xff, 0xb8, 60, 0, 0, 0, 0x0f, 0x05];
    let size = u64::from(HEADERS) + CODE.len() as u64;
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    let half = |elf: &mut Vec<u8>, values: &[u16]| {
        elf.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    };
    let word = |elf: &mut Vec<u8>, values: &[u32]| {
        elf.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    };
    let long = |elf: &mut Vec<u8>, values: &[u64]| {
        elf.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    };
    // An executable for x86-64, its entry, where the program headers are, none for sections.
    half(&mut elf, &[2, 62]);
    word(&mut elf, &[1]);
    long(&mut elf, &[BASE + u64::from(HEADERS), 64, 0]);
    word(&mut elf, &[0]);
    half(&mut elf, &[64, 56, 1, 0, 0, 0]);
    // One segment, readable and executable: the whole file.
    word(&mut elf, &[1, 5]);
    long(&mut elf, &[0, BASE, BASE, size, size, 0x1000]);
    elf.extend(CODE);
    elf
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_benches::report::TREE_FILES;
    use std::collections::BTreeSet;

    fn depth(path: &Path) -> usize {
        path.strip_prefix(workspace()).expect("in the workspace").components().count()
    }

    #[test]
    fn files_lie_as_deep_as_they_say() {
        for wanted in DEPTHS {
            assert_eq!(depth(&file(wanted)), usize::try_from(wanted).expect("small"));
        }
        assert_eq!(workspace().strip_prefix(home()).expect("at home").components().count(), 3);
    }

    #[test]
    fn a_tree_is_as_large_as_it_says() {
        let files = tree(0);
        assert_eq!(
            files.iter().collect::<BTreeSet<_>>().len(),
            usize::try_from(TREE_FILES).unwrap()
        );
        assert!(files.iter().all(|file| depth(file) == 5));
        let directories: BTreeSet<_> = files.iter().filter_map(|file| file.parent()).collect();
        assert_eq!(directories.len(), 200);
    }

    #[test]
    fn the_program_runs() -> Result<()> {
        let file = std::env::temp_dir().join(format!("bench-program-{}", std::process::id()));
        fs::write(&file, elf())?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        let status = std::process::Command::new(&file).status();
        fs::remove_file(&file)?;
        assert!(status?.success());
        Ok(())
    }
}
