//! What a zone looks like: names, links and mounts, without the kernel's help.

use super::operation::{Action, Op};
use std::collections::BTreeMap;

/// One component of a path.
pub(crate) type Name = Vec<u8>;
/// Names from some root, outermost first.
pub(crate) type Names = Vec<Name>;
/// Index of a node.
pub(crate) type Id = usize;

/// Symbolic links that one path may lead through (`MAXSYMLINKS`, linux/namei.h).
const LINKS: usize = 40;
/// The zone's root.
pub(crate) const ROOT: Id = 0;

#[derive(Clone, Debug)]
pub(crate) enum Object {
    Directory(BTreeMap<Name, Id>),
    File,
    Fifo,
    /// From the zone's root where `rooted`.
    Link {
        rooted: bool,
        target: Vec<u8>,
    },
}

#[derive(Clone, Debug)]
struct Node {
    object: Object,
    /// Of a directory: the directory above, and its name there. The root of a file system has none.
    above: Option<(Id, Name)>,
    /// Of a directory: the file system that it lies in. 0 is that of the zone's root.
    file_system: usize,
    /// Of a mount point: the directory that is mounted there.
    covered_by: Option<Id>,
}

/// A mount, as it was when the session began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Where, from the zone's root.
    pub(crate) point: Names,
    pub(crate) file_system: usize,
    /// The directory that is seen there, from the root of its file system.
    pub(crate) root: Names,
}

/// Where an object lies: the file system, and the names from its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) file_system: usize,
    pub(crate) names: Names,
}

impl Spot {
    pub(crate) fn join(&self, names: &[Name]) -> Self {
        Self { file_system: self.file_system, names: [self.names.as_slice(), names].concat() }
    }
}

/// What a path leads to.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// The directory that holds the name.
    pub(crate) directory: Id,
    /// The path to it, without links.
    pub(crate) view: Names,
    pub(crate) name: Name,
    /// What has the name, if anything.
    pub(crate) object: Option<Id>,
}

/// How the last component of a path is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Last {
    /// A link is followed, a mount entered.
    Followed,
    /// A mount is entered.
    Itself,
    /// The name as it stands in its directory.
    Name,
}

/// A path that leads to no name of the zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// Nowhere: a missing directory, a loop.
    Nowhere,
    /// Out of the zone, by a link that was moved upwards.
    Outside,
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    nodes: Vec<Node>,
    pub(crate) mounts: Vec<Mount>,
}

impl Model {
    pub(crate) fn new() -> Self {
        let mut model = Self {
            nodes: Vec::new(),
            mounts: vec![Mount { point: Names::new(), file_system: 0, root: Names::new() }],
        };
        model.add(Object::Directory(BTreeMap::new()), None, 0);
        model
    }

    fn add(&mut self, object: Object, above: Option<(Id, Name)>, file_system: usize) -> Id {
        self.nodes.push(Node { object, above, file_system, covered_by: None });
        self.nodes.len() - 1
    }

    pub(crate) fn object(&self, id: Id) -> &Object {
        &self.nodes[id].object
    }

    pub(crate) fn is_directory(&self, id: Id) -> bool {
        matches!(self.nodes[id].object, Object::Directory(_))
    }

    pub(crate) fn is_mount_point(&self, id: Id) -> bool {
        self.nodes[id].covered_by.is_some()
    }

    /// What a directory holds; nothing where it is none.
    pub(crate) fn entries(&self, id: Id) -> impl ExactSizeIterator<Item = (&Name, Id)> {
        static NONE: BTreeMap<Name, Id> = BTreeMap::new();
        let entries = match &self.nodes[id].object {
            Object::Directory(entries) => entries,
            _ => &NONE,
        };
        entries.iter().map(|(name, id)| (name, *id))
    }

    /// Whether a directory is the root of its file system.
    pub(crate) fn is_root(&self, id: Id) -> bool {
        self.nodes[id].above.is_none()
    }

    /// What is seen where a node is: at a mount point, what is mounted there.
    pub(crate) fn entered(&self, id: Id) -> Id {
        self.nodes[id].covered_by.unwrap_or(id)
    }

