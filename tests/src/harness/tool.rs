//! Another tool on the hooks of the kernel: the smallest BPF program that is one.

use anyhow::Context as _;
use aya::Btf;
use aya_obj::btf::BtfKind;
use sandbox_userspace::engine::Way;
use sandbox_userspace::kernel::features::{Paths, Survey};
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// `bpf(2)` commands, kinds of programs and of attaching, linux/bpf.h.
const PROG_LOAD: i32 = 5;
const RAW_TRACEPOINT_OPEN: i32 = 17;
const TYPE_TRACING: u32 = 26;
const TYPE_LSM: u32 = 29;
const MODIFY_RETURN: u32 = 26;
const LSM_MAC: u32 = 27;

/// A program on a hook, as long as it lives.
#[derive(Debug)]
pub(crate) struct Tool {
    _link: OwnedFd,
}

impl Tool {
    /// So many, or fewer where the hook takes no more, attached as this kernel attaches ours. Each refuses (`EPERM`)
    /// what the user asks of the hook and nobody else.
    pub(crate) fn attach(hook: &str, user: u32, many: usize) -> anyhow::Result<Vec<Self>> {
        let (kind, attaching, prefix) = match Survey::take(Paths::default()).way() {
            Way::BpfLsm => (TYPE_LSM, LSM_MAC, "bpf_lsm_"),
            Way::ModifyReturn => (TYPE_TRACING, MODIFY_RETURN, "security_"),
        };
        let types = Btf::from_sys_fs().context("types of the kernel")?;
        let function = types.id_by_type_name_kind(&format!("{prefix}{hook}"), BtfKind::Func)?;
        let mut tools = Vec::new();
        while tools.len() < many {
            let program = load(kind, attaching, function, user).context("loading a program")?;
            match link(&program) {
                Ok(link) => tools.push(Self { _link: link }),
                Err(error) if error.raw_os_error() == Some(libc::E2BIG) => break,
                Err(error) => return Err(error).context("attaching a program"),
            }
        }
        Ok(tools)
    }
}

/// An instruction: code, registers (source above, destination below), offset, value.
const fn instruction(code: u8, registers: u8, offset: i16, value: i32) -> [u8; 8] {
    let ([low, high], [a, b, c, d]) = (offset.to_le_bytes(), value.to_le_bytes());
    [code, registers, low, high, a, b, c, d]
}

fn load(kind: u32, attaching: u32, function: u32, user: u32) -> io::Result<OwnedFd> {
    /// The part of `union bpf_attr` for `BPF_PROG_LOAD`.
    #[repr(C)]
    #[derive(Default)]
    struct Load {
        kind: u32,
        count: u32,
        instructions: u64,
        license: u64,
        log: [u32; 4],
        version: u32,
        flags: u32,
        name: [u8; 16],
        interface: u32,
        attaching: u32,
        types: u32,
        functions_size: u32,
        functions: u64,
        functions_count: u32,
        lines_size: u32,
        lines: u64,
        lines_count: u32,
        function: u32,
    }
    let instructions = [
        // r0 = bpf_get_current_uid_gid(), w1 = w0, r0 = 0
        instruction(0x85, 0, 0, 15),
        instruction(0xbc, 0x01, 0, 0),
        instruction(0xb7, 0, 0, 0),
        // if r1 == user { r0 = -EPERM }
        instruction(0x55, 0x01, 1, user.cast_signed()),
        instruction(0xb7, 0, 0, -libc::EPERM),
        instruction(0x95, 0, 0, 0),
    ];
    let load = Load {
        kind,
        count: 6,
        instructions: instructions.as_ptr() as u64,
        license: c"GPL".as_ptr() as u64,
        attaching,
        function,
        ..Load::default()
    };
    // SAFETY: what the attributes point to lives until the call returns.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, PROG_LOAD, &raw const load, size_of::<Load>()) };
    opened(fd)
}

fn link(program: &OwnedFd) -> io::Result<OwnedFd> {
    /// The part of `union bpf_attr` for `BPF_RAW_TRACEPOINT_OPEN`.
    #[repr(C)]
    struct Open {
        name: u64,
        program: u32,
        pad: u32,
    }
    let open = Open { name: 0, program: program.as_raw_fd().cast_unsigned(), pad: 0 };
    let size = size_of::<Open>();
    // SAFETY: numbers only.
    opened(unsafe { libc::syscall(libc::SYS_bpf, RAW_TRACEPOINT_OPEN, &raw const open, size) })
}

fn opened(fd: libc::c_long) -> io::Result<OwnedFd> {
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
