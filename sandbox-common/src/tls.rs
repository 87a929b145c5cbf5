//! Which server a TLS client asks for: the server name of the first message that it sends (RFC 8446, RFC 6066).
//!
//! One reading for the kernel side, which reads a packet, and for tests, which read bytes. It is strict: what a
//! server could read in another way is refused. The whole message must be there, in one record that holds
//! nothing else, with at most one extension of that kind and one name in it.

use crate::event::Reason;

/// Most bytes of a name: with the zero behind it, it fills a [`ServerNameKey`].
pub const SERVER_NAME: usize = 251;
/// The same as the numbers of a message are.
const LONGEST: u32 = 251;
const _: () = assert!(SERVER_NAME == LONGEST as usize);
/// Most extensions of a message; known clients send less than 20.
const EXTENSIONS: u32 = 64;

/// `ContentType.handshake`
const HANDSHAKE: u8 = 22;
/// `HandshakeType.client_hello`
const CLIENT_HELLO: u8 = 1;
/// Bytes before the message's body: of the record and of the message itself.
const HEADERS: u32 = 9;
/// Version and random value, with which the body begins.
const FIXED: u32 = 34;
/// `ExtensionType.server_name`, and `NameType.host_name`.
const NAMES: u16 = 0;
const HOST_NAME: u8 = 0;

/// Key data of LPM map `SERVER_NAMES`: a name from its last letter to its first. Prefix length:
/// [`SERVER_NAME_PREFIX`] + 8 bits a byte.
///
/// A name itself has a zero behind it, what lies beneath a name begins with it and a dot: so the longest prefix is
/// that of the rule that decides.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct ServerNameKey {
    /// Policy slot, native byte order (always matched whole).
    pub slot: u32,
    /// The name, in lower case.
    pub name: [u8; SERVER_NAME + 1],
}

/// Bits of [`ServerNameKey`] before the name.
pub const SERVER_NAME_PREFIX: u32 = 32;

impl ServerNameKey {
    /// Of a name, or of all beneath it, with the length of the prefix. `None` where the name is too long.
    pub fn new(slot: u32, name: &[u8], beneath: bool) -> Option<(Self, u32)> {
        let mut key = Self { slot, name: [0; SERVER_NAME + 1] };
        let len = u32::try_from(name.len()).ok().filter(|len| *len <= LONGEST)?;
        for (to, from) in key.name.iter_mut().zip(name.iter().rev()) {
            *to = *from;
        }
        if beneath {
            key.name[name.len()] = b'.';
        }
        Some((key, SERVER_NAME_PREFIX + 8 * (len + 1)))
    }
}

/// What a client sends at first, from its first byte on.
pub trait Payload {
    /// As many bytes, from there on; `None` where there are not so many.
    fn load<const N: usize>(&self, at: u32) -> Option<[u8; N]>;

    /// Calls `step` with 0, 1 … until it says that it is done, `most` times at most.
    fn repeat<S: Step<Self>>(&self, most: u32, step: &mut S)
    where
        Self: Sized;
}

/// One round of reading.
pub trait Step<P> {
    /// True when it was the last.
    fn step(&mut self, payload: &P, index: u32) -> bool;
}

/// Bytes, for tests.
impl Payload for &[u8] {
    fn load<const N: usize>(&self, at: u32) -> Option<[u8; N]> {
        let at = at as usize;
        self.get(at..at.checked_add(N)?)?.try_into().ok()
    }

    fn repeat<S: Step<Self>>(&self, most: u32, step: &mut S) {
        let _ = (0..most).any(|index| step.step(self, index));
    }
}

/// Where a name goes, letter by letter.
pub trait Letters {
    /// The letter at a place from the front, in lower case, of a name of `len` bytes.
    fn put(&mut self, index: u32, len: u32, letter: u8);
}

