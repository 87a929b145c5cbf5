//! What of the wanted is proposed, and what is left to be asked for.

use super::generalise::generalise;
use super::observe::{Evidence, Observed, What};
use crate::dns::is_of_this_site;
use crate::kernel::mounts::{to_components, to_path};
use crate::policy::check::path::spelled_out;
use crate::policy::decide;
use crate::policy::expand::{Context, Placed};
use crate::policy::rule::{Defaults, Kind};
use crate::policy::{Policy, PolicyError, expand, load_text};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

/// The presets that say what is closed knowingly.
const GUARDS: [&str; 3] = ["credentials", "persistence", "agents"];
/// Places that belong to the whole machine: what is written there is named by itself.
const SYSTEM: [&str; 14] = [
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/opt", "/proc", "/root", "/run",
    "/sbin", "/sys", "/usr",
];
/// Directories that many programs share: never proposed with all beneath them.
const SHARED: [&str; 16] = [
    "/var/lib",
    "/var/log",
    "/var/cache",
    "/var/spool",
    "/var/tmp",
    "/usr/lib",
    "/usr/share",
    "/usr/bin",
    "/usr/local",
    "/run/user",
    "/home",
    "/tmp",
    "/mnt",
    "/media",
    "/srv",
    "/var",
];
/// The same beneath a home.
const SHARED_AT_HOME: [&str; 10] = [
    ".cache",
    ".config",
    ".local",
    ".local/share",
    ".local/state",
    ".local/bin",
    ".local/lib",
    "bin",
    "Documents",
    "Downloads",
];
/// Accesses and the lists that open them.
const LISTS: [(&str, Kind); 4] = [
    ("files.read.allow", Kind::Read),
    ("files.write.allow", Kind::Write),
    ("files.exec.allow", Kind::Execute),
    ("network.unix.allow", Kind::Connect),
];

/// A rule that is proposed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Proposed {
    /// The list.
    pub key: &'static str,
    /// The entry.
    pub rule: String,
    /// Who wanted what of it: one line.
    pub evidence: String,
}

/// Something that is not proposed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Left {
    /// What, as it can be asked for.
    pub what: String,
    /// The list that would open it.
    pub key: &'static str,
    /// Why not.
    pub why: String,
    /// Who wanted it.
    pub evidence: String,
}

/// A proposal.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Proposal {
    /// Presets that are extended besides, so that what is opened does not open what they close.
    pub extends: Vec<&'static str>,
    /// Rules to be added.
    pub rules: Vec<Proposed>,
    /// What is left out.
    pub left: Vec<Left>,
}

/// Where it is to hold, and what was asked for by itself.
pub struct Place<'a> {
    /// The present policy, with its layers.
    pub policy: &'a Policy,
    /// What its variables stand for.
    pub context: &'a Context,
    /// Paths and addresses that are proposed although they are closed knowingly.
    pub include: &'a [String],
    /// Presets that the user does without.
    pub except: &'a BTreeSet<String>,
}

/// What is closed knowingly, here.
pub struct Guard {
    placed: Vec<Placed>,
    /// Those of them that are spelled out and about reading.
    secret: Vec<Placed>,
    places: BTreeMap<Kind, Vec<String>>,
}

impl Guard {
    /// Of the presets that the user does not do without.
    pub fn new(place: &Place<'_>) -> Result<Self, PolicyError> {
        let names: Vec<&str> =
            GUARDS.into_iter().filter(|name| !place.except.contains(*name)).collect();
        let policy = load_text("guard", format!("version = 1\nextends = {names:?}\n"))?;
        let denied = expand::expand(&policy, place.context)?;
        let placed: Vec<Placed> = denied.into_iter().filter(|rule| !rule.allow).collect();
        let mut closed: BTreeMap<Kind, Vec<String>> = BTreeMap::new();
        for rule in placed.iter().filter(|rule| rule.tail.is_empty()) {
            if let Some(path) = to_path(&rule.path).to_str() {
                for kind in Kind::of(rule.access) {
                    closed.entry(kind).or_default().push(path.to_owned());
                }
            }
        }
        let secrets = |rule: &&Placed| rule.speaks_of(Kind::Read) && rule.tail.is_empty();
        let secret = placed.iter().filter(secrets).cloned().collect();
        Ok(Self { placed, secret, places: closed })
    }

