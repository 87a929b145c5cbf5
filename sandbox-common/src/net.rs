//! Where to: keys and values of the compiled network rules.
//!
//! An address leads, by its longest prefix, to a *port set*; the port set and the port lead, by
//! their longest prefix again, to the verdict. A port range is a few port prefixes, so ranges are
//! exact and unlimited in number. The compiler repeats a shorter prefix's ports in each longer one.
//! Whole addresses are looked up in a hash, `HOSTS`, before the tries of prefixes.

/// Key data of LPM map `NET4`. Prefix length: 32 + the bits of the address prefix.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Net4 {
    /// Policy slot, native byte order (always matched whole).
    pub slot: u32,
    /// The address, network byte order.
    pub address: [u8; 4],
}

/// Key data of LPM map `NET6` (prefix length: 32 + the bits of the address prefix), where addresses in
/// `::ffff:0:0/96` are looked up in `NET4`; and key of hash `HOSTS`, where IPv4 addresses have that form.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Net6 {
    /// Policy slot, native byte order (always matched whole).
    pub slot: u32,
    /// The address, network byte order.
    pub address: [u8; 16],
}

/// Bits of [`Net4`] and [`Net6`] before the address.
pub const NET_PREFIX: u32 = 32;

/// Key data of LPM map `PORTS`. Prefix length: [`PORT_PREFIX`] + the bits of the port prefix.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Port {
    /// Policy slot, native byte order (always matched whole).
    pub slot: u32,
    /// The port set, value of `NET4` or `NET6` of this slot (always matched whole).
    pub set: u32,
    /// `IPPROTO_TCP` or `IPPROTO_UDP`, with [`LISTEN`] where others connect to the port; native byte
    /// order (always matched whole).
    pub protocol: u16,
    /// The port, network byte order.
    pub port: [u8; 2],
}

/// Bits of [`Port`] before the port.
pub const PORT_PREFIX: u32 = 80;

/// Added to [`Port::protocol`]: what is asked is whether the member may listen there.
pub const LISTEN: u16 = 1 << 15;

/// Value of maps `PORTS` and `ABSTRACT`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct PortRule {
    /// The rule that decides; 0 where none does: a reserved address that is denied unless it is named.
    pub rule: u32,
    /// 1: allowed; anything else: denied.
    pub allow: u32,
}

/// Most bytes of an abstract name: `sun_path` (`UNIX_PATH_MAX`, linux/un.h) without its leading zero.
pub const ABSTRACT_NAME: usize = 107;

/// An abstract name of a unix socket.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct AbstractName {
    /// Its bytes, without the leading zero: at most [`ABSTRACT_NAME`].
    pub len: u32,
    /// The name, with zeros behind it. (Names may have zeros too, and end with some.)
    pub name: [u8; ABSTRACT_NAME + 1],
}

/// Key of map `ABSTRACT`, whose values are [`PortRule`]s.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct AbstractKey {
    /// Policy slot.
    pub slot: u32,
    /// The name.
    pub name: AbstractName,
}

/// Key data of LPM map `NAMES`: what the names that a session asked for have opened. Prefix length:
/// [`NAMED_PREFIX`] + the bits of the port prefix.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct NamedKey {
    /// The session's number, native byte order (always matched whole).
    pub session: u32,
    /// The address, network byte order, an IPv4 one as `::ffff:a.b.c.d` (always matched whole).
    pub address: [u8; 16],
    /// `IPPROTO_TCP` or `IPPROTO_UDP`, native byte order (always matched whole).
    pub protocol: u16,
    /// The port, network byte order.
    pub port: [u8; 2],
}

/// Bits of [`NamedKey`] before the port.
pub const NAMED_PREFIX: u32 = 176;

/// Value of map `NAMES`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Named {
    /// The rule that opened it.
    pub rule: u32,
    /// The rule that wants TLS to ask for an allowed name there; 0: none does. UDP is refused by it.
    pub check: u32,
    /// Until when it may be connected to: `CLOCK_BOOTTIME`, nanoseconds. What is under way goes on as long
    /// as the entry is there.
    pub until: u64,
    /// Until when a connection may begin without that check, for another rule opened it without.
    pub free: u64,
}

impl Named {
    /// The rule by which what begins now is checked; 0: none.
    #[inline(always)]
    pub const fn checked_by(&self, now: u64) -> u32 {
        if self.free > now { 0 } else { self.check }
    }
}

/// Key of map `COUNTS`: a rule that counts, of a session.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct CountKey {
    /// The session's number.
    pub session: u32,
    /// The rule.
    pub rule: u32,
}

/// Value of map `COUNTS`: bytes, over all connections.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Count {
    /// Sent: of packets as they leave, headers and repetitions included.
    pub sent: u64,
    /// Received: data without headers, of TCP as the programs get it.
    pub received: u64,
    /// The most of both together.
    pub max: u64,
}

impl Count {
    /// Whether nothing more may pass.
    #[inline(always)]
    pub const fn is_spent(&self) -> bool {
        self.sent.saturating_add(self.received) >= self.max
    }
}

/// Value of map `CONNECTIONS`, socket storage: what a TCP connection counts for, and what it has to show.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The rule that let it begin, if that counts; else one of which map `COUNTS` knows nothing.
    pub key: CountKey,
    /// What it had received when that was last looked at.
    pub received: u64,
    /// The rule by which the name that TLS asks for is checked; 0: none, or it has passed.
    pub check: u32,
    /// Not zero: the check has refused it. The reason, see [`Reason`](crate::event::Reason).
    pub refused: u32,
}

/// Value of map `RESOLVERS`, keyed by the session's number: where its resolver listens at loopback.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Resolver {
    /// The port, network byte order.
    pub port: u16,
    /// Zero.
    pub pad: u16,
}

/// Value of map `ASKED`, keyed by a socket's cookie: which name server it believes to talk to.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Its address, network byte order, an IPv4 one as `::ffff:a.b.c.d`.
    pub address: [u32; 4],
    /// Its port and that of the resolver, network byte order.
    pub ports: [u16; 2],
}

#[cfg(feature = "user")]
crate::pod!(
    Net4,
    Net6,
    Port,
    PortRule,
    AbstractName,
    AbstractKey,
    NamedKey,
    Named,
    CountKey,
    Count,
    Resolver
);
