//! The addresses that names opened: which, by which names, and until when.

use super::answer::Grant;
use crate::policy::names::Opening;
use crate::policy::ports::prefixes;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Duration;

/// An address stays open for at least this long: programs look a name up well before they connect, and
/// again and again to the same address.
const FLOOR: Duration = Duration::from_mins(1);
/// And for this long after its answer has expired: caches in programs count from when they got it.
const SLACK: Duration = Duration::from_secs(30);
/// What is under way by UDP goes on for so long after an address was closed; TCP as long as it lives.
pub(super) const GRACE: Duration = Duration::from_mins(10);
/// Most addresses that are open at once.
const ADDRESSES: usize = 16_384;

/// What is opened at an address, in the kernel's form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Spot {
    /// The address.
    pub address: IpAddr,
    /// `IPPROTO_TCP` or `IPPROTO_UDP`.
    pub protocol: u16,
    /// First port.
    pub port: u16,
    /// Bits of the port that must match.
    pub bits: u8,
}

/// The kernel's table.
pub trait Table {
    /// Opens a spot until a time (since boot) by a rule, or opens it for longer.
    fn open(&mut self, spot: Spot, rule: u32, until: Duration) -> anyhow::Result<()>;
    /// Closes it. That it is not there is no error.
    fn close(&mut self, spot: Spot) -> anyhow::Result<()>;
}

/// Protocol, first port and bits, with the rule and until when.
type Spots = BTreeMap<(u16, u16, u8), (u32, Duration)>;

/// What is open at one address.
#[derive(Debug, Default)]
struct Opened {
    /// What each name opened.
    names: HashMap<String, Spots>,
    /// What they opened together.
    all: Spots,
}

impl Opened {
    /// Adds what names opened up anew.
    fn gather(&mut self) {
        self.all.clear();
        for (spot, (rule, until)) in self.names.values().flatten() {
            widen(&mut self.all, *spot, *rule, *until);
        }
    }

    /// Enters everything. The kernel finds the longest prefix of ports only, so each holds as long as any that
    /// covers it.
    fn enter(&self, address: IpAddr, table: &mut dyn Table) -> anyhow::Result<()> {
        for ((protocol, port, bits), (rule, _)) in &self.all {
            let covers = |(of, first, wide): &(u16, u16, u8)| {
                of == protocol
                    && wide <= bits
                    && (u32::from(first ^ port) >> (16 - u32::from(*wide))) == 0
            };
            let covering = self.all.iter().filter(|(spot, _)| covers(spot));
            let until = covering.map(|(_, (_, until))| *until).max().unwrap_or_default();
            let spot = Spot { address, protocol: *protocol, port: *port, bits: *bits };
            table.open(spot, *rule, until)?;
        }
        Ok(())
    }

    /// Closes what was open before and is not any more.
    fn close(&self, before: &Spots, address: IpAddr, table: &mut dyn Table) -> anyhow::Result<()> {
        let closed = before.keys().filter(|spot| !self.all.contains_key(spot));
        // What cannot be closed keeps nothing else from it.
        let results: Vec<_> = closed
            .map(|(protocol, port, bits)| {
                table.close(Spot { address, protocol: *protocol, port: *port, bits: *bits })
            })
            .collect();
        results.into_iter().collect()
    }
}

/// Opens a spot by a rule, at least until a time.
fn widen(spots: &mut Spots, spot: (u16, u16, u8), rule: u32, until: Duration) {
    let (by, most) = spots.entry(spot).or_insert((rule, until));
    (*by, *most) = (rule, until.max(*most));
}

/// How long an address stays open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stay {
    floor: Duration,
    slack: Duration,
}

impl Default for Stay {
    fn default() -> Self {
        Self { floor: FLOOR, slack: SLACK }
    }
}

impl Stay {
    /// For so many seconds after its answer has expired, however soon that is.
    pub(super) const fn seconds(slack: u64) -> Self {
        Self { floor: Duration::ZERO, slack: Duration::from_secs(slack) }
    }
}

/// Everything that is open.
#[derive(Debug, Default)]
pub(super) struct Grants {
    stay: Stay,
    by_address: HashMap<IpAddr, Opened>,
}

/// The table is full.
#[derive(Debug, thiserror::Error)]
#[error("{ADDRESSES} addresses are open already, the most of a session")]
struct Full;

impl Grants {
    /// Nothing.
    pub(super) fn new(stay: Stay) -> Self {
        Self { stay, by_address: HashMap::new() }
    }

    /// Opens an address; `now` is since boot.
    pub(super) fn grant(
        &mut self,
        grant: &Grant,
        now: Duration,
        table: &mut dyn Table,
    ) -> anyhow::Result<()> {
        if self.by_address.len() >= ADDRESSES && !self.by_address.contains_key(&grant.address) {
            self.expire(now, table)?;
            anyhow::ensure!(self.by_address.len() < ADDRESSES, Full);
        }
        let Stay { floor, slack } = self.stay;
        let until = now + Duration::from_secs(grant.ttl.into()).max(floor) + slack;
        let opened = self.by_address.entry(grant.address).or_default();
        let own = opened.names.entry(grant.name.clone()).or_default();
        for open in &grant.open {
            for (port, bits) in prefixes(open.ports.clone()) {
                for spots in [&mut *own, &mut opened.all] {
                    widen(spots, (open.protocol, port, bits), open.rule, until);
                }
            }
        }
        opened.enter(grant.address, table)
    }

