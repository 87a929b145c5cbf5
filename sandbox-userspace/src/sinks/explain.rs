//! From a record of the ring to what it means.

use super::denial::{Audit, Denial, Hint, Moved, RuleRef, Target, Verdict};
use super::escape::{printable, text};
use crate::dns::parent::Known;
use crate::engine::events::{Object, Record};
use crate::kernel::mounts::to_components;
use crate::policy::check;
use crate::policy::check::path::spelled_out;
use crate::policy::compiled::Rule;
use crate::policy::rule::{Base, Pattern, Scope};
use crate::session::SessionId;
use jiff::{SignedDuration, Timestamp};
use rustix::time::{ClockId, clock_gettime};
use sandbox_common::Access;
use sandbox_common::event::{Header, Hook, MovedPayload, NetPayload, ProcessPayload, Reason};
use sandbox_common::subject::Mode;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

/// Where an object of a superblock (`s_dev`, components from its root) is mounted.
pub type Show = Box<dyn Fn(u32, &[Vec<u8>]) -> Option<PathBuf>>;

/// The rules of a session by id: those that are in force and those that were.
pub type SharedRules = Arc<RwLock<Vec<Rule>>>;

/// Explains the records of one session.
pub struct Explainer {
    session: SessionId,
    rules: SharedRules,
    show: Show,
    /// What to add to `CLOCK_BOOTTIME` to get the time of day.
    boot: SignedDuration,
    /// The names for which the session was given addresses.
    pub known: Known,
    /// The session only reports: its resolver answers what it would refuse.
    audit: bool,
}

impl Explainer {
    /// For a session whose rules, by id, are these, in this mode, and whose mounts `show` knows.
    pub fn new(session: SessionId, rules: SharedRules, mode: Mode, show: Show) -> Self {
        let now = Timestamp::now().as_duration();
        let since_boot = clock_gettime(ClockId::Boottime);
        // Nanoseconds of a timespec are below a thousand million.
        let nanoseconds = i32::try_from(since_boot.tv_nsec).unwrap_or(0);
        let boot = now.saturating_sub(SignedDuration::new(since_boot.tv_sec, nanoseconds));
        Self { session, rules, show, boot, known: Known::default(), audit: mode == Mode::Audit }
    }

    /// What a record means.
    pub fn explain(&self, record: &Record) -> Denial {
        let header = record.header();
        let access = Access::from_bits_retain(header.access);
        let (object, shown) = self.object(record);
        let rule = self.rule(header.rule);
        // A policy is UTF-8: it cannot name a path that is not.
        let exact = !matches!(record, Record::Path { object, .. } if !is_utf8(object));
        let hint = match record {
            Record::Unix { name, .. } => abstract_hint(header, name),
            _ => exact.then(|| hint(header, access, &object, rule.as_ref())).flatten(),
        };
        let name = thread_name(&header.comm);
        Denial {
            time: self.time(header.time),
            session: self.session.clone(),
            hook: named(header.hook, Hook::from_number(header.hook).map(Hook::name)),
            access: names(access),
            reason: named(header.reason, Reason::from_number(header.reason).map(Reason::name)),
            verdict: match Mode::of(header.mode) {
                Mode::Enforce => Verdict::Denied,
                Mode::Audit => Verdict::Audited,
            },
            pid: header.pid,
            tid: header.tid,
            uid: header.uid,
            comm: text(name),
            message: message(header, access, &object, &shown, name, rule.as_ref()),
            object,
            rule,
            hint,
        }
    }

    /// The object of a record, and the text for people of it.
    fn object(&self, record: &Record) -> (Target, String) {
        match record {
            Record::Path { object, .. } => self.path(object),
            Record::Net { net, .. } => self.address(net, None),
            Record::Server { net, name, .. } => self.address(net, Some(name)),
            Record::Process { process, .. } => other(process),
            Record::Unix { name, .. } => {
                (Target::Abstract { name: text(name) }, format!("@{}", printable(name)))
            }
            Record::Task { .. } | Record::Moved { .. } => (Target::Task, String::new()),
        }
    }

