//! The decisions of the hooks: plain values in, a [`Decision`] out.
//!
//! They run in the kernel and, unchanged, in the tests of this crate.

use crate::Access;
use crate::event::Reason;
use crate::net::PortRule;
use crate::path::{Inherited, KIND_ACCESS, Rights};

/// What a hook decided. Small enough to be returned in one register.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Decision {
    /// What was attempted and is not allowed ([`Access`] bits); meaningless where allowed.
    pub denied: u16,
    /// 0: allowed. Else a [`Reason`].
    pub reason: u16,
    /// The rule that decided, 0 the default.
    pub rule: u32,
}

impl Decision {
    /// Allowed.
    pub const ALLOW: Self = Self::new(Access::empty(), 0, 0);

    /// Denied for `reason`, whatever the rules say.
    #[inline(always)]
    pub const fn deny(reason: Reason, denied: Access) -> Self {
        Self::new(denied, 0, reason as u16)
    }

    #[inline(always)]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "every access has its bit among the lower 16"
    )]
    const fn new(denied: Access, rule: u32, reason: u16) -> Self {
        Self { denied: denied.bits() as u16, reason, rule }
    }

    /// Whether the operation may go on.
    #[inline(always)]
    pub const fn allowed(self) -> bool {
        self.reason == 0
    }
}

/// Where an object lies, by the walk through the trie.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Place {
    /// What it passes on to what lies in it.
    pub below: Inherited,
    /// Rights of the object itself.
    pub own: Rights,
    /// 0, or the [`Reason`] why there is no place: every access is denied.
    pub fault: u32,
}

impl Place {
    /// Nothing is known yet, and nothing allowed.
    pub const UNKNOWN: Self = Self {
        below: Inherited {
            node: 0,
            edges: 0,
            pattern: 0,
            unknown: 0,
            depth: 0,
            rights: Rights::NONE,
        },
        own: Rights::NONE,
        fault: 0,
    };

    /// No place: denied for `reason`.
    #[inline(always)]
    pub const fn fault(reason: Reason) -> Self {
        let mut place = Self::UNKNOWN;
        place.fault = reason as u32;
        place
    }
}

/// May an object at `place` be accessed so?
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "a fault is a `Reason`, and those are of 8 bits"
)]
pub const fn access(place: &Place, wanted: Access) -> Decision {
    if place.fault != 0 {
        return Decision::new(wanted, 0, place.fault as u16);
    }
    let denied = Access::from_bits_retain(wanted.bits() & !place.own.allow);
    if denied.is_empty() {
        return Decision::ALLOW;
    }
    let rule = rule_of(&place.own, denied);
    let reason = if rule != 0 {
        Reason::Rule
    } else if place.below.unknown != 0 {
        Reason::UnknownFilesystem
    } else {
        Reason::Default
    };
    Decision::new(denied, rule, reason as u16)
}

/// May a symbolic link at `place` be followed?
///
/// Not where a rule closes for reading what lies at or beneath its name, and no place deeper has rules of its
/// own: whatever the link leads to is reached by that name, wherever it lies.
#[inline(always)]
pub const fn following(place: &Place) -> Decision {
    if place.fault != 0 {
        return access(place, Access::READ);
    }
    let below = &place.below;
    let rule = below.rights.rules[0];
    let open = below.rights.allow & Access::READ.bits() != 0;
    if open || rule == 0 || below.edges != 0 {
        return Decision::ALLOW;
    }
    Decision::new(Access::READ, rule, Reason::Rule as u16)
}

/// The rule that took one of these accesses: of several the first that is about reading, running,
/// connecting, writing, deleting, attributes.
#[inline(always)]
const fn rule_of(rights: &Rights, denied: Access) -> u32 {
    if denied.contains(Access::READ) {
        rights.rules[0]
    } else if denied.contains(Access::EXECUTE) {
        rights.rules[2]
    } else if denied.contains(Access::CONNECT) {
        rights.rules[3]
    } else if denied.intersects(KIND_ACCESS[1]) {
        rights.rules[1]
    } else if denied.contains(Access::DELETE) {
        rights.rules[4]
    } else {
        rights.rules[5]
    }
}

