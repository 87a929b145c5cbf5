//! What both sides of the kernel border share.
//!
//! Every type that crosses it is `#[repr(C)]`, made of fixed-width integers in native byte order
//! unless its documentation says otherwise, and free of implicit padding. Numbers read from the
//! other side are kept as numbers and converted with a fallible `from_*`, never transmuted.

#![no_std]

pub mod access;
pub mod ask;
pub mod decide;
pub mod event;
pub mod fold;
pub mod layout;
pub mod net;
pub mod path;
pub mod pattern;
pub mod subject;
pub mod tls;

pub use access::Access;

/// Marks types whose bytes may be copied to and from BPF maps.
///
/// The bound on zerocopy's traits makes the compiler refuse a type with padding or with a bit
/// pattern that has no meaning, so the `unsafe impl` cannot be wrong.
#[cfg(feature = "user")]
macro_rules! pod {
    ($($t:ty),* $(,)?) => {$(
        const _: () = {
            const fn plain<T: zerocopy::FromBytes + zerocopy::IntoBytes + zerocopy::Immutable>() {}
            plain::<$t>()
        };
        // SAFETY: `plain` above proves that every bit pattern is valid and that there is no padding.
        unsafe impl aya::Pod for $t {}
    )*};
}
#[cfg(feature = "user")]
pub(crate) use pod;
