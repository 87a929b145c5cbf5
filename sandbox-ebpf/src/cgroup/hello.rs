//! Which server a connection asks for: the check of the name in what TLS sends first.
//!
//! What a checked connection has to show is kept on its socket, from its first segment on; a new connection of the
//! same socket begins anew. The first data that leaves is judged, whole, in one packet (a packet leaves here before
//! it is cut to what the network takes), and nothing leaves before. Once it has passed nothing is looked at any more;
//! once it was refused no data leaves any more.

use super::connection;
use crate::finish;
use crate::kernel::skb;
use crate::maps::{HELLOS, PORTS, SERVER_NAMES};
use crate::net::{Address, TCP};
use crate::session;
use crate::subject::Member;
use aya_ebpf::bindings::{__sk_buff, BPF_SK_STORAGE_GET_F_CREATE};
use aya_ebpf::helpers::generated::{bpf_loop, bpf_sk_storage_delete, bpf_skb_load_bytes};
use aya_ebpf::maps::lpm_trie::Key;
use core::ffi::{c_long, c_void};
use core::mem::MaybeUninit;
use sandbox_common::Access;
use sandbox_common::decide::Decision;
use sandbox_common::event::{NetPayload, Reason, SERVER_BYTES, ServerEvent};
use sandbox_common::net::{Connection, PORT_PREFIX, Port};
use sandbox_common::tls::{self, Letters, Payload, SERVER_NAME_PREFIX, ServerNameKey, Step};

/// Of a TCP header's fourteenth byte: some of the data is urgent, and the other side may read it apart.
const URG: u8 = 32;

/// Working memory.
#[repr(C)]
pub(crate) struct Hello {
    event: ServerEvent,
    key: Key<ServerNameKey>,
}

/// A segment of TCP.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    pub(super) skb: *mut __sk_buff,
    /// Where its header begins.
    pub(super) offset: usize,
    /// The header's thirteenth byte, with its length, and its fourteenth.
    pub(super) flags: [u8; 2],
}

impl Segment {
    /// Bytes of its header.
    #[inline(always)]
    fn header(&self) -> u32 {
        u32::from(self.flags[0] >> 4) * 4
    }

    /// Where its data begins, and how many bytes that is.
    #[inline(always)]
    fn data(&self) -> (u32, u32) {
        // SAFETY: the verifier checks the access to the context.
        let whole = unsafe { (*self.skb).len };
        let at = self.offset as u32 + self.header();
        (at, whole.saturating_sub(at))
    }
}

/// Notes by which rule a connection that begins is checked; 0: by none. False where there is no memory to.
#[inline(always)]
pub(super) fn begin(segment: Segment, check: u32) -> Result<(), Reason> {
    let Some(socket) = connection::socket(segment.skb) else { return Err(Reason::Unreadable) };
    let flags = if check == 0 { 0 } else { BPF_SK_STORAGE_GET_F_CREATE };
    let connection = connection::of(socket, flags);
    if connection.is_null() {
        return if check == 0 { Ok(()) } else { Err(Reason::NoMemory) };
    }
    // SAFETY: not null, and the verifier knows its size; the socket is locked while it sends.
    let connection = unsafe { &mut *connection };
    (connection.check, connection.refused) = (check, 0);
    if check == 0 {
        return Ok(());
    }
    // Another flow of the same connection could carry what this one was refused.
    let options = Bytes { skb: segment.skb, at: segment.offset as u32 + 20 };
    if tls::joins(&options, segment.header().saturating_sub(20)) {
        return Err(Reason::NotTls);
    }
    Ok(())
}