/// May an object move from a place to another (rename), as far as its rights are concerned?
///
/// It must not gain what its old place did not grant, neither itself nor what lies beneath. A
/// directory beneath which rules speak of something else than they do at the new place stays where it
/// is: its content would leave or enter their reach.
#[inline(always)]
pub const fn moving(from: &Place, to: &Place, directory: bool) -> Decision {
    let moved = Access::CREATE.union(Access::DELETE);
    if directory {
        let (old, new) = (&from.below, &to.below);
        if old.edges != 0 || new.edges != 0 || old.pattern != new.pattern {
            return Decision::deny(Reason::RuleBeneath, moved);
        }
    }
    gain(from, to, directory, moved)
}

/// May a symbolic link get a name at `place`, as far as what lies beneath that name is concerned? `guarded`: what
/// patterns say of its state, [`Overlay::guards`](crate::pattern::Overlay::guards).
///
/// Not where rules close for writing something that would lie beneath: by the link it would lie elsewhere, where
/// they do not hold, and whoever comes by the name outside would find what a member wrote.
#[inline(always)]
pub const fn leading(place: &Place, guarded: bool) -> Decision {
    let closed = place.own.allow & !place.below.rights.allow & KIND_ACCESS[1].bits();
    if guarded || place.below.edges != 0 || closed != 0 {
        return Decision::deny(Reason::RuleBeneath, Access::CREATE);
    }
    Decision::ALLOW
}

/// May a symbolic link be made at `place`?
#[inline(always)]
pub const fn symlink(place: &Place, guarded: bool) -> Decision {
    let decision = access(place, Access::CREATE);
    if decision.allowed() { leading(place, guarded) } else { decision }
}

/// What is moved, or gets a further name.
#[derive(Clone, Copy, Debug)]
pub enum Moved {
    /// A directory.
    Directory,
    /// A symbolic link; whether patterns guard what would lie beneath its new name.
    Link(bool),
    /// Anything else.
    Other,
}

impl Moved {
    /// As far as its new place is concerned.
    #[inline(always)]
    const fn enters(self, to: &Place) -> Decision {
        match self {
            Self::Link(guarded) => leading(to, guarded),
            Self::Directory | Self::Other => Decision::ALLOW,
        }
    }

    #[inline(always)]
    const fn is_directory(self) -> bool {
        matches!(self, Self::Directory)
    }
}

/// May an object be renamed? Returns the decision, and whether it is about the new place rather than
/// about the old.
///
/// `moved`: the object, and the one that it is exchanged with. `replaces`: there is something at
/// the new place.
#[inline(always)]
pub const fn renaming(
    from: &Place,
    to: &Place,
    moved: (Moved, Moved),
    exchange: bool,
    replaces: bool,
) -> (Decision, bool) {
    const BOTH: Access = Access::CREATE.union(Access::DELETE);
    let decision = access(from, if exchange { BOTH } else { Access::DELETE });
    if !decision.allowed() {
        return (decision, false);
    }
    let decision = access(to, if replaces { BOTH } else { Access::CREATE });
    if !decision.allowed() {
        return (decision, true);
    }
    let decision = moved.0.enters(to);
    if !decision.allowed() {
        return (decision, true);
    }
    let decision = moving(from, to, moved.0.is_directory());
    if !decision.allowed() || !exchange {
        return (decision, true);
    }
    let decision = moved.1.enters(from);
    if !decision.allowed() {
        return (decision, false);
    }
    (moving(to, from, moved.1.is_directory()), true)
}

/// May an object get a second name (link)? Returns the decision, and whether it is about the new name
/// rather than about the object.
///
/// The source must be the agent's to read and to write, and the new name must not grant more.
#[inline(always)]
pub const fn linking(from: &Place, to: &Place, named: Moved) -> (Decision, bool) {
    let decision = access(to, Access::CREATE);
    if !decision.allowed() {
        return (decision, true);
    }
    let decision = named.enters(to);
    if !decision.allowed() {
        return (decision, true);
    }
    let decision = access(from, Access::READ.union(Access::WRITE));
    if !decision.allowed() {
        return (decision, false);
    }
    (gain(from, to, false, Access::CREATE), false)
}

