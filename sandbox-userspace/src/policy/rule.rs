//! The rules of a policy, as written: typed, checked, not yet tied to a machine.

use super::audits::{self, AuditRule};
use super::check::program::Words;
use super::glob::Glob;
use super::layers::MANAGED_LAYER;
use super::limits::Limits;
use super::services::Service;
use super::source::{Place, Source};
use ipnet::IpNet;
use sandbox_common::Access;
use sandbox_common::net::LISTEN;
use sandbox_common::path::{KIND_ACCESS, KINDS, Rights};
use sandbox_common::subject::Mode;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// A policy: what its layers say, in the order of the layers and of their texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Rules about paths: of `[files]` and `[network.unix]`.
    pub files: Vec<FileRule>,
    /// Rules of `files.exec.ask`, and what was granted of them.
    pub asks: Vec<AskRule>,
    /// Entries of `audit`.
    pub audits: Vec<AuditRule>,
    /// Rules of `[network]` about addresses.
    pub network: Vec<NetRule>,
    /// Rules of `[network]` about names.
    pub names: Vec<NameRule>,
    /// The name servers that are asked; none: those of the host.
    pub resolvers: Vec<SocketAddr>,
    /// Rules of `[environment]`.
    pub variables: Vec<VariableRule>,
    /// `environment.secrets`: whether variables stay whose values look like secrets.
    pub secrets: bool,
    /// What holds where no rule speaks.
    pub defaults: Defaults,
    /// `processes.namespaces`, where a text says it: members may make user namespaces and mount in them.
    pub namespaces: Option<bool>,
    /// `[limits]`: how much of the machine the session may have.
    pub limits: Limits,
    /// `mode`: whether what is denied fails.
    pub mode: Mode,
    /// The texts that were read, in the order of their rules.
    pub sources: Vec<Arc<Source>>,
    /// The keys that a text of it has, empty lists too: of [`LIST_KEYS`](super::LIST_KEYS), and `mode`.
    pub said: BTreeSet<&'static str>,
    /// The highest number that a rule of it got, or one that is not part of it any more.
    pub numbered: u32,
    /// What no rule of this policy goes beyond, see [`layers`](super::layers).
    pub ceilings: Vec<Policy>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            files: Vec::new(),
            asks: Vec::new(),
            audits: Vec::new(),
            network: Vec::new(),
            names: Vec::new(),
            resolvers: Vec::new(),
            variables: Vec::new(),
            secrets: true,
            defaults: Defaults::default(),
            namespaces: None,
            limits: Limits::default(),
            mode: Mode::Enforce,
            sources: Vec::new(),
            said: BTreeSet::new(),
            numbered: 0,
            ceilings: Vec::new(),
        }
    }
}

impl Policy {
    /// Its ceilings and itself: what has to allow something, in the order in which they are asked.
    pub fn layers(&self) -> impl Iterator<Item = &Self> {
        self.ceilings.iter().chain([self])
    }

    /// Where its rules come from, those of its ceilings too: in no order.
    pub fn origins(&self) -> impl Iterator<Item = &Origin> {
        self.layers().flat_map(|layer| {
            let files = layer.files.iter().map(|rule| &rule.origin);
            let network = layer.network.iter().map(|rule| &rule.origin);
            let names = layer.names.iter().map(|rule| &rule.origin);
            let asks = layer.asks.iter().map(|rule| &rule.origin);
            let variables = layer.variables.iter().map(|rule| &rule.origin);
            let audits = layer.audits.iter().map(|rule| &rule.origin);
            files.chain(asks).chain(network).chain(names).chain(variables).chain(audits)
        })
    }

    /// How many rules it has, those of its ceilings too.
    pub fn count(&self) -> usize {
        self.origins().count()
    }

    /// Where what stands behind a number in an event was written.
    pub fn origin(&self, id: u32) -> Option<&Origin> {
        self.origins().find(|origin| origin.id == id)
    }

    /// What a denial does: nothing but a report where that is said, and no ceiling says otherwise. Of the
    /// administrator's every one has to say so.
    pub fn effective_mode(&self) -> Mode {
        let insists = |ceiling: &Self| match ceiling.sources.last() {
            _ if ceiling.said.contains("mode") => ceiling.mode == Mode::Enforce,
            Some(source) => source.layer == MANAGED_LAYER,
            None => true,
        };
        if self.ceilings.iter().any(insists) { Mode::Enforce } else { self.mode }
    }

    /// Whether a ceiling leaves out what none of its rules about addresses and names allows: it has a list of
    /// what is allowed.
    pub fn closes(&self, direction: Direction) -> bool {
        self.said.contains(match direction {
            Direction::Out => "network.allow",
            Direction::In => "network.listen",
        })
    }