    /// What a record of something that was allowed means.
    pub fn note(&self, record: &Record) -> Audit {
        let header = record.header();
        let access = Access::from_bits_retain(header.access);
        let (object, shown) = self.object(record);
        let name = thread_name(&header.comm);
        let (doing, word) = phrase(access);
        let what = if shown.is_empty() { doing } else { format!("{doing} {word} {shown}") };
        Audit {
            time: self.time(header.time),
            session: self.session.clone(),
            class: match access {
                access if access.contains(Access::EXECUTE) => "exec",
                access if access.contains(Access::CONNECT) => "connect",
                _ => "write",
            },
            hook: named(header.hook, Hook::from_number(header.hook).map(Hook::name)),
            access: names(access),
            pid: header.pid,
            tid: header.tid,
            uid: header.uid,
            comm: text(name),
            object,
            message: format!("noted {what} by {}[{}]", printable(name), header.pid),
        }
    }

    /// What a record of a move means.
    pub fn moved(&self, header: &Header, moved: &MovedPayload) -> Moved {
        let to = moved.to.split(|byte| *byte == 0).next().unwrap_or_default();
        let (name, by) = (thread_name(&moved.comm), thread_name(&header.comm));
        Moved {
            time: self.time(header.time),
            session: self.session.clone(),
            pid: moved.pid,
            comm: text(name),
            from: header.cgroup,
            to: text(to),
            by: header.pid,
            by_comm: text(by),
            message: format!(
                "{}[{}] was moved to the cgroup {} by {}[{}]; it stays confined",
                printable(name),
                moved.pid,
                printable(to),
                printable(by),
                header.pid
            ),
        }
    }

    /// The rule of a number; `None` where that is 0.
    pub fn rule(&self, id: u32) -> Option<RuleRef> {
        if id == 0 {
            return None;
        }
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        let known = rules.binary_search_by_key(&id, |rule| rule.id);
        let known = known.ok().map(|index| &rules[index]);
        Some(known.map_or(RuleRef::Unknown { id }, |rule| RuleRef::Known(rule.clone())))
    }

    /// The object, and the text for people of it.
    fn path(&self, object: &Object) -> (Target, String) {
        let bytes = self.shown(object);
        let (path, shown) = (text(&bytes), printable(&bytes));
        if object.rdev != 0 {
            let (major, minor) = numbers(object.rdev);
            let shown = format!("{shown} (device {major}:{minor})");
            return (Target::Device { path, major, minor }, shown);
        }
        (Target::Path { path, exists: object.mode != 0 }, shown)
    }

    fn shown(&self, object: &Object) -> Vec<u8> {
        if !object.truncated
            && let Some(path) = (self.show)(object.dev, &object.components)
        {
            return path.as_os_str().as_bytes().to_vec();
        }
        // Mounted nowhere here, or its beginning is missing: the file system and what is known.
        let (major, minor) = numbers(object.dev);
        let mut path = format!("[{major}:{minor}]").into_bytes();
        if object.truncated {
            path.extend(b"/...");
        }
        for name in &object.components {
            path.push(b'/');
            path.extend(name);
        }
        if object.components.is_empty() {
            path.push(b'/');
        }
        path
    }

    /// With the name that TLS asks for there; an empty one is not known.
    fn address(&self, net: &NetPayload, asked: Option<&[u8]>) -> (Target, String) {
        let [a, b, c, d, ..] = net.address;
        let ip = match i32::from(net.family) {
            libc::AF_INET => Some(IpAddr::from([a, b, c, d])),
            libc::AF_INET6 => Some(IpAddr::from(net.address)),
            _ => None,
        };
        let address = ip.map_or_else(|| format!("family {}", net.family), |ip| ip.to_string());
        let protocol = match i32::from(net.protocol) {
            libc::IPPROTO_TCP => "tcp".into(),
            libc::IPPROTO_UDP => "udp".into(),
            number => number.to_string(),
        };
        let names: Vec<String> =
            ip.into_iter().flat_map(|ip| self.known.of(ip)).map(str::to_owned).collect();
        let mut shown = address_text(&address, net.port, &protocol);
        match names.as_slice() {
            [] => {}
            [name] => shown = format!("{shown} ({name})"),
            [name, others @ ..] => {
                shown = format!("{shown} ({name}; the same address: {})", others.join(", "));
            }
        }
        let server_name = asked.filter(|name| !name.is_empty());
        if let Some(name) = server_name {
            shown = format!("{shown} asking for {}", printable(name));
        }
        let server_name = server_name.map(text);
        (Target::Address { address, port: net.port, protocol, names, server_name }, shown)
    }

