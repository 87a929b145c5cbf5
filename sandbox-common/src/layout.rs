//! Where the fields of kernel structures lie.
//!
//! rustc emits no CO-RE relocations, so the loader reads the offsets from the running kernel's BTF
//! and writes them into a global of the eBPF object before it is loaded. The global is read-only,
//! the verifier takes its words for constants, and loads through typed pointers stay typed.

/// One value per field: `u32` byte offsets on both sides, [`FieldSpec`] in [`FIELDS`].
///
/// `T` is the same for all so that the struct is an array in memory, in declaration order.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct KernelLayout<T> {
    /// `file.f_path`
    pub file_path: T,
    /// `file.f_mode`
    pub file_mode: T,
    /// `file.f_flags`
    pub file_flags: T,
    /// `path.dentry`
    pub path_dentry: T,
    /// `dentry.d_parent`
    pub dentry_parent: T,
    /// `dentry.d_name`
    pub dentry_name: T,
    /// `dentry.d_inode`
    pub dentry_inode: T,
    /// `dentry.d_sb`
    pub dentry_sb: T,
    /// `qstr.len`
    pub qstr_len: T,
    /// `qstr.name`
    pub qstr_name: T,
    /// `inode.i_mode`
    pub inode_mode: T,
    /// `inode.i_rdev`
    pub inode_rdev: T,
    /// `inode.i_ino`
    pub inode_ino: T,
    /// `super_block.s_dev`
    pub sb_dev: T,
    /// `super_block.s_flags`
    pub sb_flags: T,
    /// `super_block.s_root`
    pub sb_root: T,
}

/// Offset of a field that the running kernel lacks; only optional fields may have it. The verifier
/// prunes the branch behind a test for it.
pub const ABSENT: u32 = u32::MAX;

/// How to find a field, and whether the programs can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldSpec {
    /// The structure.
    pub structure: &'static str,
    /// Names the field has or had, the newest first. Anonymous members are searched through.
    pub names: &'static [&'static str],
    /// Bytes that the programs load; the field must have just this size. 0: an embedded structure.
    pub size: u32,
    /// Without it nothing is enforced.
    pub required: bool,
}

const fn field(structure: &'static str, names: &'static [&'static str], size: u32) -> FieldSpec {
    FieldSpec { structure, names, size, required: true }
}

/// The table from which the loader fills the layout.
pub const FIELDS: KernelLayout<FieldSpec> = KernelLayout {
    file_path: field("file", &["f_path"], 0),
    file_mode: field("file", &["f_mode"], 4),
    file_flags: field("file", &["f_flags"], 4),
    path_dentry: field("path", &["dentry"], 8),
    dentry_parent: field("dentry", &["d_parent"], 8),
    dentry_name: field("dentry", &["d_name"], 0),
    dentry_inode: field("dentry", &["d_inode"], 8),
    dentry_sb: field("dentry", &["d_sb"], 8),
    qstr_len: field("qstr", &["len"], 4),
    qstr_name: field("qstr", &["name"], 8),
    inode_mode: field("inode", &["i_mode"], 2),
    inode_rdev: field("inode", &["i_rdev"], 4),
    inode_ino: field("inode", &["i_ino"], 8),
    sb_dev: field("super_block", &["s_dev"], 4),
    sb_flags: field("super_block", &["s_flags"], 8),
    sb_root: field("super_block", &["s_root"], 8),
};

/// Number of fields.
pub const COUNT: usize = size_of::<KernelLayout<u32>>() / size_of::<u32>();

impl<T: Copy> KernelLayout<T> {
    /// The fields in declaration order.
    pub const fn to_array(self) -> [T; COUNT] {
        let Self {
            file_path,
            file_mode,
            file_flags,
            path_dentry,
            dentry_parent,
            dentry_name,
            dentry_inode,
            dentry_sb,
            qstr_len,
            qstr_name,
            inode_mode,
            inode_rdev,
            inode_ino,
            sb_dev,
            sb_flags,
            sb_root,
        } = self;
        [
            file_path,
            file_mode,
            file_flags,
            path_dentry,
            dentry_parent,
            dentry_name,
            dentry_inode,
            dentry_sb,
            qstr_len,
            qstr_name,
            inode_mode,
            inode_rdev,
            inode_ino,
            sb_dev,
            sb_flags,
            sb_root,
        ]
    }

    /// The reverse of [`to_array`](Self::to_array).
    pub const fn from_array(array: [T; COUNT]) -> Self {
        let [
            file_path,
            file_mode,
            file_flags,
            path_dentry,
            dentry_parent,
            dentry_name,
            dentry_inode,
            dentry_sb,
            qstr_len,
            qstr_name,
            inode_mode,
            inode_rdev,
            inode_ino,
            sb_dev,
            sb_flags,
            sb_root,
        ] = array;
        Self {
            file_path,
            file_mode,
            file_flags,
            path_dentry,
            dentry_parent,
            dentry_name,
            dentry_inode,
            dentry_sb,
            qstr_len,
            qstr_name,
            inode_mode,
            inode_rdev,
            inode_ino,
            sb_dev,
            sb_flags,
            sb_root,
        }
    }
}

#[cfg(feature = "user")]
// SAFETY: sixteen `u32` in a row: every bit pattern is valid and there is no padding.
unsafe impl aya::Pod for KernelLayout<u32> {}
