//! Where to: keys and values of the compiled network rules.
//!
//! An address leads, by its longest prefix, to a *port set*; the port set and the port lead, by
//! their longest prefix again, to the verdict. A port range is a few port prefixes, so ranges are
//! exact and unlimited in number. The compiler repeats a shorter prefix's ports in each longer one.

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

/// Key data of LPM map `NET6`. Prefix length: 32 + the bits of the address prefix.
/// Addresses in `::ffff:0:0/96` are looked up in `NET4`.
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
    /// The port set, value of `NET4` or `NET6`; unique over all slots of an engine.
    pub set: u32,
    /// `IPPROTO_TCP` or `IPPROTO_UDP`, native byte order (always matched whole).
    pub protocol: u16,
    /// The port, network byte order.
    pub port: [u8; 2],
}

/// Bits of [`Port`] before the port.
pub const PORT_PREFIX: u32 = 48;

/// Value of map `PORTS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct PortRule {
    /// The rule that decides.
    pub rule: u32,
    /// 1: allowed; anything else: denied.
    pub allow: u32,
}

#[cfg(feature = "user")]
crate::pod!(Net4, Net6, Port, PortRule);
