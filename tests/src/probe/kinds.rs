//! Every kind of socket, made in every way that a kernel has.

use super::files::checked;
use super::uring::Ring;
use super::{Failure, Outcome, Stage as _};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::{Pid, WaitOptions, waitpid};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::arch::asm;

/// How a socket is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SocketWay {
    /// `socket(2)`
    Call,
    /// `IORING_OP_SOCKET`
    Uring,
    /// `socket(2)` of 32-bit programs: `int 0x80`.
    Compat,
    /// `socketcall(2)` of 32-bit programs.
    CompatCall,
}

/// One kind of socket: family, type, protocol.
pub(crate) type SocketKind = (i32, i32, i32);

/// Families up to the last that any kernel here has (`AF_MCTP`), types up to `SOCK_PACKET`; protocols that
/// mean something to a family of internet protocols: none, ICMP, TCP, UDP, SCTP, UDP-Lite, raw, MPTCP.
pub(crate) fn socket_kinds() -> impl Iterator<Item = SocketKind> {
    const PROTOCOLS: [i32; 8] = [0, 1, 6, 17, 132, 136, 255, 262];
    (0..=45).flat_map(|family| {
        [1, 2, 3, 4, 5, 6, 10]
            .into_iter()
            .flat_map(move |kind| PROTOCOLS.map(|protocol| (family, kind, protocol)))
    })
}

/// Tries all of them; the data are those that were made.
pub(super) fn table(way: SocketWay) -> Outcome {
    let mut ring = None;
    let mut page = None;
    match way {
        SocketWay::Call => {}
        SocketWay::Uring => ring = Some(Ring::new()?),
        SocketWay::Compat | SocketWay::CompatCall => {
            if !has_compat()? {
                return Err(Failure { errno: Errno::NOSYS, stage: "32-bit entry" });
            }
            page = Some(low_page()?);
        }
    }
    let mut made: Vec<SocketKind> = Vec::new();
    for (family, kind, protocol) in socket_kinds() {
        let result = match (way, &mut ring, page) {
            (SocketWay::Uring, Some(ring), _) => ring.socket(family, kind, protocol)?,
            (SocketWay::Compat, _, _) => entry32(359, family, kind, protocol),
            (SocketWay::CompatCall, _, Some(page)) => {
                // SAFETY: the page is ours and has room for three numbers.
                unsafe { page.write([family, kind, protocol]) };
                // 1 is SYS_SOCKET of linux/net.h. The page lies below 4 GiB.
                let page = i32::try_from(page.expose_provenance());
                page.map_or(-libc::EFAULT, |page| entry32(102, 1, page, 0))
            }
            _ => {
                // SAFETY: plain numbers.
                let result = unsafe { libc::syscall(libc::SYS_socket, family, kind, protocol) };
                i32::try_from(result).unwrap_or(-1)
            }
        };
        if result >= 0 {
            // SAFETY: the kernel gave it to us a moment ago.
            checked(unsafe { libc::syscall(libc::SYS_close, result) }, "close")?;
            made.push((family, kind, protocol));
        }
    }
    Ok(json!(made))
}

/// A system call of a 32-bit program, whose pointers are below 2 GiB.
pub(super) fn entry32(number: i32, first: i32, second: i32, third: i32) -> i32 {
    let mut result = number;
    // SAFETY: the calls that are made so take numbers, or a pointer to memory that is ours. The entry
    // keeps no register above the seventh.
    unsafe {
        asm!(
            "xchg rbx, {first}",
            "int 0x80",
            "xchg rbx, {first}",
            first = inout(reg) i64::from(first) => _,
            inout("eax") result,
            in("ecx") second,
            in("edx") third,
            lateout("r8") _, lateout("r9") _, lateout("r10") _, lateout("r11") _,
        );
    }
    result
}

/// Whether this kernel lets 32-bit programs in: tried by a child, which dies where it does not.
fn has_compat() -> Result<bool, Failure> {
    // SAFETY: the child makes two system calls.
    let child = checked(unsafe { libc::c_long::from(libc::fork()) }, "fork")?;
    if child == 0 {
        // 20 is getpid.
        let alive = entry32(20, 0, 0, 0) > 0;
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!alive)) };
    }
    let child = i32::try_from(child).ok().and_then(Pid::from_raw);
    let status = waitpid(child, WaitOptions::empty()).stage("waitpid")?;
    Ok(status.is_some_and(|(_, status)| status.exit_status() == Some(0)))
}

/// A page that a 32-bit pointer reaches.
fn low_page() -> Result<*mut [i32; 3], Failure> {
    let flags = MapFlags::PRIVATE | MapFlags::from_bits_retain(libc::MAP_32BIT.cast_unsigned());
    // SAFETY: a new mapping, for the life of the process.
    let page = unsafe {
        mmap_anonymous(std::ptr::null_mut(), 4096, ProtFlags::READ | ProtFlags::WRITE, flags)
    };
    page.stage("mmap").map(<*mut std::ffi::c_void>::cast)
}

/// The kinds that an answer names.
pub(crate) fn kinds_of(data: &Value) -> Vec<SocketKind> {
    serde_json::from_value(data.clone()).unwrap_or_default()
}
