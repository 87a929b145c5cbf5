//! The `bpf` system call where aya has no call for it.
//!
//! Attributes are the members of `union bpf_attr` (include/uapi/linux/bpf.h) that a command uses;
//! the kernel takes what is beyond them for zero.

use sandbox_common::subject::{Label, TaskState};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use zerocopy::FromZeros as _;

const MAP_LOOKUP_ELEM: libc::c_long = 1;
const MAP_DELETE_ELEM: libc::c_long = 3;
const PROG_LOAD: libc::c_long = 5;
const OBJ_PIN: libc::c_long = 6;
const BTF_LOAD: libc::c_long = 18;
const LINK_CREATE: libc::c_long = 28;
const PROG_TYPE_TRACING: u32 = 26;
const MODIFY_RETURN: u32 = 26;
/// Bytes for the verifier's words about a program that it refuses.
const LOG: usize = 1 << 20;

/// Makes the call; a negative answer is an error.
///
/// # Safety
/// `A` is laid out as the command's attributes, and the addresses in it are valid for it.
unsafe fn call<A>(command: libc::c_long, attributes: &A) -> io::Result<libc::c_int> {
    // SAFETY: as promised by the caller.
    let status =
        unsafe { libc::syscall(libc::SYS_bpf, command, &raw const *attributes, size_of::<A>()) };
    libc::c_int::try_from(status)
        .ok()
        .filter(|status| *status >= 0)
        .ok_or_else(io::Error::last_os_error)
}

/// Makes a call that answers with a descriptor.
///
/// # Safety
/// As [`call`].
unsafe fn open<A>(command: libc::c_long, attributes: &A) -> io::Result<OwnedFd> {
    // SAFETY: as promised by the caller; the descriptor is new and nobody else's.
    unsafe { Ok(OwnedFd::from_raw_fd(call(command, attributes)?)) }
}

fn number(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd().cast_unsigned()
}

fn length(bytes: usize) -> io::Result<u32> {
    u32::try_from(bytes).map_err(|_| io::Error::from_raw_os_error(libc::E2BIG))
}

/// Removes the entry of `map`, whose keys are `u32`.
pub fn delete(map: impl AsFd, key: u32) -> io::Result<()> {
    #[repr(C)]
    struct Delete {
        map: u32,
        pad: u32,
        key: u64,
    }
    let attributes = Delete { map: number(map.as_fd()), pad: 0, key: (&raw const key) as u64 };
    // SAFETY: the key lives until the call returns.
    unsafe { call(MAP_DELETE_ELEM, &attributes).map(drop) }
}

