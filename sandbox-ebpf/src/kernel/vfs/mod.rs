//! `struct file`, `path`, `vm_area_struct`, `renamedata`; and what they lead to: [`dentry`], [`inode`],
//! [`superblock`].

mod dentry;
mod inode;
mod superblock;

pub(crate) use dentry::{Dentry, DentryAddress, copy_name};
pub(crate) use inode::{Attributes, Inode, InodeAddress};
pub(crate) use superblock::{Mounting, SuperBlock, SuperBlockAddress, shows_others};

use super::{embedded, load, read};
use crate::layout::LAYOUT;
use core::ffi::c_void;

/// `struct file *`
#[derive(Clone, Copy)]
pub(crate) struct File(pub(crate) *const c_void);

impl File {
    #[inline(always)]
    pub(crate) fn dentry(self) -> Dentry {
        Path(embedded(self.0, &LAYOUT.file_path)).dentry()
    }

    /// `f_inode`. Of a layer's file that is opened for an overlay it may be the layer's, whatever the path
    /// says (`open_with_fake_path`, before 6.5).
    #[inline(always)]
    pub(crate) fn inode(self) -> Inode {
        Inode(load(self.0, &LAYOUT.file_inode))
    }

    /// `FMODE_*`, include/linux/fs.h
    #[inline(always)]
    pub(crate) fn mode(self) -> u32 {
        load(self.0, &LAYOUT.file_mode)
    }

    /// Whether it only names a file (`O_PATH`).
    #[inline(always)]
    pub(crate) fn is_name(self) -> bool {
        const FMODE_PATH: u32 = 1 << 14;
        self.mode() & FMODE_PATH != 0
    }

    /// The name by which this file of another file system was opened: an overlay maps the files of its
    /// layers. `None` where that is the file's own name.
    #[inline(always)]
    pub(crate) fn shown_as(self) -> Option<DentryAddress> {
        // `FMODE_BACKING` has moved between kernels. This bit has not, and no other file that does not
        // count can be mapped.
        const FMODE_NOACCOUNT: u32 = 1 << 29;
        if LAYOUT.backing_user_path.is_absent() || self.mode() & FMODE_NOACCOUNT == 0 {
            return None;
        }
        // The file lies at the beginning of its `struct backing_file`.
        let path = self.address() + LAYOUT.backing_user_path.get() as u64;
        Some(read(path + LAYOUT.path_dentry.get() as u64).map_or(DentryAddress(0), DentryAddress))
    }

    /// `O_*`
    #[inline(always)]
    pub(crate) fn flags(self) -> u32 {
        load(self.0, &LAYOUT.file_flags)
    }

    /// The address as a number.
    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }
}

/// `struct fown_struct *`: whom a file signals. Before 6.12 a part of the file.
#[derive(Clone, Copy)]
pub(crate) struct Owner(pub(crate) *const c_void);

impl Owner {
    /// Address of the file.
    #[inline(always)]
    pub(crate) fn file(self) -> u64 {
        if LAYOUT.owner_file.is_absent() {
            (self.0 as u64).wrapping_sub(LAYOUT.file_owner.get() as u64)
        } else {
            load(self.0, &LAYOUT.owner_file)
        }
    }
}

/// `struct vm_area_struct *`: a part of an address space.
#[derive(Clone, Copy)]
pub(crate) struct Mapped(pub(crate) *const c_void);

impl Mapped {
    /// Whether stores reach the file. `VM_SHARED`, include/linux/mm.h
    #[inline(always)]
    pub(crate) fn is_shared(self) -> bool {
        const SHARED: u64 = 1 << 3;
        load::<u64>(self.0, &LAYOUT.vma_flags) & SHARED != 0
    }

    /// The file behind it, `None` for anonymous memory.
    #[inline(always)]
    pub(crate) fn file(self) -> Option<File> {
        let file: *const c_void = load(self.0, &LAYOUT.vma_file);
        if file.is_null() { None } else { Some(File(file)) }
    }
}

/// `struct path *`
#[derive(Clone, Copy)]
pub(crate) struct Path(pub(crate) *const c_void);

impl Path {
    #[inline(always)]
    pub(crate) fn dentry(self) -> Dentry {
        Dentry(load(self.0, &LAYOUT.path_dentry))
    }
}

/// `struct renamedata *`
#[derive(Clone, Copy)]
pub(crate) struct Renaming(pub(crate) *const c_void);

impl Renaming {
    /// What is renamed.
    #[inline(always)]
    pub(crate) fn dentry(self) -> Dentry {
        Dentry(load(self.0, &LAYOUT.renamedata_old))
    }

    /// What is renamed over, or exchanged with.
    #[inline(always)]
    pub(crate) fn other(self) -> Dentry {
        Dentry(load(self.0, &LAYOUT.renamedata_new))
    }
}
