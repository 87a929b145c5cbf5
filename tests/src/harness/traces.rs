//! Everything a session may leave on the machine.

use super::engine::{PINS, engines};
use super::eventually;
use super::kernel_objects::{KernelObjects, entries_of, memory_of};
use anyhow::{Context as _, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What there was at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Traces {
    /// Pins, cgroups, state directories, temporary directories.
    pub(crate) places: BTreeSet<PathBuf>,
    /// Entries of every map of every engine.
    entries: BTreeMap<PathBuf, usize>,
    /// `None` where others than sessions load programs too.
    objects: Option<KernelObjects>,
}

/// Where cgroup v2 is mounted.
pub(crate) fn cgroup_root() -> anyhow::Result<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mounts")?;
    let found = table.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(place))
    });
    found.context("cgroup v2 is not mounted on this machine")
}

impl Traces {
    /// As soon as the kernel is at rest: it frees what an earlier test used with a delay.
    pub(crate) fn now() -> anyhow::Result<Self> {
        let mut last = KernelObjects::count()?;
        loop {
            std::thread::sleep(Duration::from_secs(1));
            let count = KernelObjects::count()?;
            if count == last {
                return Ok(Self { objects: Some(count), ..Self::places()? });
            }
            last = count;
        }
    }

    /// Without counting kernel objects.
    pub(crate) fn places() -> anyhow::Result<Self> {
        let mut places = BTreeSet::new();
        list(Path::new(PINS), "", &mut places);
        for engine in engines() {
            list(&engine.join("sessions"), "", &mut places);
        }
        list(Path::new("/run/sandbox"), "", &mut places);
        list(Path::new("/tmp"), "sandbox-", &mut places);
        let cgroups = cgroup_root()?.join("sandbox");
        list(&cgroups, "", &mut places);
        // Directories of cgroupfs are cgroups, its files are the interface of the one above. Files
        // of the state directory (a lock) belong to no session.
        let flat = [cgroups.as_path(), Path::new("/run/sandbox")];
        places.retain(|place| place.is_dir() || !flat.iter().any(|flat| place.starts_with(flat)));
        Ok(Self { places, entries: entries()?, objects: None })
    }

    /// How many programs the kernel held, where they were counted.
    pub(crate) fn programs(&self) -> Option<usize> {
        self.objects.map(|objects| objects.programs)
    }

    /// Fails unless soon nothing is there that was not there then.
    pub(crate) fn must_return(&self) -> anyhow::Result<()> {
        self.must_return_within(Duration::from_secs(30))
    }

    /// Fails unless nothing is there now that was not there then.
    pub(crate) fn must_return_at_once(&self) -> anyhow::Result<()> {
        self.must_return_within(Duration::ZERO)
    }

    fn must_return_within(&self, patience: Duration) -> anyhow::Result<()> {
        let now = || -> anyhow::Result<Self> {
            let objects = self.objects.map(|_| KernelObjects::count()).transpose()?;
            Ok(Self { objects, ..Self::places()? })
        };
        let same = |now: &Self| {
            let objects = self.objects.zip(now.objects);
            now.places == self.places
                && now.surplus(self).is_empty()
                && objects.is_none_or(|(was, is)| is.within(was))
        };
        if eventually(patience, || now().ok().filter(&same)).is_some() {
            return Ok(());
        }
        let now = now()?;
        let left: Vec<_> = now.places.difference(&self.places).collect();
        let gone: Vec<_> = self.places.difference(&now.places).collect();
        let (was, is, more) = (self.objects, now.objects, now.surplus(self));
        bail!(
            "left over {left:?}, gone {gone:?}; kernel objects were {was:?}, are {is:?}; entries of \
             maps, then and now: {more:?}"
        )
    }

    /// Maps that have more entries than then.
    fn surplus(&self, then: &Self) -> Vec<(&Path, usize, usize)> {
        let more = self.entries.iter().filter_map(|(map, is)| {
            let was = then.entries.get(map).copied().unwrap_or(0);
            (*is > was).then_some((map.as_path(), was, *is))
        });
        more.collect()
    }
}

/// How many entries the maps of all engines have; a session leaves none.
fn entries() -> anyhow::Result<BTreeMap<PathBuf, usize>> {
    let mut found = of_maps(entries_of)?;
    // Which numbers of superblocks are counted is the engine's, and ends with it.
    found.retain(|map, _| !map.ends_with("DEATHS"));
    Ok(found)
}

/// Bytes of kernel memory that the maps of all engines take.
pub(crate) fn memory() -> anyhow::Result<BTreeMap<PathBuf, u64>> {
    of_maps(memory_of)
}

fn of_maps<T>(
    what: impl Fn(&Path) -> std::io::Result<Option<T>>,
) -> anyhow::Result<BTreeMap<PathBuf, T>> {
    let mut found = BTreeMap::new();
    for engine in engines() {
        let mut maps = BTreeSet::new();
        list(&engine.join("maps"), "", &mut maps);
        for map in maps {
            // An engine that is going away while it is looked at has nothing left.
            if let Some(told) = what(&map).with_context(|| format!("{}", map.display()))? {
                found.insert(map, told);
            }
        }
    }
    Ok(found)
}

fn list(directory: &Path, prefix: &str, places: &mut BTreeSet<PathBuf>) {
    // A directory that is absent holds nothing.
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            places.insert(entry.path());
        }
    }
}
