//! What is kept of a TCP connection, on its socket.

use crate::maps::CONNECTIONS;
use aya_ebpf::bindings::{__sk_buff, bpf_sock};
use aya_ebpf::btf_maps::SkStorage;
use aya_ebpf::helpers::generated::bpf_sk_storage_get;
use sandbox_common::net::Connection;

/// The packet's socket. Read once: what was compared with null is what the verifier knows to be one.
#[inline(always)]
pub(super) fn socket(skb: *mut __sk_buff) -> Option<*mut bpf_sock> {
    // SAFETY: the verifier checks the access to the context.
    let socket = unsafe { (*skb).__bindgen_anon_2.sk };
    if socket.is_null() { None } else { Some(socket) }
}

/// What a socket keeps of its connection; null where that is nothing.
#[inline(always)]
pub(super) fn of(socket: *mut bpf_sock, flags: u32) -> *mut Connection {
    storage(&CONNECTIONS, socket, flags)
}

/// What a socket keeps in a map, zeros where it is made.
#[inline(always)]
pub(super) fn storage<T>(map: &'static SkStorage<T>, socket: *mut bpf_sock, flags: u32) -> *mut T {
    let map = core::ptr::from_ref(map).cast_mut().cast();
    // SAFETY: the verifier checks that the socket is one.
    unsafe { bpf_sk_storage_get(map, socket.cast(), core::ptr::null_mut(), flags.into()).cast() }
}
