//! Which server a connection asks for: the check of the name in what TLS sends first.
//!
//! What a checked connection has to show is kept on its socket, from its first segment on; a new connection of the
//! same socket begins anew. The first data that leaves is judged, whole, in one packet (a packet leaves here before
//! it is cut to what the network takes), and nothing leaves before. Once it has passed nothing is looked at any more;
//! once it was refused no data leaves any more.
//!
//! `egress` calls [`egress_hello`] as its tail: in one program they would have more ways than the verifier follows,
//! and need more stack than there is. What the one knows the other finds on the socket.

use super::connection;
use super::packet::{ACK, SYN};
use crate::finish;
use crate::kernel::skb;
use crate::maps::{HELLOS, PORTS, SERVER_NAMES, TAILS};
use crate::net::{Address, TCP};
use crate::session;
use crate::subject::Member;
use aya_ebpf::bindings::{__sk_buff, BPF_SK_STORAGE_GET_F_CREATE, bpf_sock};
use aya_ebpf::helpers::generated::{bpf_loop, bpf_sk_storage_delete, bpf_skb_load_bytes};
use aya_ebpf::macros::cgroup_skb;
use aya_ebpf::maps::lpm_trie::Key;
use aya_ebpf::programs::SkBuffContext;
use core::ffi::{c_long, c_void};
use core::mem::MaybeUninit;
use sandbox_common::Access;
use sandbox_common::decide::Decision;
use sandbox_common::event::{Reason, SERVER_BYTES, ServerEvent};
use sandbox_common::net::{Connection, PORT_PREFIX, Port};
use sandbox_common::subject::Subject;
use sandbox_common::tls::{self, Letters, Payload, SERVER_NAME_PREFIX, ServerNameKey, Step};

/// Of a TCP header's fourteenth byte: some of the data is urgent, and the other side may read it apart.
const URG: u8 = 32;
/// Bytes of a TCP header without options.
const TCP_HEADER: u32 = 20;

/// What is known of a connection that is being checked, and working memory.
#[repr(C)]
pub(crate) struct Hello {
    /// Id of the session's cgroup.
    cgroup: u64,
    subject: Subject,
    to: [u32; 4],
    segment: Segment,
    /// In network byte order.
    port: u16,
    /// Most bytes that a look-up or an event reads, in their places.
    key: Key<ServerNameKey>,
    event: ServerEvent,
}

/// Where a segment of TCP lies in its packet.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Segment {
    /// Where its header begins.
    pub(super) offset: u32,
    /// The header's thirteenth byte, with its length, and its fourteenth.
    pub(super) flags: [u8; 2],
}

impl Segment {
    /// Bytes of its header.
    #[inline(always)]
    fn header(self) -> u32 {
        u32::from(self.flags[0] >> 4) * 4
    }

    /// Where its data begins, and how many bytes that is.
    #[inline(always)]
    fn data(self, skb: *mut __sk_buff) -> (u32, u32) {
        // SAFETY: the verifier checks the access to the context.
        let whole = unsafe { (*skb).len };
        let at = self.offset + self.header();
        (at, whole.saturating_sub(at))
    }

    /// Whether a connection, or what has none, begins with it.
    #[inline(always)]
    pub(super) fn begins(self) -> bool {
        self.flags[1] & (SYN | ACK) == SYN
    }
}

/// Notes by which rule a connection that begins is checked; 0: by none. False where it cannot be noted.
#[inline(always)]
pub(super) fn begin(skb: *mut __sk_buff, check: u32) -> bool {
    let Some(socket) = connection::socket(skb) else { return check == 0 };
    let flags = if check == 0 { 0 } else { BPF_SK_STORAGE_GET_F_CREATE };
    let connection = connection::of(socket, flags);
    if connection.is_null() {
        return check == 0;
    }
    // SAFETY: not null, and the verifier knows its size; the socket is locked while it sends.
    unsafe { ((*connection).check, (*connection).refused) = (check, 0) };
    true
}

/// Has a segment of a checked connection judged, for which this goes on as another program. Returns where there is
/// nothing to be judged, or nobody who could.
#[inline(always)]
pub(super) fn judge(
    ctx: &SkBuffContext,
    socket: *mut bpf_sock,
    connection: &Connection,
    segment: Segment,
    to: &Address,
    port: u16,
) -> bool {
    if !segment.begins() {
        if segment.data(ctx.skb.skb).1 == 0 {
            return true;
        }
        if connection.refused != 0 {
            return false;
        }
    }
    let session = session::owner();
    let member = session.member();
    let hello = connection::storage(&HELLOS, socket, BPF_SK_STORAGE_GET_F_CREATE);
    if hello.is_null() {
        let denied = denied(connection.check, Reason::NoMemory);
        return finish::packet(&member, denied, to.payload(TCP, port));
    }
    // SAFETY: not null, and the verifier knows its size; the socket is locked while it sends. The context is this
    // program's.
    unsafe {
        (*hello).cgroup = member.cgroup;
        (*hello).subject = *member.subject;
        (*hello).to = to.0;
        (*hello).segment = segment;
        (*hello).port = port;
        TAILS.tail_call(ctx, 0);
    }
    // There is none.
    let denied = denied(connection.check, Reason::Unreadable);
    finish::packet(&member, denied, to.payload(TCP, port))
}