    /// The resolver refused a name, `count` times since it was last told of.
    pub fn refused(&self, name: &str, kind: &str, rule: u32, count: u64) -> Denial {
        let rule = self.rule(rule);
        let reason = if rule.is_some() { Reason::Rule } else { Reason::Default };
        let times = if count > 1 { format!(", {count} times") } else { String::new() };
        let verdict = if self.audit { "would deny" } else { "denied" };
        let message = format!(
            "{verdict} question about {name} ({kind}){times}: {}",
            because(reason as u8, rule.as_ref())
        );
        let hint =
            rule.is_none().then(|| Hint { key: "network.allow".into(), add: name.to_owned() });
        let object =
            Target::Name { name: name.to_owned(), record: kind.to_owned(), addresses: Vec::new() };
        Denial { rule, message, hint, ..self.of_resolver(reason, object) }
    }

    /// A name led to addresses of this site.
    pub fn withheld(&self, name: &str, addresses: Vec<IpAddr>) -> Denial {
        let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let message = format!(
            "denied answer about {name}: it leads to {}, which is of this site, and no rule opens that",
            texts.join(", ")
        );
        let add = addresses.first().map(|address| match address {
            IpAddr::V4(v4) => v4.to_string(),
            IpAddr::V6(v6) => format!("[{v6}]"),
        });
        let hint = add.map(|add| Hint { key: "network.allow".into(), add });
        let object = Target::Name { name: name.to_owned(), record: String::new(), addresses };
        Denial { message, hint, ..self.of_resolver(Reason::Reserved, object) }
    }

    /// What all denials of the resolver have in common: it does not know who asks.
    fn of_resolver(&self, reason: Reason, object: Target) -> Denial {
        Denial {
            time: Timestamp::now().to_string(),
            session: self.session.clone(),
            hook: Hook::Resolver.name().into(),
            access: vec!["connect".into()],
            reason: reason.name().into(),
            verdict: if self.audit { Verdict::Audited } else { Verdict::Denied },
            pid: 0,
            tid: 0,
            uid: 0,
            comm: String::new(),
            object,
            rule: None,
            message: String::new(),
            hint: None,
        }
    }

    fn time(&self, nanoseconds: u64) -> String {
        let since_boot = SignedDuration::from_nanos(i64::try_from(nanoseconds).unwrap_or(i64::MAX));
        let time = Timestamp::from_duration(self.boot.saturating_add(since_boot));
        time.unwrap_or(Timestamp::MAX).to_string()
    }
}

fn is_utf8(object: &Object) -> bool {
    object.components.iter().all(|name| std::str::from_utf8(name).is_ok())
}

/// Major and minor of a device number in the kernel's encoding.
const fn numbers(dev: u32) -> (u32, u32) {
    (dev >> 20, dev & 0xf_ffff)
}

fn named(number: u8, name: Option<&str>) -> String {
    name.map_or_else(|| number.to_string(), str::to_owned)
}

/// Bits of an access: the name, what people call doing it, and the word before the object.
const ACCESSES: [(Access, &str, &str, &str); 14] = [
    (Access::READ, "read", "read", "of"),
    (Access::WRITE, "write", "write", "of"),
    (Access::CREATE, "create", "creation", "of"),
    (Access::DELETE, "delete", "deletion", "of"),
    (Access::ATTRIBUTES, "attributes", "attribute change", "of"),
    (Access::EXECUTE, "execute", "execution", "of"),
    (Access::CONNECT, "connect", "connection", "to"),
    (Access::TRACE, "trace", "look", "into"),
    (Access::SIGNAL, "signal", "signal", "to"),
    (Access::CONTROL, "control", "control", "of"),
    (Access::MOUNT, "mount", "mount", "of"),
    (Access::KERNEL, "kernel", "kernel access", "to"),
    (Access::TYPE, "type", "typing", "into"),
    (Access::LISTEN, "listen", "listening", "at"),
];

/// The names of the bits; those without a name are one number.
fn names(access: Access) -> Vec<String> {
    let known = ACCESSES.iter().filter(|(bit, ..)| access.contains(*bit));
    let names = known.map(|(_, name, ..)| (*name).to_owned());
    names.chain(unknown(access)).collect()
}

/// For people: `read and write`, and the word before the object.
fn phrase(access: Access) -> (String, &'static str) {
    let known = ACCESSES.iter().filter(|(bit, ..)| access.contains(*bit));
    let word = known.clone().next_back().map_or("of", |(.., word)| word);
    let nouns = known.map(|(_, _, noun, _)| (*noun).to_owned());
    (nouns.chain(unknown(access)).collect::<Vec<_>>().join(" and "), word)
}

fn unknown(access: Access) -> Option<String> {
    let bits = access.bits() & !Access::all().bits();
    (bits != 0).then(|| format!("{bits:#x}"))
}