/// The value that task storage `map` (of [`TaskState`]s) has for the process of `pidfd`.
pub fn label_of(map: impl AsFd, pidfd: BorrowedFd<'_>) -> io::Result<Option<Label>> {
    #[repr(C)]
    struct Lookup {
        map: u32,
        pad: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let key = pidfd.as_raw_fd();
    let mut state = TaskState::new_zeroed();
    let attributes = Lookup {
        map: number(map.as_fd()),
        pad: 0,
        key: (&raw const key) as u64,
        value: (&raw mut state) as u64,
        flags: 0,
    };
    // SAFETY: key and value live until the call returns, and the kernel writes as many bytes as the
    // map's values have, which is `TaskState`'s size (a pinned map of another shape is refused when the
    // engine opens the other maps of its directory).
    match unsafe { call(MAP_LOOKUP_ELEM, &attributes) } {
        Ok(_) => Ok(Some(state.label)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Loads type information for programs.
pub fn load_btf(bytes: &[u8]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct BtfLoad {
        btf: u64,
        log: u64,
        btf_size: u32,
        log_size: u32,
        log_level: u32,
        pad: u32,
    }
    let attributes = BtfLoad {
        btf: bytes.as_ptr() as u64,
        log: 0,
        btf_size: length(bytes.len())?,
        log_size: 0,
        log_level: 0,
        pad: 0,
    };
    // SAFETY: the bytes live until the call returns.
    unsafe { open(BTF_LOAD, &attributes) }
}

/// A program to be attached as `fmod_ret`: before a kernel function, whose call it replaces by any
/// return value but 0.
pub struct ModifyReturn<'a> {
    /// Its instructions.
    pub instructions: &'a [aya_obj::generated::bpf_insn],
    /// Its licence.
    pub license: &'a CStr,
    /// Type information, from [`load_btf`].
    pub btf: BorrowedFd<'a>,
    /// Records of `struct bpf_func_info`, and the bytes of one.
    pub func_info: (&'a [u8], usize),
    /// Id of the function in the kernel's type information.
    pub function: u32,
}

/// The kernel refused a program.
#[derive(Debug, thiserror::Error)]
#[error("{source}\n{log}")]
pub struct Refused {
    /// The error number.
    pub source: io::Error,
    /// The verifier's words.
    pub log: String,
}

/// Loads the program.
pub fn load_modify_return(program: &ModifyReturn<'_>) -> Result<OwnedFd, Refused> {
    try_load(program, &mut []).or_else(|_| {
        // Once more, now to hear why. A log that is too small would itself be an error.
        let mut log = vec![0; LOG];
        try_load(program, &mut log).map_err(|source| {
            let text = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy);
            Refused { source, log: text.unwrap_or_default().into_owned() }
        })
    })
}

fn try_load(program: &ModifyReturn<'_>, log: &mut [u8]) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct ProgLoad {
        prog_type: u32,
        insn_cnt: u32,
        insns: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log_buf: u64,
        kern_version: u32,
        prog_flags: u32,
        prog_name: [u8; 16],
        prog_ifindex: u32,
        expected_attach_type: u32,
        prog_btf_fd: u32,
        func_info_rec_size: u32,
        func_info: u64,
        func_info_cnt: u32,
        line_info_rec_size: u32,
        line_info: u64,
        line_info_cnt: u32,
        attach_btf_id: u32,
    }
    let ModifyReturn { instructions, license, btf, func_info: (func_info, record), function } =
        program;
    let attributes = ProgLoad {
        prog_type: PROG_TYPE_TRACING,
        insn_cnt: length(instructions.len())?,
        insns: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: u32::from(!log.is_empty()),
        log_size: length(log.len())?,
        log_buf: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
        kern_version: 0,
        prog_flags: 0,
        prog_name: [0; 16],
        prog_ifindex: 0,
        expected_attach_type: MODIFY_RETURN,
        prog_btf_fd: number(*btf),
        func_info_rec_size: length(*record)?,
        func_info: func_info.as_ptr() as u64,
        func_info_cnt: length(func_info.len().checked_div(*record).unwrap_or(0))?,
        line_info_rec_size: 0,
        line_info: 0,
        line_info_cnt: 0,
        attach_btf_id: *function,
    };
    // SAFETY: everything the attributes point to lives until the call returns.
    unsafe { open(PROG_LOAD, &attributes) }
}

/// Attaches a program loaded by [`load_modify_return`]; closing the last descriptor or pin of the
/// link detaches it.
pub fn link(program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct LinkCreate {
        prog: u32,
        target: u32,
        attach_type: u32,
        flags: u32,
    }
    let attributes =
        LinkCreate { prog: number(program), target: 0, attach_type: MODIFY_RETURN, flags: 0 };
    // SAFETY: numbers only.
    unsafe { open(LINK_CREATE, &attributes) }
}

/// Gives a link a name on a bpffs.
pub fn pin(link: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    #[repr(C)]
    struct ObjPin {
        path: u64,
        fd: u32,
        flags: u32,
    }
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attributes = ObjPin { path: path.as_ptr() as u64, fd: number(link), flags: 0 };
    // SAFETY: the path lives until the call returns.
    unsafe { call(OBJ_PIN, &attributes) }.map(drop)
}
