//! Verdicts on places: a trie over path components.
//!
//! The compiler uses it twice: over absolute paths, for what the rules say of a path, and over the
//! places of one superblock, for what the kernel gets.

use super::compiled::Edge;
use super::rule::{Kind, Scope};
use sandbox_common::Access;
use sandbox_common::path::{Node, Rights};
use std::collections::BTreeMap;

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
    pub(super) rule: u16,
    /// The rule speaks of a directory above the mount point at which the place is visible.
    pub(super) crossing: bool,
}

impl Mark {
    /// At the same place deny wins, then a rule that names the place, then the earlier rule.
    fn rank(self) -> (bool, bool, u16) {
        (self.allow, self.crossing, self.rule)
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

/// Marks in force, by kind; `None` is the default.
type Below = [Option<Mark>; Kind::COUNT];

impl Default for Trie {
    fn default() -> Self {
        Self { nodes: vec![Entry::default()] }
    }
}

impl Trie {
    /// Says something of a place.
    pub(super) fn place(&mut self, path: &[Vec<u8>], kind: Kind, part: Part, mark: Mark) {
        let mut at = 0;
        for name in path {
            let next = self.nodes.len();
            at = *self.nodes[at].children.entry(name.clone()).or_insert(next);
            if at == next {
                self.nodes.push(Entry::default());
            }
        }
        let slot = &mut self.nodes[at].marks[kind as usize][part as usize];
        if slot.is_none_or(|old| mark.rank() < old.rank()) {
            *slot = Some(mark);
        }
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

    /// The nodes for the kernel: returns the root's, appends the edges. Ids are counted on from
    /// `last_id`. Nodes that only repeat what they inherit are left out.
    pub(super) fn emit(&self, last_id: &mut u32, edges: &mut Vec<Edge>) -> Node {
        self.emit_node(0, [None; Kind::COUNT], last_id, edges)
    }

    fn emit_node(&self, at: usize, above: Below, last_id: &mut u32, edges: &mut Vec<Edge>) -> Node {
        *last_id += 1;
        let id = *last_id;
        let (own, below) = self.marks(at, above);
        let mut count = 0;
        for (name, child) in &self.nodes[at].children {
            if self.says_nothing(*child, below) {
                continue;
            }
            count += 1;
            let index = edges.len();
            edges.push(Edge { from: id, name: name.clone(), to: Node::default() });
            let node = self.emit_node(*child, below, last_id, edges);
            edges[index].to = node;
        }
        Node { id, edges: count, own: rights(own), below: rights(below) }
    }

    /// Whether a subtree only repeats what holds above it.
    fn says_nothing(&self, at: usize, above: Below) -> bool {
        let (own, below) = self.marks(at, above);
        rights(own) == rights(above)
            && rights(below) == rights(above)
            && self.nodes[at].children.values().all(|child| self.says_nothing(*child, below))
    }

    /// The marks in force at a node and beneath.
    fn marks(&self, at: usize, above: Below) -> (Below, Below) {
        let part = |part: Part| {
            Kind::ALL.map(|kind| {
                self.nodes[at].marks[kind as usize][part as usize].or(above[kind as usize])
            })
        };
        (part(Part::Own), part(Part::Below))
    }
}

/// The bits of a rule's kind.
const fn access(kind: Kind) -> Access {
    match kind {
        Kind::Read => Access::READ.union(Access::EXECUTE),
        Kind::Write => Access::WRITES,
        Kind::Connect => Access::CONNECT,
    }
}

fn rights(marks: Below) -> Rights {
    let allow = Kind::ALL
        .into_iter()
        .filter(|kind| marks[*kind as usize].map_or(kind.default_allow(), |mark| mark.allow))
        .fold(Access::empty(), |all, kind| all | access(kind));
    let rule = |kind: Kind| marks[kind as usize].map_or(0, |mark| mark.rule);
    Rights {
        allow: allow.bits(),
        read_rule: rule(Kind::Read),
        write_rule: rule(Kind::Write),
        connect_rule: rule(Kind::Connect),
        pad: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &str) -> Vec<Vec<u8>> {
        path.split('/').filter(|name| !name.is_empty()).map(Into::into).collect()
    }

    fn mark(allow: bool, rule: u16) -> Mark {
        Mark { allow, rule, crossing: false }
    }

    #[test]
    fn a_leaf_that_repeats_is_left_out() {
        let mut trie = Trie::default();
        for part in Part::ALL {
            trie.place(&names("a"), Kind::Write, part, mark(true, 1));
            trie.place(&names("a/b/c"), Kind::Write, part, mark(true, 1));
        }
        trie.place(&names("z"), Kind::Write, Part::Own, mark(false, 2));
        let (mut id, mut edges) = (0, Vec::new());
        let root = trie.emit(&mut id, &mut edges);
        assert_eq!((root.id, root.edges, id), (1, 2, 3));
        assert_eq!(edges.len(), 2);
        assert_eq!(edges[0].name, b"a");
        assert_eq!((edges[0].to.id, edges[0].to.edges), (2, 0));
        assert_eq!(edges[0].to.own.allow, (Access::READ | Access::EXECUTE | Access::WRITES).bits());
        assert_eq!(edges[1].to.own.write_rule, 2);
        assert_eq!(edges[1].to.below, root.below);
    }

    #[test]
    fn deny_wins_at_the_same_place_then_the_earlier_rule() {
        let mut trie = Trie::default();
        for (allow, rule) in [(true, 1), (false, 4), (false, 3), (true, 2)] {
            trie.place(&names("a"), Kind::Read, Part::Own, mark(allow, rule));
        }
        assert_eq!(trie.verdict(&names("a"), Kind::Read, Part::Own), Some((mark(false, 3), 1)));
        assert_eq!(trie.verdict(&names("a"), Kind::Read, Part::Below), None);
        assert_eq!(trie.verdict(&names("a/b"), Kind::Read, Part::Own), None);
    }
}
