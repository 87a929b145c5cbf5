//! Kernels of Debian's archive, the newest of a series: image and modules, ready to boot.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::apt::{Apt, is_newer};
use crate::cache::{self, Cache};
use crate::command::{progress, run};

/// What is tested: the oldest kernel that is supported, Debian 13's, and the newest there is.
pub(crate) const SERIES: &[&str] = &["6.1", "6.12", "7"];
/// Where the machine needs any kernel of its own.
pub(crate) const DEFAULT_SERIES: &str = "6.12";

/// Debian's kernel for virtual machines: smaller, and with virtio, ext4 and BTF like the other.
const FLAVOUR: &str = "-cloud-amd64";
/// Without these nothing of the project can run; better said before the boot.
const NEEDED: &[&str] = &["CONFIG_DEBUG_INFO_BTF=y", "CONFIG_BPF_LSM=y"];

/// A kernel in the cache.
#[derive(Clone)]
pub(crate) struct Kernel {
    pub(crate) series: String,
    /// What `uname -r` says.
    pub(crate) release: String,
    pub(crate) image: PathBuf,
    /// The directory with `modules.dep`.
    pub(crate) modules: PathBuf,
}

/// The newest release of a series and the packages it consists of.
#[derive(Debug, PartialEq, Eq)]
struct Choice {
    release: String,
    packages: Vec<String>,
}

impl Kernel {
    /// The kernel of this series from the cache, or fetched if there is none yet.
    pub(crate) fn obtain(cache: &Cache, series: &str) -> Result<Self> {
        match Self::cached(cache, series)? {
            Some(kernel) => Ok(kernel),
            None => Self::newest(cache, &Apt::open(cache)?, series),
        }
    }

    /// The newest kernel of this series that the archive has, fetched unless it is in the cache.
    pub(crate) fn newest(cache: &Cache, apt: &Apt, series: &str) -> Result<Self> {
        let what = || format!("kernel {series} from the archive");
        let mut names = apt.names("linux-image-")?;
        names.extend(apt.names("linux-binary-")?);
        let Some(choice) = choose(&names, series) else {
            bail!("the archive has no kernel of the series {series}");
        };
        let versions = apt.versions(&choice.packages).with_context(what)?;
        let mut record = format!("{}\n", choice.release);
        for (name, version) in &versions {
            writeln!(record, "{name} {version}")?;
        }
        let place = directory(series);
        if fs::read_to_string(cache.path(&place).join("record")).is_ok_and(|old| old == record) {
            progress(&format!("kernel {series}: {} is in the cache", choice.release));
        } else {
            let fill = |to: &Path| fill(to, apt, &choice.release, &versions, &record);
            cache.replace(&place, fill).with_context(what)?;
        }
        Self::cached(cache, series)?.context("the kernel just fetched is not in the cache")
    }

    fn cached(cache: &Cache, series: &str) -> Result<Option<Self>> {
        let valid = series.split('.').all(|part| part.parse::<u32>().is_ok());
        if !valid {
            bail!(
                "{series:?} is no kernel series; write for example 6.12, or 7 for the newest 7.x"
            );
        }
        let directory = cache.path(&directory(series));
        let Ok(record) = fs::read_to_string(directory.join("record")) else { return Ok(None) };
        let release = record.lines().next().unwrap_or_default().to_owned();
        let modules = directory.join("lib/modules").join(&release);
        let image = directory.join("vmlinuz");
        Ok(Some(Self { series: series.to_owned(), release, image, modules }))
    }
}

fn directory(series: &str) -> String {
    format!("kernels/{series}")
}

