//! Debian's archive through apt itself, kept apart from this system's own packages: its own
//! sources, indexes and downloads, so that suites of other releases can be read. apt checks the
//! signatures and hashes, and honours the system's proxies and credentials.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::cache::Cache;
use crate::command::{output, progress, run};
use crate::packages;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const SUITES: &[&str] = &["bookworm", "trixie", "trixie-backports"];
const SECURITY_SUITES: &[&str] = &["bookworm-security", "trixie-security"];
/// Names by which apt sources mean Debian, as opposed to a third party or another distribution.
const DEBIAN: &[&str] =
    &["bookworm", "trixie", "forky", "duke", "sid", "oldstable", "stable", "testing", "unstable"];

/// The archive with fresh indexes.
pub(crate) struct Apt {
    config: PathBuf,
    mirrors: Mirrors,
}

/// Base addresses of a Debian archive and, where known, of its security archive.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mirrors {
    main: Option<String>,
    security: Option<String>,
}

impl Apt {
    /// Takes the mirror from `SANDBOX_MIRROR` or this system's apt sources and reads its indexes.
    pub(crate) fn open(cache: &Cache) -> Result<Self> {
        packages::ensure(packages::KERNELS)?;
        packages::ensure(&[(KEYRING, "debian-archive-keyring")])?;
        let mut mirrors = Mirrors::default();
        for file in source_files() {
            let text = fs::read_to_string(&file)
                .with_context(|| format!("cannot read {}", file.display()))?;
            if file.extension() == Some(OsStr::new("sources")) {
                mirrors.read_deb822(&text);
            } else {
                mirrors.read_one_line_style(&text);
            }
        }
        if let Ok(mirror) = std::env::var("SANDBOX_MIRROR") {
            mirrors.main = Some(mirror);
        }
        let home = cache.path("apt");
        for directory in ["state/lists/partial", "cache/archives/partial"] {
            let directory = home.join(directory);
            fs::create_dir_all(&directory)
                .with_context(|| format!("cannot make {}", directory.display()))?;
        }
        let sources = home.join("sources.list");
        let suites: Vec<_> = SUITES.iter().chain(SECURITY_SUITES).copied().collect();
        write(&sources, &mirrors.sources(&suites)?)?;
        let config = home.join("apt.conf");
        write(&config, &configuration(&home))?;
        let apt = Self { config, mirrors };
        progress("reading the archive's package indexes");
        if let Err(error) = run(apt.command("apt-get").args(["update", "-qq"])) {
            progress(&format!("{error:#}; going on with what was read"));
        }
        Ok(apt)
    }

    /// Names of all packages that begin with `prefix`.
    pub(crate) fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let names = output(self.command("apt-cache").args(["pkgnames", prefix]))?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    /// The version of each package that would be installed. A name that the archive lacks fails.
    pub(crate) fn versions<N: AsRef<str>>(&self, names: &[N]) -> Result<BTreeMap<String, String>> {
        let names: Vec<_> = names.iter().map(AsRef::as_ref).collect();
        let mut show = self.command("apt-cache");
        let text = output(show.args(["show", "--no-all-versions"]).args(&names))?;
        let versions = parse_versions(&text);
        if let Some(missing) = names.iter().find(|name| !versions.contains_key(**name)) {
            bail!("the archive has no package {missing}");
        }
        Ok(versions)
    }

    /// All versions of a package that the archive has, newest first.
    pub(crate) fn all_versions(&self, name: &str) -> Result<Vec<String>> {
        let table = output(self.command("apt-cache").args(["madison", name]))?;
        let version = |line: &str| line.split('|').nth(1).map(|version| version.trim().to_owned());
        Ok(table.lines().filter_map(version).collect())
    }

