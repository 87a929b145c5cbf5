//! The session's cgroup in the v2 hierarchy.

use crate::policy::limits::Limits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal};
use sandbox_common::subject::Parent;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Seek as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Name of the directory that holds the cgroups of all sessions.
pub const PARENT: &str = "sandbox";

/// Something about a cgroup failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CgroupError {
    /// The mount table has no cgroup v2.
    #[error("no cgroup v2 hierarchy is mounted; mount it: mount -t cgroup2 cgroup2 /sys/fs/cgroup")]
    NotMounted,
    /// Only a part of the hierarchy is visible, so a cgroup's depth cannot be known.
    #[error(
        "only the part {root} of the cgroup v2 hierarchy is mounted (at {mount}); \
         run in the host's own cgroup namespace and mount the whole"
    )]
    Part {
        /// The visible part's root.
        root: String,
        /// Where it is mounted.
        mount: String,
    },
    /// A limit of the policy takes a controller that this hierarchy does not have.
    #[error(
        "the policy limits what the cgroup controller `{controller}` counts, which is not to be had in \
         {cgroup}: leave the limit out, or boot with this controller in cgroup v2"
    )]
    Controller {
        /// Its name.
        controller: String,
        /// Where it is missing.
        cgroup: PathBuf,
    },
    /// A file operation failed.
    #[error("cannot {what} {path}: {source}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// Names what was attempted.
fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CgroupError {
    move |source| CgroupError::Io { what, path: path.into(), source }
}

/// The mounted cgroup v2 hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupTree {
    /// Where it is mounted: `/sys/fs/cgroup`, on hybrid systems `/sys/fs/cgroup/unified`.
    pub mount: PathBuf,
}

impl CgroupTree {
    /// Finds the mount in this process's mount table.
    pub fn find() -> Result<Self, CgroupError> {
        let table = Path::new("/proc/self/mountinfo");
        Self::in_table(&fs::read_to_string(table).map_err(io_error("read", table))?)
    }

    /// Finds the mount in the text of a `mountinfo` (proc(5)).
    fn in_table(table: &str) -> Result<Self, CgroupError> {
        let mut part = None;
        for line in table.lines() {
            let Some((place, file_system)) = line.split_once(" - ") else { continue };
            if file_system.split(' ').next() != Some("cgroup2") {
                continue;
            }
            let mut fields = place.split(' ').skip(3);
            let (Some(root), Some(mount)) = (fields.next(), fields.next()) else { continue };
            if root == "/" {
                return Ok(Self { mount: unescape(mount).into() });
            }
            part = Some(CgroupError::Part { root: unescape(root), mount: unescape(mount) });
        }
        Err(part.unwrap_or(CgroupError::NotMounted))
    }

    /// Directory of the cgroups of all sessions.
    pub fn parent(&self) -> PathBuf {
        self.mount.join(PARENT)
    }

    /// Makes the cgroup `sandbox/NAME`, which must not exist.
    pub fn create(&self, name: &str) -> Result<Cgroup, CgroupError> {
        let parent = self.parent();
        let path = parent.join(name);
        // Another session that ends may remove the parent between the two steps.
        for _ in 0..8 {
            match fs::create_dir(&parent) {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                    return Err(io_error("create the cgroup", &parent)(error));
                }
                _ => {}
            }
            match fs::create_dir(&path) {
                Ok(()) => return self.open(name),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(io_error("create the cgroup", &path)(error)),
            }
        }
        Err(io_error("create the cgroup", &path)(ErrorKind::NotFound.into()))
    }

    /// The cgroup `sandbox/NAME`, which exists.
    pub fn open(&self, name: &str) -> Result<Cgroup, CgroupError> {
        let above = self.parent();
        let path = above.join(name);
        let id = |path: &Path| Ok(fs::metadata(path).map_err(io_error("look at", path))?.ino());
        let parent = Parent { cgroup: id(&above)?, level: 1, pad: 0 };
        Ok(Cgroup { id: id(&path)?, path, parent })
    }

    /// Limits a session's cgroup. Controllers that are off on the way down are turned on.
    pub fn limit(&self, cgroup: &Cgroup, limits: Limits) -> Result<(), CgroupError> {
        /// Microseconds over which time is counted: the kernel's own default.
        const PERIOD: u64 = 100_000;
        let settings = [
            ("memory", "memory.max", limits.memory.map(|bytes| bytes.to_string())),
            ("pids", "pids.max", limits.pids.map(|count| count.to_string())),
            (
                "cpu",
                "cpu.max",
                limits.cpu.map(|percent| format!("{} {PERIOD}", percent * (PERIOD / 100))),
            ),
        ];
        for (controller, file, value) in settings {
            let Some(value) = value else { continue };
            for above in [&self.mount, &self.parent()] {
                enable(above, controller)?;
            }
            let file = cgroup.path.join(file);
            fs::write(&file, value).map_err(io_error("write the limit", &file))?;
        }
        Ok(())
    }

    /// Removes the directory of all sessions' cgroups if none is left.
    pub fn tidy(&self) {
        // Anything but success means that it is in use or gone.
        let _ = fs::remove_dir(self.parent());
    }
}

