//! A compiled policy: what `engine` publishes to one slot.

use super::asks::AskEntry;
use super::names::NameLayer;
use ipnet::IpNet;
use sandbox_common::Access;
use sandbox_common::path::{Linked, Node, Root};
use sandbox_common::pattern::Patterns;
use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// The whole policy of a session in the kernel's terms, still without a slot number.
#[derive(Clone, Default)]
pub struct CompiledPolicy {
    /// Superblocks that the policy knows: `s_dev` in the kernel's encoding and the root. That of 0 is
    /// the root of all others.
    pub roots: Vec<(u32, Root)>,
    /// The eras of superblocks ([`RootKey::era`](sandbox_common::path::RootKey::era)) as they were
    /// before the mount table was read; of those that are not here, the present one is entered when the
    /// policy is published.
    pub eras: HashMap<u32, u32>,
    /// Edges of the tries of all superblocks; node ids are unique over all of them.
    pub edges: Vec<Edge>,
    /// The same over folded names, for directories without regard to case; see
    /// [`sandbox_common::fold`].
    pub folded: Vec<Edge>,
    /// Files with a second name in a protected place, see [`linked`](super::linked).
    pub linked: Vec<LinkedFile>,
    /// Device nodes that may be opened.
    pub devices: Vec<Device>,
    /// IPv4 prefixes and their port sets.
    pub net4: Vec<Prefix<Ipv4Addr>>,
    /// IPv6 prefixes and their port sets. None lies in `::ffff:0:0/96`: those are `net4`.
    pub net6: Vec<Prefix<Ipv6Addr>>,
    /// Ports of the port sets.
    pub ports: Vec<PortEntry>,
    /// Abstract names of unix sockets that rules speak of.
    pub abstracts: Vec<AbstractEntry>,
    /// Programs that a person is asked about.
    pub asks: Vec<AskEntry>,
    /// Names that TLS may ask for, where a rule has that checked, and such as it may not.
    pub server_names: Vec<ServerName>,
    /// Rules that count, and the most bytes that each lets pass.
    pub counts: Vec<(u32, u64)>,
    /// What its layers say of names, for the session's resolver; empty where it knows none.
    pub names: Vec<NameLayer>,
    /// Networks of this site that rules open: names may lead into them.
    pub within: Vec<IpNet>,
    /// Name servers to ask; none: those of the host.
    pub resolvers: Vec<SocketAddr>,
    /// Patterns, where the policy has any.
    pub patterns: Option<Box<Patterns>>,
    /// What is permitted beside the rules, and what some of these do: a sum of
    /// [`NAMESPACES`](sandbox_common::subject::NAMESPACES),
    /// [`COUNTS`](sandbox_common::subject::COUNTS), [`ASKS`](sandbox_common::subject::ASKS) and
    /// [`SERVER_NAMES`](sandbox_common::subject::SERVER_NAMES).
    pub permits: u32,
    /// Rules by id, from 1; a policy that took the place of another one has higher ones.
    pub rules: Vec<Rule>,
}

/// One edge of the trie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edge {
    /// Id of the node above.
    pub from: u32,
    /// The component, 1 to 255 bytes, without `/` and NUL.
    pub name: Vec<u8>,
    /// The node beneath.
    pub to: Node,
}

/// A file that has more than one name, one of them in a protected place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkedFile {
    /// `super_block.s_dev`, kernel encoding.
    pub dev: u32,
    /// `inode.i_ino`.
    pub ino: u64,
    /// What holds for all its names.
    pub linked: Linked,
}

/// A device node that may be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// `S_IFCHR` or `S_IFBLK`.
    pub kind: u32,
    /// Kernel encoding.
    pub dev: u32,
    /// `READ`, `WRITE` or both.
    pub allow: Access,
}

/// An address prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix<A> {
    /// First address of the prefix.
    pub address: A,
    /// Its length in bits.
    pub bits: u8,
    /// Number of the port set, from 0 within this policy.
    pub set: u32,
}

/// A port prefix of a port set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortEntry {
    /// The port set.
    pub set: u32,
    /// `IPPROTO_TCP` (6) or `IPPROTO_UDP` (17), see [`Port::protocol`](sandbox_common::net::Port::protocol).
    pub protocol: u16,
    /// First port.
    pub port: u16,
    /// Bits of the port that must match, 0 to 16.
    pub bits: u8,
    /// The rule; 0 for a reserved address.
    pub rule: u32,
    /// Its verdict.
    pub allow: bool,
}

/// An abstract name of a unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbstractEntry {
    /// Without the leading zero, at most [`ABSTRACT_NAME`](sandbox_common::net::ABSTRACT_NAME) bytes.
    pub name: Vec<u8>,
    /// The rule.
    pub rule: u32,
    /// Its verdict.
    pub allow: bool,
}

/// A name of a server, or what lies beneath it, of which the longest decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerName {
    /// In lower case, at most [`SERVER_NAME`](sandbox_common::tls::SERVER_NAME) bytes.
    pub name: String,
    /// What lies beneath it is meant, and not itself.
    pub beneath: bool,
    /// The port set: at which ports of TCP it may be asked for.
    pub set: u32,
}

/// Where a rule came from; what an explanation prints.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Rule {
    /// Its number in events, from 1.
    pub id: u32,
    /// The key of the policy: `files.read.deny`.
    pub key: String,
    /// The rule as written: `~/.ssh/**`.
    pub text: String,
    /// The layer: `preset`, `user`, `command line`.
    pub layer: String,
    /// The file, or `preset:NAME` for one that ships inside the program.
    pub file: String,
    /// Line in that file, from 1.
    pub line: u32,
    /// Column in that line, in characters, from 1.
    pub column: u32,
}
