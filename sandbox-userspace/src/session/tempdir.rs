//! The session's directory for temporary files, exported to the agent as `TMPDIR`.

use super::SessionId;
use rustix::fs::{Gid, Mode, OFlags, Uid};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// Where the directory of a session is.
pub fn path(id: &SessionId) -> PathBuf {
    PathBuf::from(format!("/tmp/sandbox-{id}"))
}

/// Makes the directory, which must not exist, for its owner alone.
pub fn create(path: &Path, uid: u32, gid: u32) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)?;
    // By descriptor: the name lies in a directory where everybody may make names.
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::fchown(&directory, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    Ok(())
}

/// Removes the directory with all in it, never following a symlink; gone already is no error.
///
/// The agent owned the name and may have put something else there: what is no directory, or not of
/// `uid` where that is known, is left alone and an error.
pub fn remove(path: &Path, uid: Option<u32>) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    // Root's own when the session ended between the two steps of `create`.
    let is_its = uid.is_none_or(|uid| found.uid() == uid || found.uid() == 0);
    if !found.is_dir() || !is_its {
        return Err(io::Error::other("it is no longer the directory that was made; look at it"));
    }
    fs::remove_dir_all(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn removal_does_not_follow_symlinks() {
        let place = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let (session, other) = (place.path().join("session"), place.path().join("other"));
        fs::create_dir(&other).unwrap();
        fs::write(other.join("keep"), "x").unwrap();

        create(&session, uid, gid).unwrap();
        assert_eq!(fs::metadata(&session).unwrap().mode() & 0o7777, 0o700);
        assert!(create(&session, uid, gid).is_err());
        symlink(&other, session.join("link")).unwrap();
        remove(&session, Some(uid)).unwrap();
        assert!(!session.exists() && other.join("keep").exists());

        symlink(&other, &session).unwrap();
        assert!(remove(&session, Some(uid)).is_err());
        assert!(other.join("keep").exists());
        fs::remove_file(&session).unwrap();
        remove(&session, Some(uid)).unwrap();
    }
}