    /// Where a directory lies.
    pub(crate) fn spot_of_directory(&self, id: Id) -> Spot {
        let mut names = Names::new();
        let mut here = id;
        while let Some((above, name)) = &self.nodes[here].above {
            names.push(name.clone());
            here = *above;
        }
        names.reverse();
        Spot { file_system: self.nodes[id].file_system, names }
    }

    /// Where what a path leads to lies, or would lie.
    pub(crate) fn spot(&self, target: &Target) -> Spot {
        match target.object {
            Some(id) if self.is_directory(id) => self.spot_of_directory(id),
            _ => self.spot_of_directory(target.directory).join(std::slice::from_ref(&target.name)),
        }
    }

    /// Every path from the zone's root at which a place is seen, by the mounts of the beginning.
    pub(crate) fn views(&self, spot: &Spot) -> Vec<Names> {
        let seen = self.mounts.iter().enumerate().filter_map(|(index, mount)| {
            if mount.file_system != spot.file_system {
                return None;
            }
            let rest = spot.names.strip_prefix(mount.root.as_slice())?;
            let path = [mount.point.as_slice(), rest].concat();
            (self.holder(&path) == index).then_some(path)
        });
        seen.collect()
    }

    /// The mount that a path lies on, by its index: the deepest mount point, and of those the last.
    fn holder(&self, path: &[Name]) -> usize {
        let over = self.mounts.iter().enumerate().filter(|(_, m)| path.starts_with(&m.point));
        over.max_by_key(|(index, m)| (m.point.len(), *index)).map_or(0, |(index, _)| index)
    }

    /// Follows a path from the zone's root as the kernel does.
    pub(crate) fn resolve(&self, path: &[u8], last: Last) -> Result<Target, Lost> {
        self.walk(path, last, &mut Vec::new())
    }

    /// The same; `through` gets the places of the links that are followed, also where it leads nowhere.
    pub(crate) fn walk(
        &self,
        path: &[u8],
        last: Last,
        through: &mut Vec<Spot>,
    ) -> Result<Target, Lost> {
        let mut stack: Vec<(Id, Name)> = Vec::new();
        let mut rest = components(path);
        let mut links = 0;
        loop {
            let here = stack.last().map_or(ROOT, |(id, _)| *id);
            let Some(name) = rest.pop() else {
                // A link that leads to `.`, `..` or the zone's root: a directory without a name.
                let view = stack.into_iter().map(|(_, name)| name).collect();
                return Ok(Target { directory: here, view, name: Name::new(), object: Some(here) });
            };
            if name == b".." {
                stack.pop().ok_or(Lost::Outside)?;
                continue;
            }
            let Object::Directory(entries) = &self.nodes[here].object else {
                return Err(Lost::Nowhere);
            };
            let found = entries.get(&name).copied();
            let is_last = rest.is_empty();
            if let Some(id) = found
                && let Object::Link { rooted, target } = &self.nodes[id].object
                && (!is_last || last == Last::Followed)
            {
                links += 1;
                if links > LINKS {
                    return Err(Lost::Nowhere);
                }
                through.push(self.spot_of_directory(here).join(std::slice::from_ref(&name)));
                if *rooted {
                    stack.clear();
                }
                rest.extend(components(target));
                continue;
            }
            if is_last {
                let view = stack.into_iter().map(|(_, name)| name).collect();
                let object = match last {
                    Last::Name => found,
                    Last::Followed | Last::Itself => found.map(|id| self.entered(id)),
                };
                return Ok(Target { directory: here, view, name, object });
            }
            let next = self.entered(found.ok_or(Lost::Nowhere)?);
            if !self.is_directory(next) {
                return Err(Lost::Nowhere);
            }
            stack.push((next, name));
        }
    }

    fn put(&mut self, target: &Target, id: Id) {
        if self.is_directory(id) {
            self.nodes[id].above = Some((target.directory, target.name.clone()));
        }
        if let Object::Directory(entries) = &mut self.nodes[target.directory].object {
            entries.insert(target.name.clone(), id);
        }
    }

