//! What is told though it is allowed, for policies that want to have it noted (`audit`).

use crate::kernel::socket::Sock;
use crate::kernel::task::Current;
use crate::maps;
use crate::net::Address;
use crate::shelf::Shelf;
use crate::subject::Member;
use sandbox_common::Access;
use sandbox_common::decide::Decision;
use sandbox_common::event::{Hook, Reason};
use sandbox_common::subject::{NOTES_CONNECTIONS, NOTES_EXECS, NOTES_WRITES, TaskState};

/// What is noted of an operation that a hook allows; nothing of most. What is done through a descriptor was noted
/// when that was opened.
#[inline(always)]
pub(crate) const fn done(hook: Hook) -> Access {
    match hook {
        Hook::PathTruncate => Access::WRITE,
        Hook::PathMknod | Hook::PathMkdir | Hook::PathSymlink | Hook::PathLink => Access::CREATE,
        Hook::PathUnlink | Hook::PathRmdir => Access::DELETE,
        Hook::PathChmod
        | Hook::PathChown
        | Hook::InodeSetattr
        | Hook::InodeSetxattr
        | Hook::InodeRemovexattr
        | Hook::InodeSetAcl
        | Hook::InodeRemoveAcl
        | Hook::InodeFileSetattr
        | Hook::FileIoctl
        | Hook::FileIoctlCompat => Access::ATTRIBUTES,
        Hook::BprmCheckSecurity => Access::EXECUTE,
        Hook::Connect4
        | Hook::Connect6
        | Hook::Sendmsg4
        | Hook::Sendmsg6
        | Hook::SocketConnect
        | Hook::UnixStreamConnect
        | Hook::UnixMaySend => Access::CONNECT,
        _ => Access::empty(),
    }
}

/// The same of a file that is to be used so.
#[inline(always)]
pub(crate) fn opened(hook: Hook, wanted: Access) -> Access {
    match hook {
        Hook::FileOpen | Hook::FileReceive => wanted.intersection(Access::WRITES),
        _ => Access::empty(),
    }
}

/// Whether the member's policy has what is done noted.
#[inline(always)]
pub(crate) fn wants(member: &Member, done: Access) -> bool {
    let class = if done.intersects(Access::WRITES) {
        NOTES_WRITES
    } else if done.contains(Access::CONNECT) {
        NOTES_CONNECTIONS
    } else if done.contains(Access::EXECUTE) {
        NOTES_EXECS
    } else {
        0
    };
    member.subject.permits & class != 0
}

/// In the place of a decision, for an event.
#[inline(always)]
pub(crate) fn note(done: Access) -> Decision {
    Decision::deny(Reason::Allowed, done)
}

/// Whether that is what is told. Read back, that the verifier follows what comes behind once for both.
#[inline(always)]
pub(crate) fn is_note(state: &TaskState) -> bool {
    // SAFETY: a reference.
    let reason = unsafe { core::ptr::read_volatile(&raw const state.decision.reason) };
    reason == Reason::Allowed as u16
}

/// Whom a socket or thread sends to, remembered: only the first time is noted. Whoever takes another's place here
/// has it noted again. 64 KiB.
///
/// | word | of a datagram | of one to a unix socket |
/// |---|---|---|
/// | 0 | first half of the address | address of the other `struct sock` |
/// | 1 | second half | 0 |
/// | 2 | 16 port, 16 protocol | all bits |
/// | 3 | generation | generation |
/// | 4 | cookie of the socket | `start_boottime` of the thread |
static SENT: Shelf<1024> = Shelf::new();

/// Whether a socket, by its cookie, is not known to have sent there.
#[inline(always)]
pub(crate) fn is_first_of(cookie: u64, address: &Address, protocol: u16, port: u16) -> bool {
    let [a, b, c, d] = address.0.map(u64::from);
    let what = u64::from(protocol) << 16 | u64::from(port);
    is_first([a | b << 32, c | d << 32, what], cookie)
}

/// Whether the current thread is not known to have sent to a unix socket.
#[inline(always)]
pub(crate) fn is_first_to(other: Sock) -> bool {
    match other.number() {
        Some(number) => is_first([number, 0, u64::MAX], Current::task().born()),
        None => true,
    }
}

#[inline(always)]
fn is_first([first, second, what]: [u64; 3], by: u64) -> bool {
    let generation = maps::generation();
    let place = first ^ second ^ what ^ by;
    let known = SENT.look(place, generation, |words| {
        let differs = words.get(0) ^ first
            | words.get(1) ^ second
            | words.get(2) ^ what
            | words.get(3) ^ generation
            | words.get(4) ^ by;
        (differs, ())
    });
    if known.is_some() {
        return false;
    }
    SENT.put(place, |words| {
        words.set(0, first);
        words.set(1, second);
        words.set(2, what);
        words.set(3, generation);
        words.set(4, by);
    });
    true
}
