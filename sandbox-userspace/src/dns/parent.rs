//! The resolver as `sandbox run` sees it: sockets, a process, what it says.

use super::message::{Change, Task, Word};
use crate::policy::names::NameLayer;
use crate::session::guard::Names;
use ipnet::IpNet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// How often in a row it is started again without having answered.
const STARTS: usize = 5;
/// How long it may take to change its rules.
const CHANGE: Timespec = Timespec { tv_sec: 20, tv_nsec: 0 };
/// Most bytes of a line.
const LINE: usize = 1 << 16;

/// The verb under which the program is its own resolver.
pub const VERB: &str = "resolver";

/// The sockets of a session's resolver. They outlive its process: what is asked meanwhile waits.
#[derive(Debug)]
pub struct Sockets {
    /// The port, the same for all.
    pub port: u16,
    /// UDP and TCP over IPv4, then over IPv6 where there is that.
    all: Vec<OwnedFd>,
}

impl Sockets {
    /// On loopback, in the network namespace of this process.
    pub fn bind() -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        // The port that one protocol got may be taken in another.
        for _ in 0..32 {
            match Self::try_bind() {
                Ok(sockets) => return Ok(sockets),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    fn try_bind() -> io::Result<Self> {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = udp.local_addr()?.port();
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let mut all = vec![udp.into(), tcp.into()];
        match UdpSocket::bind((Ipv6Addr::LOCALHOST, port)) {
            Ok(udp) => {
                all.extend([udp.into(), TcpListener::bind((Ipv6Addr::LOCALHOST, port))?.into()]);
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
            // There is no IPv6 here: nobody asks by it either.
            Err(_) => {}
        }
        Ok(Self { port, all })
    }
}

/// What came up.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// The resolver said something.
    Word(Word),
    /// It died and was started again.
    Restarted,
    /// It died and stays so: no name is answered any more.
    Lost(String),
}

/// A resolver at work.
#[derive(Debug)]
pub struct Resolver {
    sockets: Sockets,
    task: Task,
    running: Option<Running>,
    /// Starts since it last answered.
    starts: usize,
    /// What it said while something else was waited for.
    heard: Vec<Heard>,
}

#[derive(Debug)]
struct Running {
    child: Child,
    /// While it is open the child works.
    input: ChildStdin,
    output: ChildStdout,
    pending: Vec<u8>,
}

/// The resolver did not begin.
#[derive(Debug, thiserror::Error)]
pub enum ResolverError {
    /// The process could not be started.
    #[error("cannot start the resolver: {0}")]
    Start(#[from] io::Error),
    /// It says why it cannot work.
    #[error("the resolver cannot work: {0}")]
    Failed(String),
}

impl Resolver {
    /// Starts it and waits until it answers.
    pub fn start(sockets: Sockets, mut task: Task) -> Result<Self, ResolverError> {
        task.sockets = sockets.all.iter().map(rustix::fd::AsRawFd::as_raw_fd).collect();
        let mut resolver = Self { sockets, task, running: None, starts: 0, heard: Vec::new() };
        resolver.spawn()?;
        loop {
            match resolver.read()? {
                Some(Word::Ready) => return Ok(resolver),
                Some(Word::Failed(text)) => return Err(ResolverError::Failed(text)),
                Some(_) => {}
                None => return Err(ResolverError::Failed("it ended without a word".into())),
            }
        }
    }

    fn spawn(&mut self) -> io::Result<()> {
        let numbers: Vec<RawFd> = self.task.sockets.clone();
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0("sandbox-resolver")
            .arg(VERB)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        // SAFETY: system calls only, with descriptors that are open in the parent.
        unsafe {
            command.pre_exec(move || {
                // A terminal's signals are not for it.
                libc::setsid();
                for number in &numbers {
                    let socket = BorrowedFd::borrow_raw(*number);
                    rustix::io::fcntl_setfd(socket, FdFlags::empty())?;
                }
                Ok(())
            });
        }
        let mut child = command.spawn()?;
        self.starts += 1;
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        let mut line = serde_json::to_vec(&self.task)?;
        line.push(b'\n');
        // A child that is dead already is found by its output's end.
        let _ = input.write_all(&line);
        self.running = Some(Running { child, input, output, pending: Vec::new() });
        Ok(())
    }

    /// The next word; `None` where it has ended. Waits.
    fn read(&mut self) -> io::Result<Option<Word>> {
        let Some(running) = &mut self.running else { return Ok(None) };
        loop {
            if let Some(end) = running.pending.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = running.pending.drain(..=end).collect();
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            if running.pending.len() > LINE {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let mut buffer = [0; 4096];
            let count = running.output.read(&mut buffer)?;
            if count == 0 {
                return Ok(None);
            }
            running.pending.extend_from_slice(&buffer[..count]);
        }
    }

    /// Readable when something came up; `None` where nothing will.
    pub fn wait_on(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        self.running.as_ref().map(|running| (running.output.as_fd(), PollFlags::IN))
    }

    /// What came up. To be called when [`wait_on`](Self::wait_on) is readable.
    pub fn follow(&mut self) -> Vec<Heard> {
        let mut heard = Vec::new();
        match self.read() {
            Ok(Some(Word::Ready)) => self.starts = 0,
            Ok(Some(word)) => heard.push(Heard::Word(word)),
            ended => {
                self.end();
                let why = match ended {
                    Err(error) => format!("what it says cannot be understood: {error}"),
                    _ => format!("it ended {STARTS} times without having answered"),
                };
                if self.starts >= STARTS {
                    heard.push(Heard::Lost(why));
                } else {
                    match self.spawn() {
                        Ok(()) => heard.push(Heard::Restarted),
                        Err(error) => heard.push(Heard::Lost(error.to_string())),
                    }
                }
            }
        }
        // Whole lines that were read along with the first.
        while self.running.as_ref().is_some_and(|running| running.pending.contains(&b'\n')) {
            match self.read() {
                Ok(Some(Word::Ready)) => self.starts = 0,
                Ok(Some(word)) => heard.push(Heard::Word(word)),
                _ => break,
            }
        }
        heard
    }

    /// What it has said already, without waiting. What it says of an address it says before anybody can connect
    /// to it: asked after a record was read, it has told of that record's address.
    pub fn said(&mut self) -> Vec<Heard> {
        let mut heard = std::mem::take(&mut self.heard);
        while self.is_readable() {
            heard.extend(self.follow());
        }
        heard
    }

    fn is_readable(&self) -> bool {
        self.becomes_readable(Timespec::default())
    }

    fn becomes_readable(&self, patience: Timespec) -> bool {
        let Some((fd, flags)) = self.wait_on() else { return false };
        let mut wait = [PollFd::new(&fd, flags)];
        poll(&mut wait, Some(&patience)).is_ok_and(|ready| ready > 0)
    }

    /// The resolver's process, for tests of its death.
    pub fn pid(&self) -> Option<u32> {
        self.running.as_ref().map(|running| running.child.id())
    }

    /// Where it listens.
    pub const fn port(&self) -> u16 {
        self.sockets.port
    }

    /// From now on it opens nothing. It starts again when its end is found.
    fn kill(&mut self) {
        if let Some(Running { child, .. }) = &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn end(&mut self) {
        if let Some(Running { mut child, .. }) = self.running.take() {
            // It is dead, or is to be.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Names for Resolver {
    fn answers(&self) -> bool {
        self.running.is_some()
    }

    fn change(&mut self, names: &[NameLayer], within: &[IpNet]) -> Result<(), String> {
        self.task.names = names.to_vec();
        if !self.task.audit {
            self.task.within = within.to_vec();
        }
        let change = Change { names: names.to_vec(), within: self.task.within.clone() };
        let mut line = serde_json::to_vec(&change).map_err(|error| error.to_string())?;
        line.push(b'\n');
        let Some(running) = &mut self.running else {
            return Err("the resolver of names is dead: that needs a new session".to_owned());
        };
        // A child that is dead is found by its output's end, and starts again with the new rules.
        let _ = running.input.write_all(&line);
        loop {
            let has_more = |running: &Running| running.pending.contains(&b'\n');
            if !self.running.as_ref().is_some_and(has_more) && !self.becomes_readable(CHANGE) {
                self.kill();
                return Err("the resolver of names did not take the change".to_owned());
            }
            match self.read() {
                Ok(Some(Word::Changed)) => return Ok(()),
                Ok(Some(Word::Ready)) => self.starts = 0,
                Ok(Some(word)) => self.heard.push(Heard::Word(word)),
                // Its end is found again by who follows it.
                Ok(None) | Err(_) => {
                    self.kill();
                    return Err("the resolver of names died of the change".to_owned());
                }
            }
        }
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.end();
    }
}

/// The addresses that a name stands for, and the reverse, as far as the resolver told.
#[derive(Debug, Default)]
pub struct Known {
    names: std::collections::HashMap<IpAddr, Vec<String>>,
}

/// Most names that are remembered of an address.
const NAMES: usize = 16;

impl Known {
    /// Notes that an address stands for a name: the last asked for is the last of its list.
    pub fn note(&mut self, address: IpAddr, name: String) {
        let names = self.names.entry(address).or_default();
        names.retain(|known| *known != name);
        names.push(name);
        if names.len() > NAMES {
            names.remove(0);
        }
    }

    /// The names that an address stands for, the one that was asked for last the first.
    pub fn of(&self, address: IpAddr) -> impl Iterator<Item = &str> {
        self.names.get(&address).into_iter().flatten().rev().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_knows_its_latest_names() {
        let (mut known, address) = (Known::default(), IpAddr::from([192, 0, 2, 1]));
        for number in 0..20 {
            known.note(address, format!("n{number}"));
        }
        known.note(address, "n10".into());
        let names: Vec<&str> = known.of(address).collect();
        assert_eq!(names.len(), NAMES);
        assert_eq!(&names[..3], ["n10", "n19", "n18"]);
        assert_eq!(known.of([192, 0, 2, 2].into()).count(), 0);
    }

    #[test]
    fn sockets_share_a_port() {
        let sockets = Sockets::bind().unwrap();
        assert!(sockets.port != 0 && sockets.all.len() >= 2);
    }
}