#[inline(always)]
const fn gain(from: &Place, to: &Place, directory: bool, denied: Access) -> Decision {
    let own = to.own.allow & !from.own.allow;
    if own != 0 {
        let rule = rule_of(&from.own, Access::from_bits_retain(own));
        return Decision::new(denied, rule, Reason::Gain as u16);
    }
    let below = to.below.rights.allow & !from.below.rights.allow;
    if directory && below != 0 {
        let rule = rule_of(&from.below.rights, Access::from_bits_retain(below));
        return Decision::new(denied, rule, Reason::Gain as u16);
    }
    Decision::ALLOW
}

/// May a member talk to the unix socket of an outsider at `place`?
///
/// By rule; and where it may write anyway, for there it could put a socket of its own.
#[inline(always)]
pub const fn unix(place: &Place) -> Decision {
    if place.fault == 0 && place.own.allow & Access::WRITE.bits() != 0 {
        return Decision::ALLOW;
    }
    access(place, Access::CONNECT)
}

/// May a member connect to, send to or listen at an address, by what its port leads to in the policy?
#[inline(always)]
pub const fn address(found: Option<&PortRule>, wanted: Access) -> Decision {
    match found {
        Some(PortRule { allow: 1, rule }) => Decision { rule: *rule, ..Decision::ALLOW },
        Some(PortRule { rule: 0, .. }) => Decision::deny(Reason::Reserved, wanted),
        Some(PortRule { rule, .. }) => Decision::new(wanted, *rule, Reason::Rule as u16),
        None => Decision::deny(Reason::Default, wanted),
    }
}

