//! The agent's variables: which of its caller's it does not get, and those by which programs find the
//! places that a policy leaves them.

use super::expand::{self, Context};
use super::rule::{Kind, Policy, VariableRule};
use super::{PolicyError, decide};
use crate::kernel::mounts::to_components;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

/// What secrets begin with by which everybody can tell them, and how long such a one is at least;
/// from what their makers say of them (tokens "with a prefix").
const SHAPES: [(&str, usize); 22] = [
    ("-----BEGIN ", 40),
    ("AKIA", 20),
    ("ASIA", 20),
    ("AIza", 39),
    ("ya29.", 30),
    ("ghp_", 36),
    ("gho_", 36),
    ("ghs_", 36),
    ("ghu_", 36),
    ("github_pat_", 40),
    ("glpat-", 20),
    ("xoxb-", 20),
    ("xoxp-", 20),
    ("sk-", 30),
    ("sk_live_", 20),
    ("rk_live_", 20),
    ("npm_", 36),
    ("pypi-", 40),
    ("hf_", 30),
    ("dop_v1_", 40),
    ("SG.", 40),
    ("eyJ", 60),
];

/// A variable that the agent does not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Removed {
    /// Its name. Its value is nobody's business.
    pub name: OsString,
    /// The rule that says so; `None`: its value looks like a secret.
    pub rule: Option<u32>,
}

/// Which of the variables the agent does not get.
///
/// A name that is spelled out beats one with wildcards, then deny beats allow, then the earlier rule
/// counts. What no rule speaks of goes where `environment.secrets` is `deny` and its value looks like a
/// secret.
pub fn removed<'a>(
    policy: &Policy,
    variables: impl IntoIterator<Item = (&'a OsStr, &'a OsStr)>,
) -> Vec<Removed> {
    let mut found = Vec::new();
    for (name, value) in variables {
        let removed = policy.layers().find_map(|layer| match rule(&layer.variables, name) {
            Some(rule) => (!rule.allow).then_some(Some(rule.origin.id)),
            None => (!layer.secrets && is_secret(value)).then_some(None),
        });
        found.extend(removed.map(|rule| Removed { name: name.to_owned(), rule }));
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// The rule that decides on a variable.
pub fn rule<'a>(rules: &'a [VariableRule], name: &OsStr) -> Option<&'a VariableRule> {
    let matching = rules.iter().filter(|rule| rule.name.matches(name.as_bytes()));
    matching.min_by_key(|rule| (rule.name.name().is_none(), rule.allow, rule.origin.id))
}

/// Whether a value has the shape of a secret.
fn is_secret(value: &OsStr) -> bool {
    let value = value.as_bytes().trim_ascii_start();
    let is = |(begin, least): &(&str, usize)| {
        value.len() >= *least && value.starts_with(begin.as_bytes())
    };
    SHAPES.iter().any(is) || has_password(value)
}

/// Whether a value is an address with a password: `SCHEME://USER:PASSWORD@HOST`.
fn has_password(value: &[u8]) -> bool {
    let Some(at) = value.windows(3).position(|part| part == b"://") else { return false };
    let authority = value[at + 3..].split(|byte| *byte == b'/').next().unwrap_or_default();
    let Some(end) = authority.iter().rposition(|byte| *byte == b'@') else { return false };
    let colon = authority[..end].iter().position(|byte| *byte == b':');
    colon.is_some_and(|colon| colon + 1 < end)
}

/// Names under which npm takes its cache's place, in the order in which it looks.
const NPM: [&str; 2] = ["npm_config_cache", "NPM_CONFIG_CACHE"];

/// What a session's agent gets over its caller's variables; `None` takes one away.
///
/// npm cannot work without a cache: where the policy closes the usual one it gets one of the
/// session's own. tmux looks for its server in `/tmp`, and one outside the session is out of reach.
pub fn variables(
    policy: &Policy,
    context: &Context,
) -> Result<Vec<(&'static str, Option<OsString>)>, PolicyError> {
    let placed = expand::expand(policy, context)?;
    let tmpdir = &context.tmpdir;
    let mut variables = vec![
        ("TMUX_TMPDIR", Some(tmpdir.clone().into_os_string())),
        ("TMUX", None),
        ("TMUX_PANE", None),
    ];
    let cache = to_components(&context.home.join(".npm/_cacache"));
    let named = NPM.iter().any(|name| std::env::var_os(name).is_some());
    if !named && !decide::path(&placed, policy.defaults, Kind::Write, &cache).allow {
        variables.push((NPM[0], Some(tmpdir.join("npm").into_os_string())));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{load, load_text};

    fn npm(policy: &Policy) -> Option<OsString> {
        let context = Context {
            home: "/nonexistent/home".into(),
            workspace: "/nonexistent/w".into(),
            tmpdir: "/nonexistent/t".into(),
            terminal: None,
            surroundings: crate::policy::services::Surroundings::default(),
        };
        let variables = variables(policy, &context).unwrap();
        variables.into_iter().find(|(name, _)| *name == NPM[0]).and_then(|(_, value)| value)
    }

    fn removed_of(rules: &str, variables: &[(&str, &str)]) -> Vec<String> {
        let policy = load_text("p", format!("version = 1\n[environment]\n{rules}\n")).unwrap();
        let variables = variables.iter().map(|(name, value)| (OsStr::new(name), OsStr::new(value)));
        let found = removed(&policy, variables);
        found.into_iter().map(|removed| removed.name.into_string().unwrap()).collect()
    }

    #[test]
    fn variables_are_removed_by_name() {
        let variables = [
            ("PATH", "/bin"),
            ("AWS_REGION", "x"),
            ("AWS_SECRET_ACCESS_KEY", "x"),
            ("GH_TOKEN", "x"),
            ("API_TOKEN", "x"),
        ];
        let rules = "deny = ['AWS_*', '*_TOKEN']\nallow = ['AWS_REGION', 'API_TOKE?']";
        let expected = ["API_TOKEN", "AWS_SECRET_ACCESS_KEY", "GH_TOKEN"];
        assert_eq!(removed_of(rules, &variables), expected);
        assert!(removed_of("", &variables).is_empty());
    }

    #[test]
    fn variables_are_removed_by_what_their_values_look_like() {
        let token = format!("ghp_{}", "x".repeat(36));
        let variables = [
            ("A", token.as_str()),
            ("B", "ghp_short"),
            ("C", "postgres://ann:pw@db/x"),
            ("D", "https://ann@host/a:b@c"),
            ("E", "https://proxy:3128"),
            ("F", "  -----BEGIN OPENSSH PRIVATE KEY-----\nabcdefghijklmnop"),
            ("KEEP", token.as_str()),
        ];
        let rules = "secrets = 'deny'\nallow = ['KEEP']";
        assert_eq!(removed_of(rules, &variables), ["A", "C", "F"]);
        assert!(removed_of("secrets = 'allow'", &variables).is_empty());
    }

    #[test]
    fn npm_has_a_cache_of_its_own_where_the_usual_one_is_closed() {
        assert_eq!(npm(&load(None).unwrap()), Some("/nonexistent/t/npm".into()));
        let text = "version = 1\nextends = ['default', 'toolchains']\n";
        assert_eq!(npm(&load_text("p", text.to_owned()).unwrap()), None);
    }
}