    /// The rules of its own that count, and the most bytes that each lets pass.
    pub fn counting(&self) -> impl Iterator<Item = (&Origin, u64)> {
        let network = self.network.iter().map(|rule| (&rule.origin, rule.max));
        let names = self.names.iter().map(|rule| (&rule.origin, rule.max));
        network.chain(names).filter_map(|(origin, max)| Some((origin, max?)))
    }

    /// What a ceiling leaves where none of its rules speaks. A list of what is allowed is all that it
    /// allows; where it has none, it says nothing of the kind.
    pub fn ceiling_allows(&self, kind: Kind) -> bool {
        match kind {
            Kind::Read => self.defaults.read,
            Kind::Execute => self.defaults.execute,
            Kind::Write => !self.said.contains("files.write.allow"),
            Kind::Delete => !self.says_any(["files.write.allow", "files.delete.allow"]),
            Kind::Attributes => !self.says_any(["files.write.allow", "files.attributes.allow"]),
            Kind::Connect => !self.said.contains("network.unix.allow"),
        }
    }

    fn says_any<const N: usize>(&self, keys: [&str; N]) -> bool {
        keys.iter().any(|key| self.said.contains(key))
    }

    /// Whether members may make user namespaces: where that is said, and no ceiling says otherwise.
    pub fn permits_namespaces(&self) -> bool {
        let forbidden = self.ceilings.iter().any(|ceiling| ceiling.namespaces == Some(false));
        self.namespaces == Some(true) && !forbidden
    }
}

/// What is allowed where no rule speaks. Writing and connecting never are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// `files.read.default`.
    pub read: bool,
    /// `files.exec.default`.
    pub execute: bool,
    /// Whether writing and connecting are: in [`OPEN`](Self::OPEN) alone.
    open: bool,
}

impl Default for Defaults {
    fn default() -> Self {
        Self { read: true, execute: true, open: false }
    }
}

impl Defaults {
    /// All is allowed: of a ceiling, whose defaults are rules (see [`expand`](super::expand::expand)).
    pub const OPEN: Self = Self { read: true, execute: true, open: true };

    /// Whether a kind is allowed where no rule speaks.
    pub const fn allow(self, kind: Kind) -> bool {
        match kind {
            Kind::Read => self.read,
            Kind::Execute => self.execute,
            Kind::Write | Kind::Delete | Kind::Attributes | Kind::Connect => self.open,
        }
    }

    /// The same as the kernel's bits.
    pub fn rights(self) -> Rights {
        let allowed = Kind::ALL.into_iter().filter(|kind| self.allow(*kind));
        let allow = allowed.fold(0, |all, kind| all | kind.access().bits());
        Rights { allow, ..Rights::default() }
    }
}

/// What is decided about a path, one apart from the other: in the order of [`KIND_ACCESS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(usize)]
pub enum Kind {
    /// Reading a file, listing a directory.
    Read,
    /// Changing a file's content, making a name.
    Write,
    /// Running a file as a program, for which it must be readable too.
    Execute,
    /// Connecting to a unix socket, and sending to one.
    Connect,
    /// Taking a name away: also by renaming from it and over it.
    Delete,
    /// Changing mode, owner, times, extended attributes.
    Attributes,
}

impl Kind {
    /// Number of kinds.
    pub const COUNT: usize = KINDS;
    /// All of them.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Read, Self::Write, Self::Execute, Self::Connect, Self::Delete, Self::Attributes];

    /// Its bits in the kernel.
    pub const fn access(self) -> Access {
        KIND_ACCESS[self as usize]
    }

    /// Those of which accesses speak, all or some of whose bits are theirs.
    pub fn of(access: Access) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |kind| access.intersects(kind.access()))
    }

    /// The word for it in a message.
    pub const fn verb(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Execute => "run",
            Self::Connect => "connect to",
            Self::Delete => "delete",
            Self::Attributes => "change attributes",
        }
    }
}

/// Whether a list is one of what is denied, asked about or noted: more of it opens nothing.
pub fn closes(key: &str) -> bool {
    matches!(key.rsplit('.').next(), Some("deny" | "ask" | audits::KEY))
}

/// What every rule has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its number in events, from 1, unique in the policy.
    pub id: u32,
    /// The key it stands under.
    pub key: &'static str,
    /// The rule as written.
    pub text: String,
    /// Where.
    pub place: Place,
}

impl Origin {
    /// Whether it stands in a list of what is denied, asked about or noted.
    pub fn denies(&self) -> bool {
        closes(self.key)
    }
}

