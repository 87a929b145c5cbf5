//! `[limits]`: how much of the machine a session may have.

use super::Policy;
use super::check::Problem;

/// The keys, each with what an error says of how it is written.
pub const KEYS: [&str; 3] = ["memory", "pids", "cpu"];

/// How much a session may have; `None`: no limit of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Time of processors, in percent of one.
    pub cpu: Option<u64>,
}

impl Limits {
    /// The smaller of both, of each.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        Self {
            memory: least(self.memory, other.memory),
            pids: least(self.pids, other.pids),
            cpu: least(self.cpu, other.cpu),
        }
    }

    /// What `later` says, and where it says nothing this.
    #[must_use]
    pub fn or(self, later: Self) -> Self {
        Self {
            memory: later.memory.or(self.memory),
            pids: later.pids.or(self.pids),
            cpu: later.cpu.or(self.cpu),
        }
    }
}

impl Policy {
    /// What holds under all layers: the smallest of each.
    pub fn effective_limits(&self) -> Limits {
        self.layers().fold(Limits::default(), |limits, layer| limits.and(layer.limits))
    }
}

/// An amount of memory: `"8GiB"`, `"512MiB"`, or bytes.
pub fn memory(text: &str) -> Result<u64, Problem> {
    const UNITS: [(&str, u32); 4] = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("TiB", 40)];
    let unit = UNITS.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)));
    let (number, shift) = unit.unwrap_or((text, 0));
    let bytes = number.trim().parse::<u64>().ok().and_then(|number| {
        number
            .checked_mul(1_u64.checked_shl(shift)?)
            .filter(|bytes| (1 << 20..1 << 62).contains(bytes))
    });
    bytes.ok_or_else(|| {
        Problem::new(
            format!("`{text}` is no amount of memory"),
            "write a number of KiB, MiB, GiB or TiB, a MiB at least: `\"8GiB\"`",
        )
    })
}

/// A part of the processors' time: `"200%"` is two of them.
pub fn cpu(text: &str) -> Result<u64, Problem> {
    let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<u64>().ok());
    percent.filter(|percent| (1..=1_000_000).contains(percent)).ok_or_else(|| {
        Problem::new(
            format!("`{text}` is no part of a processor"),
            "write percent of one processor: `\"200%\"` are two",
        )
    })
}

/// A number of processes and threads.
pub fn pids(number: i64) -> Result<u64, Problem> {
    let pids = u64::try_from(number).ok().filter(|pids| (1..=4_194_304).contains(pids));
    pids.ok_or_else(|| {
        Problem::new(
            format!("{number} is no number of processes"),
            "write a number from 1 to 4194304, which counts threads too",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::load_text;

    #[test]
    fn amounts_have_units() {
        assert_eq!(memory("8GiB").unwrap(), 8 << 30);
        assert_eq!(memory("1048576").unwrap(), 1 << 20);
        assert_eq!((cpu("200%").unwrap(), pids(512).unwrap()), (200, 512));
        for text in ["", "8GB", "-1GiB", "1KiB", "99999999TiB", "8 gib", "0"] {
            assert!(memory(text).is_err(), "{text}");
        }
        for text in ["", "200", "0%", "-5%", "1.5%", "99999999%"] {
            assert!(cpu(text).is_err(), "{text}");
        }
        assert!(pids(0).is_err() && pids(-1).is_err() && pids(1 << 40).is_err());
    }

    #[test]
    fn the_smallest_of_all_layers_holds_and_a_text_replaces_its_presets() {
        let text = "version = 1\n[limits]\nmemory = '1GiB'\npids = 100\n".to_owned();
        let mut policy = load_text("p", text).unwrap();
        policy.ceilings.push(
            load_text("c", "version = 1\nlimits.pids = 10\nlimits.cpu = '50%'\n".into()).unwrap(),
        );
        policy
            .ceilings
            .push(load_text("d", "version = 1\nlimits.memory = '2GiB'\n".into()).unwrap());
        let limits = Limits { memory: Some(1 << 30), pids: Some(10), cpu: Some(50) };
        assert_eq!(policy.effective_limits(), limits);
        let later = Limits { pids: Some(500), ..Limits::default() };
        assert_eq!(limits.or(later), Limits { pids: Some(500), ..limits });
    }

    #[test]
    fn what_is_no_limit_is_an_error_at_its_place() {
        for (text, message) in [
            ("limits.memory = '8GB'", "no amount of memory"),
            ("limits.memory = 8", "not text"),
            ("limits.pids = '8'", "not a number"),
            ("limits.pids = 0", "no number of processes"),
            ("limits.cpu = '2'", "no part of a processor"),
            ("limits.file = 1", "unknown key `file`"),
            ("limits = 1", "not a table"),
        ] {
            let error = load_text("p", format!("version = 1\n{text}\n")).unwrap_err();
            let told = error.to_string();
            assert!(told.contains(message) && told.contains("p:2"), "{text}: {told}");
        }
    }
}
