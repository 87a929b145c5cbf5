//! One operation of the differential test: how it travels to the member, and how it is performed.

use anyhow::{Context as _, bail};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, Timestamps, XattrFlags};
use rustix::io::Errno;
use std::ffi::{CString, OsStr};
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// An extended attribute that every file system of the test can hold, or none.
pub(crate) const ATTRIBUTE: &str = "user.differential";

/// Whether files in a directory can have it: in a tmpfs only since 6.6.
pub(crate) fn attributes_are_kept(directory: &Path) -> bool {
    rustix::fs::setxattr(directory, ATTRIBUTE, b"x", XattrFlags::empty()).is_ok()
}

/// What is done. Flags are the kernel's own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Action {
    /// `openat`; the number is its flags. Nothing is read or written.
    Open,
    Mkdir,
    /// A FIFO.
    Mknod,
    /// The second path is the target, from the zone's root where the number is 1.
    Symlink,
    Link,
    /// `renameat2`; the number is its flags.
    Rename,
    Unlink,
    Rmdir,
    Truncate,
    Chmod,
    /// Of a symbolic link itself where the number is 1.
    Chown,
    /// As `Chown`.
    Times,
    SetAttribute,
    RemoveAttribute,
    /// `execve` of a file without content.
    Execute,
    Stat,
    /// By the outsider, before the session: the first path is seen at the second too.
    Bind,
    /// By the outsider, before the session: a file system of its own.
    Mount,
}

/// Every action, in the order of their numbers.
pub(crate) const ACTIONS: [Action; 18] = [
    Action::Open,
    Action::Mkdir,
    Action::Mknod,
    Action::Symlink,
    Action::Link,
    Action::Rename,
    Action::Unlink,
    Action::Rmdir,
    Action::Truncate,
    Action::Chmod,
    Action::Chown,
    Action::Times,
    Action::SetAttribute,
    Action::RemoveAttribute,
    Action::Execute,
    Action::Stat,
    Action::Bind,
    Action::Mount,
];

/// An action and its paths, which are spelled from the root of a zone.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Op {
    pub(crate) action: Action,
    pub(crate) number: u32,
    pub(crate) path: Vec<u8>,
    /// Empty where the action has one path.
    pub(crate) second: Vec<u8>,
}

impl Op {
    pub(crate) fn new(action: Action, path: Vec<u8>) -> Self {
        Self { action, number: 0, path, second: Vec::new() }
    }

    pub(crate) fn number(self, number: u32) -> Self {
        Self { number, ..self }
    }

    pub(crate) fn second(self, second: Vec<u8>) -> Self {
        Self { second, ..self }
    }

    pub(crate) fn flags(&self) -> i32 {
        self.number.cast_signed()
    }

    /// Appends it as it travels: zone, action, number, and both paths with their lengths.
    pub(crate) fn encode(&self, zone: u8, bytes: &mut Vec<u8>) -> anyhow::Result<()> {
        bytes.extend([zone, self.action as u8]);
        bytes.extend(self.number.to_le_bytes());
        for path in [&self.path, &self.second] {
            bytes.extend(u16::try_from(path.len())?.to_le_bytes());
            bytes.extend(path);
        }
        Ok(())
    }

    /// Takes one off the bytes.
    pub(crate) fn decode(bytes: &mut &[u8]) -> anyhow::Result<(u8, Self)> {
        let [zone, action] = take(bytes)?;
        let action = *ACTIONS.get(usize::from(action)).context("no such action")?;
        let number = u32::from_le_bytes(take(bytes)?);
        let mut path = || -> anyhow::Result<Vec<u8>> {
            let length = usize::from(u16::from_le_bytes(take(bytes)?));
            let (path, rest) = bytes.split_at_checked(length).context("a path is cut off")?;
            *bytes = rest;
            Ok(path.to_vec())
        };
        let (path, second) = (path()?, path()?);
        Ok((zone, Self { action, number, path, second }))
    }

    /// Performs it beneath the root of a zone; gives 0 or the error's number.
    pub(crate) fn perform(&self, zone: &Path) -> i32 {
        let result = self.attempt(zone, &at(zone, &self.path));
        result.map_or_else(Errno::raw_os_error, |()| 0)
    }