fn fill(
    to: &Path,
    apt: &Apt,
    release: &str,
    versions: &BTreeMap<String, String>,
    record: &str,
) -> Result<()> {
    let tree = to.join("tree");
    for package in apt.download(versions, to)? {
        run(Command::new("dpkg-deb").arg("--extract").args([&package, &tree]))?;
        fs::remove_file(&package)?;
    }
    // Up to 6.18 files are in /boot, later beside the modules, which moved to /usr before that.
    let modules = ["usr/lib/modules", "lib/modules"].map(|place| tree.join(place).join(release));
    let find = |boot: &str, name: &str| {
        let mut places = vec![tree.join("boot").join(format!("{boot}-{release}"))];
        places.extend(modules.iter().map(|directory| directory.join(name)));
        places.into_iter().find(|path| path.exists())
    };
    let image = find("vmlinuz", "vmlinuz").context("the packages hold no kernel image")?;
    let config = find("config", "config").context("the packages hold no kernel configuration")?;
    let config = fs::read_to_string(config).context("cannot read the kernel's configuration")?;
    if let Some(option) = NEEDED.iter().find(|option| !config.lines().any(|line| line == **option))
    {
        bail!("the kernel {release} is built without {option}");
    }
    fs::rename(image, to.join("vmlinuz"))?;
    let Some(modules) = modules.iter().find(|directory| directory.join("kernel").exists()) else {
        bail!("the packages hold no modules");
    };
    fs::create_dir_all(to.join("lib/modules"))?;
    fs::rename(modules, to.join("lib/modules").join(release))?;
    run(Command::new(crate::command::find("depmod").context("no depmod: install kmod")?)
        .arg("--basedir")
        .arg(to)
        .arg(release))?;
    cache::remove(&tree)?;
    fs::write(to.join("record"), record).context("cannot write the record")
}

/// Among all package names, the newest kernel of a series. Newer kernels come in three packages,
/// older ones in one, whose signed form may lag behind the unsigned.
fn choose(names: &[String], series: &str) -> Option<Choice> {
    let version = |name: &str| {
        let rest = name.strip_prefix("linux-image-").or(name.strip_prefix("linux-binary-"))?;
        let version = rest.strip_suffix("-unsigned").unwrap_or(rest).strip_suffix(FLAVOUR)?;
        let patch = version.strip_prefix(series)?.strip_prefix('.')?;
        patch.starts_with(|c: char| c.is_ascii_digit()).then(|| version.to_owned())
    };
    let newest = names
        .iter()
        .filter_map(|name| version(name))
        .reduce(|newest, other| if is_newer(&other, &newest) { other } else { newest })?;
    let release = format!("{newest}{FLAVOUR}");
    let image = format!("linux-image-{release}");
    let packages = if names.contains(&format!("linux-binary-{release}")) {
        ["base", "binary", "modules"].map(|part| format!("linux-{part}-{release}")).to_vec()
    } else if names.contains(&image) {
        vec![image]
    } else {
        vec![format!("{image}-unsigned")]
    };
    Some(Choice { release, packages })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        [
            "linux-image-6.1.0-9-cloud-amd64",
            "linux-image-6.1.0-57-cloud-amd64-unsigned",
            "linux-image-6.1.0-50-cloud-amd64",
            "linux-image-6.1.0-58-cloud-amd64-dbg",
            "linux-image-6.1.0-59-amd64",
            "linux-image-6.12-cloud-amd64",
            "linux-image-6.12.90+deb13.1-cloud-amd64",
            "linux-image-6.12.90+deb13-cloud-amd64",
            "linux-image-6.12.90+deb13.1-cloud-amd64-unsigned",
            "linux-image-7.2.12+deb13-cloud-amd64",
            "linux-binary-7.2.12+deb13-cloud-amd64",
            "linux-binary-7.10.1+deb13-cloud-amd64",
        ]
        .map(str::to_owned)
        .to_vec()
    }

    #[track_caller]
    fn check(series: &str, release: &str, packages: &[&str]) {
        let choice = choose(&names(), series).expect("the series is there");
        assert_eq!(choice.release, release);
        assert_eq!(choice.packages, packages);
    }

    #[test]
    fn the_newest_of_a_series_is_found() {
        check("6.1", "6.1.0-57-cloud-amd64", &["linux-image-6.1.0-57-cloud-amd64-unsigned"]);
    }

    #[test]
    fn signed_is_taken_where_it_is_as_new() {
        let release = "6.12.90+deb13.1-cloud-amd64";
        check("6.12", release, &["linux-image-6.12.90+deb13.1-cloud-amd64"]);
    }

    #[test]
    fn split_packages_are_all_taken() {
        let parts = [
            "linux-base-7.10.1+deb13-cloud-amd64",
            "linux-binary-7.10.1+deb13-cloud-amd64",
            "linux-modules-7.10.1+deb13-cloud-amd64",
        ];
        check("7", "7.10.1+deb13-cloud-amd64", &parts);
    }

    #[test]
    fn an_absent_series_is_none() {
        assert_eq!(choose(&names(), "5.10"), None);
        assert_eq!(choose(&names(), "6"), choose(&names(), "6.12"));
    }
}