fn other(process: &ProcessPayload) -> (Target, String) {
    let ProcessPayload { pid, request, comm } = process;
    let comm = thread_name(comm);
    let shown = format!("{}[{pid}]", printable(comm));
    (Target::Process { pid: *pid, comm: text(comm), request: *request }, shown)
}

fn thread_name(comm: &[u8]) -> &[u8] {
    comm.split(|&byte| byte == 0).next().unwrap_or_default()
}

/// Text for people of an address with port and protocol, as the policy writes it.
fn address_text(address: &str, port: u16, protocol: &str) -> String {
    let suffix = match protocol {
        "tcp" | "udp" => format!("/{protocol}"),
        _ => format!(" protocol {protocol}"),
    };
    if address.contains(':') {
        format!("[{address}]:{port}{suffix}")
    } else {
        format!("{address}:{port}{suffix}")
    }
}

fn message(
    header: &Header,
    access: Access,
    object: &Target,
    shown: &str,
    name: &[u8],
    rule: Option<&RuleRef>,
) -> String {
    let verdict = match Mode::of(header.mode) {
        Mode::Enforce => "denied",
        Mode::Audit => "would deny",
    };
    let (doing, word) = phrase(access);
    let hook = Hook::from_number(header.hook);
    let what = match (object, hook) {
        (Target::Task, Some(Hook::SocketCreate)) => "a socket".into(),
        (Target::Task, Some(Hook::TaskAlloc)) => "a new process".into(),
        (Target::Task, hook) => {
            let hook = named(header.hook, hook.map(Hook::name));
            if access.is_empty() { hook } else { format!("{doing} ({hook})") }
        }
        (Target::Process { request, .. }, Some(Hook::TaskKill)) => {
            format!("{doing} {request} {word} {shown}")
        }
        _ => format!("{doing} {word} {shown}"),
    };
    let because = because(header.reason, rule);
    if header.pid == 0 {
        // A packet, which any task may have sent.
        return format!("{verdict} {what}: {because}");
    }
    format!("{verdict} {what} by {}[{}]: {because}", printable(name), header.pid)
}

/// A rule for people.
pub(super) fn rule_text(rule: &RuleRef) -> String {
    match rule {
        RuleRef::Known(Rule { key, text, file, line, .. }) => {
            let (text, file) = (printable(text.as_bytes()), printable(file.as_bytes()));
            format!("{key} \"{text}\" ({file}:{line})")
        }
        RuleRef::Unknown { id } => format!("rule {id}"),
    }
}

fn because(reason: u8, rule: Option<&RuleRef>) -> String {
    let rule = rule.map(rule_text);
    let reason = match Reason::from_number(reason) {
        Some(Reason::Allowed) => "it was allowed".into(),
        Some(Reason::Rule) => return rule.unwrap_or_else(|| "a rule".into()),
        Some(Reason::Default) => "no rule allows it".into(),
        Some(Reason::UnknownFilesystem) => "the policy does not know this file system".into(),
        Some(Reason::Device) => "the device is not on the list".into(),
        Some(Reason::Disconnected) => "the object has no place in its file system".into(),
        Some(Reason::TooDeep) => "the path is too deep to be judged".into(),
        Some(Reason::Gain) => "the new place allows what the old one does not".into(),
        Some(Reason::RuleBeneath) => {
            "a rule protects something beneath that name, which this would move or lead past".into()
        },
        Some(Reason::IntoCgroup) => "a child may not be born in another cgroup".into(),
        Some(Reason::NoMemory) => "the kernel had no memory to judge it".into(),
        Some(Reason::Unreadable) => "a kernel object could not be read".into(),
        Some(Reason::SessionEnded) => "its session has ended".into(),
        Some(Reason::SocketKind) => "sockets of this kind are not allowed".into(),
        Some(Reason::Outsider) => "that process is not of the session".into(),
        Some(Reason::Never) => "no session may do this".into(),
        Some(Reason::Moved) => "the task is not in its session's cgroup any more".into(),
        Some(Reason::Foreign) => "the other socket has no name and is not of the session".into(),
        Some(Reason::CaseInsensitive) => {
            "in a directory without regard to case the name may be another that rules speak of"
                .into()
        }
        Some(Reason::Reserved) => {
            "link-local, metadata and broadcast addresses are denied unless a rule names them for \
             themselves"
                .into()
        }
        Some(Reason::Expired) => {
            "the answer that gave this address has expired: ask for the name again".into()
        }
        Some(Reason::Spent) => "as many bytes have passed as its rule lets pass".into(),
        Some(Reason::Asked) => "a person is to be asked first".into(),
        Some(Reason::ServerName) => {
            "TLS asks for another name than those that are allowed at this port".into()
        }
        Some(Reason::NoServerName) => "TLS asks for no name, which the rule checks".into(),
        Some(Reason::NotTls) => {
            "it does not begin as TLS does, and the rule checks which name TLS asks for".into()
        }
        Some(Reason::SplitHello) => {
            "the name that TLS asks for is not whole in the first packet, where the rule checks it"
                .into()
        }
        Some(Reason::Changeable) => {
            "the name that TLS asks for lies in memory that the program can still change \
             (MSG_ZEROCOPY, sendfile, splice), where the rule checks it"
                .into()
        }
        Some(Reason::NotTcp) => {
            "the rule checks which name TLS asks for, which is done over TCP only: QUIC and other UDP \
             are refused"
                .into()
        }
        Some(Reason::Packet) => {
            "packets go where their socket connected to, by TCP or UDP, and by no other way".into()
        }
        None => format!("reason {reason}"),
    };
    match rule {
        Some(rule) => format!("{reason}: {rule}"),
        None => reason,
    }
}