/// Whether a segment of a connection that may be checked may leave. A function of its own, for its stack, and to be
/// once in the program.
#[inline(never)]
pub(super) fn check(segment: &Segment, to: &Address, port: u16) -> bool {
    let (at, len) = segment.data();
    if len == 0 {
        return true;
    }
    let Some(socket) = connection::socket(segment.skb) else { return true };
    let connection = connection::of(socket, 0);
    if connection.is_null() {
        return true;
    }
    // SAFETY: not null, and the verifier knows its size; the socket is locked while it sends.
    let connection = unsafe { &mut *connection };
    if connection.check == 0 {
        return true;
    }
    if connection.refused != 0 {
        return false;
    }
    let session = session::owner();
    let member = session.member();
    let address = to.payload(TCP, port);
    let hello = connection::storage(&HELLOS, socket, BPF_SK_STORAGE_GET_F_CREATE);
    if hello.is_null() {
        connection.refused = Reason::NoMemory as u32;
        let decision = denied(connection.check, Reason::NoMemory);
        return refused(connection, finish::packet(&member, decision, address));
    }
    // SAFETY: not null, and the verifier knows its size; the socket is locked while it sends.
    let hello = unsafe { &mut *hello };
    let result = if segment.flags[1] & URG != 0 {
        Err(Reason::NotTls)
    } else if skb::is_shared(segment.skb) {
        Err(Reason::Changeable)
    } else {
        judge(Bytes { skb: segment.skb, at }, len, &member, port, hello)
    };
    let passes = match result {
        Ok(()) => {
            connection.check = 0;
            true
        }
        Err(reason) => tell(connection, &member, reason, address, hello),
    };
    let map = core::ptr::from_ref(&HELLOS).cast_mut().cast();
    // SAFETY: the verifier checks that the socket is one. It has the memory, so that it can be given back.
    unsafe { bpf_sk_storage_delete(map, socket.cast()) };
    passes
}

#[inline(always)]
fn tell(
    connection: &mut Connection,
    member: &Member,
    reason: Reason,
    address: NetPayload,
    hello: &mut Hello,
) -> bool {
    connection.refused = reason as u32;
    let decision = denied(connection.check, reason);
    refused(connection, finish::server(member, decision, address, &mut hello.event))
}

/// Where the session only reports, that is done once.
#[inline(always)]
fn refused(connection: &mut Connection, passes: bool) -> bool {
    if passes {
        (connection.check, connection.refused) = (0, 0);
    }
    passes
}

#[inline(always)]
fn denied(rule: u32, reason: Reason) -> Decision {
    Decision { rule, ..Decision::deny(reason, Access::CONNECT) }
}

/// Whether the name that is asked for is one that a rule allows at the port.
#[inline(always)]
fn judge(
    data: Bytes,
    len: u32,
    member: &Member,
    port: u16,
    hello: &mut Hello,
) -> Result<(), Reason> {
    let slot = member.subject.slot;
    let name = tls::server_name(&data, len, hello)?;
    hello.event.server.len = name;
    hello.key.prefix_len = SERVER_NAME_PREFIX + 8 * (name + 1);
    hello.key.data.slot = slot;
    let Some(set) = SERVER_NAMES.get(&hello.key) else { return Err(Reason::ServerName) };
    let key = Port { slot, set: *set, protocol: TCP, port: port.to_ne_bytes() };
    match PORTS.get(Key::new(PORT_PREFIX + 16, key)) {
        Some(rule) if rule.allow == 1 => Ok(()),
        _ => Err(Reason::ServerName),
    }
}

impl Letters for Hello {
    /// From the front for the event, from the end for the look-up, over zeros: with one behind it.
    #[inline(always)]
    fn put(&mut self, index: u32, len: u32, letter: u8) {
        const MASK: usize = SERVER_BYTES - 1;
        let from_end = len - 1 - index;
        let text = (&raw mut self.event.server.name).cast::<u8>();
        let name = (&raw mut self.key.data).cast::<u8>();
        // SAFETY: masked, both are within arrays of as many bytes. A name has no more than `SERVER_NAME`, which
        // the key's four bytes of the slot come before.
        unsafe {
            text.add(index as usize & MASK).write(letter);
            name.add((from_end as usize + size_of::<u32>()) & MASK).write(letter);
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
