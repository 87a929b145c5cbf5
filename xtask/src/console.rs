//! The kernel's console: kept, and watched for signs that the machine is lost.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};

const TAIL_LINES: usize = 40;
/// What a kernel prints when it cannot go on, or does not.
const FATAL: &[&str] = &["Kernel panic - not syncing", "rcu: INFO: rcu_", "self-detected stall"];
/// One of these can be a starved emulator; a second one is a hang.
const SOFT_LOCKUP: &str = "watchdog: BUG: soft lockup";
/// A breakpoint that the kernel knows nothing of. It sets one wherever it changes its own code; what was seen is
/// taken for an emulated processor that still met one when it was gone again (docs/testing.md).
const BREAKPOINT: &str = "int3: 0000";

/// Writes all to a log file and remembers the last lines.
pub(crate) struct Console {
    log: File,
    lines: VecDeque<String>,
    current: Vec<u8>,
    soft_lockups: u32,
    /// Whether an emulated processor met a breakpoint that was no more.
    pub(crate) misled: bool,
}

impl Console {
    pub(crate) fn new(log: &Path) -> Result<Self> {
        let log = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let lines = VecDeque::new();
        Ok(Self { log, lines, current: Vec::new(), soft_lockups: 0, misled: false })
    }

    /// Takes what the machine printed; the line that shows the machine to be lost, if there is one.
    pub(crate) fn add(&mut self, bytes: &[u8]) -> Option<String> {
        // The log is a convenience: a full disk must not end a test.
        let _ = self.log.write_all(bytes);
        let mut fatal = None;
        for &byte in bytes {
            if byte != b'\n' {
                self.current.push(byte);
                continue;
            }
            let line = String::from_utf8_lossy(&self.current).trim_end().to_owned();
            self.current.clear();
            self.misled |= line.contains(BREAKPOINT);
            if self.is_fatal(&line) && fatal.is_none() {
                fatal = Some(line.clone());
            }
            self.lines.push_back(line);
            if self.lines.len() > TAIL_LINES {
                self.lines.pop_front();
            }
        }
        fatal
    }

    pub(crate) fn tail(&self) -> String {
        let mut lines: Vec<_> = self.lines.iter().cloned().collect();
        lines.push(String::from_utf8_lossy(&self.current).into_owned());
        lines.join("\n")
    }

    fn is_fatal(&mut self, line: &str) -> bool {
        if line.contains(SOFT_LOCKUP) {
            self.soft_lockups += 1;
        }
        self.soft_lockups > 1 || FATAL.iter().any(|sign| line.contains(sign))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn console() -> Console {
        Console::new(Path::new("/dev/null")).expect("/dev/null can be written")
    }

    #[test]
    fn a_panic_is_seen_across_reads() {
        let mut console = console();
        assert_eq!(console.add(b"[1] fine\r\n[2] Kernel pan"), None);
        let line = console.add(b"ic - not syncing: Attempted to kill init!\r\n[3] more\r\n");
        assert_eq!(
            line.as_deref(),
            Some("[2] Kernel panic - not syncing: Attempted to kill init!")
        );
        assert!(console.tail().ends_with("[3] more\n"));
    }

    #[test]
    fn a_breakpoint_that_was_no_more_is_told_apart() {
        let mut console = console();
        console.add(b"Kernel panic - not syncing: Fatal exception in interrupt\n");
        assert!(!console.misled);
        // As Linux 7.3 has it; 6.12 leaves out the first word.
        console.add(b"[  224.689144] Oops: int3: 0000 [#1] SMP NOPTI\n");
        assert!(console.misled);
    }

    #[test]
    fn one_soft_lockup_is_forgiven() {
        let mut console = console();
        assert_eq!(console.add(b"watchdog: BUG: soft lockup - CPU#0\n"), None);
        assert_eq!(console.add(b"other\n"), None);
        assert!(console.add(b"watchdog: BUG: soft lockup - CPU#1\n").is_some());
    }

    #[test]
    fn the_tail_is_bounded() {
        let mut console = console();
        for number in 0..TAIL_LINES + 5 {
            console.add(format!("{number}\n").as_bytes());
        }
        assert!(console.tail().starts_with("5\n"));
    }
}