    fn attempt(&self, zone: &Path, path: &Path) -> Result<(), Errno> {
        use rustix::fs as f;
        let second = || at(zone, &self.second);
        let nofollow = if self.number == 1 { AtFlags::SYMLINK_NOFOLLOW } else { AtFlags::empty() };
        match self.action {
            Action::Open => {
                let flags = OFlags::from_bits_retain(self.number);
                f::open(path, flags, Mode::from(0o755)).map(drop)
            }
            Action::Mkdir => f::mkdir(path, Mode::from(0o755)),
            Action::Mknod => f::mknodat(CWD, path, FileType::Fifo, Mode::from(0o755), 0),
            Action::Symlink if self.number == 1 => f::symlink(second(), path),
            Action::Symlink => f::symlink(OsStr::from_bytes(&self.second), path),
            Action::Link => f::link(path, second()),
            Action::Rename => {
                let flags = RenameFlags::from_bits_retain(self.number);
                f::renameat_with(CWD, path, CWD, second(), flags)
            }
            Action::Unlink => f::unlink(path),
            Action::Rmdir => f::rmdir(path),
            Action::Truncate => truncate(path),
            Action::Chmod => f::chmod(path, Mode::from(self.number)),
            Action::Chown => {
                let owner = Some(f::Uid::from_raw(7));
                f::chownat(CWD, path, owner, None, nofollow)
            }
            Action::Times => {
                let time = f::Timespec { tv_sec: 7, tv_nsec: 0 };
                let times = Timestamps { last_access: time, last_modification: time };
                f::utimensat(CWD, path, &times, nofollow)
            }
            Action::SetAttribute => f::setxattr(path, ATTRIBUTE, b"x", XattrFlags::empty()),
            Action::RemoveAttribute => f::removexattr(path, ATTRIBUTE),
            Action::Execute => execute(path),
            Action::Stat => f::lstat(path).map(drop),
            Action::Bind => rustix::mount::mount_bind(path, second()),
            Action::Mount => rustix::mount::mount(
                "tmpfs",
                path,
                "tmpfs",
                rustix::mount::MountFlags::empty(),
                None,
            ),
        }
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> anyhow::Result<[u8; N]> {
    let Some((taken, rest)) = bytes.split_first_chunk() else { bail!("an operation is cut off") };
    *bytes = rest;
    Ok(*taken)
}

/// The absolute path of one that is spelled from the zone's root.
pub(crate) fn at(zone: &Path, path: &[u8]) -> PathBuf {
    let mut bytes = zone.as_os_str().as_bytes().to_vec();
    if !path.is_empty() {
        bytes.push(b'/');
        bytes.extend(path);
    }
    OsStr::from_bytes(&bytes).into()
}

fn c_path(path: &Path) -> Result<CString, Errno> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

fn truncate(path: &Path) -> Result<(), Errno> {
    let path = c_path(path)?;
    // SAFETY: the path is a valid string for the call.
    let result = unsafe { libc::truncate(path.as_ptr(), 0) };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// No file of the test holds a program, so that it always comes back: `ENOEXEC` is as far as one
/// that may be run gets.
fn execute(path: &Path) -> Result<(), Errno> {
    let path = c_path(path)?;
    let arguments = [path.as_ptr(), std::ptr::null()];
    let environment = [std::ptr::null()];
    // SAFETY: valid strings, and arrays of them that end with a null pointer.
    unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    match last_error() {
        Errno::NOEXEC => Ok(()),
        error => Err(error),
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { action, number, path, second } = self;
        write!(f, "{action:?} \"{}\"", path.escape_ascii())?;
        if !second.is_empty() {
            write!(f, ", \"{}\"", second.escape_ascii())?;
        }
        match action {
            Action::Open | Action::Rename if *number != 0 => write!(f, ", flags {number:#o}"),
            Action::Chmod => write!(f, ", mode {number:#o}"),
            _ if *number != 0 => write!(f, ", {number}"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_travel_unchanged() -> anyhow::Result<()> {
        let mut bytes = Vec::new();
        let ops = ACTIONS.map(|action| {
            Op::new(action, b"a\n\xff".to_vec()).number(7).second(action_name(action))
        });
        for op in &ops {
            op.encode(3, &mut bytes)?;
        }
        let mut rest = bytes.as_slice();
        for op in &ops {
            assert_eq!(Op::decode(&mut rest)?, (3, op.clone()));
        }
        assert!(rest.is_empty());
        assert!(Op::decode(&mut &bytes[..9]).is_err());
        Ok(())
    }

    fn action_name(action: Action) -> Vec<u8> {
        format!("{action:?}").into_bytes()
    }
}
