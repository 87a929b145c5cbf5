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
        list(Path::new("/sys/fs/bpf/sandbox"), "", &mut places);
        list(Path::new("/run/sandbox"), "", &mut places);
        list(Path::new("/tmp"), "sandbox-", &mut places);
        let cgroups = cgroup_root()?.join("sandbox");
        list(&cgroups, "", &mut places);
        // Directories of cgroupfs are cgroups, its files are the interface of the one above. Files
        // of the state directory (a lock) belong to no session.
        let flat = [cgroups.as_path(), Path::new("/run/sandbox")];
        places.retain(|place| place.is_dir() || !flat.iter().any(|flat| place.starts_with(flat)));
        Ok(Self { places, objects: None })
    }

    /// More or other kernel objects than then.
    pub(crate) fn objects_differ(&self, then: &Self) -> bool {
        self.objects != then.objects
    }

    /// Fails unless soon nothing is there that was not there then.
    pub(crate) fn must_return(&self) -> anyhow::Result<()> {
        let now = || -> anyhow::Result<Self> {
            let objects = self.objects.map(|_| KernelObjects::count()).transpose()?;
            Ok(Self { objects, ..Self::places()? })
        };
        let same = |now: &Self| {
            let objects = self.objects.zip(now.objects);
            now.places == self.places && objects.is_none_or(|(was, is)| is.within(was))
        };
        if eventually(Duration::from_secs(30), || now().ok().filter(&same)).is_some() {
            return Ok(());
        }
        let now = now()?;
        let left: Vec<_> = now.places.difference(&self.places).collect();
        let gone: Vec<_> = self.places.difference(&now.places).collect();
        let (was, is) = (self.objects, now.objects);
        bail!("left over {left:?}, gone {gone:?}; kernel objects were {was:?}, are {is:?}")
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
