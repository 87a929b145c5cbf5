//! `struct socket`, `sock` and `unix_sock`.

use super::vfs::{Dentry, File, Path};
use super::{embedded, load, read};
use crate::layout::LAYOUT;
use crate::maps::CONTROL;
use aya_ebpf::helpers::generated::{bpf_skc_to_unix_sock, bpf_sock_from_file};
use core::ffi::c_void;
use sandbox_common::subject::PARENTS;

/// `struct socket *`
#[derive(Clone, Copy)]
pub(crate) struct Socket(pub(crate) *const c_void);

impl Socket {
    /// The socket that a descriptor stands for.
    #[inline(always)]
    pub(crate) fn of(file: File) -> Option<Self> {
        // SAFETY: the verifier knows the argument to be a file.
        let socket = unsafe { bpf_sock_from_file(file.0.cast_mut().cast()) };
        if socket.is_null() { None } else { Some(Self(socket.cast_const().cast())) }
    }

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

    /// Whether it was made beneath a cgroup.
    #[inline(always)]
    pub(crate) fn is_of_cgroup(self, cgroup: u64) -> bool {
        let data = embedded(self.0, &LAYOUT.sock_cgroup);
        let own: *const c_void = load(data, &LAYOUT.cgroup_of_sock);
        let Some(depth) = read::<i32>(own as u64 + LAYOUT.cgroup_level.get() as u64) else {
            return false;
        };
        let Some(control) = CONTROL.get(0) else { return false };
        for index in 0..PARENTS {
            let parent = control.parents[index];
            if parent.cgroup == 0 {
                break;
            }
            let level = parent.level + 1;
            if level as i32 > depth {
                continue;
            }
            let above = LAYOUT.cgroup_ancestors.get() as u64 + u64::from(level) * 8;
            let id = read::<u64>(own as u64 + above)
                .and_then(|above| read::<u64>(above + LAYOUT.cgroup_node.get() as u64))
                .and_then(|node| read::<u64>(node + LAYOUT.kernfs_id.get() as u64));
            if id == Some(cgroup) {
                return true;
            }
        }
        false
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