/// What would allow it: an entry that is deeper than the rule that decided.
fn hint(header: &Header, access: Access, object: &Target, rule: Option<&RuleRef>) -> Option<Hint> {
    let reason = Reason::from_number(header.reason)?;
    if !matches!(reason, Reason::Rule | Reason::Default | Reason::Reserved) {
        return None;
    }
    match object {
        Target::Path { path, .. } if path.starts_with('/') => {
            // A rule that spells out this very place wins over an entry that names the same place.
            if let Some(RuleRef::Known(rule)) = rule
                && spells_out(&rule.text, path)
            {
                return None;
            }
            let key = if access.contains(Access::CONNECT) {
                "network.unix.allow"
            } else if access.intersects(Access::WRITES) {
                changing(rule)
            } else if access.contains(Access::EXECUTE) && !access.contains(Access::READ) {
                "files.exec.allow"
            } else {
                "files.read.allow"
            };
            Some(Hint { key: key.into(), add: spelled_out(path) })
        }
        Target::Address { address, port, protocol, names, .. }
            if matches!(&**protocol, "tcp" | "udp") =>
        {
            let add = match names.first() {
                Some(name) if reason == Reason::Default => format!("{name}:{port}/{protocol}"),
                _ => address_text(address, *port, protocol),
            };
            let listen = access.contains(Access::LISTEN);
            // At the same address a rule that denies wins over one that allows.
            if !listen && rule.is_some_and(|rule| names_address(rule, address)) {
                return None;
            }
            let key = if listen { "network.listen" } else { "network.allow" };
            Some(Hint { key: key.into(), add })
        }
        _ => None,
    }
}

/// The list that opens what a rule closes for changing: its own, where it speaks of less than all of it.
fn changing(rule: Option<&RuleRef>) -> &'static str {
    match rule {
        Some(RuleRef::Known(rule)) if rule.key == "files.delete.deny" => "files.delete.allow",
        Some(RuleRef::Known(rule)) if rule.key == "files.attributes.deny" => {
            "files.attributes.allow"
        }
        _ => "files.write.allow",
    }
}

/// What would allow a unix socket with this abstract name: a rule that denies it names it itself.
fn abstract_hint(header: &Header, name: &[u8]) -> Option<Hint> {
    let unnamed = Reason::from_number(header.reason) == Some(Reason::Default) && !name.is_empty();
    unnamed.then(|| Hint { key: "network.unix.allow".into(), add: check::unix::spelled_out(name) })
}

/// Whether a rule speaks of just this address.
fn names_address(rule: &RuleRef, address: &str) -> bool {
    let RuleRef::Known(rule) = rule else { return false };
    let target = check::address::parse(&rule.text);
    target.is_ok_and(|target| {
        target.net.prefix_len() == target.net.max_prefix_len()
            && address.parse() == Ok(target.net.addr())
    })
}

/// Whether a rule, as written, names the place at a path without wildcards, as far as the text tells.
fn spells_out(rule: &str, path: &str) -> bool {
    let names = to_components(Path::new(path));
    let spelled = |pattern: &Pattern| {
        pattern.tail.is_empty()
            && pattern.scope == Scope::Tree
            && names.ends_with(&pattern.components)
            && (pattern.base != Base::Root || names.len() == pattern.components.len())
    };
    check::path::parse(rule).is_ok_and(|patterns| patterns.iter().any(spelled))
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
