//! Verdicts on places: a trie over path components.
//!
//! The compiler uses it twice: over absolute paths, for what the rules say of a path, and over the
//! places of one superblock, for what the kernel gets.

use super::compiled::Edge;
use super::rule::{Defaults, Kind, Scope};
use sandbox_common::Access;
use sandbox_common::path::{Inherited, Node, Root, Said};
use std::collections::{BTreeMap, BTreeSet};

/// The two halves of a node's rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Part {
    /// The place itself.
    Own,
    /// Everything beneath that has no deeper node.
    Below,
}

impl Part {
    pub(super) const ALL: [Self; 2] = [Self::Own, Self::Below];
}

impl Scope {
    /// What a rule of this scope speaks of.
    pub(super) const fn parts(self) -> &'static [Part] {
        match self {
            Self::Tree => &Part::ALL,
            Self::Beneath => &[Part::Below],
        }
    }
}

/// What was said of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    pub(super) allow: bool,
    /// The rule; 0 is the default.
    pub(super) rule: u32,
    /// The rule speaks of a directory above the mount point at which the place is visible.
    pub(super) crossing: bool,
}

impl Mark {
    /// At the same place deny wins, then a rule that names the place, then the earlier rule; the default of a
    /// ceiling comes last.
    fn rank(self) -> (bool, bool, bool, u32) {
        let default = self.rule == 0 && !self.crossing;
        (default, self.allow, self.crossing, self.rule)
    }
}

/// Verdicts on the places beneath one root.
#[derive(Debug)]
pub(super) struct Trie {
    /// The first is the root.
    nodes: Vec<Entry>,
}

#[derive(Debug, Default)]
struct Entry {
    children: BTreeMap<Vec<u8>, usize>,
    /// By kind and part.
    marks: [[Option<Mark>; 2]; Kind::COUNT],
}

impl Default for Trie {
    fn default() -> Self {
        Self { nodes: vec![Entry::default()] }
    }
}

impl Trie {
    /// Says something of parts of a place.
    pub(super) fn place(&mut self, path: &[Vec<u8>], access: Access, parts: &[Part], mark: Mark) {
        let mut at = 0;
        for name in path {
            at = if let Some(known) = self.nodes[at].children.get(name) {
                *known
            } else {
                let next = self.nodes.len();
                self.nodes[at].children.insert(name.clone(), next);
                self.nodes.push(Entry::default());
                next
            };
        }
        for kind in Kind::of(access) {
            for part in parts {
                let slot = &mut self.nodes[at].marks[kind as usize][*part as usize];
                if slot.is_none_or(|old| mark.rank() < old.rank()) {
                    *slot = Some(mark);
                }
            }
        }
    }

    /// The places beneath one of which something is said, and whether they are allowed.
    pub(super) fn said_beneath(&self, path: &[Vec<u8>], kind: Kind) -> Vec<(Vec<Vec<u8>>, bool)> {
        let mut at = 0;
        for name in path {
            match self.nodes[at].children.get(name) {
                Some(next) => at = *next,
                None => return Vec::new(),
            }
        }
        let mut found = Vec::new();
        let mut waiting = vec![(at, path.to_vec())];
        while let Some((at, place)) = waiting.pop() {
            for (name, child) in &self.nodes[at].children {
                let place = [place.as_slice(), std::slice::from_ref(name)].concat();
                let marks = self.nodes[*child].marks[kind as usize];
                found.extend(marks.iter().flatten().map(|mark| (place.clone(), mark.allow)));
                waiting.push((*child, place));
            }
        }
        found
    }

    /// What decides on a place, and the depth of the place that it was said of. `None`: nothing
    /// was said, the default holds.
    pub(super) fn verdict(
        &self,
        path: &[Vec<u8>],
        kind: Kind,
        part: Part,
    ) -> Option<(Mark, usize)> {
        let mark = |at: usize, part: Part, depth| {
            self.nodes[at].marks[kind as usize][part as usize].map(|mark| (mark, depth))
        };
        let mut at = 0;
        let mut above = None;
        for (depth, name) in path.iter().enumerate() {
            above = mark(at, Part::Below, depth).or(above);
            match self.nodes[at].children.get(name) {
                Some(next) => at = *next,
                None => return above,
            }
        }
        mark(at, part, path.len()).or(above)
    }

    /// What the kernel gets: returns the root, appends the edges. Ids are counted on from `last_id`.
    pub(super) fn emit(
        &self,
        defaults: Defaults,
        last_id: &mut u32,
        edges: &mut Vec<Edge>,
    ) -> Root {
        let node = self.emit_node(0, last_id, edges);
        let (mut own, mut below) = (defaults.rights(), defaults.rights());
        own.fold(&node.own);
        below.fold(&node.below);
        let below =
            Inherited { node: node.id, edges: node.edges, rights: below, ..Inherited::default() };
        Root { own, pad: 0, below }
    }

    fn emit_node(&self, at: usize, last_id: &mut u32, edges: &mut Vec<Edge>) -> Node {
        *last_id += 1;
        let id = *last_id;
        let entry = &self.nodes[at];
        for (name, child) in &entry.children {
            let index = edges.len();
            edges.push(Edge { from: id, name: name.clone(), to: Node::default() });
            let node = self.emit_node(*child, last_id, edges);
            edges[index].to = node;
        }
        // A trie of more nodes than this does not fit into memory.
        let count = u32::try_from(entry.children.len()).unwrap_or(u32::MAX);
        Node { id, edges: count, own: entry.said(Part::Own), below: entry.said(Part::Below) }
    }
}

