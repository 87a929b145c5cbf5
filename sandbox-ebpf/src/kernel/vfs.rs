//! `struct file`, `path`, `dentry`, `inode`, `super_block`.

use super::{embedded, load, read};
use crate::layout::LAYOUT;
use aya_ebpf::helpers::generated::bpf_probe_read_kernel;
use core::ffi::c_void;
use sandbox_common::path::PtyKey;

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

/// `struct dentry *`
#[derive(Clone, Copy)]
pub(crate) struct Dentry(pub(crate) *const c_void);

impl Dentry {
    #[inline(always)]
    pub(crate) fn parent(self) -> Self {
        Self(load(self.0, &LAYOUT.dentry_parent))
    }

    #[inline(always)]
    pub(crate) fn superblock(self) -> SuperBlock {
        SuperBlock::at(load(self.0, &LAYOUT.dentry_sb))
    }

    /// `d_flags`
    #[inline(always)]
    pub(crate) fn flags(self) -> u32 {
        load(self.0, &LAYOUT.dentry_flags)
    }

    /// Its inode; reads as zeros where it has none yet.
    #[inline(always)]
    pub(crate) fn inode(self) -> Inode {
        Inode(load(self.0, &LAYOUT.dentry_inode))
    }

    /// The pseudo-terminal that this is the node of.
    #[inline(always)]
    pub(crate) fn pty(self) -> Option<PtyKey> {
        let dev = self.inode().rdev();
        // UNIX98_PTY_SLAVE_MAJOR and the seven after it, include/uapi/linux/major.h
        let is_pty = (136..144).contains(&(dev >> 20));
        if is_pty { Some(PtyKey { devpts: self.superblock().dev(), dev }) } else { None }
    }

    /// Length of the name in bytes. Loaded as four bytes: on 6.1 a load may not run past the member.
    #[inline(always)]
    pub(crate) fn name_len(self) -> u32 {
        load(embedded(self.0, &LAYOUT.dentry_name), &LAYOUT.qstr_len)
    }

    /// Address of the name's first byte.
    #[inline(always)]
    pub(crate) fn name_address(self) -> u64 {
        load(embedded(self.0, &LAYOUT.dentry_name), &LAYOUT.qstr_name)
    }

    /// The first eight bytes of its name, and the eight that the last lies in, lowest first; what is beyond
    /// the name is undefined. `None` where it is longer than 32 bytes or does not lie in the dentry itself.
    #[inline(always)]
    pub(crate) fn ends(self, len: u32) -> Option<(u64, u64)> {
        let name = embedded(self.0, &LAYOUT.dentry_short_name);
        if self.name_address() != name as u64 {
            return None;
        }
        // SAFETY: within the 32 bytes that it has at least, by constants, as the verifier wants it.
        let word = |at: usize| unsafe { name.byte_add(at).cast::<u64>().read_volatile() };
        let first = word(0);
        match len.wrapping_sub(1) >> 3 {
            0 => Some((first, first)),
            1 => Some((first, word(8))),
            2 => Some((first, word(16))),
            3 => Some((first, word(24))),
            _ => None,
        }
    }

    /// The address as a number, for [`DentryAddress`].
    #[inline(always)]
    pub(crate) fn address(self) -> DentryAddress {
        DentryAddress(self.0 as u64)
    }
}

/// The address of a dentry, kept in memory: no longer a type that the verifier knows.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct DentryAddress(pub(crate) u64);

impl DentryAddress {
    #[inline(always)]
    pub(crate) fn parent(self) -> Option<Self> {
        read(self.0 + LAYOUT.dentry_parent.get() as u64).map(Self)
    }

    /// `d_flags`
    #[inline(always)]
    pub(crate) fn flags(self) -> Option<u32> {
        read(self.0 + LAYOUT.dentry_flags.get() as u64)
    }

    /// `s_magic` of its superblock.
    #[inline(always)]
    pub(crate) fn magic(self) -> Option<u64> {
        let superblock: u64 = read(self.0 + LAYOUT.dentry_sb.get() as u64)?;
        read(superblock + LAYOUT.sb_magic.get() as u64)
    }

    /// Length of the name in bytes. Read as four bytes: on 6.1 a load may not run past the member.
    #[inline(always)]
    pub(crate) fn name_len(self) -> Option<u32> {
        read(self.0 + (LAYOUT.dentry_name.get() + LAYOUT.qstr_len.get()) as u64)
    }

    /// Address of the name's first byte.
    #[inline(always)]
    pub(crate) fn name_address(self) -> Option<u64> {
        read(self.0 + (LAYOUT.dentry_name.get() + LAYOUT.qstr_name.get()) as u64)
    }

    /// Its inode.
    #[inline(always)]
    pub(crate) fn inode(self) -> Option<InodeAddress> {
        read(self.0 + LAYOUT.dentry_inode.get() as u64).map(InodeAddress)
    }
}

/// The address of an inode, kept in memory.
#[derive(Clone, Copy)]
pub(crate) struct InodeAddress(u64);

