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

/// How a spot is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// By which rule.
    pub rule: u32,
    /// The rule that has the name checked that TLS asks for there, and refuses UDP; 0: none.
    pub check: u32,
    /// Until when, since boot.
    pub until: Duration,
    /// Until when without that check, for another name opened it so.
    pub free: Duration,
}

/// The kernel's table.
pub trait Table {
    /// Opens a spot, or opens it in another way.
    fn open(&mut self, spot: Spot, open: Open) -> anyhow::Result<()>;
    /// Closes it. That it is not there is no error.
    fn close(&mut self, spot: Spot) -> anyhow::Result<()>;
}

/// Protocol, first port and bits, and how they are open.
type Spots = BTreeMap<(u16, u16, u8), Open>;

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
        for (spot, open) in self.names.values().flatten() {
            widen(&mut self.all, *spot, *open);
        }
    }

    /// Enters everything. The kernel finds the longest prefix of ports only, so each holds as long as any that
    /// covers it, and without a check as long as any of them.
    fn enter(&self, address: IpAddr, table: &mut dyn Table) -> anyhow::Result<()> {
        for ((protocol, port, bits), own) in &self.all {
            let covers = |(of, first, wide): &(u16, u16, u8)| {
                of == protocol
                    && wide <= bits
                    && (u32::from(first ^ port) >> (16 - u32::from(*wide))) == 0
            };
            let covering = self.all.iter().filter(|(spot, _)| covers(spot));
            let open =
                covering.fold(*own, |all, (_, open)| all.and(Open { rule: all.rule, ..*open }));
            let spot = Spot { address, protocol: *protocol, port: *port, bits: *bits };
            table.open(spot, open)?;
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

impl Open {
    /// By what a name opens until a time.
    fn by(opening: &Opening, until: Duration) -> Self {
        let free = if opening.check == 0 { until } else { Duration::ZERO };
        Self { rule: opening.rule, check: opening.check, until, free }
    }

    /// What this and a later one open together.
    fn and(self, later: Self) -> Self {
        Self {
            rule: later.rule,
            check: if later.check == 0 { self.check } else { later.check },
            until: self.until.max(later.until),
            free: self.free.max(later.free),
        }
    }
}

/// Opens a spot in one more way.
fn widen(spots: &mut Spots, spot: (u16, u16, u8), open: Open) {
    spots.entry(spot).and_modify(|known| *known = known.and(open)).or_insert(open);
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
                    widen(spots, (open.protocol, port, bits), Open::by(open, until));
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
                let until = spots.values().map(|open| open.until).max().unwrap_or_default();
                spots.clear();
                for open in decide(name) {
                    for (port, bits) in prefixes(open.ports.clone()) {
                        widen(spots, (open.protocol, port, bits), Open::by(&open, until));
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
                spots.retain(|_, open| open.until + GRACE > now);
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
    struct Memory(HashMap<Spot, Open>);

    impl Table for Memory {
        fn open(&mut self, spot: Spot, open: Open) -> anyhow::Result<()> {
            self.0.insert(spot, open);
            Ok(())
        }

        fn close(&mut self, spot: Spot) -> anyhow::Result<()> {
            self.0.remove(&spot);
            Ok(())
        }
    }

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn grant(name: &str, ttl: u32, ports: std::ops::RangeInclusive<u16>, rule: u32) -> Grant {
        let open = vec![Opening { protocol: 6, ports, rule, check: 0 }];
        Grant { address: ADDRESS, ttl, name: name.into(), open }
    }

    fn spot(port: u16, bits: u8) -> Spot {
        Spot { address: ADDRESS, protocol: 6, port, bits }
    }

    fn free(rule: u32, until: Duration) -> Open {
        Open { rule, check: 0, until, free: until }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn an_address_is_open_for_its_time_and_no_less_than_the_floor() {
        let (mut grants, mut table) = (Grants::default(), Memory::default());
        grants.grant(&grant("a", 0, 443..=443, 1), at(1000), &mut table).unwrap();
        assert_eq!(table.0[&spot(443, 16)], free(1, at(1090)));
        grants.grant(&grant("a", 300, 443..=443, 1), at(1000), &mut table).unwrap();
        assert_eq!(table.0[&spot(443, 16)], free(1, at(1330)));
        // A shorter answer later takes nothing away.
        grants.grant(&grant("a", 1, 443..=443, 1), at(1010), &mut table).unwrap();
        assert_eq!(table.0[&spot(443, 16)], free(1, at(1330)));
        grants.expire(at(1330) + GRACE, &mut table).unwrap();
        assert!(table.0.is_empty() && grants.by_address.is_empty());
    }

    #[test]
    fn of_names_that_share_an_address_each_keeps_its_own() {
        let (mut grants, mut table) = (Grants::default(), Memory::default());
        grants.grant(&grant("short", 0, 443..=443, 1), at(0), &mut table).unwrap();
        grants.grant(&grant("long", 600, 0..=u16::MAX, 2), at(0), &mut table).unwrap();
        // What is longest in the kernel's table must not end before what covers it.
        assert_eq!(table.0[&spot(443, 16)].until, at(630));
        assert_eq!(table.0[&spot(0, 0)], free(2, at(630)));
        grants.expire(at(90) + GRACE, &mut table).unwrap();
        assert_eq!(table.0.len(), 1);
        assert_eq!(table.0[&spot(0, 0)], free(2, at(630)));
        grants.expire(at(630) + GRACE, &mut table).unwrap();
        assert!(table.0.is_empty());
    }

    #[test]
    fn a_check_holds_where_no_other_name_opens_the_port_without() {
        let (mut grants, mut table) = (Grants::default(), Memory::default());
        let checked = |name: &str, ttl, ports, rule| {
            let open = vec![Opening { protocol: 6, ports, rule, check: rule }];
            Grant { open, ..grant(name, ttl, 1..=1, rule) }
        };
        let of = |rule, check, until, free| Open { rule, check, until: at(until), free: at(free) };
        grants.grant(&checked("checked", 600, 443..=443, 1), at(0), &mut table).unwrap();
        assert_eq!(table.0[&spot(443, 16)], of(1, 1, 630, 0));
        // Another name opens it without, by a wider prefix, for a while.
        grants.grant(&grant("free", 0, 0..=u16::MAX, 2), at(0), &mut table).unwrap();
        assert_eq!(table.0[&spot(443, 16)], of(1, 1, 630, 90));
        assert_eq!(table.0[&spot(0, 0)], of(2, 0, 90, 90));
        // Asked for again, the one takes nothing from the other.
        grants.grant(&checked("checked", 600, 443..=443, 1), at(10), &mut table).unwrap();
        assert_eq!(table.0[&spot(443, 16)], of(1, 1, 640, 90));
        grants.grant(&grant("free", 0, 443..=443, 2), at(20), &mut table).unwrap();
        assert_eq!(table.0[&spot(443, 16)], of(2, 1, 640, 110));
        // A check on everything holds for what another name opens of it once that is over.
        let (mut grants, mut table) = (Grants::default(), Memory::default());
        grants.grant(&checked("wide", 600, 0..=u16::MAX, 1), at(0), &mut table).unwrap();
        grants.grant(&grant("free", 0, 443..=443, 2), at(0), &mut table).unwrap();
        assert_eq!(table.0[&spot(443, 16)], of(2, 1, 630, 90));
        // Rules that check no more.
        let decide = |_: &str| vec![Opening { protocol: 6, ports: 443..=443, rule: 3, check: 0 }];
        grants.change(&decide, &mut table).unwrap();
        assert_eq!(table.0[&spot(443, 16)], of(3, 0, 630, 630));
    }

    #[test]
    fn other_rules_close_what_they_do_not_open() {
        let (mut grants, mut table) = (Grants::default(), Memory::default());
        grants.grant(&grant("kept", 0, 80..=81, 1), at(0), &mut table).unwrap();
        grants.grant(&grant("gone", 600, 443..=443, 2), at(0), &mut table).unwrap();
        let decide = |name: &str| match name {
            "kept" => vec![Opening { protocol: 6, ports: 82..=83, rule: 3, check: 0 }],
            _ => Vec::new(),
        };
        grants.change(&decide, &mut table).unwrap();
        assert_eq!(table.0, HashMap::from([(spot(82, 15), free(3, at(90)))]));
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
