//! The resolver of a session: names that its policy allows, and the addresses that they open.
//!
//! The kernel side sends whatever a member asks of any server (port 53) here. A name that is allowed is asked
//! for upstream, and its addresses are entered into the kernel's table before the answer leaves; any other
//! is refused. It runs in a process of its own ([`child`]), started and watched by `sandbox run`
//! ([`parent`]): what it reads comes from the network.

mod answer;
pub mod child;
mod grants;
pub mod message;
pub mod parent;
mod question;
mod serve;

pub use answer::is_of_this_site;
pub use grants::{Spot, Table};

/// Where DNS is asked for, RFC 1035.
pub const PORT: u16 = 53;