    /// Whether one of its rules closes a path. Places that may not be read are not written either.
    pub fn closes(&self, kind: Kind, path: &str) -> bool {
        let path = to_components(Path::new(path));
        let open = Defaults::OPEN;
        let denied = |kind| !decide::path(&self.placed, open, kind, &path).allow;
        match kind {
            Kind::Write => {
                denied(kind) || !decide::path(&self.secret, open, Kind::Read, &path).allow
            }
            _ => denied(Kind::Read) || denied(kind),
        }
    }

    /// Whether a place that is closed lies in a directory, or is it.
    fn holds(&self, kind: Kind, directory: &str) -> bool {
        let kinds = [Kind::Read, kind];
        let mut places = kinds.iter().filter_map(|kind| self.places.get(kind)).flatten();
        places.any(|place| Path::new(place).starts_with(directory))
    }

    /// Whether a directory lies in a place that is closed, or has one in it.
    fn touches(&self, kind: Kind, directory: &str) -> bool {
        self.holds(kind, directory) || self.closes(kind, &format!("{directory}/x"))
    }
}

/// Judges what was wanted.
pub fn propose(observed: &Observed, place: &Place<'_>) -> Result<Proposal, PolicyError> {
    let guard = Guard::new(place)?;
    let mut proposal = Proposal::default();
    let known = |name: &str| {
        let source = format!("preset:{name}");
        place.policy.layers().any(|layer| layer.sources.iter().any(|known| known.name == source))
    };
    for (list, kind) in LISTS {
        let mut open: BTreeMap<&str, &Evidence> = BTreeMap::new();
        for ((key, what), evidence) in &observed.wanted {
            let What::Path(path) = what else { continue };
            if *key != list {
                continue;
            }
            // A rule on a directory opens all beneath it.
            let wide = wide(path, place.context) || guard.touches(kind, path);
            let wide = wide && !place.include.iter().any(|include| include == path);
            let why = closed(kind, path, evidence, &guard, place).or_else(|| {
                let why = "it is a directory of many, or has places in it that are closed: name what is meant";
                wide.then(|| why.to_owned())
            });
            match why {
                Some(why) => proposal.left.push(Left {
                    what: path.clone(),
                    key: list,
                    why,
                    evidence: told(&[evidence]),
                }),
                None => {
                    open.insert(path, evidence);
                }
            }
        }
        let may = |directory: &str| {
            kind != Kind::Connect
                && may(kind, directory, place.context)
                && !guard.touches(kind, directory)
        };
        for (path, all, covered) in generalise(open.keys().copied(), &may) {
            let evidence: Vec<&Evidence> =
                covered.iter().filter_map(|path| open.get(path).copied()).collect();
            let itself = covered.contains(&path.as_str());
            let end = if all && !itself { "/**" } else { "" };
            let mut text = told(&evidence);
            if all {
                text = format!("{text}: {} paths, such as {}", covered.len(), covered[0]);
            }
            for name in GUARDS {
                let needed = !place.except.contains(name) && !known(name);
                if needed && !proposal.extends.contains(&name) {
                    proposal.extends.push(name);
                }
            }
            let rule = format!("{}{end}", spell(&path, place.context));
            proposal.rules.push(Proposed { key: list, rule, evidence: text });
        }
    }
    network(observed, place, &mut proposal);
    Ok(proposal)
}

/// Why a path is not proposed.
fn closed(
    kind: Kind,
    path: &str,
    evidence: &Evidence,
    guard: &Guard,
    place: &Place<'_>,
) -> Option<String> {
    let asked = place.include.iter().any(|include| include == path);
    if let Some((key, rule)) = &evidence.closed {
        if matches!(key.as_str(), "managed" | "sandbox" | "project") {
            return Some(format!("the layer `{key}` closes it: no rule of yours opens it"));
        }
        if !asked {
            return Some(format!("{key} {rule} closes it"));
        }
    }
    if asked {
        return None;
    }
    if kind == Kind::Connect {
        return Some("a service acts outside the session for whoever reaches it".to_owned());
    }
    guard
        .closes(kind, path)
        .then(|| "it is a credential, or would be run outside the session".to_owned())
}

/// Whether a directory may be proposed with all beneath it, for what it is.
fn may(kind: Kind, directory: &str, context: &Context) -> bool {
    let path = Path::new(directory);
    let own = [&context.workspace, &context.tmpdir];
    if own.iter().any(|own| path.starts_with(own)) {
        return true;
    }
    if wide(directory, context) {
        return false;
    }
    if path.starts_with(&context.home) {
        return true;
    }
    let system = SYSTEM.iter().any(|system| path.starts_with(system));
    path.components().count() > 2 && (kind != Kind::Write || !system)
}

