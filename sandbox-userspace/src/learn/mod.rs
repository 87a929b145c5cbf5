//! What sessions were denied, or would have been, as a policy that allows it: gathered from events
//! ([`observe`]), judged and generalised ([`propose`]), and written into the text of a policy ([`write`]).
//!
//! What a rule closes knowingly is never proposed, but where it is asked for by itself: what any rule of the
//! present policy denies, credentials, what would be run later outside a session, sockets of services, and the
//! addresses under which clouds tell credentials.

pub mod generalise;
pub mod observe;
pub mod propose;
pub mod write;

#[cfg(test)]
mod tests;