impl InodeAddress {
    #[inline(always)]
    pub(crate) fn number(self) -> Option<u64> {
        read(self.0 + LAYOUT.inode_ino.get() as u64)
    }

    #[inline(always)]
    pub(crate) fn generation(self) -> Option<u32> {
        read(self.0 + LAYOUT.inode_generation.get() as u64)
    }

    /// `i_flags`
    #[inline(always)]
    pub(crate) fn flags(self) -> Option<u32> {
        read(self.0 + LAYOUT.inode_flags.get() as u64)
    }

    /// Number of names; 0 once it is removed.
    #[inline(always)]
    pub(crate) fn links(self) -> Option<u32> {
        read(self.0 + LAYOUT.inode_nlink.get() as u64)
    }
}

/// Copies `len` bytes at `from` to `to`. False where that failed.
///
/// # Safety
/// `to` has room for `len` bytes (the verifier checks it).
#[inline(always)]
pub(crate) unsafe fn copy_name(to: *mut u8, len: u32, from: u64) -> bool {
    // SAFETY: as promised by the caller.
    unsafe { bpf_probe_read_kernel(to.cast(), len, from as *const c_void) == 0 }
}

/// `struct inode *`, null where a name has none.
///
/// Every load asks first: of a dentry that it trusts, the verifier took the inode for one that is there
/// (`BTF_TYPE_SAFE_TRUSTED`, 6.4 to 6.18) and has it loaded from without a net.
#[derive(Clone, Copy)]
pub(crate) struct Inode(*const c_void);

impl Inode {
    #[inline(always)]
    pub(crate) fn exists(self) -> bool {
        !self.0.is_null()
    }

    /// `i_mode`; 0 where there is no inode.
    #[inline(always)]
    pub(crate) fn mode(self) -> u32 {
        if self.exists() { u32::from(load::<u16>(self.0, &LAYOUT.inode_mode)) } else { 0 }
    }

    /// `i_flags`; 0 where there is no inode.
    #[inline(always)]
    pub(crate) fn flags(self) -> u32 {
        if self.exists() { load(self.0, &LAYOUT.inode_flags) } else { 0 }
    }

    /// `i_ino`; 0 where there is no inode.
    #[inline(always)]
    pub(crate) fn number(self) -> u64 {
        if self.exists() { load(self.0, &LAYOUT.inode_ino) } else { 0 }
    }

    /// `i_generation`; 0 where there is no inode.
    #[inline(always)]
    pub(crate) fn generation(self) -> u32 {
        if self.exists() { load(self.0, &LAYOUT.inode_generation) } else { 0 }
    }

    /// Number of names; 0 once it is removed, and where there is no inode.
    #[inline(always)]
    pub(crate) fn links(self) -> u32 {
        if self.exists() { load(self.0, &LAYOUT.inode_nlink) } else { 0 }
    }

    /// In procfs: address of the `struct pid` whose directory this lies in; 0 where it is nobody's.
    #[inline(always)]
    pub(crate) fn process(self) -> u64 {
        if !self.exists() {
            return 0;
        }
        let outer = (self.0 as u64).wrapping_sub(LAYOUT.proc_vfs.get() as u64);
        read(outer + LAYOUT.proc_pid.get() as u64).unwrap_or(0)
    }

    /// `i_rdev`, kernel encoding; 0 where there is no inode.
    #[inline(always)]
    pub(crate) fn rdev(self) -> u32 {
        if self.exists() { load(self.0, &LAYOUT.inode_rdev) } else { 0 }
    }
}

/// include/uapi/linux/magic.h
const TMPFS: u64 = 0x0102_1994;
const PROC: u64 = 0x9fa0;
const SYSFS: u64 = 0x6265_6572;
const CGROUP: u64 = 0x0027_e0eb;
const CGROUP2: u64 = 0x6367_7270;
const BPFFS: u64 = 0xcafe_4a11;
const DEBUGFS: u64 = 0x6462_6720;
const TRACEFS: u64 = 0x7472_6163;
const SECURITYFS: u64 = 0x7363_6673;
const CONFIGFS: u64 = 0x6265_6570;
const BINFMTFS: u64 = 0x4249_4e4d;
const EFIVARFS: u64 = 0xde5e_81e4;
const PSTORE: u64 = 0x6165_676c;
const RESCTRL: u64 = 0x0765_5821;
const SELINUXFS: u64 = 0xf97c_ff8c;
const SMACKFS: u64 = 0x4341_5d53;

/// `struct fs_context *`: a file system that is to be mounted.
#[derive(Clone, Copy)]
pub(crate) struct Mounting(pub(crate) *const c_void);

impl Mounting {
    /// Address of the name of its type.
    #[inline(always)]
    pub(crate) fn type_name(self) -> u64 {
        let kind: u64 = load(self.0, &LAYOUT.context_type);
        read(kind + LAYOUT.type_name.get() as u64).unwrap_or(0)
    }
}

