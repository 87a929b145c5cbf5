//! Compares what the canary met with what it had to meet.

use super::attempt::{ATTEMPTS, Act, Answer, Attempt, Class, Denial, Port, SHELF, To};
use super::{CanaryReport, Outcome};
use crate::engine::events::{Object, Record};
use sandbox_common::event::{Header, NetPayload, ProcessPayload};
use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// What `stat` says of a file: mode with type, size, owner, group.
pub(super) type Stat = (u32, u64, u32, u32);

/// All that is known after the canary has ended.
#[derive(Clone, Debug)]
pub(super) struct Observed {
    /// The session's number, which its records bear.
    pub(super) session: u32,
    /// Both stages' answers.
    pub(super) answers: [Answer; 2],
    /// Records of the ring that bear the canary's session number.
    pub(super) records: Vec<Record>,
    /// The files, by name relative to the canary's directory.
    pub(super) before: BTreeMap<String, Stat>,
    pub(super) after: BTreeMap<String, Stat>,
    /// Where the directory lies, by mount table: superblock and names from its root.
    pub(super) place: (u32, Vec<Vec<u8>>),
    /// The shelf's superblock.
    pub(super) shelf: u32,
    /// Yama lets nobody trace.
    pub(super) untraceable: bool,
    /// Process id in the initial pid namespace; `None` where that cannot be known from here.
    pub(super) pid: Option<u32>,
    pub(super) uid: u32,
    /// Name of this process's main thread.
    pub(super) parent: String,
    pub(super) cgroup: u64,
    /// Ports of `127.0.0.1` and `::1`: allowed, other.
    pub(super) v4: (u16, u16),
    pub(super) v6: (u16, u16),
    /// `::1` exists.
    pub(super) loopback6: bool,
    /// Datagrams came through to the allowed port, to any other.
    pub(super) arrived: (bool, bool),
    /// Abstract names of unix sockets, without the leading zero: allowed, other.
    pub(super) names: (Vec<u8>, Vec<u8>),
    /// The same of unix sockets.
    pub(super) arrived_unix: (bool, bool),
}

/// How one attempt ended.
enum End {
    Right,
    Absent(String),
    Wrong(String),
}

/// The outcome of every class.
pub(super) fn judge(observed: &Observed) -> CanaryReport {
    let classes = Class::ALL
        .iter()
        .map(|class| {
            let mut outcome = Outcome::Enforced;
            for attempt in ATTEMPTS.iter().filter(|attempt| attempt.class == *class) {
                match observed.end(attempt) {
                    End::Right => {}
                    End::Absent(why) => outcome = Outcome::Absent { why },
                    End::Wrong(why) => {
                        outcome = Outcome::Failed { why: format!("{}: {why}", attempt.name) };
                        break;
                    }
                }
            }
            let arrived = match class {
                Class::NetworkUdp => Some(observed.arrived),
                Class::NetworkUnix => Some(observed.arrived_unix),
                _ => None,
            };
            if let Some(arrived) = arrived.filter(|_| outcome == Outcome::Enforced) {
                let why = match arrived {
                    (true, false) => None,
                    (false, _) => Some("no datagram arrived where they are allowed"),
                    (true, true) => Some("a datagram arrived where none is allowed"),
                };
                if let Some(why) = why {
                    outcome = Outcome::Failed { why: why.into() };
                }
            }
            if *class == Class::Membership
                && outcome == Outcome::Enforced
                && !observed.told_of_the_move()
            {
                let why = "that it was moved to another cgroup was not told";
                outcome = Outcome::Failed { why: why.into() };
            }
            (*class, outcome)
        })
        .collect();
    CanaryReport { classes }
}

impl Observed {
    /// Whether a record says that the canary was moved.
    fn told_of_the_move(&self) -> bool {
        self.records.iter().any(|record| match record {
            Record::Moved { header, moved } => {
                header.session == self.session
                    && header.cgroup == self.cgroup
                    && self.pid.is_none_or(|pid| moved.pid == pid)
            }
            _ => false,
        })
    }

    fn end(&self, attempt: &Attempt) -> End {
        let answer = &self.answers[usize::from(attempt.moved)];
        let found = answer.results.iter().find(|(name, _)| name == attempt.name);
        let Some((_, errno)) = found else { return End::Wrong("was not attempted".into()) };
        if uses_v6(attempt.act) && *errno == libc::EAFNOSUPPORT {
            return End::Absent("no IPv6 here, so nothing can be reached by it".into());
        }
        if matches!(attempt.act, Act::Seize) && self.untraceable && *errno == libc::EPERM {
            return End::Absent("nobody traces here: kernel.yama.ptrace_scope is 3".into());
        }
        match attempt.denial {
            None => self.passed(attempt.act, *errno),
            Some(denial) => match self.denied(attempt.act, &denial, *errno, &answer.comm) {
                Ok(()) => End::Right,
                Err(why) => End::Wrong(why),
            },
        }
    }

    fn passed(&self, act: Act, errno: i32) -> End {
        match (act, errno) {
            // Nobody listens: that the connection was refused shows that it was tried.
            // Nor is what is run a program, which shows only when it is run.
            (_, 0)
            | (Act::TcpConnect(..), libc::ECONNREFUSED)
            | (Act::Execute(_) | Act::ExecuteWith(..), libc::ENOEXEC) => End::Right,
            // The twin cannot be tried without an address; the denials were.
            (
                Act::TcpConnect(To::V6, _) | Act::UdpSend(To::V6, _),
                libc::EADDRNOTAVAIL | libc::ENETUNREACH,
            ) if !self.loopback6 => End::Right,
            _ => End::Wrong(format!("was to pass, got {}", explain(errno))),
        }
    }