/// May a socket of this kind be made at all? Everything that later hooks cannot judge is refused.
///
/// Allowed are unix sockets, TCP and UDP over IPv4 and IPv6, and netlink's route family, which
/// programs use to look at interfaces. `kernel` sockets are the kernel's own.
#[inline(always)]
pub const fn socket(family: u32, kind: u32, protocol: u32, kernel: bool) -> Decision {
    const UNIX: u32 = 1;
    const INET: u32 = 2;
    const INET6: u32 = 10;
    const NETLINK: u32 = 16;
    const STREAM: u32 = 1;
    const DGRAM: u32 = 2;
    const TCP: u32 = 6;
    const UDP: u32 = 17;
    const MPTCP: u32 = 262;
    const ROUTE: u32 = 0;
    let allowed = kernel
        || match family {
            UNIX => true,
            INET | INET6 => match kind {
                STREAM => matches!(protocol, 0 | TCP | MPTCP),
                DGRAM => matches!(protocol, 0 | UDP),
                _ => false,
            },
            NETLINK => protocol == ROUTE,
            _ => false,
        };
    if allowed { Decision::ALLOW } else { Decision::deny(Reason::SocketKind, Access::CONNECT) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READS: Access = Access::READ.union(Access::EXECUTE);

    fn place(own: Access, below: Access) -> Place {
        let rights = |allow: Access| Rights { allow: allow.bits(), rules: [3, 4, 6, 5, 7, 8] };
        let below = Inherited { rights: rights(below), ..Default::default() };
        Place { own: rights(own), below, fault: 0 }
    }

    #[test]
    fn access_names_what_is_missing_and_the_rule_that_took_it() {
        let place = place(READS, READS);
        assert!(access(&place, Access::READ).allowed());
        let denied = access(&place, Access::READ | Access::WRITE);
        assert_eq!(u32::from(denied.denied), Access::WRITE.bits());
        assert_eq!((denied.rule, denied.reason), (4, Reason::Rule as u16));
        let denied = access(&self::place(Access::WRITES, READS), Access::READ);
        assert_eq!((u32::from(denied.denied), denied.rule), (Access::READ.bits(), 3));
        let denied = access(&self::place(Access::READ, READS), Access::READ | Access::EXECUTE);
        assert_eq!((u32::from(denied.denied), denied.rule), (Access::EXECUTE.bits(), 6));
    }

    #[test]
    fn without_a_rule_the_reason_is_the_default_or_the_file_system() {
        let mut place = place(READS, READS);
        place.own.rules[1] = 0;
        assert_eq!(access(&place, Access::WRITE).reason, Reason::Default as u16);
        place.below.unknown = 1;
        assert_eq!(access(&place, Access::WRITE).reason, Reason::UnknownFilesystem as u16);
    }

    #[test]
    fn no_place_denies_everything() {
        let fault = Place::fault(Reason::TooDeep);
        assert_eq!(access(&fault, Access::READ).reason, Reason::TooDeep as u16);
        assert!(!linking(&fault, &place(READS, READS | Access::WRITES), Moved::Other).0.allowed());
    }

    #[test]
    fn a_link_whose_name_is_closed_is_not_followed() {
        let hidden = place(Access::WRITES, Access::WRITES);
        let denied = following(&hidden);
        assert_eq!((u32::from(denied.denied), denied.rule), (Access::READ.bits(), 3));
        // What lies beneath counts: `~/.ssh/**` says nothing of `~/.ssh` itself.
        assert!(!following(&place(READS, Access::WRITES)).allowed());
        assert!(following(&place(Access::WRITES, READS)).allowed());
        assert!(following(&place(READS, READS)).allowed());
        assert!(!following(&Place::fault(Reason::Disconnected)).allowed());
        let mut other = hidden;
        other.below.edges = 1;
        assert!(following(&other).allowed());
        other = hidden;
        other.below.rights.rules[0] = 0;
        assert!(following(&other).allowed());
    }

    #[test]
    fn unix_sockets_by_rule_or_where_the_member_writes() {
        assert!(unix(&place(READS | Access::CONNECT, READS)).allowed());
        assert!(unix(&place(READS | Access::WRITES, READS)).allowed());
        let denied = unix(&place(READS, READS));
        assert_eq!((u32::from(denied.denied), denied.rule), (Access::CONNECT.bits(), 5));
        assert!(!unix(&Place::fault(Reason::Disconnected)).allowed());
    }

    #[test]
    fn addresses_by_rule_and_reserved_ones_by_none() {
        let of = |rule, allow| address(Some(&PortRule { rule, allow }), Access::CONNECT);
        assert!(of(7, 1).allowed() && of(7, 1).rule == 7);
        let denied = of(7, 0);
        assert_eq!((denied.rule, denied.reason), (7, Reason::Rule as u16));
        assert_eq!(of(7, 2), denied);
        assert_eq!(of(0, 0).reason, Reason::Reserved as u16);
        let denied = address(None, Access::LISTEN);
        assert_eq!((denied.rule, denied.reason), (0, Reason::Default as u16));
        assert_eq!(u32::from(denied.denied), Access::LISTEN.bits());
    }

    #[test]
    fn moving_never_gains() {
        let all = READS | Access::WRITES;
        let open = place(all, all);
        let hidden = place(Access::WRITES, Access::WRITES);
        assert!(moving(&open, &open, true).allowed());
        assert!(moving(&open, &hidden, false).allowed());
        let denied = moving(&hidden, &open, false);
        assert_eq!((denied.reason, denied.rule), (Reason::Gain as u16, 3));
        let hidden_inside = place(all, Access::WRITES);
        assert!(moving(&hidden_inside, &open, false).allowed());
        assert_eq!(moving(&hidden_inside, &open, true).reason, Reason::Gain as u16);
    }

    #[test]
    fn a_directory_with_rules_beneath_stays() {
        let all = READS | Access::WRITES;
        let mut ruled = place(all, all);
        ruled.below.edges = 1;
        let open = place(all, all);
        assert_eq!(moving(&ruled, &open, true).reason, Reason::RuleBeneath as u16);
        assert_eq!(moving(&open, &ruled, true).reason, Reason::RuleBeneath as u16);
        assert!(moving(&open, &ruled, false).allowed());
        let mut matched = place(all, all);
        matched.below.pattern = 7;
        assert_eq!(moving(&matched, &open, true).reason, Reason::RuleBeneath as u16);
        assert!(moving(&matched, &matched, true).allowed());
        assert!(moving(&matched, &open, false).allowed());
    }

    #[test]
    fn no_link_takes_a_name_beneath_which_writing_is_closed() {
        let all = READS | Access::WRITES;
        let beneath = Reason::RuleBeneath as u16;
        let (open, closed) = (place(all, all), place(all, READS));
        let mut named = open;
        named.below.edges = 1;
        for (to, guarded) in [(&closed, false), (&named, false), (&open, true)] {
            assert_eq!(symlink(to, guarded).reason, beneath);
            let link = Moved::Link(guarded);
            assert_eq!(linking(&open, to, link).0.reason, beneath);
            assert_eq!(renaming(&open, to, (link, Moved::Other), false, false).0.reason, beneath);
            let exchanged = renaming(to, &open, (Moved::Other, link), true, true);
            assert_eq!((exchanged.0.reason, exchanged.1), (beneath, false));
            assert!(renaming(&open, to, (Moved::Other, link), false, true).0.allowed());
        }
        assert!(symlink(&open, false).allowed());
        // What is read there is another matter: reading is closed by the name of the link as well.
        assert!(symlink(&place(all, Access::WRITES), false).allowed());
        assert_eq!(symlink(&place(READS, READS), false).reason, Reason::Rule as u16);
    }

    #[test]
    fn renaming_takes_away_here_and_makes_there() {
        let all = READS | Access::WRITES;
        let (open, fixed) = (place(all, all), place(READS, READS));
        let rename = |from: &Place, to: &Place, exchange, replaces| {
            let (decision, new) =
                renaming(from, to, (Moved::Other, Moved::Other), exchange, replaces);
            (u32::from(decision.denied), decision.reason, new)
        };
        let moved = Access::CREATE | Access::DELETE;
        let rule = Reason::Rule as u16;
        assert_eq!(rename(&open, &open, false, true).1, 0);
        assert_eq!(rename(&fixed, &open, false, false), (Access::DELETE.bits(), rule, false));
        assert_eq!(rename(&open, &fixed, false, false), (Access::CREATE.bits(), rule, true));
        assert_eq!(rename(&open, &fixed, false, true), (moved.bits(), rule, true));
        assert_eq!(rename(&fixed, &open, true, true), (moved.bits(), rule, false));
        // Exchanged, each must not gain.
        let hidden = place(Access::WRITES, Access::WRITES);
        let gain = (moved.bits(), Reason::Gain as u16, true);
        assert_eq!(rename(&open, &hidden, true, true), gain);
        assert_eq!(rename(&hidden, &open, true, true), gain);
        assert_eq!(rename(&open, &hidden, false, true).1, 0);
    }

    #[test]
    fn linking_needs_a_source_to_read_and_write() {
        let all = READS | Access::WRITES;
        let link = |from: Place, to: Place| {
            let (decision, new) = linking(&from, &to, Moved::Other);
            (decision.reason, new)
        };
        let rule = Reason::Rule as u16;
        assert_eq!(link(place(all, all), place(all, all)), (0, false));
        assert_eq!(link(place(READS, READS), place(all, all)), (rule, false));
        assert_eq!(link(place(Access::WRITES, all), place(all, all)), (rule, false));
        assert_eq!(link(place(all, all), place(READS, READS)), (rule, true));
        let more = place(all | Access::CONNECT, all);
        assert_eq!(link(place(all, all), more), (Reason::Gain as u16, false));
    }

    #[test]
    fn only_the_listed_sockets_are_made() {
        let allowed = |f, k, p| socket(f, k, p, false).allowed();
        for family in 0..46 {
            for kind in 0..11 {
                for protocol in (0..=262).filter(|p| *p < 143 || *p > 254) {
                    let expected = match family {
                        1 => true,
                        16 => protocol == 0,
                        2 | 10 => matches!((kind, protocol), (1, 0 | 6 | 262) | (2, 0 | 17)),
                        _ => false,
                    };
                    assert_eq!(allowed(family, kind, protocol), expected);
                }
            }
        }
        assert!(socket(17, 3, 0, true).allowed());
    }
}