/// Whether it is a directory that many programs share, or has the workspace or the home in it.
fn wide(directory: &str, context: &Context) -> bool {
    let path = Path::new(directory);
    let above = [&context.workspace, &context.tmpdir, &context.home];
    let at_home = path.strip_prefix(&context.home);
    above.iter().any(|own| own.starts_with(path) && path != own.as_path())
        || path == context.home
        || SYSTEM.contains(&directory)
        || SHARED.contains(&directory)
        || at_home.is_ok_and(|rest| SHARED_AT_HOME.iter().any(|shared| Path::new(shared) == rest))
}

/// A path as the policy's text says it.
pub fn spell(path: &str, context: &Context) -> String {
    let bases = [
        (&context.workspace, "${WORKSPACE}"),
        (&context.tmpdir, "${TMPDIR}"),
        (&context.home, "~"),
    ];
    for (base, name) in bases {
        if let Ok(rest) = Path::new(path).strip_prefix(base) {
            let rest = spelled_out(&rest.to_string_lossy());
            return if rest.is_empty() { name.to_owned() } else { format!("{name}/{rest}") };
        }
    }
    spelled_out(path)
}

/// Addresses and names.
fn network(observed: &Observed, place: &Place<'_>, proposal: &mut Proposal) {
    let mut rules: BTreeMap<(&'static str, String), Vec<&Evidence>> = BTreeMap::new();
    let mut connected: BTreeSet<&str> = BTreeSet::new();
    for ((key, what), evidence) in &observed.wanted {
        let What::Address { address, port, protocol } = what else { continue };
        let shown = match address {
            IpAddr::V4(v4) => format!("{v4}:{port}/{protocol}"),
            IpAddr::V6(v6) => format!("[{v6}]:{port}/{protocol}"),
        };
        connected.extend(evidence.names.iter().map(String::as_str));
        let asked = place.include.contains(&shown);
        let reserved = decide::reserved().any(|net| net.contains(&address.to_canonical()));
        let why = match &evidence.closed {
            Some((key, rule)) => Some(format!("{key} {rule} closes it")),
            None if reserved && !asked => {
                Some("under such addresses clouds tell a machine its credentials".to_owned())
            }
            None => None,
        };
        if let Some(why) = why {
            let left = Left { what: shown, key, why, evidence: told(&[evidence]) };
            proposal.left.push(left);
            continue;
        }
        for name in &evidence.names {
            rules.entry((key, format!("{name}:{port}/{protocol}"))).or_default().push(evidence);
        }
        // A name alone leads nowhere within this site.
        if evidence.names.is_empty() || is_of_this_site(*address) {
            rules.entry((key, shown)).or_default().push(evidence);
        }
    }
    for ((key, what), evidence) in &observed.wanted {
        let What::Name(name) = what else { continue };
        match &evidence.closed {
            Some((rule, text)) => proposal.left.push(Left {
                what: name.clone(),
                key,
                why: format!("{rule} {text} closes it"),
                evidence: told(&[evidence]),
            }),
            None if connected.contains(name.as_str()) => {}
            None => rules.entry((key, format!("{name}:443/tcp"))).or_default().push(evidence),
        }
    }
    for ((key, rule), evidence) in rules {
        let text = format!("version = 1\n{key} = [{}]\n", toml::Value::from(rule.as_str()));
        match load_text("learn", text) {
            Ok(_) => proposal.rules.push(Proposed { key, rule, evidence: told(&evidence) }),
            Err(error) => {
                let why = error.diagnostics.first().map(|problem| problem.message.clone());
                let why = why.unwrap_or_default();
                proposal.left.push(Left { what: rule, key, why, evidence: told(&evidence) });
            }
        }
    }
}

/// Who wanted what, in one line: `read and write, 12 times, by git, node`.
fn told(evidence: &[&Evidence]) -> String {
    const PROGRAMS: usize = 4;
    let access: BTreeSet<&str> =
        evidence.iter().flat_map(|evidence| &evidence.access).map(String::as_str).collect();
    let by: BTreeSet<&str> =
        evidence.iter().flat_map(|evidence| &evidence.by).map(String::as_str).collect();
    let count: u64 = evidence.iter().map(|evidence| evidence.count).sum();
    let access = access.into_iter().collect::<Vec<_>>().join(" and ");
    let times = if count == 1 { "once".to_owned() } else { format!("{count} times") };
    if by.is_empty() {
        format!("{access}, {times}")
    } else {
        let more = if by.len() > PROGRAMS { " and others" } else { "" };
        let names: Vec<&str> = by.into_iter().take(PROGRAMS).collect();
        format!("{access}, {times}, by {}{more}", names.join(", "))
    }
}
