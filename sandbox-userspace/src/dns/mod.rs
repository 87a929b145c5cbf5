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
pub use grants::{Open, Spot, Table};

/// Judges the bytes of a message under a policy that knows one name: for fuzzing.
#[doc(hidden)]
pub fn judge_any(bytes: &[u8]) {
    use crate::policy::names::{NameEntry, NameLayer, Names};
    let entry = NameEntry {
        name: "example.com".into(),
        beneath: true,
        allow: true,
        rule: 1,
        ports: (443, 443),
        protocols: [true, true],
        sni: false,
    };
    let names = Names::new(vec![NameLayer { closes: true, entries: vec![entry] }]);
    let _ = question::judge(bytes, &names);
    let _ = question::unjudged(bytes);
}

/// Whether the host's configuration (`/etc/resolv.conf`) says whom to ask.
pub fn host_names_servers() -> bool {
    hickory_resolver::system_conf::read_system_conf()
        .is_ok_and(|(config, _)| !config.name_servers.is_empty())
}

/// Where DNS is asked for, RFC 1035.
pub const PORT: u16 = 53;
