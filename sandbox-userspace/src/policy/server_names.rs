//! The names that TLS may ask for, where a rule has that checked: for the kernel.
//!
//! Which rule decides of a name on the wire is found there by the longest name that any layer speaks of. So what all
//! layers say together is entered for each such name, and for what lies beneath it and is not spoken of itself.

use super::compiled::{CompiledPolicy, PortEntry, ServerName};
use super::names::{NameLayer, Named, Names, Opening};
use super::ports::prefixes;
use super::rule::Protocol;
use sandbox_common::event::Reason;
use sandbox_common::tls::{self, Letters, SERVER_NAME};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// Fills in the names of a policy, and the ports at which they may be asked for; none where no rule has them checked.
pub(super) fn compile(layers: &[NameLayer], compiled: &mut CompiledPolicy) {
    let entries = || layers.iter().flat_map(|layer| &layer.entries);
    if !entries().any(|entry| entry.sni && entry.allow) {
        return;
    }
    let names = Names::new(layers.to_vec());
    let known: BTreeSet<(&str, bool)> =
        entries().map(|entry| (entry.name.as_str(), entry.beneath)).collect();
    let nets = compiled.net4.iter().map(|net| net.set);
    let mut next =
        nets.chain(compiled.net6.iter().map(|net| net.set)).max().map_or(0, |set| set + 1);
    let mut sets: BTreeMap<Vec<(u16, u8)>, u32> = BTreeMap::new();
    for (name, beneath) in known {
        // The kernel refuses longer ones.
        if name.len() > SERVER_NAME {
            continue;
        }
        // No rule speaks of a star itself: it stands for the names of which none speaks.
        let decided = if beneath { names.decide(&format!("*.{name}")) } else { names.decide(name) };
        let open = match decided {
            Named::Open(open) => open,
            Named::Denied(_) | Named::Unknown => Vec::new(),
        };
        let set = *sets.entry(ports(&open)).or_insert_with_key(|ports| {
            let entries = ports.iter().map(|(port, bits)| PortEntry {
                set: next,
                protocol: Protocol::Tcp as u16,
                port: *port,
                bits: *bits,
                // Which rule it is does not matter: it is asked for by the rule that has names checked.
                rule: open.first().map_or(0, |open| open.rule),
                allow: true,
            });
            compiled.ports.extend(entries);
            next += 1;
            next - 1
        });
        compiled.server_names.push(ServerName { name: name.into(), beneath, set });
    }
}

/// The port prefixes that TCP has.
fn ports(open: &[Opening]) -> Vec<(u16, u8)> {
    let tcp = open.iter().filter(|open| open.protocol == Protocol::Tcp as u16);
    let mut ranges: Vec<RangeInclusive<u16>> = Vec::new();
    for range in tcp.map(|open| open.ports.clone()) {
        match ranges.last_mut() {
            // They come in order and apart from each other.
            Some(last) if last.end().checked_add(1) == Some(*range.start()) => {
                *last = *last.start()..=*range.end();
            }
            _ => ranges.push(range),
        }
    }
    ranges.into_iter().flat_map(prefixes).collect()
}

