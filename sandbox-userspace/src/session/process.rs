//! Processes as /proc shows them.

use rustix::process::{Pid, PidfdFlags};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

/// What `/proc/PID/stat` says (proc(5)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// State letter: `Z` is dead and not yet waited for.
    pub state: u8,
    /// Device number of the controlling terminal as user space encodes it; 0 without one.
    pub terminal: u64,
    /// Threads that live; a dead leader still counts.
    pub threads: u64,
    /// When it started, in clock ticks since boot. With the pid it names one process.
    pub start: u64,
}

impl Stat {
    /// Of the process with this id, `self` for the calling one.
    pub fn of(pid: impl std::fmt::Display) -> io::Result<Self> {
        let text = fs::read(format!("/proc/{pid}/stat"))?;
        Self::parse(&text).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("/proc/{pid}/stat is not understood"),
            )
        })
    }

    /// The name in parentheses may itself hold spaces and parentheses: the last one closes it.
    fn parse(text: &[u8]) -> Option<Self> {
        let close = text.iter().rposition(|&b| b == b')')?;
        let rest = std::str::from_utf8(&text[close + 1..]).ok()?;
        // Numbered from 1 in proc(5); the state is field 3.
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        let field = |number: usize| fields.get(number - 3).copied();
        Some(Self {
            state: *field(3)?.as_bytes().first()?,
            // A signed int that holds an unsigned device number.
            terminal: u64::from(field(7)?.parse::<i32>().ok()?.cast_unsigned()),
            threads: field(20)?.parse().ok()?,
            start: field(22)?.parse().ok()?,
        })
    }

    /// Dead with all its threads.
    pub const fn dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X') && self.threads <= 1
    }
}

/// Ids of all processes.
pub fn all() -> io::Result<Vec<i32>> {
    let entries = fs::read_dir("/proc")?;
    Ok(entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect())
}

/// A handle of a process; `None` when there is none with this id.
pub fn open(pid: i32) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = Pid::from_raw(pid) else { return Ok(None) };
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(rustix::io::Errno::SRCH) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_parsed_behind_any_name() {
        let tail = " S 1 123 123 34816 123 4194560 1 0 0 0 0 0 0 0 20 0 3 0 98765 1 1 1";
        for name in ["cat", "a b", ") R 1 (", "x) Z 9 9"] {
            let text = format!("77 ({name}){tail}");
            let stat = Stat::parse(text.as_bytes()).unwrap();
            let expected = Stat { state: b'S', terminal: 34816, threads: 3, start: 98765 };
            assert_eq!(stat, expected, "{name}");
        }
        assert_eq!(Stat::parse(b"77 (cat) S 1 2"), None);
        assert_eq!(Stat::parse(b""), None);
    }

    #[test]
    fn own_stat_is_read() {
        let stat = Stat::of("self").unwrap();
        assert!(stat.start > 0 && !stat.dead());
    }
}
