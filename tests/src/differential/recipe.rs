//! From a model back to operations.

use super::model::{CREATE, Id, Model, Object, ROOT};
use super::operation::{Action, Op};
use std::collections::BTreeMap;

impl Model {
    /// Operations that make this zone anew.
    pub(crate) fn recipe(&self) -> Vec<Op> {
        let mut ops = Vec::new();
        let mut binds = Vec::new();
        let mut first_name: BTreeMap<Id, Vec<u8>> = BTreeMap::new();
        let mut waiting = vec![(ROOT, Vec::new())];
        while let Some((directory, path)) = waiting.pop() {
            for (name, id) in self.entries(directory) {
                let path = if path.is_empty() {
                    name.clone()
                } else {
                    [path.as_slice(), name].join(&b'/')
                };
                if let Some(first) = first_name.get(&id) {
                    ops.push(Op::new(Action::Link, first.clone()).second(path));
                    continue;
                }
                let op = |action| Op::new(action, path.clone());
                ops.push(match self.object(id) {
                    Object::Directory(_) => op(Action::Mkdir),
                    Object::File => op(Action::Open).number(CREATE),
                    Object::Fifo => op(Action::Mknod),
                    Object::Link { rooted, target } => {
                        op(Action::Symlink).number((*rooted).into()).second(target.clone())
                    }
                });
                if !self.is_directory(id) {
                    first_name.insert(id, path);
                    continue;
                }
                let inside = self.entered(id);
                if inside == id {
                    waiting.push((id, path));
                } else if self.is_root(inside) && inside != ROOT {
                    ops.push(op(Action::Mount));
                    waiting.push((inside, path));
                } else {
                    let from = self.spot_of_directory(inside).names.join(&b'/');
                    binds.push(Op::new(Action::Bind, from).second(path));
                }
            }
        }
        ops.append(&mut binds);
        ops
    }
}