/// The name that the first bytes of a TLS client ask for, as the kernel side reads it: for tests.
#[doc(hidden)]
pub fn asked_for(bytes: &[u8]) -> Result<String, Reason> {
    struct Name(Vec<u8>);
    impl Letters for Name {
        fn put(&mut self, index: u32, len: u32, letter: u8) {
            assert!(
                usize::try_from(index) == Ok(self.0.len()) && index < len,
                "letters come in order"
            );
            self.0.push(letter);
        }
    }
    let (mut name, len) = (Name(Vec::new()), u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    let length = tls::server_name(&bytes, len, &mut name)?;
    assert!(usize::try_from(length) == Ok(name.0.len()) && name.0.len() <= SERVER_NAME, "{length}");
    // Letters of names are ASCII.
    Ok(String::from_utf8_lossy(&name.0).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::load_text;
    use crate::policy::names;
    use proptest::prelude::*;
    use sandbox_common::tls::ServerNameKey;

    /// As the kernel looks: the longest prefix of the name from its end, then the longest of the port.
    fn may_ask(policy: &CompiledPolicy, name: &str, port: u16) -> bool {
        let Some((asked, _)) = ServerNameKey::new(1, name.as_bytes(), false) else { return false };
        let found = policy.server_names.iter().filter_map(|entry| {
            let (key, bits) = ServerNameKey::new(1, entry.name.as_bytes(), entry.beneath)?;
            let bytes = usize::try_from(bits).ok()? / 8 - 4;
            (key.name[..bytes] == asked.name[..bytes]).then_some((bytes, entry.set))
        });
        let Some((_, set)) = found.max() else { return false };
        let found = policy.ports.iter().filter(|entry| {
            entry.set == set
                && entry.protocol == 6
                && u32::from(entry.port ^ port) >> (16 - u32::from(entry.bits)) == 0
        });
        found.max_by_key(|entry| entry.bits).is_some_and(|entry| entry.allow && entry.rule != 0)
    }

    fn compiled(layers: &[NameLayer]) -> CompiledPolicy {
        let mut policy = CompiledPolicy::default();
        compile(layers, &mut policy);
        policy
    }

    fn layers(texts: &[&str]) -> Vec<NameLayer> {
        let mut policies =
            texts.iter().map(|text| load_text("p", format!("version = 1\n{text}")).unwrap());
        let mut policy = policies.next().unwrap();
        policy.ceilings = policies.collect();
        names::layers(&policy)
    }

    #[test]
    fn without_a_check_nothing_is_entered() {
        let policy = compiled(&layers(&["network.allow = ['a.example.com:443', '*.example.org']"]));
        assert!(policy.server_names.is_empty() && policy.ports.is_empty());
    }

    #[test]
    fn the_longest_name_decides_as_it_does_for_questions() {
        let own = "network.allow = ['*.example.com:443 sni', 'db.example.com:5432', '*.b.example.org']\n\
                   network.deny = ['secret.example.com', '*.x.b.example.org:1-99']";
        let policy = compiled(&layers(&[own]));
        for (name, port, expected) in [
            ("www.example.com", 443, true),
            ("a.b.example.com", 443, true),
            ("www.example.com", 444, false),
            ("example.com", 443, false),
            ("xexample.com", 443, false),
            ("www.example.com.evil.net", 443, false),
            ("secret.example.com", 443, false),
            ("a.secret.example.com", 443, true),
            ("db.example.com", 443, true),
            ("db.example.com", 5432, true),
            ("a.b.example.org", 9, true),
            ("a.x.b.example.org", 9, false),
            ("a.x.b.example.org", 100, true),
            ("com", 443, false),
        ] {
            assert_eq!(may_ask(&policy, name, port), expected, "{name}:{port}");
        }
        // What is closed above is no name that may be asked for, and a check above is a check.
        let above = layers(&[
            "network.allow = ['*.example.com', 'a.example.org']",
            "network.allow = ['a.example.com sni', '*.example.org']",
        ]);
        let policy = compiled(&above);
        for (name, expected) in [
            ("a.example.com", true),
            ("b.example.com", false),
            ("a.example.org", true),
            ("b.example.org", false),
        ] {
            assert_eq!(may_ask(&policy, name, 443), expected, "{name}");
        }
        let opened = |name: &str| match Names::new(above.clone()).decide(name) {
            Named::Open(open) => open.iter().map(|open| open.check).collect(),
            _ => Vec::new(),
        };
        assert_eq!(opened("a.example.com"), [1, 1], "the ceiling's rule checks");
        assert_eq!(opened("a.example.org"), [0, 0]);
    }

    proptest! {
        #[test]
        fn names_agree_with_questions(
            allow in proptest::collection::vec(names::tests::entry(), 0..6),
            deny in proptest::collection::vec(names::tests::entry(), 0..4),
            above in proptest::option::of(proptest::collection::vec(names::tests::entry(), 0..6)),
        ) {
            let own = format!("network.allow = {:?}\nnetwork.deny = {deny:?}\n",
                allow.iter().chain([&"sni.example.net:1 sni".to_owned()]).collect::<Vec<_>>());
            let above = above.map_or(String::new(), |above| format!("network.allow = {above:?}\n"));
            let layers = layers(&[&own, &above]);
            let (names, policy) = (Names::new(layers.clone()), compiled(&layers));
            for name in ["example.com", "a.example.com", "b.a.example.com", "x.y.a.example.com", "c.org", "sni.example.net"] {
                for port in [0, 1, 79, 80, 90, 91, 443] {
                    let open = match names.decide(name) {
                        Named::Open(open) => open,
                        _ => Vec::new(),
                    };
                    let expected = open.iter().any(|open| open.protocol == 6 && open.ports.contains(&port));
                    prop_assert_eq!(may_ask(&policy, name, port), expected, "{} {}", name, port);
                }
            }
        }
    }
}
