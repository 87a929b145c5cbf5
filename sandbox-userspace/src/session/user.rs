//! Who the agent runs as.
//!
//! /etc/passwd and /etc/group are read directly: the program is linked statically and cannot load
//! name service modules.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The agent's user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Login name.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Primary group id.
    pub gid: u32,
    /// All groups, the primary one first.
    pub groups: Vec<u32>,
    /// Home directory, absolute.
    pub home: PathBuf,
    /// Login shell.
    pub shell: PathBuf,
    /// The user differs from the one that runs `sandbox`.
    pub changed: bool,
}

/// No user could be determined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UserError {
    /// A file could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// It is not in /etc/passwd.
    #[error("user {0:?} is not in /etc/passwd; name one that is with --user")]
    Unknown(String),
    /// The entry cannot be used.
    #[error(
        "the home directory of {name} is {home:?}, which is no absolute path; correct /etc/passwd"
    )]
    Home {
        /// The user.
        name: String,
        /// What its entry says.
        home: PathBuf,
    },
}

impl User {
    /// The one named by `--user`, else the one who called sudo, else the caller (root), whose home
    /// may come from `HOME`.
    pub fn choose(
        option: Option<&str>,
        sudo: Option<&OsStr>,
        home: Option<OsString>,
    ) -> Result<Self, UserError> {
        // Small systems have root and no such files.
        let read = |path| match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            other => other.map_err(|source| UserError::Read { path, source }),
        };
        let passwd = read("/etc/passwd")?;
        let group = read("/etc/group")?;
        let sudo = sudo.map(OsStr::to_string_lossy).filter(|name| !name.is_empty());
        let sudo = sudo.as_deref().filter(|name| *name != "root");
        if let Some(name) = option.or(sudo) {
            return Self::named(name, &passwd, &group);
        }
        let mut user = match Self::named("root", &passwd, &group) {
            Err(UserError::Unknown(_)) => Self::root(),
            other => other?,
        };
        if let Some(home) = home.map(PathBuf::from).filter(|home| home.is_absolute()) {
            user.home = home;
        }
        Ok(user)
    }

    /// Root where /etc/passwd does not have it.
    fn root() -> Self {
        Self {
            name: "root".into(),
            uid: 0,
            gid: 0,
            groups: vec![0],
            home: "/root".into(),
            shell: "/bin/sh".into(),
            changed: false,
        }
    }

    fn named(name: &str, passwd: &[u8], group: &[u8]) -> Result<Self, UserError> {
        let unknown = || UserError::Unknown(name.into());
        let entry = lines(passwd)
            .find(|fields| fields.first() == Some(&name.as_bytes()))
            .ok_or_else(unknown)?;
        let [_, _, uid, gid, _, home, shell @ ..] = entry.as_slice() else {
            return Err(unknown());
        };
        let (Some(uid), Some(gid)) = (number(uid), number(gid)) else { return Err(unknown()) };
        let home = Path::new(OsStr::from_bytes(home));
        if !home.is_absolute() {
            return Err(UserError::Home { name: name.into(), home: home.into() });
        }
        let shell = match shell {
            [shell, ..] if !shell.is_empty() => OsStr::from_bytes(shell),
            _ => OsStr::new("/bin/sh"),
        };
        let mut groups = vec![gid];
        for fields in lines(group) {
            let [_, _, id, members, ..] = fields.as_slice() else { continue };
            let Some(id) = number(id) else { continue };
            let member = members.split(|&b| b == b',').any(|m| m == name.as_bytes());
            if member && !groups.contains(&id) {
                groups.push(id);
            }
        }
        Ok(Self {
            name: name.into(),
            uid,
            gid,
            groups,
            home: home.into(),
            shell: shell.into(),
            changed: uid != 0,
        })
    }

    /// Whether the mode bits of a file let this user do what `bits` (of `rwx`, octal) asks.
    pub fn may(&self, mode: u32, uid: u32, gid: u32, bits: u32) -> bool {
        if self.uid == 0 {
            // Root needs one execute bit anywhere and nothing else.
            return bits & 1 == 0 || mode & 0o111 != 0;
        }
        let shift = match () {
            () if uid == self.uid => 6,
            () if self.groups.contains(&gid) => 3,
            () => 0,
        };
        mode >> shift & bits == bits
    }
}

/// Fields of the lines of passwd(5) and group(5).
fn lines(text: &[u8]) -> impl Iterator<Item = Vec<&[u8]>> {
    text.split(|&b| b == b'\n')
        .filter(|line| !line.is_empty() && line[0] != b'#')
        .map(|line| line.split(|&b| b == b':').collect())
}

fn number(field: &[u8]) -> Option<u32> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] = b"\
root:x:0:0:root:/root:/bin/bash
# a comment:x:1
ann:x:1000:1000:Ann,,,:/home/ann:/usr/bin/zsh
bob:x:1001:1001::/home/b\xf6b:
nohome:x:1002:1002::relative:/bin/sh
broken:x:many:1
short:x\n";
    const GROUP: &[u8] =
        b"root:x:0:\nann:x:1000:\ndocker:x:998:bob,ann\nann2:x:7:annex\nad:x:4:ann\n";

    #[test]
    fn passwd_and_groups_are_read() {
        let ann = User::named("ann", PASSWD, GROUP).unwrap();
        assert_eq!((ann.uid, ann.gid), (1000, 1000));
        assert_eq!(ann.groups, [1000, 998, 4]);
        assert_eq!(ann.home, Path::new("/home/ann"));
        assert_eq!(ann.shell, Path::new("/usr/bin/zsh"));
        assert!(ann.changed);
        assert!(!User::named("root", PASSWD, GROUP).unwrap().changed);
    }

    #[test]
    fn home_may_be_any_bytes_and_shell_may_be_missing() {
        let bob = User::named("bob", PASSWD, GROUP).unwrap();
        assert_eq!(bob.home.as_os_str().as_bytes(), b"/home/b\xf6b");
        assert_eq!(bob.shell, Path::new("/bin/sh"));
    }

    #[test]
    fn bad_entries_are_refused() {
        for name in ["nobody-here", "broken", "short", "", "# a comment"] {
            let got = User::named(name, PASSWD, GROUP);
            assert!(matches!(got, Err(UserError::Unknown(_))), "{name}: {got:?}");
        }
        assert!(matches!(User::named("nohome", PASSWD, GROUP), Err(UserError::Home { .. })));
    }

    #[test]
    fn mode_bits_are_those_of_the_closest_class() {
        let ann = User::named("ann", PASSWD, GROUP).unwrap();
        assert!(ann.may(0o700, 1000, 0, 1));
        assert!(!ann.may(0o077, 1000, 1000, 1));
        assert!(ann.may(0o010, 0, 998, 1));
        assert!(!ann.may(0o701, 0, 998, 1));
        assert!(ann.may(0o001, 0, 0, 1));
        let root = User::named("root", PASSWD, GROUP).unwrap();
        assert!(root.may(0o001, 5, 5, 1));
        assert!(!root.may(0o644, 5, 5, 1));
    }
}
