//! The addresses that names opened: which, by which names, and until when.

use super::answer::Grant;
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

/// What one name opened.
#[derive(Debug, Default)]
struct Opened {
    /// By protocol, first port and bits: the rule, and until when.
    spots: BTreeMap<(u16, u16, u8), (u32, Duration)>,
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
    by_address: HashMap<IpAddr, HashMap<String, Opened>>,
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
        let names = self.by_address.entry(grant.address).or_default();
        let opened = names.entry(grant.name.clone()).or_default();
        for open in &grant.open {
            for (port, bits) in prefixes(open.ports.clone()) {
                let spot =
                    opened.spots.entry((open.protocol, port, bits)).or_insert((open.rule, until));
                *spot = (open.rule, spot.1.max(until));
            }
        }
        Self::enter(grant.address, names, table)
    }

    /// Enters what all names open at an address. The kernel finds the longest prefix of ports only, so each
    /// holds as long as any that covers it.
    fn enter(
        address: IpAddr,
        names: &HashMap<String, Opened>,
        table: &mut dyn Table,
    ) -> anyhow::Result<()> {
        let all = || names.values().flat_map(|opened| opened.spots.iter());
        for ((protocol, port, bits), (rule, _)) in all() {
            let covers = |(of, first, wide): &(u16, u16, u8)| {
                of == protocol
                    && wide <= bits
                    && (u32::from(first ^ port) >> (16 - u32::from(*wide))) == 0
            };
            let until = all().filter(|(spot, _)| covers(spot)).map(|(_, (_, until))| *until).max();
            let spot = Spot { address, protocol: *protocol, port: *port, bits: *bits };
            table.open(spot, *rule, until.unwrap_or_default())?;
        }
        Ok(())
    }

    /// Forgets what was closed long enough ago.
    pub(super) fn expire(&mut self, now: Duration, table: &mut dyn Table) -> anyhow::Result<()> {
        let mut closed = Vec::new();
        self.by_address.retain(|address, names| {
            let spots: Vec<_> =
                names.values().flat_map(|opened| opened.spots.keys().copied()).collect();
            names.retain(|_, opened| {
                opened.spots.retain(|_, (_, until)| *until + GRACE > now);
                !opened.spots.is_empty()
            });
            let left = |spot: &(u16, u16, u8)| {
                names.values().any(|opened| opened.spots.contains_key(spot))
            };
            closed.extend(
                spots.into_iter().filter(|spot| !left(spot)).map(|(protocol, port, bits)| Spot {
                    address: *address,
                    protocol,
                    port,
                    bits,
                }),
            );
            !names.is_empty()
        });
        closed.into_iter().try_for_each(|spot| table.close(spot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::names::Opening;

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
