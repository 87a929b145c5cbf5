//! Variables by which programs find the places that a policy leaves them.

use super::expand::{self, Context};
use super::rule::{Kind, Policy};
use super::{PolicyError, decide};
use crate::kernel::mounts::to_components;
use std::ffi::OsString;

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
        };
        let variables = variables(policy, &context).unwrap();
        variables.into_iter().find(|(name, _)| *name == NPM[0]).and_then(|(_, value)| value)
    }

    #[test]
    fn npm_has_a_cache_of_its_own_where_the_usual_one_is_closed() {
        assert_eq!(npm(&load(None).unwrap()), Some("/nonexistent/t/npm".into()));
        let text = "version = 1\nextends = ['default', 'caches']\n";
        assert_eq!(npm(&load_text("p", text.to_owned()).unwrap()), None);
    }
}