/// Reads the name that is asked for out of the `len` bytes of a payload. Returns how long it is: at least one byte, at
/// most [`SERVER_NAME`], letters of names (see [`is_of_names`]) and no empty label. On an error, what was put is
/// incomplete.
#[inline(always)]
pub fn server_name<P: Payload, L: Letters>(
    payload: &P,
    len: u32,
    letters: &mut L,
) -> Result<u32, Reason> {
    let (at, end) = extensions(payload, len)?;
    let mut hello = Hello { at, end, name: 0, len: 0, fault: 0 };
    payload.repeat(EXTENSIONS, &mut hello);
    match hello.fault {
        0 => {}
        NAMELESS => return Err(Reason::NoServerName),
        UNNAMED => return Err(Reason::ServerName),
        _ => return Err(Reason::NotTls),
    }
    // More than are looked at.
    if hello.at != hello.end {
        return Err(Reason::NotTls);
    }
    let (name, len) = (hello.name, hello.len);
    if name == 0 {
        return Err(Reason::NoServerName);
    }
    if len == 0 || len > LONGEST {
        return Err(Reason::ServerName);
    }
    let mut spelling = Spelling { name, len, before: b'.', bad: 0, letters };
    payload.repeat(LONGEST, &mut spelling);
    if spelling.bad != 0 || spelling.before == b'.' { Err(Reason::ServerName) } else { Ok(len) }
}

/// Where the extensions begin and end.
#[inline(always)]
fn extensions<P: Payload>(payload: &P, len: u32) -> Result<(u32, u32), Reason> {
    if payload.load::<1>(0) != Some([HANDSHAKE]) {
        return Err(Reason::NotTls);
    }
    let Some([_, major, _, a, b, kind, high, c, d]) = payload.load::<9>(0) else {
        return Err(Reason::SplitHello);
    };
    let (record, message) = (u32::from(be(a, b)), u32::from(high) << 16 | u32::from(be(c, d)));
    if major != 3 || kind != CLIENT_HELLO || message < FIXED || message + 4 < record {
        return Err(Reason::NotTls);
    }
    let end = HEADERS + message;
    // In several records, or in several packets.
    if message + 4 > record || end > len {
        return Err(Reason::SplitHello);
    }
    let mut at = HEADERS + FIXED;
    // The session's id, the cipher suites, the ways of compression.
    let Some([id]) = payload.load::<1>(at) else { return Err(Reason::NotTls) };
    at += 1 + u32::from(id);
    let Some([a, b]) = payload.load::<2>(at) else { return Err(Reason::NotTls) };
    at += 2 + u32::from(be(a, b));
    let Some([ways]) = payload.load::<1>(at) else { return Err(Reason::NotTls) };
    at += 1 + u32::from(ways);
    if at == end {
        return Err(Reason::NoServerName);
    }
    let Some([a, b]) = payload.load::<2>(at) else { return Err(Reason::NotTls) };
    at += 2;
    if at + u32::from(be(a, b)) != end {
        return Err(Reason::NotTls);
    }
    Ok((at, end))
}

#[inline(always)]
const fn be(high: u8, low: u8) -> u16 {
    u16::from_be_bytes([high, low])
}

/// Of [`Hello::fault`]: it cannot be read; its list of names is empty; or holds what is not one name of a host.
const UNREADABLE: u32 = 1;
const NAMELESS: u32 = 2;
const UNNAMED: u32 = 3;

/// The extensions, one a step.
struct Hello {
    at: u32,
    end: u32,
    /// Where the name is; 0: not found.
    name: u32,
    len: u32,
    fault: u32,
}

impl<P: Payload> Step<P> for Hello {
    #[inline(always)]
    fn step(&mut self, payload: &P, _index: u32) -> bool {
        if self.at == self.end {
            return true;
        }
        self.fault = self.next(payload);
        self.fault != 0
    }
}