/// A place in several tries at once.
#[derive(Clone)]
pub(super) struct Walk<'a> {
    /// By trie, its node there.
    nodes: Vec<Option<(&'a Trie, usize)>>,
    /// By trie and kind, what it says of everything beneath, and how deep the place is that it was said of.
    below: Vec<[Option<(Mark, usize)>; Kind::COUNT]>,
    depth: usize,
}

impl<'a> Walk<'a> {
    /// The roots of tries; where there is none, it says nothing.
    pub(super) fn new(tries: impl Iterator<Item = Option<&'a Trie>>) -> Self {
        let nodes: Vec<_> = tries.map(|trie| trie.map(|trie| (trie, 0))).collect();
        Self { below: vec![[None; Kind::COUNT]; nodes.len()], nodes, depth: 0 }
    }

    /// Whether any trie says something of this very place.
    pub(super) fn speaks(&self, kind: Kind, part: Part) -> bool {
        let said = |(trie, at): &(&Trie, usize)| {
            trie.nodes[*at].marks[kind as usize][part as usize].is_some()
        };
        self.nodes.iter().flatten().any(said)
    }

    /// What is said of this very place: by trie.
    pub(super) fn marks(&self, kind: Kind, part: Part) -> Vec<Option<Mark>> {
        let mark =
            |(trie, at): &(&Trie, usize)| trie.nodes[*at].marks[kind as usize][part as usize];
        self.nodes.iter().map(|node| node.as_ref().and_then(mark)).collect()
    }

    /// What a trie says of what lies here and is not named.
    pub(super) fn inherited(&self, trie: usize, kind: Kind) -> Option<(Mark, usize)> {
        self.below[trie][kind as usize]
    }

    /// The places one component further.
    pub(super) fn children(&self) -> Vec<(&'a Vec<u8>, Self)> {
        let mut below = self.below.clone();
        for (index, node) in self.nodes.iter().enumerate() {
            let Some((trie, at)) = node else { continue };
            for kind in Kind::ALL {
                let mark = trie.nodes[*at].marks[kind as usize][Part::Below as usize];
                let said = mark.map(|mark| (mark, self.depth));
                below[index][kind as usize] = said.or(below[index][kind as usize]);
            }
        }
        let known = self.nodes.iter().flatten();
        let names: BTreeSet<&'a Vec<u8>> =
            known.flat_map(|(trie, at)| trie.nodes[*at].children.keys()).collect();
        let child = |name: &'a Vec<u8>| {
            let next = |node: &Option<(&'a Trie, usize)>| {
                let (trie, at) = (*node)?;
                Some((trie, *trie.nodes[at].children.get(name)?))
            };
            let nodes = self.nodes.iter().map(next).collect();
            (name, Self { nodes, below: below.clone(), depth: self.depth + 1 })
        };
        names.into_iter().map(child).collect()
    }
}

impl Entry {
    fn said(&self, part: Part) -> Said {
        let mut said = Said::default();
        for kind in Kind::ALL {
            if let Some(mark) = self.marks[kind as usize][part as usize] {
                said.say(kind as usize, mark.allow, mark.rule);
            }
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandbox_common::path::Rights;

    fn names(path: &str) -> Vec<Vec<u8>> {
        path.split('/').filter(|name| !name.is_empty()).map(Into::into).collect()
    }

    fn mark(allow: bool, rule: u32) -> Mark {
        Mark { allow, rule, crossing: false }
    }

    #[test]
    fn a_node_says_what_was_said_of_it_and_no_more() {
        let mut trie = Trie::default();
        trie.place(&names("a"), Access::WRITES, &Part::ALL, mark(true, 1));
        trie.place(&names("a/b/c"), Access::READ, &[Part::Below], mark(false, 3));
        trie.place(&names("z"), Access::WRITES, &[Part::Own], mark(false, 2));
        let (mut id, mut edges) = (0, Vec::new());
        let root = trie.emit(Defaults::default(), &mut id, &mut edges);
        let read = (Access::READ | Access::EXECUTE).bits();
        assert_eq!((root.below.node, root.below.edges, id), (1, 2, 5));
        assert_eq!(root.own, Rights { allow: read, rules: [0; Kind::COUNT] });
        let found: Vec<_> = edges.iter().map(|edge| (edge.from, edge.name.as_slice())).collect();
        assert_eq!(found, [(1, &b"a"[..]), (2, b"b"), (3, b"c"), (1, b"z")]);
        let a = Said::of(Access::WRITES, true, 1);
        assert_eq!(edges[0].to, Node { id: 2, edges: 1, own: a, below: a });
        assert_eq!(edges[1].to, Node { id: 3, edges: 1, ..Node::default() });
        let c = Said::of(Access::READ, false, 3);
        assert_eq!(edges[2].to, Node { id: 4, edges: 0, own: Said::default(), below: c });
        let z = Said::of(Access::WRITES, false, 2);
        assert_eq!(edges[3].to, Node { id: 5, edges: 0, own: z, below: Said::default() });
    }

    #[test]
    fn deny_wins_at_the_same_place_then_the_earlier_rule() {
        let mut trie = Trie::default();
        for (allow, rule) in [(true, 1), (false, 4), (false, 3), (true, 2)] {
            trie.place(&names("a"), Access::READ, &[Part::Own], mark(allow, rule));
        }
        assert_eq!(trie.verdict(&names("a"), Kind::Read, Part::Own), Some((mark(false, 3), 1)));
        assert_eq!(trie.verdict(&names("a"), Kind::Read, Part::Below), None);
        assert_eq!(trie.verdict(&names("a/b"), Kind::Read, Part::Own), None);
    }
}