    /// Opens at the addresses of names what `decide` says of each, for the time that they have, and closes what
    /// it does not say.
    pub(super) fn change(
        &mut self,
        decide: &dyn Fn(&str) -> Vec<Opening>,
        table: &mut dyn Table,
    ) -> anyhow::Result<()> {
        let mut results = Vec::new();
        self.by_address.retain(|address, opened| {
            opened.names.retain(|name, spots| {
                let until = spots.values().map(|(_, until)| *until).max().unwrap_or_default();
                spots.clear();
                for open in decide(name) {
                    for (port, bits) in prefixes(open.ports.clone()) {
                        widen(spots, (open.protocol, port, bits), open.rule, until);
                    }
                }
                !spots.is_empty()
            });
            let before = std::mem::take(&mut opened.all);
            opened.gather();
            results.push(opened.close(&before, *address, table));
            results.push(opened.enter(*address, table));
            !opened.names.is_empty()
        });
        results.into_iter().collect()
    }

    /// Forgets what was closed long enough ago.
    pub(super) fn expire(&mut self, now: Duration, table: &mut dyn Table) -> anyhow::Result<()> {
        let mut results = Vec::new();
        self.by_address.retain(|address, opened| {
            opened.names.retain(|_, spots| {
                spots.retain(|_, (_, until)| *until + GRACE > now);
                !spots.is_empty()
            });
            let before = std::mem::take(&mut opened.all);
            opened.gather();
            results.push(opened.close(&before, *address, table));
            !opened.names.is_empty()
        });
        results.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Memory(HashMap<Spot, (u32, Duration)>);

    impl Table for Memory {
        fn open(&mut self, spot: Spot, rule: u32, until: Duration) -> anyhow::Result<()> {
            self.0.insert(spot, (rule, until));
            Ok(())
        }

        fn close(&mut self, spot: Spot) -> anyhow::Result<()> {
            self.0.remove(&spot);
            Ok(())
        }
    }

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn grant(name: &str, ttl: u32, ports: std::ops::RangeInclusive<u16>, rule: u32) -> Grant {
        let open = vec![Opening { protocol: 6, ports, rule }];
        Grant { address: ADDRESS, ttl, name: name.into(), open }
    }

    fn spot(port: u16, bits: u8) -> Spot {
        Spot { address: ADDRESS, protocol: 6, port, bits }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn an_address_is_open_for_its_time_and_no_less_than_the_floor() {
        let (mut grants, mut table) = (Grants::default(), Memory::default());
        grants.grant(&grant("a", 0, 443..=443, 1), at(1000), &mut table).unwrap();
        assert_eq!(table.0[&spot(443, 16)], (1, at(1090)));
        grants.grant(&grant("a", 300, 443..=443, 1), at(1000), &mut table).unwrap();
        assert_eq!(table.0[&spot(443, 16)], (1, at(1330)));
        // A shorter answer later takes nothing away.
        grants.grant(&grant("a", 1, 443..=443, 1), at(1010), &mut table).unwrap();
        assert_eq!(table.0[&spot(443, 16)], (1, at(1330)));
        grants.expire(at(1330) + GRACE, &mut table).unwrap();
        assert!(table.0.is_empty() && grants.by_address.is_empty());
    }

    #[test]
    fn of_names_that_share_an_address_each_keeps_its_own() {
        let (mut grants, mut table) = (Grants::default(), Memory::default());
        grants.grant(&grant("short", 0, 443..=443, 1), at(0), &mut table).unwrap();
        grants.grant(&grant("long", 600, 0..=u16::MAX, 2), at(0), &mut table).unwrap();
        // What is longest in the kernel's table must not end before what covers it.
        assert_eq!(table.0[&spot(443, 16)].1, at(630));
        assert_eq!(table.0[&spot(0, 0)], (2, at(630)));
        grants.expire(at(90) + GRACE, &mut table).unwrap();
        assert_eq!(table.0.len(), 1);
        assert_eq!(table.0[&spot(0, 0)], (2, at(630)));
        grants.expire(at(630) + GRACE, &mut table).unwrap();
        assert!(table.0.is_empty());
    }

    #[test]
    fn other_rules_close_what_they_do_not_open() {
        let (mut grants, mut table) = (Grants::default(), Memory::default());
        grants.grant(&grant("kept", 0, 80..=81, 1), at(0), &mut table).unwrap();
        grants.grant(&grant("gone", 600, 443..=443, 2), at(0), &mut table).unwrap();
        let decide = |name: &str| match name {
            "kept" => vec![Opening { protocol: 6, ports: 82..=83, rule: 3 }],
            _ => Vec::new(),
        };
        grants.change(&decide, &mut table).unwrap();
        assert_eq!(table.0, HashMap::from([(spot(82, 15), (3, at(90)))]));
        grants.change(&|_| Vec::new(), &mut table).unwrap();
        assert!(table.0.is_empty() && grants.by_address.is_empty());
    }

    #[test]
    fn there_is_an_end_to_addresses() {
        let (mut grants, mut table) = (Grants::default(), Memory::default());
        for number in 0..u32::try_from(ADDRESSES).unwrap() {
            let address = std::net::Ipv4Addr::from(0x0100_0000 + number).into();
            let grant = Grant { address, ..grant("a", 1, 1..=1, 1) };
            grants.grant(&grant, at(0), &mut table).unwrap();
        }
        assert!(grants.grant(&grant("a", 1, 1..=1, 1), at(0), &mut table).is_err());
        grants.grant(&grant("a", 1, 1..=1, 1), at(90) + GRACE, &mut table).unwrap();
        assert_eq!(table.0.len(), 1);
    }
}
