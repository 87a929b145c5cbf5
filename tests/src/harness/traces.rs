//! Everything a session may leave on the machine.

use super::eventually;
use super::kernel_objects::KernelObjects;
use anyhow::{Context as _, bail};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What there was at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Traces {
    /// Pins, cgroups, state directories, temporary directories.
    pub(crate) places: BTreeSet<PathBuf>,
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
    pub(crate) fn now() -> anyhow::Result<Self> {
        Ok(Self { objects: Some(KernelObjects::count()?), ..Self::places()? })
    }

    /// Without counting kernel objects.
    pub(crate) fn places() -> anyhow::Result<Self> {
        let mut places = BTreeSet::new();
        list(Path::new("/sys/fs/bpf/sandbox"), "", &mut places);
        list(Path::new("/run/sandbox"), "", &mut places);
        list(Path::new("/tmp"), "sandbox-", &mut places);
        let cgroups = cgroup_root()?.join("sandbox");
        list(&cgroups, "", &mut places);
        // Directories of cgroupfs are cgroups, its files are the interface of the one above.
        places.retain(|place| !place.starts_with(&cgroups) || place.is_dir());
        Ok(Self { places, objects: None })
    }

    /// More or other kernel objects than then.
    pub(crate) fn objects_differ(&self, then: &Self) -> bool {
        self.objects != then.objects
    }

    /// Fails unless soon everything is as it was then. The kernel frees links a little after their
    /// pins are gone.
    pub(crate) fn must_return(&self) -> anyhow::Result<()> {
        let now = || match self.objects {
            Some(_) => Self::now(),
            None => Self::places(),
        };
        let same = || now().is_ok_and(|now| now == *self).then_some(());
        if eventually(Duration::from_secs(20), same).is_some() {
            return Ok(());
        }
        let now = now()?;
        let left: Vec<_> = now.places.difference(&self.places).collect();
        let (was, is) = (self.objects, now.objects);
        bail!("not as before: left over {left:?}; kernel objects were {was:?}, are {is:?}")
    }
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