/// Unix sockets, as an entry of `network.unix` names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sockets {
    /// By their paths: what the braces of one stand for, at least one.
    Paths(Vec<Pattern>),
    /// By an abstract name, without the leading zero.
    Abstract(Vec<u8>),
    /// Those of a service.
    Service(Service),
}

/// One entry of the `allow` and `deny` lists of `files.*` and `network.unix`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileRule {
    /// Where it comes from.
    pub origin: Origin,
    /// The accesses it speaks of: those of one [`Kind`], or of several, as `write` does.
    pub access: Access,
    /// Its verdict.
    pub allow: bool,
    /// The places it speaks of: what its braces stand for. None where it speaks of an abstract name or of a
    /// service.
    pub patterns: Vec<Pattern>,
    /// The abstract name of a unix socket that it speaks of, without the leading zero.
    pub abstract_name: Option<Vec<u8>>,
    /// The service of whose unix sockets it speaks.
    pub service: Option<Service>,
}

/// One entry of `files.exec.ask`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskRule {
    /// Where it comes from.
    pub origin: Origin,
    /// The program, and what stands behind it.
    pub words: Words,
    /// A person has granted it.
    pub granted: bool,
}

/// One entry of the lists of `environment`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariableRule {
    /// Where it comes from.
    pub origin: Origin,
    /// Whether the variable stays.
    pub allow: bool,
    /// Its name.
    pub name: Glob,
}

/// A path as written, without braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// What the path starts from.
    pub base: Base,
    /// The components beneath it up to the first wildcard, none of them `.`, `..` or empty.
    pub components: Vec<Vec<u8>>,
    /// From the first wildcard on; empty where the path is spelled out.
    pub tail: Vec<Step>,
    /// Whether the place itself is meant too.
    pub scope: Scope,
}

/// A component of a path with wildcards.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// `**`: any components, none too. Never last, never two in a row.
    Deep,
    /// `*`: any one component.
    Any,
    /// A component that the glob matches.
    Name(Glob),
}

/// What a path starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// Everywhere: the path begins with `**`.
    Everywhere,
    /// `/`.
    Root,
    /// `~`: the agent user's home.
    Home,
    /// `${WORKSPACE}`.
    Workspace,
    /// `${TMPDIR}`.
    Tmpdir,
    /// `${RUNTIME_DIR}`: the agent user's directory for sockets.
    Runtime,
}

/// How much a rule covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    /// `PATH`: the object and everything beneath.
    Tree,
    /// `PATH/**`: everything beneath, not the object itself.
    Beneath,
}

/// One entry of `network.allow`, `network.deny` or `network.listen`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetRule {
    /// Where it comes from.
    pub origin: Origin,
    /// Who begins.
    pub direction: Direction,
    /// Its verdict.
    pub allow: bool,
    /// Where to, or where.
    pub target: Target,
    /// The most bytes that it lets pass, `amount::UNLIMITED` where it only counts them; `None`: it does not.
    pub max: Option<u64>,
}

/// One entry of `network.allow` or `network.deny` that names a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameRule {
    /// Where it comes from.
    pub origin: Origin,
    /// Its verdict.
    pub allow: bool,
    /// Which names.
    pub pattern: NamePattern,
    /// The ports, from 1; none named is every port, 0 too.
    pub ports: RangeInclusive<u16>,
    /// The protocols, at least one.
    pub protocols: &'static [Protocol],
    /// As in [`NetRule`].
    pub max: Option<u64>,
    /// Connections must be TLS, and ask for a name that is allowed.
    pub sni: bool,
}

/// A name, or those beneath it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePattern {
    /// In lower case, as on the wire, without a dot at its end.
    pub name: String,
    /// `*.NAME`: what lies beneath, at whatever depth, and not the name itself.
    pub beneath: bool,
}

/// What an entry of `network.allow` or `network.deny` speaks of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    /// Addresses.
    Net(Target),
    /// Names, ports and protocols.
    Name(NamePattern, RangeInclusive<u16>, &'static [Protocol]),
}

/// Who begins to talk to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u16)]
pub enum Direction {
    /// The session connects and sends.
    Out = 0,
    /// Others connect and send to the session.
    In = LISTEN,
}

/// Addresses, ports and protocols.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The addresses; an IPv4-mapped prefix is IPv4 here.
    pub net: IpNet,
    /// The ports, from 1; none named is every port, 0 too.
    pub ports: RangeInclusive<u16>,
    /// The protocols, at least one.
    pub protocols: &'static [Protocol],
}

/// A transport protocol that rules know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Protocol {
    /// `IPPROTO_TCP`.
    Tcp = 6,
    /// `IPPROTO_UDP`.
    Udp = 17,
}