    fn denied(&self, act: Act, denial: &Denial, errno: i32, comm: &str) -> Result<(), String> {
        if errno != libc::EACCES && errno != libc::EPERM {
            return Err(format!("was to be refused, got {}", explain(errno)));
        }
        for object in denial.objects {
            if self.before.get(*object) != self.after.get(*object) {
                return Err(format!("was refused, and yet changed {object}"));
            }
        }
        // Several attempts may meet one hook; that one of its events fits is enough.
        let mut why = "was refused, but no event told of it".to_owned();
        let fitting = |record: &&Record| self.speaks_of(record.header(), denial);
        for record in self.records.iter().filter(fitting) {
            match self.compare(record, act, denial, comm) {
                Ok(()) => return Ok(()),
                Err(difference) => why = format!("its event is wrong: {difference}"),
            }
        }
        Err(why)
    }

    /// The layout self-test: what the programs read must be what user space knows.
    fn compare(
        &self,
        record: &Record,
        act: Act,
        denial: &Denial,
        comm: &str,
    ) -> Result<(), String> {
        let header = record.header();
        if let Some(pid) = self.pid {
            same("pid", &header.pid, &pid)?;
            same("tid", &header.tid, &pid)?;
        }
        same("uid", &header.uid, &self.uid)?;
        same("cgroup", &header.cgroup, &self.cgroup)?;
        same("comm", &text(&header.comm).as_str(), &comm)?;
        match (record, address(act), denial.objects) {
            (Record::Net { net, .. }, Some(to), _) => self.compare_net(net, act, to),
            (Record::Path { object, .. }, None, objects) if !objects.is_empty() => {
                self.compare_object(object, objects)
            }
            (Record::Process { process, .. }, None, []) => self.compare_parent(process),
            (Record::Unix { name, .. }, None, []) if matches!(act, Act::AbstractSend(_)) => {
                same("abstract name", name, &self.names.1)
            }
            (Record::Task { .. }, None, []) => Ok(()),
            _ => Err("it speaks of another kind of object".into()),
        }
    }

    fn compare_object(&self, object: &Object, names: &[&str]) -> Result<(), String> {
        let shelved = names.iter().all(|name| name.starts_with(SHELF));
        let dev = if shelved { self.shelf } else { self.place.0 };
        let above: &[Vec<u8>] = if shelved { &[] } else { &self.place.1 };
        same("device of the file system", &object.dev, &dev)?;
        same("truncated", &object.truncated, &false)?;
        same("device number", &object.rdev, &0)?;
        let name = names
            .iter()
            .find(|name| {
                let name = name.strip_prefix(SHELF).unwrap_or(name);
                let beneath = name.split('/').map(|part| part.as_bytes().to_vec());
                object.components.iter().cloned().eq(above.iter().cloned().chain(beneath))
            })
            .ok_or_else(|| {
                let path: Vec<_> =
                    object.components.iter().map(|name| String::from_utf8_lossy(name)).collect();
                format!("its path is /{}, not that of {}", path.join("/"), names.join(" or "))
            })?;
        same("mode", &object.mode, &self.before.get(*name).map_or(0, |stat| stat.0))
    }

    /// The only other process that is reached for is the canary's parent: this one.
    fn compare_parent(&self, process: &ProcessPayload) -> Result<(), String> {
        if self.pid.is_some() {
            same("the other process's pid", &process.pid, &std::process::id())?;
        }
        same("the other process's name", &text(&process.comm), &self.parent)
    }

    fn compare_net(&self, net: &NetPayload, act: Act, to: To) -> Result<(), String> {
        let mut address = [0; 16];
        let (family, ports) = if to == To::V6 {
            address = Ipv6Addr::LOCALHOST.octets();
            (libc::AF_INET6, self.v6)
        } else {
            address[..4].copy_from_slice(&Ipv4Addr::LOCALHOST.octets());
            (libc::AF_INET, self.v4)
        };
        let tcp = matches!(act, Act::TcpConnect(..));
        let protocol = if tcp { libc::IPPROTO_TCP } else { libc::IPPROTO_UDP };
        same("family", &i32::from(net.family), &family)?;
        same("address", &net.address, &address)?;
        same("port", &net.port, &ports.1)?;
        same("protocol", &i32::from(net.protocol), &protocol)
    }

    fn speaks_of(&self, header: &Header, denial: &Denial) -> bool {
        header.session == self.session
            && denial.hooks.iter().any(|hook| *hook as u8 == header.hook)
            && (denial.access.is_empty() || header.access & denial.access.bits() != 0)
            && denial.rule.is_none_or(|rule| rule == header.rule)
    }
}

/// The address that an act goes to where the policy does not allow it.
fn address(act: Act) -> Option<To> {
    match act {
        Act::TcpConnect(to, Port::Other)
        | Act::UdpConnect(to, Port::Other)
        | Act::UdpSend(to, Port::Other) => Some(to),
        _ => None,
    }
}

fn uses_v6(act: Act) -> bool {
    matches!(
        act,
        Act::TcpConnect(To::V6 | To::Mapped, _)
            | Act::UdpConnect(To::V6 | To::Mapped, _)
            | Act::UdpSend(To::V6 | To::Mapped, _)
    )
}

/// The text before the first zero.
fn text(comm: &[u8]) -> String {
    let name = comm.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

fn same<T: PartialEq + fmt::Debug>(what: &str, found: &T, expected: &T) -> Result<(), String> {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what} is {found:?} where user space sees {expected:?}"))
}

fn explain(errno: i32) -> String {
    if errno == 0 {
        return "success".into();
    }
    std::io::Error::from_raw_os_error(errno).to_string()
}

#[cfg(test)]
mod tests;