/// `struct iattr *`: what is to change.
#[derive(Clone, Copy)]
pub(crate) struct Attributes(pub(crate) *const c_void);

impl Attributes {
    /// Whether times are to be set, and not because the size changes. `ATTR_*`, include/linux/fs.h
    #[inline(always)]
    pub(crate) fn are_times(self) -> bool {
        const SIZE: u32 = 1 << 3;
        const ACCESSED: u32 = 1 << 4;
        const MODIFIED: u32 = 1 << 5;
        let valid: u32 = load(self.0, &LAYOUT.iattr_valid);
        valid & (ACCESSED | MODIFIED) != 0 && valid & SIZE == 0
    }
}

/// `struct super_block *`
#[derive(Clone, Copy)]
pub(crate) struct SuperBlock(pub(crate) *const c_void);

impl SuperBlock {
    #[inline(always)]
    pub(crate) fn dev(self) -> u32 {
        load(self.0, &LAYOUT.sb_dev)
    }

    #[inline(always)]
    pub(crate) fn root(self) -> DentryAddress {
        DentryAddress(load(self.0, &LAYOUT.sb_root))
    }

    /// `s_magic`
    #[inline(always)]
    pub(crate) fn magic(self) -> u64 {
        load(self.0, &LAYOUT.sb_magic)
    }

    /// From its address.
    #[inline(always)]
    pub(crate) fn at(superblock: *const c_void) -> Self {
        Self(superblock)
    }

    /// Whether no two live inodes of this file system ever have the same number, so that it names a
    /// directory: ext2 to ext4, xfs, f2fs, tmpfs. Not so btrfs (a number per
    /// subvolume), overlayfs (numbers of several layers) and what a server numbers.
    #[inline(always)]
    pub(crate) fn numbers_are_unique(self) -> bool {
        const EXT: u64 = 0xef53;
        const XFS: u64 = 0x5846_5342;
        const F2FS: u64 = 0xf2f5_2010;
        matches!(self.magic(), EXT | XFS | F2FS | TMPFS)
    }

    /// The address as a number.
    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    #[inline(always)]
    pub(crate) fn is_proc(self) -> bool {
        self.magic() == PROC
    }

    /// Whether this shows and sets the kernel, not files: what is written here is no content.
    #[inline(always)]
    pub(crate) fn is_of_the_kernel(self) -> bool {
        matches!(
            self.magic(),
            PROC | SYSFS
                | CGROUP
                | CGROUP2
                | BPFFS
                | DEBUGFS
                | TRACEFS
                | SECURITYFS
                | CONFIGFS
                | BINFMTFS
                | EFIVARFS
                | PSTORE
                | RESCTRL
                | SELINUXFS
                | SMACKFS
        )
    }

    /// What a member may mount, and whether each mount of it is a new one that holds nothing yet.
    ///
    /// procfs, sysfs and cgroupfs show the kernel, and are judged as such. A queue file system is of the
    /// namespace that the member made.
    #[inline(always)]
    pub(crate) fn mountable(self) -> Option<bool> {
        const DEVPTS: u64 = 0x1cd1;
        const MQUEUE: u64 = 0x1980_0202;
        match self.magic() {
            TMPFS | DEVPTS | MQUEUE => Some(true),
            PROC | SYSFS | CGROUP2 => Some(false),
            _ => None,
        }
    }

    /// Whether this shows files that lie elsewhere: overlay and FUSE.
    #[inline(always)]
    pub(crate) fn shows_others(self) -> bool {
        const OVERLAYFS: u64 = 0x794c_7630;
        const FUSE: u64 = 0x6573_5546;
        matches!(self.magic(), OVERLAYFS | FUSE)
    }

    /// Whether what lies here is anonymous memory or a channel that the task already has: pipes,
    /// sockets, memfd, anonymous inodes, namespaces, pidfds.
    ///
    /// By magic number. `SB_KERNMOUNT` alone would not do: file systems that pin themselves with
    /// `simple_pin_fs` (debugfs, tracefs, securityfs, configfs) carry it too.
    #[inline(always)]
    pub(crate) fn is_anonymous(self) -> bool {
        const SB_KERNMOUNT: u64 = 1 << 22;
        const PIPEFS: u64 = 0x5049_5045;
        const SOCKFS: u64 = 0x534f_434b;
        const ANON_INODE: u64 = 0x0904_1934;
        const NSFS: u64 = 0x6e73_6673;
        const PIDFS: u64 = 0x5049_4446;
        const SECRETMEM: u64 = 0x5345_434d;
        const DMA_BUF: u64 = 0x444d_4142;
        const HUGETLBFS: u64 = 0x9584_58f6;
        match self.magic() {
            PIPEFS | SOCKFS | ANON_INODE | NSFS | PIDFS | SECRETMEM | DMA_BUF => true,
            // memfd and SysV shared memory live on the kernel's own mounts of these.
            TMPFS | HUGETLBFS => load::<u64>(self.0, &LAYOUT.sb_flags) & SB_KERNMOUNT != 0,
            _ => false,
        }
    }
}
