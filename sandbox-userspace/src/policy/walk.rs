//! A compiled policy, asked as the kernel asks it: what holds at a place of a superblock.

use super::compiled::{CompiledPolicy, Edge};
use super::decide::Decision;
use super::rule::Kind;
use sandbox_common::Access;
use sandbox_common::decide::Place;
use sandbox_common::path::{Node, Rights, Root};
use std::collections::HashMap;

/// What the kernel has of a policy.
pub struct Walker<'a> {
    policy: &'a CompiledPolicy,
    edges: HashMap<(u32, &'a [u8]), Node>,
}

impl<'a> Walker<'a> {
    /// Over a policy.
    pub fn new(policy: &'a CompiledPolicy) -> Self {
        let edges = policy.edges.iter();
        let edges = edges.map(|Edge { from, name, to }| ((*from, name.as_slice()), *to)).collect();
        Self { policy, edges }
    }

    /// The rights of a place; `folded` where no directory tells upper from lower case. `None` where the
    /// policy does not know the superblock.
    pub fn walk(&self, dev: u32, place: &[Vec<u8>], folded: bool) -> Option<Rights> {
        self.place(dev, place, folded).map(|place| place.own)
    }

    /// The same, with what it passes on.
    pub fn place(&self, dev: u32, place: &[Vec<u8>], folded: bool) -> Option<Place> {
        let root = self.policy.roots.iter().find(|(root, _)| *root == dev)?.1;
        let Root { mut own, below: mut at, .. } = root;
        for name in place {
            own = at.rights;
            if let Some(patterns) = &self.policy.patterns {
                let (state, said) = patterns.step(at.pattern, patterns.classify(name, folded));
                at.pattern = state;
                own.fold(&said.own);
                at.rights.fold(&said.below);
            }
            let known = if at.edges == 0 { None } else { self.edges.get(&(at.node, &**name)) };
            let node = known.copied().unwrap_or_default();
            own.fold(&node.own);
            at.rights.fold(&node.below);
            (at.node, at.edges) = (node.id, node.edges);
        }
        Some(Place { below: at, own, fault: 0 })
    }
}

/// What rights say of a kind.
pub fn decision(rights: Rights, kind: Kind) -> Decision {
    let allowed = Access::from_bits_truncate(rights.allow);
    Decision { allow: allowed.contains(kind.access()), rule: rights.rules[kind as usize] }
}
