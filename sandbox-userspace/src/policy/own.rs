//! What a session may never write, however wide its policy is: the program's own state and policies.
//!
//! What the kernel shows of itself (procfs, sysfs, cgroups, pins) needs no rule: the kernel side takes
//! writing from every place there.

use super::expand::{self, Context};
use super::rule::{Kind, Policy};
use super::source::Source;
use super::{PolicyError, decide, parse};
use crate::kernel::mounts::to_components;
use std::path::Path;

/// State of sessions with the lock, and policies of the machine.
const PLACES: [&str; 2] = ["/run/sandbox", "/etc/sandbox"];

/// The policy, with rules that close what it would open of these.
pub fn extend(policy: Policy, context: &Context) -> Result<Policy, PolicyError> {
    let placed = expand::expand(&policy, context)?;
    let opened = |place: &&&str| {
        let components = to_components(Path::new(place));
        decide::path(&placed, policy.defaults, Kind::Write, &components).allow
    };
    let opened: Vec<String> =
        PLACES.iter().filter(opened).map(|place| format!("{place:?}")).collect();
    if opened.is_empty() {
        return Ok(policy);
    }
    let text = format!("version = 1\n\n[files]\nwrite.deny = [{}]\n", opened.join(", "));
    parse::append(policy, Source::new("sandbox:own", "own", text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::load_text;

    fn rules(text: &str) -> Vec<String> {
        let context = Context {
            home: "/nonexistent/home".into(),
            workspace: "/nonexistent/w".into(),
            tmpdir: "/nonexistent/t".into(),
            terminal: None,
        };
        let policy = extend(load_text("p", text.to_owned()).unwrap(), &context).unwrap();
        policy.files.iter().map(|rule| rule.origin.text.clone()).collect()
    }

    #[test]
    fn a_wide_policy_does_not_open_the_programs_own() {
        assert_eq!(rules("version = 1\nfiles.write.allow = ['/srv']\n"), ["/srv"]);
        assert_eq!(
            rules("version = 1\nfiles.write.allow = ['/']\n"),
            ["/", "/run/sandbox", "/etc/sandbox"]
        );
        assert_eq!(
            rules("version = 1\nfiles.write.allow = ['/run/**']\n"),
            ["/run/**", "/run/sandbox"]
        );
    }
}
