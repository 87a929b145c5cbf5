//! Directories in the place of many paths in them.

use std::collections::{BTreeMap, BTreeSet};

/// So many things directly in a directory are worth naming the directory.
const DIRECTLY: usize = 3;
/// So many anywhere beneath it are, too.
const BENEATH: usize = 8;

/// Replaces paths by directories with all beneath them, wherever there are many in one and `may` permits it.
/// Each result: the path, whether it stands for all beneath it, and the paths that it stands for.
pub fn generalise<'a>(
    paths: impl IntoIterator<Item = &'a str>,
    may: &dyn Fn(&str) -> bool,
) -> Vec<(String, bool, Vec<&'a str>)> {
    let mut units: BTreeMap<String, (bool, Vec<&'a str>)> =
        paths.into_iter().map(|path| (path.to_owned(), (false, vec![path]))).collect();
    // By depth, so that the deepest directories come first.
    let mut directories: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    let enter = |directories: &mut BTreeMap<usize, BTreeSet<String>>, path: &str| {
        for directory in above(path) {
            directories.entry(depth(directory)).or_default().insert(directory.to_owned());
        }
    };
    for path in units.keys() {
        enter(&mut directories, path);
    }
    while let Some((_, level)) = directories.pop_last() {
        for directory in level {
            let prefix = format!("{directory}/");
            let end = format!("{directory}0"); // '0' follows '/'.
            let within: Vec<String> =
                units.range(prefix.clone()..end).map(|(path, _)| path.clone()).collect();
            let direct = within.iter().filter(|path| !path[prefix.len()..].contains('/')).count();
            if (direct < DIRECTLY && within.len() < BENEATH) || !may(&directory) {
                continue;
            }
            let covered = within.iter().filter_map(|path| units.remove(path));
            let mut covered: Vec<&str> = covered.flat_map(|(_, paths)| paths).collect();
            // The directory itself, where it was wanted too.
            covered.extend(units.remove(&directory).into_iter().flat_map(|(_, own)| own));
            units.insert(directory, (true, covered));
        }
    }
    units.into_iter().map(|(path, (all, paths))| (path, all, paths)).collect()
}

/// The directories above a path, the root left out.
fn above(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| &path[..end]).filter(|path| !path.is_empty())
}

fn depth(path: &str) -> usize {
    path.matches('/').count()
}