    fn take(&mut self, target: &Target) {
        if let Object::Directory(entries) = &mut self.nodes[target.directory].object {
            entries.remove(&target.name);
        }
    }

    fn make(&mut self, path: &[u8], last: Last, object: Object) -> Result<(), Lost> {
        let target = self.resolve(path, last)?;
        if target.object.is_none() {
            let file_system = self.nodes[target.directory].file_system;
            let id = self.add(object, None, file_system);
            self.put(&target, id);
        }
        Ok(())
    }

    /// Does what an operation that succeeded has done.
    pub(crate) fn apply(&mut self, op: &Op) -> Result<(), Lost> {
        match op.action {
            Action::Open => {
                let flags = op.flags();
                if flags & libc::O_CREAT != 0 {
                    self.make(&op.path, followed(flags), Object::File)?;
                }
            }
            Action::Mkdir => {
                self.make(&op.path, Last::Name, Object::Directory(BTreeMap::new()))?;
            }
            Action::Mknod => self.make(&op.path, Last::Name, Object::Fifo)?,
            Action::Symlink => {
                let (rooted, target) = (op.number == 1, op.second.clone());
                self.make(&op.path, Last::Name, Object::Link { rooted, target })?;
            }
            Action::Link => {
                let id = self.resolve(&op.path, Last::Itself)?.object.ok_or(Lost::Nowhere)?;
                let to = self.resolve(&op.second, Last::Name)?;
                self.put(&to, id);
            }
            Action::Unlink | Action::Rmdir => {
                let target = self.resolve(&op.path, Last::Name)?;
                self.take(&target);
            }
            Action::Rename => self.rename(op)?,
            Action::Bind => {
                let root = self.resolve(&op.path, Last::Followed)?.object.ok_or(Lost::Nowhere)?;
                self.mount(&op.second, root)?;
            }
            Action::Mount => {
                let count = self.mounts.iter().map(|mount| mount.file_system).max();
                let root = Object::Directory(BTreeMap::new());
                let root = self.add(root, None, count.map_or(0, |count| count + 1));
                self.mount(&op.path, root)?;
            }
            Action::Truncate
            | Action::Chmod
            | Action::Chown
            | Action::Times
            | Action::SetAttribute
            | Action::RemoveAttribute
            | Action::Execute
            | Action::Stat => {}
        }
        Ok(())
    }

    fn rename(&mut self, op: &Op) -> Result<(), Lost> {
        let from = self.resolve(&op.path, Last::Name)?;
        let to = self.resolve(&op.second, Last::Name)?;
        let moved = from.object.ok_or(Lost::Nowhere)?;
        // Two names of one file: the kernel leaves both.
        if to.object == Some(moved) {
            return Ok(());
        }
        if op.number & libc::RENAME_EXCHANGE != 0 {
            self.put(&from, to.object.ok_or(Lost::Nowhere)?);
        } else {
            self.take(&from);
        }
        self.put(&to, moved);
        Ok(())
    }

    fn mount(&mut self, point: &[u8], root: Id) -> Result<(), Lost> {
        let target = self.resolve(point, Last::Name)?;
        let point = target.object.ok_or(Lost::Nowhere)?;
        self.nodes[point].covered_by = Some(root);
        let Spot { file_system, names } = self.spot_of_directory(root);
        let point = [target.view, vec![target.name]].concat();
        self.mounts.push(Mount { point, file_system, root: names });
        Ok(())
    }
}

/// Flags that make a file.
pub(crate) const CREATE: u32 = (libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY).cast_unsigned();

/// How `open` takes the last component.
pub(crate) fn followed(flags: i32) -> Last {
    let exclusive = libc::O_CREAT | libc::O_EXCL;
    if flags & libc::O_NOFOLLOW != 0 || flags & exclusive == exclusive {
        Last::Itself
    } else {
        Last::Followed
    }
}