/// The first segment, and the first data, of a checked connection: `egress` goes on here.
#[cgroup_skb(egress)]
pub(crate) fn egress_hello(ctx: SkBuffContext) -> i32 {
    let skb = ctx.skb.skb;
    let Some(socket) = connection::socket(skb) else { return 0 };
    let (connection, hello) = (connection::of(socket, 0), connection::storage(&HELLOS, socket, 0));
    if connection.is_null() || hello.is_null() {
        return 0;
    }
    // SAFETY: not null, and the verifier knows their sizes; the socket is locked while it sends.
    let (connection, hello) = unsafe { (&mut *connection, &mut *hello) };
    let (at, len) = hello.segment.data(skb);
    let reason = show(skb, hello, at, len);
    let mut passes = true;
    if let Some(reason) = Reason::from_number(reason as u8) {
        connection.refused = reason as u32;
        let decision = denied(connection.check, reason);
        let member = Member::of(hello.cgroup, &hello.subject);
        let address = Address(hello.to).payload(TCP, hello.port);
        passes = finish::server(&member, decision, address, &mut hello.event);
        // Where the session only reports, that is done once.
        if passes {
            (connection.check, connection.refused) = (0, 0);
        }
    } else if len != 0 {
        connection.check = 0;
    }
    if connection.check == 0 {
        let map = core::ptr::from_ref(&HELLOS).cast_mut().cast();
        // SAFETY: the verifier checks that the socket is one. What it has there is not used any more.
        unsafe { bpf_sk_storage_delete(map, socket.cast()) };
    }
    i32::from(passes)
}

/// The number of the reason why a segment must not leave, which it shows; 0: it may.
#[inline(always)]
fn show(skb: *mut __sk_buff, hello: &mut Hello, at: u32, len: u32) -> u32 {
    hello.event.server.len = 0;
    let segment = hello.segment;
    if segment.begins() {
        // Another flow of the same connection could carry what this one was refused.
        let options = Bytes { skb, at: segment.offset + TCP_HEADER };
        if tls::joins(&options, segment.header().saturating_sub(TCP_HEADER)) {
            return Reason::NotTls as u32;
        }
    }
    if len == 0 {
        return 0;
    }
    if segment.flags[1] & URG != 0 {
        return Reason::NotTls as u32;
    }
    if skb::is_shared(skb) {
        return Reason::Changeable as u32;
    }
    let name = match tls::server_name(&Bytes { skb, at }, len, hello) {
        Ok(name) => name,
        Err(reason) => return reason as u32,
    };
    hello.event.server.len = name;
    let slot = hello.subject.slot;
    hello.key.prefix_len = SERVER_NAME_PREFIX + 8 * (name + 1);
    hello.key.data.slot = slot;
    let Some(set) = SERVER_NAMES.get(&hello.key) else { return Reason::ServerName as u32 };
    let key = Port { slot, set: *set, protocol: TCP, port: hello.port.to_ne_bytes() };
    match PORTS.get(Key::new(PORT_PREFIX + 16, key)) {
        Some(rule) if rule.allow == 1 => 0,
        _ => Reason::ServerName as u32,
    }
}

#[inline(always)]
pub(super) fn denied(rule: u32, reason: Reason) -> Decision {
    Decision { rule, ..Decision::deny(reason, Access::CONNECT) }
}

impl Letters for Hello {
    /// From the front for the event, from the end for the look-up, with a zero behind it.
    #[inline(always)]
    fn put(&mut self, index: u32, len: u32, letter: u8) {
        const MASK: usize = SERVER_BYTES - 1;
        let from_end = len - 1 - index;
        let text = (&raw mut self.event.server.name).cast::<u8>();
        let name = (&raw mut self.key.data).cast::<u8>();
        // SAFETY: masked, all are within arrays of as many bytes. A name has no more than `SERVER_NAME`, which
        // the key's four bytes of the slot come before.
        unsafe {
            text.add(index as usize & MASK).write(letter);
            name.add((from_end as usize + size_of::<u32>()) & MASK).write(letter);
            if index == 0 {
                name.add((len as usize + size_of::<u32>()) & MASK).write(0);
            }
        }
    }
}
const _: () = assert!(size_of::<ServerNameKey>() == SERVER_BYTES);

/// A part of a packet, from a place on.
struct Bytes {
    skb: *mut __sk_buff,
    at: u32,
}

impl Payload for Bytes {
    #[inline(always)]
    fn load<const N: usize>(&self, at: u32) -> Option<[u8; N]> {
        let mut bytes = MaybeUninit::<[u8; N]>::uninit();
        // SAFETY: the helper fills them or fails.
        unsafe {
            let status = bpf_skb_load_bytes(
                self.skb.cast_const().cast(),
                self.at + at,
                bytes.as_mut_ptr().cast(),
                N as u32,
            );
            if status == 0 { Some(bytes.assume_init()) } else { None }
        }
    }

    #[inline(always)]
    fn repeat<S: Step<Self>>(&self, most: u32, step: &mut S) {
        let mut round = Round { bytes: Self { ..*self }, step };
        // SAFETY: the context outlives the call, and the verifier follows `round`.
        unsafe {
            bpf_loop(most, next::<S> as *mut c_void, (&raw mut round).cast(), 0);
        }
    }
}

struct Round<'a, S> {
    bytes: Bytes,
    step: &'a mut S,
}

/// Returns 1 to stop.
unsafe extern "C" fn next<S: Step<Bytes>>(index: u32, round: *mut Round<'_, S>) -> c_long {
    // SAFETY: `repeat` passes its own context, and the verifier follows the pointers.
    let round = unsafe { &mut *round };
    c_long::from(round.step.step(&round.bytes, index))
}
