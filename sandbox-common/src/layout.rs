//! Where the fields of kernel structures lie.
//!
//! rustc emits no CO-RE relocations, so the loader reads the offsets from the running kernel's BTF
//! and writes them into a global of the eBPF object before it is loaded. The global is read-only,
//! the verifier takes its words for constants, and loads through typed pointers stay typed.

/// Offset of a field that the running kernel lacks; only optional fields may have it. The verifier
/// prunes the branch behind a test for it.
pub const ABSENT: u32 = u32::MAX;

/// Of [`FieldSpec::size`]: the field may be larger.
pub const AT_LEAST: u32 = 1 << 31;

/// How to find a field, and whether the programs can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldSpec {
    /// The structure.
    pub structure: &'static str,
    /// Names the field has or had, the newest first. Anonymous members are searched through.
    pub names: &'static [&'static str],
    /// Bytes that the programs load; the field must have just this size, or with [`AT_LEAST`] as much. 0: an
    /// embedded structure.
    pub size: u32,
    /// Without it nothing is enforced.
    pub required: bool,
}

const fn field(
    structure: &'static str,
    names: &'static [&'static str],
    size: u32,
    required: bool,
) -> FieldSpec {
    FieldSpec { structure, names, size, required }
}

/// Whether a line of the list below ends without `optional`.
macro_rules! required {
    () => {
        true
    };
    (optional) => {
        false
    };
}

/// Defines the layout, the table that fills it and its form as an array from one list.
macro_rules! layout {
    ($($field:ident: $structure:literal, $names:expr, $size:expr $(, $optional:ident)?;)*) => {
        /// One value per field: a byte offset on both sides, a [`FieldSpec`] in [`FIELDS`].
        ///
        /// `T` is the same for all, so the struct is an array in memory, in declaration order.
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(
            feature = "user",
            derive(
                zerocopy::FromBytes,
                zerocopy::IntoBytes,
                zerocopy::Immutable,
                zerocopy::KnownLayout
            )
        )]
        pub struct KernelLayout<T> {
            $(#[doc = concat!("A field of `", $structure, "`, see [`FIELDS`].")] pub $field: T,)*
        }

        /// The table from which the loader fills the layout.
        pub const FIELDS: KernelLayout<FieldSpec> =
            KernelLayout {
                $($field: field($structure, &$names, $size, required!($($optional)?)),)*
            };

        impl<T: Copy> KernelLayout<T> {
            /// The fields in declaration order.
            pub const fn to_array(self) -> [T; COUNT] {
                let Self { $($field,)* } = self;
                [$($field,)*]
            }

            /// The reverse of [`to_array`](Self::to_array).
            pub const fn from_array(array: [T; COUNT]) -> Self {
                let [$($field,)*] = array;
                Self { $($field,)* }
            }
        }
    };
}