/// The components that count, innermost first.
fn components(path: &[u8]) -> Names {
    let parts = path.split(|byte| *byte == b'/').rev();
    parts.filter(|name| !name.is_empty() && *name != b".").map(<[u8]>::to_vec).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &str) -> Names {
        let mut names = components(path.as_bytes());
        names.reverse();
        names
    }

    fn model() -> Result<Model, Lost> {
        let mut model = Model::new();
        let op = |action, path: &str| Op::new(action, path.into());
        for op in [
            op(Action::Mkdir, "a"),
            op(Action::Mkdir, "a/b"),
            op(Action::Open, "a/b/f").number(CREATE),
            op(Action::Symlink, "l").second(b"a/b".to_vec()),
            op(Action::Symlink, "a/up").second(b"../l/./f".to_vec()),
            op(Action::Symlink, "loop").second(b"loop".to_vec()),
            op(Action::Symlink, "dot").second(b"a/b/..".to_vec()),
            op(Action::Mkdir, "m"),
            op(Action::Mkdir, "t"),
            op(Action::Bind, "a").second(b"m".to_vec()),
            op(Action::Mount, "t"),
            op(Action::Mkdir, "t/x"),
        ] {
            model.apply(&op)?;
        }
        Ok(model)
    }

    fn spot(model: &Model, path: &str) -> Result<(usize, Names), Lost> {
        let target = model.resolve(path.as_bytes(), Last::Followed)?;
        let Spot { file_system, names } = model.spot(&target);
        Ok((file_system, names))
    }

    #[test]
    fn paths_lead_through_links_and_mounts() -> Result<(), Lost> {
        let model = model()?;
        for path in ["a/b/f", "l/f", "a/up", "m/b/f", "m/up", "l/../b//f", "t/x/../../m/b/f"] {
            assert_eq!(spot(&model, path), Ok((0, names("a/b/f"))), "{path}");
        }
        assert_eq!(spot(&model, "t/x/new"), Ok((1, names("x/new"))));
        assert_eq!(spot(&model, "dot"), Ok((0, names("a"))));
        for path in ["loop", "a/b/f/x", "a/b/f/..", "none/x"] {
            assert_eq!(spot(&model, path), Err(Lost::Nowhere), "{path}");
        }
        assert_eq!(spot(&model, "a/../../x"), Err(Lost::Outside));
        let views = model.views(&Spot { file_system: 0, names: names("a/b/f") });
        assert_eq!(views, [names("a/b/f"), names("m/b/f")]);
        let views = model.views(&Spot { file_system: 1, names: names("x") });
        assert_eq!(views, [names("t/x")]);
        Ok(())
    }

    #[test]
    fn links_on_the_way_are_told() -> Result<(), Lost> {
        let model = model()?;
        let through = |path: &[u8], last| {
            let mut through = Vec::new();
            let _ = model.walk(path, last, &mut through);
            through.into_iter().map(|spot| spot.names).collect::<Vec<_>>()
        };
        assert_eq!(through(b"a/b/f", Last::Followed), Vec::<Names>::new());
        assert_eq!(through(b"m/up", Last::Followed), [names("a/up"), names("l")]);
        assert_eq!(through(b"m/up", Last::Name), Vec::<Names>::new());
        assert_eq!(through(b"l/none/x", Last::Name), [names("l")]);
        assert_eq!(through(b"loop", Last::Followed).len(), LINKS);
        Ok(())
    }

    #[test]
    fn a_directory_takes_what_is_in_it_along() -> Result<(), Lost> {
        let mut model = model()?;
        let rename = Op::new(Action::Rename, b"a/b".to_vec()).second(b"t2".to_vec());
        model.apply(&rename)?;
        assert_eq!(spot(&model, "t2/f"), Ok((0, names("t2/f"))));
        assert_eq!(spot(&model, "l/f"), Err(Lost::Nowhere));
        let exchange = Op::new(Action::Rename, b"t2".to_vec())
            .second(b"loop".to_vec())
            .number(libc::RENAME_EXCHANGE);
        model.apply(&exchange)?;
        assert_eq!(spot(&model, "loop/f"), Ok((0, names("loop/f"))));
        Ok(())
    }
}
