//! Who listens at an address of this machine: a member of the same session may be reached without a rule.

use crate::kernel::socket::Found;
use crate::net::{Address, TCP, UDP};
use crate::subject::Member;
use aya_ebpf::bindings::bpf_sock_tuple;
use aya_ebpf::helpers::generated::{bpf_sk_lookup_tcp, bpf_sk_lookup_udp, bpf_sk_release};
use core::ffi::c_void;

/// Whoever asks for the socket is in the same network namespace. `BPF_F_CURRENT_NETNS`
const CURRENT: u64 = u64::MAX;

/// `bpf_sock_tuple.ipv4`
#[repr(C)]
struct Tuple4 {
    from: u32,
    to: u32,
    ports: [u16; 2],
}

/// `bpf_sock_tuple.ipv6`
#[repr(C)]
struct Tuple6 {
    from: [u32; 4],
    to: [u32; 4],
    ports: [u16; 2],
}

/// One end of a connection; the port is in network byte order. Zero where it is not known.
pub(crate) struct End {
    pub(crate) address: Address,
    pub(crate) port: u16,
}

/// Whether what would get a packet from `from` to `to`, which is a loopback address, is a socket that
/// was made in the member's session. `context` is that of the program.
#[inline(always)]
pub(crate) fn is_fellow(
    context: *mut c_void,
    member: &Member,
    protocol: u16,
    from: &End,
    to: &End,
) -> bool {
    let ports = [from.port, to.port];
    let socket = if to.address.is_v4() {
        let tuple = Tuple4 { from: from.address.0[3], to: to.address.0[3], ports };
        look_up(context, protocol, &raw const tuple)
    } else {
        let tuple = Tuple6 { from: from.address.0, to: to.address.0, ports };
        look_up(context, protocol, &raw const tuple)
    };
    if socket.is_null() {
        return false;
    }
    let fellow = Found::of(socket).is_some_and(|socket| socket.is_of_cgroup(member.cgroup));
    // SAFETY: the verifier checks that it is what the look-up gave, and is not used again.
    unsafe { bpf_sk_release(socket.cast_mut()) };
    fellow
}

/// The socket that a tuple leads to, to be released; or null.
#[inline(always)]
fn look_up<T>(context: *mut c_void, protocol: u16, tuple: *const T) -> *const c_void {
    let (tuple, size) = (tuple.cast::<bpf_sock_tuple>().cast_mut(), size_of::<T>() as u32);
    // SAFETY: the tuple is as long as is said, and only read.
    let socket = unsafe {
        match protocol {
            TCP => bpf_sk_lookup_tcp(context, tuple, size, CURRENT, 0),
            UDP => bpf_sk_lookup_udp(context, tuple, size, CURRENT, 0),
            _ => return core::ptr::null(),
        }
    };
    socket.cast_const().cast()
}
