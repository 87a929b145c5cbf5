//! Abstract names of unix sockets for the kernel.

use super::compiled::AbstractEntry;
use super::decide::{self, AbstractRules};
use super::expand::Context;
use super::rule::Policy;

/// Every name that a rule of a layer speaks of, and what all layers together say of it. Names that no rule speaks
/// of are denied.
pub(super) fn compile(policy: &Policy, context: &Context) -> Vec<AbstractEntry> {
    let rules = AbstractRules::new(policy, context);
    let entry = |name: &[u8]| {
        let decision = rules.decide(name);
        // What no rule says the kernel takes from having no entry.
        (decision.rule != 0).then(|| AbstractEntry {
            name: name.to_vec(),
            rule: decision.rule,
            allow: decision.allow,
        })
    };
    rules.names().into_iter().filter_map(entry).collect()
}

/// What is said of one abstract name.
pub(super) fn decide(policy: &Policy, context: &Context, name: &[u8]) -> decide::Decision {
    AbstractRules::new(policy, context).decide(name)
}

#[cfg(test)]
mod tests {
    use super::super::check::unix::spelled_out;
    use super::super::layers::MANAGED_LAYER;
    use super::super::services::Surroundings;
    use super::super::source::Source;
    use super::super::{load_text, parse};
    use super::*;

    fn context() -> Context {
        Context {
            home: "/h".into(),
            workspace: "/w".into(),
            tmpdir: "/t".into(),
            terminal: None,
            surroundings: Surroundings::new(1000, |name| (name == "DISPLAY").then(|| ":3".into())),
        }
    }

    fn policy(text: &str) -> Policy {
        load_text("p", format!("version = 1\n{text}")).unwrap()
    }

    fn under(own: &str, ceiling: &str) -> Policy {
        let ceiling = Source::new("c", MANAGED_LAYER, format!("version = 1\n{ceiling}"));
        parse::limit(policy(own), ceiling).unwrap()
    }

    fn allowed(policy: &Policy) -> Vec<String> {
        let entries = compile(policy, &context());
        entries.iter().filter(|entry| entry.allow).map(|entry| spelled_out(&entry.name)).collect()
    }

    #[test]
    fn names_and_services_are_entries() {
        let own = policy("network.unix.allow = ['@a', '@b', 'x11']\nnetwork.unix.deny = ['@b']\n");
        assert_eq!(allowed(&own), ["@/tmp/.X11-unix/X0", "@/tmp/.X11-unix/X3", "@a"]);
        let b = decide(&own, &context(), b"b");
        assert!(!b.allow && own.origin(b.rule).unwrap().text == "@b");
        assert_eq!(decide(&own, &context(), b"c"), decide::Decision { allow: false, rule: 0 });
    }

    #[test]
    fn every_layer_has_to_allow() {
        let own = "network.unix.allow = ['@a', '@b', 'x11']\n";
        assert_eq!(allowed(&under(own, "network.unix.deny = ['@a', 'x11']\n")), ["@b"]);
        assert_eq!(allowed(&under(own, "network.unix.allow = ['@a', '/x']\n")), ["@a"]);
        // Where the administrator's service is the user's variables do not say.
        assert_eq!(allowed(&under(own, "network.unix.allow = ['x11']\n")), ["@/tmp/.X11-unix/X0"]);
        assert_eq!(allowed(&under("", "network.unix.allow = ['@a']\n")), [""; 0]);
    }
}
