//! Edges for directories that compare names without regard to case, see [`sandbox_common::fold`].
//!
//! Which directories do is known to the kernel only: `chattr +F` makes one of any empty directory of an
//! ext4 with the feature, while a session runs. So every edge is entered for both cases.

use super::compiled::Edge;
use sandbox_common::fold::{INEXACT, NO_NODE};
use sandbox_common::path::Node;
use std::collections::BTreeMap;

/// The edges over folded names that belong to `edges`.
///
/// Names that differ in nothing but case lead to no node: in a directory that takes them for one, no
/// verdict would be that of both rules. Neither do names that are not ASCII, and with such a name beneath
/// it a node knows none of its names for sure.
pub(super) fn folded(edges: &[Edge]) -> Vec<Edge> {
    let mut found: BTreeMap<(u32, Vec<u8>), Node> = BTreeMap::new();
    for edge in edges {
        let (name, to) = if edge.name.is_ascii() {
            (edge.name.to_ascii_lowercase(), edge.to)
        } else {
            (vec![INEXACT], none())
        };
        found.entry((edge.from, name)).and_modify(|known| *known = none()).or_insert(to);
    }
    found.into_iter().map(|((from, name), to)| Edge { from, name, to }).collect()
}

fn none() -> Node {
    Node { id: NO_NODE, ..Node::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(from: u32, name: &str, id: u32) -> Edge {
        Edge { from, name: name.into(), to: Node { id, ..Node::default() } }
    }

    #[test]
    fn names_are_folded_and_what_is_doubtful_leads_to_no_node() {
        let edges = [
            edge(1, ".Env", 2),
            edge(1, "b", 3),
            edge(2, "Key", 4),
            edge(2, "KEY", 5),
            edge(2, "stra\u{df}e", 6),
            edge(2, "\u{212a}", 7),
        ];
        let wanted = [
            edge(1, ".env", 2),
            edge(1, "b", 3),
            edge(2, "key", NO_NODE),
            Edge { from: 2, name: vec![INEXACT], to: none() },
        ];
        assert_eq!(folded(&edges), wanted);
    }
}
