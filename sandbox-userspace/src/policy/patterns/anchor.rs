//! Where in which superblocks a pattern holds.
//!
//! What denies holds beneath every mount that its path leads into. What allows holds in the file
//! system of its base alone; so no mount in the workspace opens anything.

use crate::kernel::mounts::{Components, MountTable};
use crate::policy::expand::Placed;
use crate::policy::rule::Step;
use std::collections::{BTreeSet, HashSet};

/// A pattern in one superblock; its path begins at the superblock's root.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::policy) struct Anchored {
    pub(in crate::policy) dev: u32,
    pub(in crate::policy) rule: Placed,
}

/// A mount point beneath which an allowing pattern does not hold.
pub(in crate::policy) struct Stopped {
    pub(in crate::policy) rule: u32,
    pub(in crate::policy) point: Components,
}

/// Anchors the patterns among the rules. Superblock 0 stands for all that neither the table knows nor
/// `former`, superblocks of former tables.
pub(in crate::policy) fn anchor(
    placed: &[Placed],
    table: &MountTable,
    former: impl IntoIterator<Item = u32>,
) -> (Vec<Anchored>, Vec<Stopped>) {
    let known = table.mounts().iter().map(|mount| mount.dev);
    let devs: BTreeSet<u32> = known.chain(former).chain([0]).collect();
    let mut found = Found::default();
    let mut stopped = Vec::new();
    for rule in placed.iter().filter(|rule| !rule.tail.is_empty()) {
        if rule.everywhere {
            for dev in &devs {
                found.add(*dev, rule.clone());
            }
        }
        let home = table.holder(&rule.path).map(|mount| mount.id);
        for mount in table.visible() {
            if rule.allow && Some(mount.id) != home {
                let beneath = mount.point.starts_with(&rule.path);
                if beneath && !rule.everywhere && !residues(rule, &mount.point).is_empty() {
                    stopped.push(Stopped { rule: rule.id, point: mount.point.clone() });
                }
                continue;
            }
            for (rest, tail) in residues(rule, &mount.point) {
                // What ends above here is said of the mount as a whole; what has not begun is said
                // everywhere already.
                let known = tail.is_empty() || rule.everywhere && tail == rule.tail;
                if !known {
                    let path = [mount.root.as_slice(), rest].concat();
                    let tail = tail.to_vec();
                    found.add(mount.dev, Placed { path, tail, everywhere: false, ..rule.clone() });
                }
            }
        }
    }
    (found.list, stopped)
}

#[derive(Default)]
struct Found {
    list: Vec<Anchored>,
    known: HashSet<Anchored>,
}

impl Found {
    fn add(&mut self, dev: u32, rule: Placed) {
        let anchored = Anchored { dev, rule };
        if self.known.insert(anchored.clone()) {
            self.list.push(anchored);
        }
    }
}

/// What of a rule is left to be matched beneath a mount point: names, and steps beneath them.
pub(in crate::policy) fn residues<'a>(
    rule: &'a Placed,
    point: &[Vec<u8>],
) -> Vec<(&'a [Vec<u8>], &'a [Step])> {
    if let Some(rest) = rule.path.strip_prefix(point) {
        return vec![(rest, &rule.tail)];
    }
    let Some(names) = point.strip_prefix(rule.path.as_slice()) else { return Vec::new() };
    // Numbers of the steps that may come next.
    let mut at = vec![0];
    for name in names {
        let mut next: Vec<usize> = at
            .iter()
            .flat_map(|at| closure(&rule.tail, *at))
            .filter_map(|at| match rule.tail.get(at)? {
                Step::Deep => Some(at),
                Step::Any => Some(at + 1),
                Step::Name(glob) => glob.matches(name).then_some(at + 1),
            })
            .collect();
        next.sort_unstable();
        next.dedup();
        at = next;
    }
    // What another one implies is left out.
    let implied: Vec<usize> = at.iter().flat_map(|at| closure(&rule.tail, *at).skip(1)).collect();
    at.into_iter()
        .filter(|at| !implied.contains(at))
        .map(|at| (&[][..], &rule.tail[at..]))
        .collect()
}

/// A step and those that may come in its place, `**` being no component too.
fn closure(tail: &[Step], at: usize) -> impl Iterator<Item = usize> {
    let more = (at..tail.len()).take_while(|at| tail[*at] == Step::Deep).map(|at| at + 1);
    std::iter::once(at).chain(more)
}
