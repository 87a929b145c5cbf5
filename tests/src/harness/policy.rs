//! Policy files, written rule by rule so that every rule's line and column are known.

/// A policy in the making.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    extends: &'static [&'static str],
    except: &'static [&'static str],
    rules: Vec<(&'static str, String)>,
    /// What is not allowed where no rule speaks: `files.read`, `files.exec`.
    closed: Vec<&'static str>,
    namespaces: bool,
    audit: &'static [&'static str],
}

/// A policy as a file's text.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) text: String,
    pub(crate) rules: Vec<Rule>,
}

/// Where a rule stands.
#[derive(Clone, Debug)]
pub(crate) struct Rule {
    pub(crate) key: &'static str,
    pub(crate) text: String,
    /// From 1.
    pub(crate) line: u64,
    /// Of the opening quote, in characters, from 1.
    pub(crate) column: u64,
}

/// Keys in the order of the file, by table.
const KEYS: [(&str, &[&str]); 3] = [
    (
        "files",
        &[
            "files.read.allow",
            "files.read.deny",
            "files.write.allow",
            "files.write.deny",
            "files.delete.allow",
            "files.delete.deny",
            "files.attributes.allow",
            "files.attributes.deny",
            "files.exec.allow",
            "files.exec.deny",
            "files.exec.ask",
        ],
    ),
    ("network", &["network.allow", "network.deny", "network.listen", "network.resolvers"]),
    ("network.unix", &["network.unix.allow", "network.unix.deny"]),
];

impl Policy {
    /// The preset `default` and nothing else.
    pub(crate) fn preset() -> Self {
        Self::presets(&["default"])
    }

    /// These presets and nothing else.
    pub(crate) fn presets(extends: &'static [&'static str]) -> Self {
        let (rules, closed) = (Vec::new(), Vec::new());
        Self { extends, except: &[], rules, closed, namespaces: false, audit: &[] }
    }

    /// Without these, also where a preset extends them.
    pub(crate) fn except(self, except: &'static [&'static str]) -> Self {
        Self { except, ..self }
    }

    /// One more rule of a list.
    ///
    /// # Panics
    /// Where the list is none that is written: the test would be without its rule.
    pub(crate) fn with(mut self, key: &'static str, rule: impl Into<String>) -> Self {
        assert!(KEYS.iter().any(|(_, keys)| keys.contains(&key)), "{key} is not written");
        self.rules.push((key, rule.into()));
        self
    }

    pub(crate) fn read_deny(self, rule: impl Into<String>) -> Self {
        self.with("files.read.deny", rule)
    }

    pub(crate) fn write_deny(self, rule: impl Into<String>) -> Self {
        self.with("files.write.deny", rule)
    }

    pub(crate) fn connect(self, rule: impl Into<String>) -> Self {
        self.with("network.allow", rule)
    }

    /// Only what rules name is allowed: `files.read` or `files.exec`.
    pub(crate) fn close(mut self, kind: &'static str) -> Self {
        self.closed.push(kind);
        self
    }

    /// These classes are noted.
    pub(crate) fn audit(self, audit: &'static [&'static str]) -> Self {
        Self { audit, ..self }
    }

    /// User namespaces, and mounts in them.
    pub(crate) fn namespaces(self) -> Self {
        Self { namespaces: true, ..self }
    }

    pub(crate) fn write(&self) -> Written {
        let mut lines = vec!["version = 1".to_owned(), format!("extends = {:?}", self.extends)];
        if !self.except.is_empty() {
            lines.push(format!("except = {:?}", self.except));
        }
        if !self.audit.is_empty() {
            lines.push(format!("audit = {:?}", self.audit));
        }
        let mut rules = Vec::new();
        for (table, keys) in KEYS {
            lines.extend([String::new(), format!("[{table}]")]);
            let closed = self.closed.iter().filter(|kind| kind.starts_with(table));
            lines.extend(closed.map(|kind| {
                format!(
                    "{}.default = \"deny\"",
                    kind.trim_start_matches(table).trim_start_matches('.')
                )
            }));
            for key in keys {
                let mut own = self.rules.iter().filter(|(of, _)| of == key).peekable();
                if own.peek().is_none() {
                    continue;
                }
                lines
                    .push(format!("{} = [", key.trim_start_matches(table).trim_start_matches('.')));
                for (key, text) in own {
                    // A JSON string is a TOML basic string.
                    lines.push(format!("    {},", serde_json::Value::from(text.as_str())));
                    let line = lines.len() as u64;
                    rules.push(Rule { key, text: text.clone(), line, column: 5 });
                }
                lines.push("]".to_owned());
            }
        }
        if self.namespaces {
            lines.extend([String::new(), "[processes]".into(), "namespaces = true".into()]);
        }
        lines.push(String::new());
        Written { text: lines.join("\n"), rules }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_stand_where_they_are_said_to_stand() {
        let written = Policy::preset()
            .connect("127.0.0.1:80")
            .read_deny("/a\nb")
            .write_deny("/c")
            .read_deny("/d")
            .write();
        let lines: Vec<_> = written.text.lines().collect();
        assert_eq!(written.rules.len(), 4);
        for rule in &written.rules {
            let line = lines[usize::try_from(rule.line).expect("small") - 1];
            let quoted = &line[usize::try_from(rule.column).expect("small") - 1..];
            let text: String =
                serde_json::from_str(quoted.trim_end_matches(',')).expect("a quoted rule");
            assert_eq!(text, rule.text);
        }
    }
}