layout! {
    file_path: "file", ["f_path"], 0;
    file_inode: "file", ["f_inode"], 8;
    file_mode: "file", ["f_mode"], 4;
    file_flags: "file", ["f_flags"], 4;
    // Since 6.8. Before that the path of a backing file is the one by which it was opened.
    backing_user_path: "backing_file", ["user_path"], 0, optional;
    path_dentry: "path", ["dentry"], 8;
    dentry_parent: "dentry", ["d_parent"], 8;
    dentry_name: "dentry", ["d_name"], 0;
    dentry_short_name: "dentry", ["d_shortname", "d_iname"], AT_LEAST | 32;
    dentry_inode: "dentry", ["d_inode"], 8;
    dentry_sb: "dentry", ["d_sb"], 8;
    dentry_flags: "dentry", ["d_flags"], 4;
    qstr_len: "qstr", ["len"], 4;
    qstr_name: "qstr", ["name"], 8;
    inode_mode: "inode", ["i_mode"], 2;
    inode_rdev: "inode", ["i_rdev"], 4;
    inode_ino: "inode", ["i_ino"], 8;
    inode_generation: "inode", ["i_generation"], 4;
    inode_nlink: "inode", ["i_nlink"], 4;
    inode_flags: "inode", ["i_flags"], 4;
    renamedata_old: "renamedata", ["old_dentry"], 8;
    renamedata_new: "renamedata", ["new_dentry"], 8;
    sb_dev: "super_block", ["s_dev"], 4;
    sb_flags: "super_block", ["s_flags"], 8;
    sb_magic: "super_block", ["s_magic"], 8;
    sb_root: "super_block", ["s_root"], 8;
    task_tgid: "task_struct", ["tgid"], 4;
    task_comm: "task_struct", ["comm"], 16;
    socket_sk: "socket", ["sk"], 8;
    sock_protocol: "sock", ["sk_protocol"], 2;
    sock_common: "sock", ["__sk_common"], 0;
    common_family: "sock_common", ["skc_family"], 2;
    common_port: "sock_common", ["skc_num"], 2;
    common_address4: "sock_common", ["skc_rcv_saddr"], 4;
    common_address6: "sock_common", ["skc_v6_rcv_saddr"], 0;
    unix_path: "unix_sock", ["path"], 0;
    unix_address: "unix_sock", ["addr"], 8;
    address_len: "unix_address", ["len"], 4;
    address_name: "unix_address", ["name"], 0;
    task_cgroups: "task_struct", ["cgroups"], 8;
    css_set_cgroup: "css_set", ["dfl_cgrp"], 8;
    task_cred: "task_struct", ["cred"], 8;
    task_real_cred: "task_struct", ["real_cred"], 8;
    task_personality: "task_struct", ["personality"], 4;
    cred_effective: "cred", ["cap_effective"], 0;
    iattr_valid: "iattr", ["ia_valid"], 4;
    vma_flags: "vm_area_struct", ["vm_flags"], 8;
    vma_file: "vm_area_struct", ["vm_file"], 8;
    sock_cgroup: "sock", ["sk_cgrp_data"], 0;
    cgroup_of_sock: "sock_cgroup_data", ["cgroup"], 8;
    cgroup_level: "cgroup", ["level"], 4;
    cgroup_ancestors: "cgroup", ["ancestors"], 0;
    cgroup_node: "cgroup", ["kn"], 8;
    kernfs_id: "kernfs_node", ["id"], 8;
    file_owner: "file", ["f_owner"], AT_LEAST | 8;
    owner_file: "fown_struct", ["file"], 8, optional;
    context_type: "fs_context", ["fs_type"], 8;
    type_name: "file_system_type", ["name"], 8;
    proc_pid: "proc_inode", ["pid"], 8;
    proc_vfs: "proc_inode", ["vfs_inode"], 0;
    task_pid: "task_struct", ["thread_pid"], 8;
    task_storage: "task_struct", ["bpf_storage"], 8;
    task_born: "task_struct", ["start_boottime"], 8;
    task_leader: "task_struct", ["group_leader"], 8;
    skb_head: "sk_buff", ["head"], 8;
    skb_end: "sk_buff", ["end"], 4;
    shared_flags: "skb_shared_info", ["flags"], 1;
    cred_namespace: "cred", ["user_ns"], 8;
    namespace_level: "user_namespace", ["level"], 4;
    program_file: "linux_binprm", ["file"], 8;
    program_name: "linux_binprm", ["filename"], 8;
    registers_call: "pt_regs", ["orig_ax"], 8;
    registers_si: "pt_regs", ["si"], 8;
    registers_dx: "pt_regs", ["dx"], 8;
    registers_cx: "pt_regs", ["cx"], 8;
}

/// Number of fields.
pub const COUNT: usize = size_of::<KernelLayout<u32>>() / size_of::<u32>();

#[cfg(feature = "user")]
crate::pod!(KernelLayout<u32>);