    /// Downloads packages, checked against the signed index, into a directory; gives their paths.
    pub(crate) fn download(
        &self,
        versions: &BTreeMap<String, String>,
        directory: &Path,
    ) -> Result<Vec<PathBuf>> {
        let names: Vec<_> = versions.keys().map(String::as_str).collect();
        progress(&format!("downloading {}", names.join(" ")));
        let exact = versions.iter().map(|(name, version)| format!("{name}={version}"));
        let mut download = self.command("apt-get");
        download.args(["download", "-qq"]).args(exact).current_dir(directory);
        run(&mut download)?;
        let mut files = Vec::new();
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.extension() == Some(OsStr::new("deb")) {
                files.push(path);
            }
        }
        if files.len() != versions.len() {
            bail!("{} packages asked for, {} came", versions.len(), files.len());
        }
        Ok(files)
    }

    /// An apt sources list of one release with its security updates.
    pub(crate) fn release_sources(&self, release: &str) -> Result<String> {
        self.mirrors.sources(&[release, &format!("{release}-security")])
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", &self.config).env("LC_ALL", "C");
        command
    }
}

/// Whether Debian version `a` is newer than `b`.
pub(crate) fn is_newer(a: &str, b: &str) -> bool {
    let status = Command::new("dpkg").args(["--compare-versions", a, "gt", b]).status();
    status.is_ok_and(|status| status.success())
}

impl Mirrors {
    /// Lines of the form `deb [options] URI suite component…`.
    fn read_one_line_style(&mut self, text: &str) {
        for line in text.lines() {
            let line = line.split('#').next().unwrap_or_default();
            let Some(rest) = line.trim().strip_prefix("deb ") else { continue };
            let rest = rest.trim_start();
            let rest = match rest.strip_prefix('[') {
                Some(options) => options.split_once(']').map_or("", |(_, rest)| rest),
                None => rest,
            };
            let mut words = rest.split_whitespace();
            if let (Some(uri), Some(suite)) = (words.next(), words.next()) {
                self.add(uri, suite);
            }
        }
    }

    /// Stanzas of `Field: value` lines, see sources.list(5).
    fn read_deb822(&mut self, text: &str) {
        let lines: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
        for stanza in lines.split(|line| line.trim().is_empty()) {
            let mut fields = BTreeMap::<String, Vec<&str>>::new();
            let mut current = String::new();
            for line in stanza {
                let value = if line.starts_with([' ', '\t']) {
                    *line
                } else {
                    let (field, value) = line.split_once(':').unwrap_or((line, ""));
                    current = field.trim().to_ascii_lowercase();
                    value
                };
                fields.entry(current.clone()).or_default().extend(value.split_whitespace());
            }
            let get = |field: &str| fields.get(field).map_or(&[][..], Vec::as_slice);
            if get("enabled") == ["no"] || !get("types").contains(&"deb") {
                continue;
            }
            for uri in get("uris") {
                for suite in get("suites") {
                    self.add(uri, suite);
                }
            }
        }
    }

    /// Keeps the first address of each kind.
    fn add(&mut self, uri: &str, suite: &str) {
        let (release, pocket) = suite.split_once(['-', '/']).unwrap_or((suite, ""));
        if !DEBIAN.contains(&release) {
            return;
        }
        let place = match pocket {
            "" | "updates" | "backports" => &mut self.main,
            "security" | "updates-security" => &mut self.security,
            _ => return,
        };
        place.get_or_insert_with(|| uri.trim_end_matches('/').to_owned());
    }

    /// The lines of a sources list; security suites are left out where no mirror has them.
    fn sources(&self, suites: &[&str]) -> Result<String> {
        let Some(main) = &self.main else {
            bail!(
                "no mirror of Debian in this system's apt sources; set SANDBOX_MIRROR to the \
                 address of one (it ends in /debian)"
            );
        };
        let mut lines = String::new();
        for suite in suites {
            let mirror =
                if suite.ends_with("-security") { self.security.as_ref() } else { Some(main) };
            if let Some(mirror) = mirror {
                writeln!(lines, "deb [signed-by={KEYRING}] {mirror} {suite} main")?;
            }
        }
        Ok(lines)
    }
}

