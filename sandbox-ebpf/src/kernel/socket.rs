//! `struct socket`.

use super::load;
use crate::layout::LAYOUT;
use core::ffi::c_void;

/// `struct socket *`
#[derive(Clone, Copy)]
pub(crate) struct Socket(pub(crate) *const c_void);

impl Socket {
    /// `IPPROTO_*`; 0, which no rule allows, where the socket is gone. From 6.7 on the verifier
    /// wants `sk` to be looked at first.
    #[inline(always)]
    pub(crate) fn protocol(self) -> u16 {
        let sock: *const c_void = load(self.0, &LAYOUT.socket_sk);
        if sock.is_null() { 0 } else { load(sock, &LAYOUT.sock_protocol) }
    }
}
