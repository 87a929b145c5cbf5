//! `struct socket`, `sock` and `unix_sock`.

use super::vfs::{Dentry, Path};
use super::{embedded, load};
use crate::layout::LAYOUT;
use aya_ebpf::helpers::generated::bpf_skc_to_unix_sock;
use core::ffi::c_void;

/// `struct socket *`
#[derive(Clone, Copy)]
pub(crate) struct Socket(pub(crate) *const c_void);

impl Socket {
    /// Its `struct sock`, `None` where the socket is gone. From 6.7 on the verifier wants the pointer
    /// to be looked at first.
    #[inline(always)]
    pub(crate) fn sock(self) -> Option<Sock> {
        let sock: *const c_void = load(self.0, &LAYOUT.socket_sk);
        if sock.is_null() { None } else { Some(Sock(sock)) }
    }
}

/// `struct sock *`
#[derive(Clone, Copy)]
pub(crate) struct Sock(pub(crate) *const c_void);

impl Sock {
    /// `IPPROTO_*`
    #[inline(always)]
    pub(crate) fn protocol(self) -> u16 {
        load(self.0, &LAYOUT.sock_protocol)
    }

    /// Its address: who it is, as long as it lives.
    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    /// Where a unix socket is bound in a file system; `None` where it has no path.
    #[inline(always)]
    pub(crate) fn unix_dentry(self) -> Option<Dentry> {
        // SAFETY: the verifier knows the argument to be a socket.
        let unix = unsafe { bpf_skc_to_unix_sock(self.0.cast_mut()) }.cast_const().cast::<c_void>();
        if unix.is_null() {
            return None;
        }
        let dentry = Path(embedded(unix, &LAYOUT.unix_path)).dentry();
        if dentry.0.is_null() { None } else { Some(dentry) }
    }
}
