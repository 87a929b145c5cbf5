//! As many networks and names as large sites have.

use super::compiled::{CompiledPolicy, Prefix};
use super::load_text;
use super::names::{Named, Names, layers};
use super::ports;
use std::fmt::Write as _;
use std::net::Ipv4Addr;

const NETWORKS: usize = 64_000;
const NAMES: usize = 10_000;
/// Entries of the maps `NET4` and `PORTS`, for all sessions of an engine.
const NET_ENTRIES: usize = 262_144;
const PORT_ENTRIES: usize = 1_048_576;

#[test]
fn many_networks_and_names_fit() {
    let mut text = "version = 1\n[network]\nallow = [\n".to_owned();
    for number in 0..NETWORKS {
        writeln!(text, "  \"10.{}.{}.0/24:443\",", number >> 8, number & 255).unwrap();
    }
    for number in 0..NAMES {
        writeln!(text, "  \"n{number}.example.org:443/tcp\",").unwrap();
    }
    text += "]\n";
    let policy = load_text("p", text).unwrap();
    let mut compiled = CompiledPolicy::default();
    ports::compile(&policy, &mut compiled);
    let own = |prefix: &&Prefix<Ipv4Addr>| prefix.address.octets()[0] == 10;
    let networks = compiled.net4.iter().filter(own).count();
    assert_eq!(networks, NETWORKS);
    // One for TCP and one for UDP each; twice as many while one policy takes the place of another.
    assert!(compiled.ports.len() >= 2 * NETWORKS);
    assert!(2 * compiled.ports.len() <= PORT_ENTRIES && 2 * compiled.net4.len() <= NET_ENTRIES);
    let names = Names::new(layers(&policy));
    assert!(matches!(names.decide("n9999.example.org"), Named::Open(_)));
    assert_eq!(names.decide("n10000.example.org"), Named::Unknown);
    assert_eq!(names.decide("x.n9999.example.org"), Named::Unknown);
}
