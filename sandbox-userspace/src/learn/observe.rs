//! From lines of events to what was wanted: each thing once, with who wanted it and how often.

use crate::policy::rule::closes;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Reasons for which a rule of the policy would help.
const BY_RULE: [&str; 4] = ["rule", "default", "reserved", "expired"];

/// Something that was wanted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// A path: absolute, symbolic links resolved.
    Path(String),
    /// An address.
    Address {
        /// Without the port.
        address: IpAddr,
        /// The port.
        port: u16,
        /// `tcp` or `udp`.
        protocol: String,
    },
    /// A name that was asked for.
    Name(String),
}

/// Who wanted it, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// How many events speak of it.
    pub count: u64,
    /// Names of accesses.
    pub access: BTreeSet<String>,
    /// Names of the threads.
    pub by: BTreeSet<String>,
    /// The rule that denied it, if one did: its key, its text and where it stands.
    pub closed: Option<(String, String)>,
    /// Names that an address stood for.
    pub names: BTreeSet<String>,
}

/// All that was wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// By the list that would allow it, and what it is.
    pub wanted: BTreeMap<(&'static str, What), Evidence>,
    /// What no rule would allow, as the events say it, and how often.
    pub other: BTreeMap<String, u64>,
}

/// Reads events: one JSON object a line. What is none is passed over.
pub fn observe(text: &str) -> Observed {
    let mut observed = Observed::default();
    for line in text.lines() {
        match serde_json::from_str::<Value>(line) {
            Ok(event) if event["type"] == "denial" => observed.denial(&event),
            _ => {}
        }
    }
    observed
}

impl Observed {
    fn denial(&mut self, event: &Value) {
        let wanted = wanted(event);
        if wanted.is_empty() {
            let hook = event["hook"].as_str().unwrap_or("?");
            let reason = event["reason"].as_str().unwrap_or("?");
            *self.other.entry(format!("{hook} ({reason})")).or_default() += 1;
        }
        for (key, what) in wanted {
            let evidence = self.wanted.entry((key, what)).or_default();
            evidence.count += 1;
            evidence
                .by
                .extend(event["comm"].as_str().filter(|by| !by.is_empty()).map(str::to_owned));
            evidence.access.extend(words(&event["access"]));
            evidence.names.extend(words(&event["object"]["names"]));
            let rule = &event["rule"];
            if let Some(key) = rule["key"].as_str().filter(|key| closes(key)) {
                let file = rule["file"].as_str().unwrap_or("?");
                let text = rule["text"].as_str().unwrap_or("?");
                evidence.closed =
                    Some((key.to_owned(), format!("\"{text}\" ({file}:{})", rule["line"])));
            } else if matches!(rule["layer"].as_str(), Some("managed" | "sandbox" | "project")) {
                let layer = rule["layer"].as_str().unwrap_or("?");
                evidence.closed = Some((layer.to_owned(), "a layer above".to_owned()));
            }
        }
    }
}

/// The lists that would allow it, and what they would have to name; none where no rule would help.
fn wanted(event: &Value) -> Vec<(&'static str, What)> {
    if !event["reason"].as_str().is_some_and(|reason| BY_RULE.contains(&reason)) {
        return Vec::new();
    }
    let (access, object) = (words(&event["access"]), &event["object"]);
    let has = |names: &[&str]| access.iter().any(|access| names.contains(&access.as_str()));
    match object["kind"].as_str() {
        Some("path") => {
            let path = object["path"].as_str().unwrap_or_default();
            // A policy is UTF-8, and what is mounted nowhere has no path.
            if !path.starts_with('/') || path.contains(['\u{fffd}', '\0']) {
                return Vec::new();
            }
            let lists: [(&'static str, &[&str]); 4] = [
                ("files.read.allow", &["read"]),
                ("files.write.allow", &["write", "create", "delete", "attributes"]),
                ("files.exec.allow", &["execute"]),
                ("network.unix.allow", &["connect"]),
            ];
            let lists = lists.into_iter().filter(|(_, names)| has(names));
            lists.map(|(list, _)| (list, What::Path(path.to_owned()))).collect()
        }
        Some("address") => {
            let address = object["address"].as_str().and_then(|address| address.parse().ok());
            let port = object["port"].as_u64().and_then(|port| u16::try_from(port).ok());
            let protocol = object["protocol"].as_str().unwrap_or_default();
            match (address, port) {
                (Some(address), Some(port)) if matches!(protocol, "tcp" | "udp") && port > 0 => {
                    let list = if has(&["listen"]) { "network.listen" } else { "network.allow" };
                    vec![(list, What::Address { address, port, protocol: protocol.to_owned() })]
                }
                _ => Vec::new(),
            }
        }
        Some("name") => {
            let name = object["name"].as_str().unwrap_or_default();
            vec![("network.allow", What::Name(name.to_owned()))]
        }
        _ => Vec::new(),
    }
}

fn words(value: &Value) -> Vec<String> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|word| word.as_str().map(str::to_owned))
        .collect()
}
