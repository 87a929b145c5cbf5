//! `struct socket`, `sock` and `unix_sock`.

use super::task;
use super::vfs::{Dentry, File, Path};
use super::{embedded, load, read};
use crate::layout::LAYOUT;
use crate::maps::CONTROL;
use crate::net::{AF_INET, Address};
use aya_ebpf::helpers::generated::{
    bpf_probe_read_kernel, bpf_skc_to_unix_sock, bpf_sock_from_file,
};
use core::ffi::c_void;
use sandbox_common::net::{ABSTRACT_NAME, AbstractName};
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
        is_beneath(own as u64, cgroup)
    }

    /// Whether it was made in the very cgroup that the current task is in.
    #[inline(always)]
    pub(crate) fn is_of_own_cgroup(self) -> bool {
        let data = embedded(self.0, &LAYOUT.sock_cgroup);
        load::<*const c_void>(data, &LAYOUT.cgroup_of_sock) == task::own_cgroup()
    }

    /// `AF_*`
    #[inline(always)]
    pub(crate) fn family(self) -> u16 {
        load(self.common(), &LAYOUT.common_family)
    }

    /// The address and the port that it is bound to, zero where it is not; both in network byte order.
    #[inline(always)]
    pub(crate) fn bound(self) -> Option<(Address, u16)> {
        let port: u16 = load(self.common(), &LAYOUT.common_port);
        let address = if self.family() == AF_INET {
            Address::v4(load(self.common(), &LAYOUT.common_address4))
        } else {
            let at = self.common() as u64 + LAYOUT.common_address6.get() as u64;
            Address::v6(read(at)?)
        };
        Some((address, port.to_be()))
    }

    #[inline(always)]
    fn common(self) -> *const c_void {
        embedded(self.0, &LAYOUT.sock_common)
    }

    /// Its address: who it is, as long as it lives.
    #[inline(always)]
    pub(crate) fn address(self) -> u64 {
        self.0 as u64
    }

    /// The same, with which the verifier allows arithmetic.
    #[inline(always)]
    pub(crate) fn number(self) -> Option<u64> {
        let place = self.0;
        read((&raw const place) as u64)
    }

    /// Where a unix socket is bound in a file system; `None` where it has no path.
    #[inline(always)]
    pub(crate) fn unix_dentry(self) -> Option<Dentry> {
        let dentry = Path(embedded(self.unix()?, &LAYOUT.unix_path)).dentry();
        if dentry.0.is_null() { None } else { Some(dentry) }
    }

    #[inline(always)]
    fn unix(self) -> Option<*const c_void> {
        // SAFETY: the verifier knows the argument to be a socket.
        let unix = unsafe { bpf_skc_to_unix_sock(self.0.cast_mut()) }.cast_const().cast::<c_void>();
        if unix.is_null() { None } else { Some(unix) }
    }

    /// Fills in the abstract name of a unix socket, into zeros. False where it has none, or one that cannot be
    /// read. A name is given once and never changes.
    #[inline(always)]
    pub(crate) fn abstract_name(self, name: &mut AbstractName) -> bool {
        let Some(unix) = self.unix() else { return false };
        let address: *const c_void = load(unix, &LAYOUT.unix_address);
        if address.is_null() {
            return false;
        }
        let path = address as u64 + LAYOUT.address_name.get() as u64 + 2;
        // The family, a zero, the name.
        name.len = load::<u32>(address, &LAYOUT.address_len).wrapping_sub(3);
        // Read back, for the verifier: its 64 bits are then what is compared.
        // SAFETY: a reference.
        let len = unsafe { core::ptr::read_volatile(&raw const name.len) };
        if len > ABSTRACT_NAME as u32 || read::<u8>(path) != Some(0) {
            return false;
        }
        let to = (&raw mut name.name).cast();
        // SAFETY: no longer than the name; the helper fills it or fails.
        unsafe { bpf_probe_read_kernel(to, len, (path + 1) as *const c_void) == 0 }
    }
}

/// A socket that a look-up gave, of which the verifier lets only a few fields be read.
#[derive(Clone, Copy)]
pub(crate) struct Found(u64);

impl Found {
    /// Its number, read back from memory: arithmetic on the pointer itself is refused.
    #[inline(always)]
    pub(crate) fn of(socket: *const c_void) -> Option<Self> {
        Sock(socket).number().map(Self)
    }

    /// See [`Sock::is_of_cgroup`].
    #[inline(always)]
    pub(crate) fn is_of_cgroup(self, cgroup: u64) -> bool {
        let at = LAYOUT.sock_cgroup.get() as u64 + LAYOUT.cgroup_of_sock.get() as u64;
        read::<u64>(self.0 + at).is_some_and(|own| is_beneath(own, cgroup))
    }
}

/// Whether the `struct cgroup` at `own` lies beneath a session's, which is known by its id.
#[inline(always)]
fn is_beneath(own: u64, cgroup: u64) -> bool {
    let Some(depth) = read::<i32>(own + LAYOUT.cgroup_level.get() as u64) else {
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
        let id = read::<u64>(own + above)
            .and_then(|above| read::<u64>(above + LAYOUT.cgroup_node.get() as u64))
            .and_then(|node| read::<u64>(node + LAYOUT.kernfs_id.get() as u64));
        if id == Some(cgroup) {
            return true;
        }
    }
    false
}
