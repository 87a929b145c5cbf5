//! Times, extended attributes, access lists, flags.

use super::files::checked;
use super::{Failure, Outcome, Place, Stage};
use rustix::fd::{AsFd, AsRawFd as _};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What is changed, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Attribute {
    /// `utimensat` with times.
    Times,
    /// `utimensat` without: now.
    TimesNow,
    /// `futimens` of a descriptor for reading.
    TimesOfDescriptor,
    /// `setxattr("security.capability")`, which every file system has.
    Capability,
    /// The same by `fsetxattr` of a descriptor for reading.
    CapabilityOfDescriptor,
    /// `removexattr`; nobody minds where there is none.
    NoCapability,
    /// `setxattr("system.posix_acl_access")`.
    AccessList,
    NoAccessList,
    /// `FS_IOC_SETFLAGS`: what `chattr` does.
    Flags,
    /// `FS_IOC_FSSETXATTR`
    Project,
    /// `file_setattr(2)`, 6.17 and later.
    FileSetattr,
    /// `BTRFS_IOC_SNAP_CREATE` of a descriptor for reading.
    Snapshot,
}

const CAPABILITY: &str = "security.capability";
const ACCESS_LIST: &str = "system.posix_acl_access";
/// Of 2001, so that it differs from now.
const THEN: Timestamps = Timestamps {
    last_access: Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 },
    last_modification: Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 },
};

/// `struct vfs_cap_data` of revision 2 that permits `CAP_NET_BIND_SERVICE`, linux/capability.h
fn capability() -> [u8; 20] {
    let mut value = [0; 20];
    value[3] = 2;
    value[5] = 4;
    value
}

/// Version 2 of `linux/posix_acl_xattr.h`: tag, permissions and id of each entry.
fn access_list() -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    let nobody = u32::MAX;
    for (tag, permissions, id) in
        [(1u16, 6u16, nobody), (2, 4, 1000), (4, 4, nobody), (16, 4, nobody), (32, 0, nobody)]
    {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

pub(super) fn change(path: &Place, attribute: Attribute) -> Outcome {
    let set = |name: &str, value: &[u8]| {
        rustix::fs::setxattr(path.path(), name, value, XattrFlags::empty()).stage("setxattr")
    };
    match attribute {
        Attribute::Times => {
            rustix::fs::utimensat(CWD, path.path(), &THEN, AtFlags::empty()).stage("utimensat")?;
        }
        Attribute::TimesNow => {
            let path = super::files::c_path(path)?;
            let nothing = std::ptr::null::<libc::timespec>();
            // SAFETY: the path is a valid string, and without times the kernel takes its own.
            let result = unsafe { libc::utimensat(libc::AT_FDCWD, path.as_ptr(), nothing, 0) };
            checked(result.into(), "utimensat")?;
        }
        Attribute::TimesOfDescriptor => {
            rustix::fs::futimens(opened(path)?, &THEN).stage("futimens")?;
        }
        Attribute::Capability => set(CAPABILITY, &capability())?,
        Attribute::CapabilityOfDescriptor => {
            let (file, value) = (opened(path)?, capability());
            rustix::fs::fsetxattr(file, CAPABILITY, &value, XattrFlags::empty())
                .stage("fsetxattr")?;
        }
        Attribute::NoCapability => remove(path, CAPABILITY)?,
        Attribute::AccessList => set(ACCESS_LIST, &access_list())?,
        Attribute::NoAccessList => remove(path, ACCESS_LIST)?,
        Attribute::Flags => ioctl(path, 0x4008_6602, &mut u64::from(NODUMP))?,
        Attribute::Project => {
            // `struct fsxattr`: flags, then extent size, extents, project; linux/fs.h
            ioctl(path, 0x401c_5820, &mut [XFLAG_NODUMP, 0, 0, 0, 0, 0, 0])?;
        }
        Attribute::Snapshot => ioctl(path, 0x5000_9401, &mut [0u64; 512])?,
        Attribute::FileSetattr => file_setattr(path)?,
    }
    Ok(Value::Null)
}

/// `FS_NODUMP_FL` and `FS_XFLAG_NODUMP`, linux/fs.h: set without harm, by whoever owns the file.
const NODUMP: u32 = 0x40;
const XFLAG_NODUMP: u32 = 0x80;

fn opened(path: &Place) -> Result<impl AsFd, Failure> {
    rustix::fs::open(path.path(), OFlags::RDONLY, Mode::empty()).stage("openat")
}

fn remove(path: &Place, name: &str) -> Result<(), Failure> {
    match rustix::fs::removexattr(path.path(), name) {
        Err(Errno::NODATA) => Ok(()),
        result => result.stage("removexattr"),
    }
}

fn ioctl<T>(path: &Place, number: libc::c_ulong, argument: &mut T) -> Result<(), Failure> {
    let file = opened(path)?;
    let (file, argument) = (file.as_fd().as_raw_fd(), std::ptr::from_mut(argument));
    // SAFETY: the argument is valid for the call and as large as the number says.
    let result = unsafe { libc::ioctl(file, number, argument) };
    checked(result.into(), "ioctl").map(drop)
}

fn file_setattr(path: &Place) -> Result<(), Failure> {
    /// `arch/x86/entry/syscalls/syscall_64.tbl`
    const FILE_SETATTR: libc::c_long = 469;
    let path = super::files::c_path(path)?;
    // `struct file_attr`: 64 bits of flags, then extent size, extents, project, copy-on-write size.
    let attributes = [u64::from(XFLAG_NODUMP), 0, 0];
    // SAFETY: the path is a valid string and the structure as large as is said.
    let result = unsafe {
        libc::syscall(
            FILE_SETATTR,
            libc::AT_FDCWD,
            path.as_ptr(),
            attributes.as_ptr(),
            size_of_val(&attributes),
            0,
        )
    };
    checked(result, "file_setattr").map(drop)
}
