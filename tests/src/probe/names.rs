//! Making, moving and taking away names; modes and owners.

use super::{Outcome, Place, Stage};
use rustix::fd::{AsFd, AsRawFd as _};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use serde_json::Value;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

fn done(result: rustix::io::Result<()>, stage: &'static str) -> Outcome {
    result.stage(stage).map(|()| Value::Null)
}

pub(super) fn create(path: &Place) -> Outcome {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
    done(rustix::fs::open(path.path(), flags, Mode::from(0o644)).map(drop), "openat(O_CREAT)")
}

/// Threads that rename from one directory into another, and write in each, until something is there.
pub(super) fn between(one: &Place, other: &Place, until: &Place, threads: usize) -> Outcome {
    const GO: u8 = 1;
    const STOP: u8 = 2;
    let begun = AtomicU8::new(0);
    let [both, first, second] = std::array::from_fn(|_| AtomicU64::new(0));
    let writes = |directory: &Place| {
        let path = directory.join("file");
        rustix::fs::open(path.path(), OFlags::WRONLY, Mode::empty()).is_ok()
    };
    let work = |thread: usize| {
        let name = format!("moved-{thread}");
        let (from, to) = (one.join(&name), other.join(&name));
        // All of them live at once, or none goes on.
        while begun.load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        while begun.load(Ordering::Acquire) == GO && !until.path().exists() {
            let moved = rustix::fs::rename(from.path(), to.path()).is_ok();
            for (counter, happened) in
                [(&both, moved), (&first, writes(one)), (&second, writes(other))]
            {
                counter.fetch_add(u64::from(happened), Ordering::Relaxed);
            }
            // Who changes the policies needs a processor too.
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        let born = (0..threads).try_for_each(|thread| {
            let born = std::thread::Builder::new().spawn_scoped(scope, move || work(thread));
            born.map(drop)
        });
        begun.store(if born.is_ok() { GO } else { STOP }, Ordering::Release);
        born
    })
    .stage("clone")?;
    let counted = [both, first, second].map(AtomicU64::into_inner);
    Ok(serde_json::json!({ "both": counted[0], "first": counted[1], "second": counted[2] }))
}

pub(super) fn mkdir(path: &Place) -> Outcome {
    done(rustix::fs::mkdir(path.path(), Mode::from(0o755)), "mkdir")
}

pub(super) fn rmdir(path: &Place) -> Outcome {
    done(rustix::fs::rmdir(path.path()), "rmdir")
}

pub(super) fn unlink(path: &Place) -> Outcome {
    done(rustix::fs::unlink(path.path()), "unlink")
}

pub(super) fn symlink(target: &Place, path: &Place) -> Outcome {
    done(rustix::fs::symlink(target.path(), path.path()), "symlink")
}

pub(super) fn link(from: &Place, to: &Place) -> Outcome {
    done(rustix::fs::link(from.path(), to.path()), "link")
}

pub(super) fn link_descriptor(from: &Place, to: &Place, through_proc: bool) -> Outcome {
    let source =
        rustix::fs::open(from.path(), OFlags::PATH, Mode::empty()).stage("open(O_PATH)")?;
    link_open_file(&source, to, through_proc)
}

pub(super) fn link_temporary(directory: &Place, to: &Place, through_proc: bool) -> Outcome {
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let file =
        rustix::fs::open(directory.path(), flags, Mode::from(0o644)).stage("openat(O_TMPFILE)")?;
    link_open_file(&file, to, through_proc)
}

fn link_open_file(source: impl AsFd, to: &Place, through_proc: bool) -> Outcome {
    if through_proc {
        let from = format!("/proc/self/fd/{}", source.as_fd().as_raw_fd());
        let flags = AtFlags::SYMLINK_FOLLOW;
        done(rustix::fs::linkat(CWD, from, CWD, to.path(), flags), "linkat(/proc/self/fd)")
    } else {
        let flags = AtFlags::EMPTY_PATH;
        done(rustix::fs::linkat(source, "", CWD, to.path(), flags), "linkat(AT_EMPTY_PATH)")
    }
}

pub(super) fn rename(from: &Place, to: &Place, flags: u32) -> Outcome {
    let flags = RenameFlags::from_bits_retain(flags);
    done(rustix::fs::renameat_with(CWD, from.path(), CWD, to.path(), flags), "renameat2")
}

pub(super) fn mknod(path: &Place, kind: u32, device: (u32, u32)) -> Outcome {
    let kind = FileType::from_raw_mode(kind);
    let device = rustix::fs::makedev(device.0, device.1);
    done(rustix::fs::mknodat(CWD, path.path(), kind, Mode::from(0o600), device), "mknodat")
}

pub(super) fn bind_socket(path: &Place) -> Outcome {
    std::os::unix::net::UnixListener::bind(path.path()).stage("bind")?;
    Ok(Value::Null)
}

pub(super) fn chmod(path: &Place, mode: u32) -> Outcome {
    done(rustix::fs::chmod(path.path(), Mode::from(mode)), "chmod")
}

pub(super) fn chown(path: &Place, uid: u32) -> Outcome {
    let owner = Some(rustix::fs::Uid::from_raw(uid));
    done(rustix::fs::chown(path.path(), owner, None), "chown")
}

/// What `rm -rf` does.
pub(super) fn remove_tree(path: &Place) -> Outcome {
    let mut first = Ok(());
    let mut note = |result: rustix::io::Result<()>, stage| {
        if first.is_ok() {
            first = result.stage(stage);
        }
    };
    for entry in std::fs::read_dir(path).stage("open of the directory")? {
        let entry = entry.stage("getdents")?;
        let inner = path.join(entry.file_name().as_encoded_bytes());
        if entry.file_type().stage("lstat")?.is_dir() {
            // What it could not remove shows in the end: the directory is not empty.
            let _ = remove_tree(&inner);
        } else {
            note(rustix::fs::unlink(inner.path()), "unlink");
        }
    }
    note(rustix::fs::rmdir(path.path()), "rmdir");
    first.map(|()| Value::Null)
}