fn source_files() -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(entries.flatten().map(|entry| entry.path()));
    }
    files.retain(|file| {
        let extension = file.extension().and_then(OsStr::to_str);
        file.is_file() && matches!(extension, Some("list" | "sources"))
    });
    files.sort();
    files
}

fn configuration(home: &Path) -> String {
    let home = home.display();
    format!(
        "Dir::Etc::sourcelist \"{home}/sources.list\";\n\
         Dir::Etc::sourceparts \"/dev/null\";\n\
         Dir::Etc::preferences \"/dev/null\";\n\
         Dir::Etc::preferencesparts \"/dev/null\";\n\
         Dir::State \"{home}/state\";\n\
         Dir::State::status \"/dev/null\";\n\
         Dir::Cache \"{home}/cache\";\n\
         APT::Architecture \"amd64\";\n\
         APT::Sandbox::User \"root\";\n\
         Acquire::Languages \"none\";\n\
         Acquire::IndexTargets::deb::DEP-11::DefaultEnabled \"false\";\n\
         #clear APT::Architectures;\n\
         #clear APT::Update::Post-Invoke-Success;\n\
         #clear DPkg::Post-Invoke;\n"
    )
}

/// `Package` and `Version` of each stanza; the first of a name counts.
fn parse_versions(text: &str) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::new();
    let mut package = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("Package: ") {
            package = Some(name.to_owned());
        } else if let Some(version) = line.strip_prefix("Version: ")
            && let Some(name) = package.take()
        {
            versions.entry(name).or_insert_with(|| version.to_owned());
        }
    }
    versions
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirrors(main: &str, security: &str) -> Mirrors {
        Mirrors { main: Some(main.to_owned()), security: Some(security.to_owned()) }
    }

    #[test]
    fn one_line_style() {
        let mut found = Mirrors::default();
        found.read_one_line_style(
            "# deb http://commented.test/debian trixie main\n\
             deb-src http://source.test/debian trixie main\n\
             deb https://packages.test/tool bookworm-tool main\n\
             deb [arch=amd64 signed-by=/k.gpg] http://a.test/debian/ bookworm main # note\n\
             deb http://b.test/debian bookworm main\n\
             deb http://a.test/debian-security bookworm-security main\n",
        );
        assert_eq!(found, mirrors("http://a.test/debian", "http://a.test/debian-security"));
    }

    #[test]
    fn deb822_with_folded_fields_and_disabled_stanzas() {
        let mut found = Mirrors::default();
        found.read_deb822(
            "Types: deb\nEnabled: no\nURIs: http://off.test/debian\nSuites: trixie\n\n\
             # comment\nTypes: deb deb-src\nURIs: http://a.test/debian\n\
             Suites: trixie\n trixie-updates\nComponents: main\n\n\
             Types: deb\nURIs: http://s.test/x\nSuites: trixie-security\n\n\
             Types: deb\nURIs: http://other.test/\nSuites: nodistro noble\n",
        );
        assert_eq!(found, mirrors("http://a.test/debian", "http://s.test/x"));
    }

    #[test]
    fn no_mirror_is_an_error_that_says_what_to_set() {
        let error = Mirrors::default().sources(SUITES).expect_err("no mirror");
        assert!(error.to_string().contains("SANDBOX_MIRROR"));
    }

    #[test]
    fn security_suites_need_a_security_mirror() {
        let only_main = Mirrors { main: Some("http://a.test/debian".into()), security: None };
        let lines = only_main.sources(&["trixie", "trixie-security"]).expect("main is known");
        assert_eq!(lines, format!("deb [signed-by={KEYRING}] http://a.test/debian trixie main\n"));
    }

    #[test]
    fn versions_of_an_index() {
        let text = "Package: a\nDepends: b\nVersion: 1:2-3\n\nPackage: b\nVersion: 4\n\n\
                    Package: a\nVersion: 0\n";
        let versions = parse_versions(text);
        assert_eq!(versions["a"], "1:2-3");
        assert_eq!(versions["b"], "4");
    }
}
