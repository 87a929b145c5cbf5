//! The programs attached to each session's cgroup.
//!
//! They run for the cgroup that a *socket* was made in, whoever holds it.

mod address;
mod bind;
mod connection;
mod count;
pub(crate) mod hello;
mod ingress;
mod names;
mod packet;

use crate::net::Address;
use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::programs::SockAddrContext;

#[inline(always)]
fn address4(ctx: &SockAddrContext) -> Address {
    // SAFETY: the verifier checks each access to the context.
    Address::v4(unsafe { (*ctx.sock_addr).user_ip4 })
}

#[inline(always)]
fn address6(ctx: &SockAddrContext) -> Address {
    let from: *const bpf_sock_addr = ctx.sock_addr;
    // SAFETY: the verifier checks each access; the context must be read word by word.
    Address::v6(unsafe {
        let ip = (&raw const (*from).user_ip6).cast::<u32>();
        [
            ip.read_volatile(),
            ip.add(1).read_volatile(),
            ip.add(2).read_volatile(),
            ip.add(3).read_volatile(),
        ]
    })
}

/// Puts an address and a port (in network byte order) in the place of those of the context.
#[inline(always)]
fn replace(ctx: &SockAddrContext, address: &Address, port: u16, v6: bool) {
    let to = ctx.sock_addr;
    let [a, b, c, d] = address.0;
    // SAFETY: the verifier checks each access; the context must be written word by word.
    unsafe {
        if v6 {
            let ip = (&raw mut (*to).user_ip6).cast::<u32>();
            ip.write_volatile(a);
            ip.add(1).write_volatile(b);
            ip.add(2).write_volatile(c);
            ip.add(3).write_volatile(d);
        } else {
            (&raw mut (*to).user_ip4).write_volatile(d);
        }
        (&raw mut (*to).user_port).write_volatile(u32::from(port));
    }
}

/// Port, in network byte order, and protocol.
#[inline(always)]
fn port_and_protocol(ctx: &SockAddrContext) -> (u16, u16) {
    // SAFETY: the verifier checks each access to the context.
    unsafe { ((*ctx.sock_addr).user_port as u16, (*ctx.sock_addr).protocol as u16) }
}