/// Turns a controller on for the cgroups in one.
fn enable(cgroup: &Path, controller: &str) -> Result<(), CgroupError> {
    let file = cgroup.join("cgroup.subtree_control");
    let known = fs::read_to_string(&file).map_err(io_error("read", &file))?;
    if known.split_whitespace().any(|known| known == controller) {
        return Ok(());
    }
    fs::write(&file, format!("+{controller}")).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::InvalidInput => {
            CgroupError::Controller { controller: controller.to_owned(), cgroup: cgroup.into() }
        }
        _ => io_error("turn a controller on in", &file)(error),
    })
}

/// One cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    /// Its directory.
    pub path: PathBuf,
    /// What the kernel calls it: the directory's inode number.
    pub id: u64,
    /// The cgroup that it lies in.
    pub parent: Parent,
}

impl Cgroup {
    /// Opens the file through which a process joins by writing `0`.
    pub fn entrance(&self) -> Result<File, CgroupError> {
        let path = self.path.join("cgroup.procs");
        OpenOptions::new().write(true).open(&path).map_err(io_error("open", &path))
    }

    /// Process ids of all members here and in the cgroups beneath, as seen from this pid namespace.
    pub fn members(&self) -> Result<Vec<i32>, CgroupError> {
        let mut found = Vec::new();
        for directory in self.directories()? {
            let path = directory.join("cgroup.procs");
            match fs::read_to_string(&path) {
                Ok(text) => found.extend(text.lines().filter_map(|line| line.parse::<i32>().ok())),
                // A cgroup of threads lists them in its parent; one that is gone has no members.
                Err(error)
                    if error.raw_os_error() == Some(libc::EOPNOTSUPP)
                        || error.raw_os_error() == Some(libc::ENODEV)
                        || error.kind() == ErrorKind::NotFound => {}
                Err(source) => return Err(io_error("read", &path)(source)),
            }
        }
        Ok(found)
    }

    /// Whether a living process is here or beneath. `false` for a cgroup that is gone.
    pub fn populated(&self) -> Result<bool, CgroupError> {
        self.wait_empty(Duration::ZERO).map(|empty| !empty)
    }

    /// Sends a signal to every member.
    pub fn signal(&self, signal: Signal) -> Result<(), CgroupError> {
        for pid in self.members()?.into_iter().filter_map(Pid::from_raw) {
            // One that is gone needs no signal; what stays is seen by `populated`.
            let _ = rustix::process::kill_process(pid, signal);
        }
        Ok(())
    }