impl Hello {
    /// Reads one; 0, or what is wrong.
    #[inline(always)]
    fn next<P: Payload>(&mut self, payload: &P) -> u32 {
        let Some([a, b, c, d]) = payload.load::<4>(self.at) else { return UNREADABLE };
        let (from, len) = (self.at + 4, u32::from(be(c, d)));
        self.at = from + len;
        if self.at > self.end {
            return UNREADABLE;
        }
        if be(a, b) != NAMES {
            return 0;
        }
        if self.name != 0 {
            return UNREADABLE;
        }
        if len < 2 {
            return NAMELESS;
        }
        let Some([a, b, kind, c, d]) = payload.load::<5>(from) else { return UNREADABLE };
        let (list, name) = (u32::from(be(a, b)), u32::from(be(c, d)));
        if list + 2 != len || name + 3 != list || kind != HOST_NAME {
            return UNNAMED;
        }
        (self.name, self.len) = (from + 5, name);
        0
    }
}

/// The name, one letter a step.
struct Spelling<'a, L> {
    name: u32,
    len: u32,
    before: u8,
    bad: u8,
    letters: &'a mut L,
}

impl<P: Payload, L: Letters> Step<P> for Spelling<'_, L> {
    #[inline(always)]
    fn step(&mut self, payload: &P, index: u32) -> bool {
        if index >= self.len {
            return true;
        }
        let Some([byte]) = payload.load::<1>(self.name + index) else {
            self.bad = 1;
            return true;
        };
        let letter = byte.to_ascii_lowercase();
        if !is_of_names(letter) && letter != b'.' || letter == b'.' && self.before == b'.' {
            self.bad = 1;
            return true;
        }
        self.before = letter;
        self.letters.put(index, self.len, letter);
        false
    }
}

/// A byte of a label of a name in its form on the wire, in lower case.
#[inline(always)]
pub const fn is_of_names(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_')
}

/// Whether options of TCP, which go on up to `end` of a payload that begins with them, ask to join another connection
/// (MPTCP, RFC 8684), or cannot be read.
#[inline(always)]
pub fn joins<P: Payload>(options: &P, end: u32) -> bool {
    let mut join = Options { at: 0, end, joins: false };
    options.repeat(OPTIONS, &mut join);
    join.joins
}

/// Bytes of options, each of which takes one at least.
const OPTIONS: u32 = 40;
/// linux/tcp.h and net/mptcp: a list of options ends, one without a length, and `MP_JOIN` of MPTCP.
const TCPOPT_EOL: u8 = 0;
const TCPOPT_NOP: u8 = 1;
const TCPOPT_MPTCP: u8 = 30;
const MP_JOIN: u8 = 1;

struct Options {
    at: u32,
    end: u32,
    joins: bool,
}

impl<P: Payload> Step<P> for Options {
    #[inline(always)]
    fn step(&mut self, payload: &P, _index: u32) -> bool {
        if self.at >= self.end {
            return true;
        }
        let Some([kind]) = payload.load::<1>(self.at) else {
            self.joins = true;
            return true;
        };
        if kind == TCPOPT_EOL {
            return true;
        }
        if kind == TCPOPT_NOP {
            self.at += 1;
            return false;
        }
        let length = match payload.load::<2>(self.at) {
            Some([_, length]) => u32::from(length),
            None => 0,
        };
        let next = self.at + length;
        // No option is shorter than its kind and length, and none goes on behind the list.
        self.joins = length < 2
            || next > self.end
            || kind == TCPOPT_MPTCP && (length < 3 || is_join(payload.load::<3>(self.at)));
        self.at = next;
        self.joins
    }
}

/// Whether an option of MPTCP is a join: its third byte begins with what it is.
#[inline(always)]
fn is_join(option: Option<[u8; 3]>) -> bool {
    option.is_none_or(|[_, _, what]| what >> 4 == MP_JOIN)
}

#[cfg(feature = "user")]
crate::pod!(ServerNameKey);
