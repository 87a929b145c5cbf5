//! While the agent runs: pass signals on, hand the terminal to and fro, read the ring.

use super::guard::{Names, Told};
use super::launch::Agent;
use super::resources::Enforced;
use super::signals::{Arrived, Signals};
use crate::dns::parent as dns;
use crate::engine::events::{DecodeError, Record};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{WaitOptions, WaitStatus, waitpid};
use std::io;

/// Records read before signals get their turn: an agent that floods the ring must not become
/// deaf to them.
const BATCH: usize = 256;

/// What comes up while the agent runs.
#[derive(Debug)]
pub enum Heard {
    /// A denial or a note, or one that could not be read.
    Record(Result<Record, DecodeError>),
    /// Of the resolver of names.
    Resolver(dns::Heard),
    /// Something the user should know.
    Told(Told),
}

/// How the agent's command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It exited with this status.
    Exited(u8),
    /// This signal ended it.
    Signalled(i32),
}

impl Ending {
    /// The exit status that tells of it, as shells do: 128 and the signal's number.
    pub fn code(self) -> u8 {
        match self {
            Self::Exited(status) => status,
            Self::Signalled(signal) => u8::try_from(128 + signal).unwrap_or(255),
        }
    }

    fn of(status: WaitStatus) -> Option<Self> {
        if let Some(code) = status.exit_status() {
            // The kernel keeps eight bits.
            return Some(Self::Exited(u8::try_from(code & 0xff).unwrap_or(255)));
        }
        status.terminating_signal().map(Self::Signalled)
    }
}

/// Runs until the agent's command has ended, then takes the terminal back.
pub fn supervise(
    agent: &mut Agent,
    signals: &Signals,
    enforced: &mut Enforced,
    heard: &mut dyn FnMut(Heard),
) -> io::Result<Ending> {
    let ending = watch(agent, signals, enforced, heard);
    let terminal = agent.group.terminal().map_or(Ok(()), super::terminal::Terminal::take_back);
    let ending = ending?;
    terminal?;
    Ok(ending)
}

fn watch(
    agent: &mut Agent,
    signals: &Signals,
    enforced: &mut Enforced,
    heard: &mut dyn FnMut(Heard),
) -> io::Result<Ending> {
    loop {
        let records: Vec<_> = std::iter::from_fn(|| enforced.next_record()).take(BATCH).collect();
        if !records.is_empty()
            && let Some(resolver) = &mut enforced.resolver
        {
            resolver.said().into_iter().for_each(|word| heard(Heard::Resolver(word)));
        }
        for record in records {
            heard(Heard::Record(record));
        }
        while let Some(arrived) = signals.next()? {
            pass_on(agent, arrived)?;
        }
        let options = WaitOptions::NOHANG | WaitOptions::UNTRACED;
        while let Some((_, status)) = waitpid(Some(agent.pid), options)? {
            if let Some(ending) = Ending::of(status) {
                return Ok(ending);
            }
            if let Some(signal) = status.stopping_signal() {
                stopped(agent, signals, signal)?;
            }
        }
        let Woken { resolver, watched } = wait(signals, enforced)?;
        if !watched.is_empty()
            && let Enforced { guard, watch: Some(watch), resolver, .. } = enforced
        {
            let names = resolver.as_mut().map(|resolver| resolver as &mut dyn Names);
            for told in watch.follow(guard.as_mut(), names, &watched) {
                heard(Heard::Told(told));
            }
            if let Some(resolver) = resolver {
                resolver.said().into_iter().for_each(|word| heard(Heard::Resolver(word)));
            }
            // Another policy may have begun to have something noted.
            enforced.notes = enforced.notes.take().or_else(|| enforced.guard.new_notes());
        }
        if resolver && let Some(resolver) = &mut enforced.resolver {
            resolver.follow().into_iter().for_each(|word| heard(Heard::Resolver(word)));
        }
    }
}

/// What besides signals and records there is to be looked at.
struct Woken {
    resolver: bool,
    /// The numbers of what is watched for which something came.
    watched: Vec<usize>,
}

/// Waits for anything to happen.
fn wait(signals: &Signals, enforced: &Enforced) -> io::Result<Woken> {
    let ring = enforced.source.wait_on();
    let watched = enforced.watch.as_ref().map(|watch| watch.wait_on()).unwrap_or_default();
    let resolver = enforced.resolver.as_ref().and_then(dns::Resolver::wait_on);
    let notes = enforced.notes.as_ref().map(|notes| notes.wait_on());
    let mut wait = vec![PollFd::new(signals, PollFlags::IN), PollFd::new(&ring, PollFlags::IN)];
    wait.extend(watched.iter().map(|(fd, flags)| PollFd::new(fd, *flags)));
    wait.extend(resolver.as_ref().map(|(fd, flags)| PollFd::new(fd, *flags)));
    let known = wait.len();
    wait.extend(notes.as_ref().map(|notes| PollFd::new(notes, PollFlags::IN)));
    match poll(&mut wait, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let (watched_fds, resolver) = wait[2..known].split_at(watched.len());
    let woken = |fd: &PollFd<'_>| !fd.revents().is_empty();
    let numbers = watched_fds.iter().enumerate().filter(|(_, fd)| woken(fd)).map(|(n, _)| n);
    Ok(Woken { resolver: resolver.iter().any(woken), watched: numbers.collect() })
}

fn pass_on(agent: &mut Agent, Arrived { signal, kernel }: Arrived) -> io::Result<()> {
    match signal {
        libc::SIGCHLD => {}
        libc::SIGCONT => agent.resume()?,
        // Typed at the terminal of a shared process group: the agent has it already.
        _ if kernel && !agent.group.is_own() => {}
        _ => agent.signal(signal),
    }
    Ok(())
}

/// The agent was stopped: so is the job that the user's shell knows, which is us.
fn stopped(agent: &mut Agent, signals: &Signals, signal: i32) -> io::Result<()> {
    let Some(terminal) = agent.group.terminal() else { return Ok(()) };
    terminal.take_back()?;
    signals.stop_here()?;
    // One that was stopped for reading the terminal from the background goes on when we are told
    // to (SIGCONT), or it would be stopped again at once, in a circle.
    if !matches!(signal, libc::SIGTTIN | libc::SIGTTOU) {
        agent.resume()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_shells() {
        assert_eq!(Ending::Exited(0).code(), 0);
        assert_eq!(Ending::Exited(255).code(), 255);
        assert_eq!(Ending::Signalled(libc::SIGTERM).code(), 143);
        assert_eq!(Ending::Signalled(libc::SIGKILL).code(), 137);
        assert_eq!(Ending::Signalled(64).code(), 192);
    }
}