    /// Kills every member here and beneath, also those that are just being born.
    pub fn kill(&self) -> Result<(), CgroupError> {
        let path = self.path.join("cgroup.kill");
        match fs::write(&path, "1") {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                for _ in 0..50 {
                    self.signal(Signal::KILL)?;
                    if self.wait_empty(Duration::from_millis(20))? {
                        break;
                    }
                }
                Ok(())
            }
            Err(source) => Err(io_error("write", &path)(source)),
        }
    }

    /// Waits until no living process is left here or beneath; `false` when `limit` ran out first.
    pub fn wait_empty(&self, limit: Duration) -> Result<bool, CgroupError> {
        let path = self.path.join("cgroup.events");
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
            Err(error) => return Err(io_error("open", &path)(error)),
        };
        let end = Instant::now() + limit;
        loop {
            let mut text = String::new();
            let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
            match read {
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(true),
                Err(error) => return Err(io_error("read", &path)(error)),
                Ok(_) if !text.lines().any(|line| line == "populated 1") => return Ok(true),
                Ok(_) => {}
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            // The kernel wakes readers of this file on every change (POLLPRI).
            let mut wait = [PollFd::new(&file, PollFlags::PRI)];
            let left = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: i64::from(left.subsec_nanos()),
            };
            match poll(&mut wait, Some(&left)) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(io_error("wait for", &path)(error.into())),
            }
        }
    }

    /// Removes the cgroup and those beneath. All must be empty; one that is gone is no error.
    pub fn remove(&self) -> Result<(), CgroupError> {
        // A killed process leaves its cgroup a moment before the kernel has let go of it.
        let mut patience = 100;
        for directory in self.directories()?.into_iter().rev() {
            loop {
                match fs::remove_dir(&directory) {
                    Ok(()) => break,
                    Err(error) if error.kind() == ErrorKind::NotFound => break,
                    Err(error) if error.kind() == ErrorKind::ResourceBusy && patience > 0 => {
                        patience -= 1;
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    Err(error) => return Err(io_error("remove the cgroup", &directory)(error)),
                }
            }
        }
        Ok(())
    }

    /// This directory and all beneath, parents first; none when it is gone.
    fn directories(&self) -> Result<Vec<PathBuf>, CgroupError> {
        let mut found = Vec::new();
        let mut waiting = vec![self.path.clone()];
        while let Some(directory) = waiting.pop() {
            let entries = match fs::read_dir(&directory) {
                Ok(entries) => entries,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(io_error("list", &directory)(error)),
            };
            for entry in entries.flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    waiting.push(entry.path());
                }
            }
            found.push(directory);
        }
        Ok(found)
    }
}

/// A field of `mountinfo` without the kernel's octal escapes.
fn unescape(field: &str) -> String {
    let octal = |b: &u8| (b'0'..=b'7').contains(b).then(|| b - b'0');
    let mut text = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let [first, tail @ ..] = rest {
        let escape = match rest {
            [b'\\', a @ b'0'..=b'3', b, c, ..] => octal(a).zip(octal(b)).zip(octal(c)),
            _ => None,
        };
        if let Some(((a, b), c)) = escape {
            text.push(a << 6 | b << 3 | c);
            rest = &rest[4..];
        } else {
            text.push(*first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PURE: &str = "\
22 27 0:21 / /proc rw,nosuid - proc proc rw
30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const HYBRID: &str = "\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const NONE: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
    const PART: &str = "41 31 0:38 /pod\\0401 /sys/fs/cgroup rw - cgroup2 cgroup rw\n";

    fn mount(table: &str) -> Result<PathBuf, CgroupError> {
        CgroupTree::in_table(table).map(|tree| tree.mount)
    }

    #[test]
    fn mount_is_found_wherever_it_is() {
        assert_eq!(mount(PURE).unwrap(), Path::new("/sys/fs/cgroup"));
        assert_eq!(mount(HYBRID).unwrap(), Path::new("/sys/fs/cgroup/unified"));
        let odd = "1 1 0:1 / /mnt/my\\040groups\\134 rw - cgroup2 x rw";
        assert_eq!(mount(odd).unwrap(), Path::new("/mnt/my groups\\"));
    }

    #[test]
    fn whole_mount_is_preferred_to_a_part() {
        assert_eq!(mount(&format!("{PART}{PURE}")).unwrap(), Path::new("/sys/fs/cgroup"));
    }

    #[test]
    fn absence_is_an_error() {
        assert!(matches!(mount(NONE), Err(CgroupError::NotMounted)));
        assert!(matches!(mount(""), Err(CgroupError::NotMounted)));
        let Err(CgroupError::Part { root, .. }) = mount(PART) else { panic!() };
        assert_eq!(root, "/pod 1");
    }
}
