//! Random rules as text, and what the language under test can say.

use super::generate::pick;
use super::model::Names;
use fastrand::Rng;
use sandbox_userspace::policy::load_text;
use std::fmt::Write as _;

/// What the policy language knows.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a thing of its own")]
pub(crate) struct Language {
    patterns: bool,
    execute: bool,
    default: bool,
    attributes: bool,
    /// Whether reading is closed by default in this round.
    closed: bool,
    /// Whether the kernel is told of no rule that denies writing: its verdicts are wrong then.
    misled: bool,
}

/// Keys about paths.
const KEYS: [&str; 8] = [
    "files.read.allow",
    "files.read.deny",
    "files.write.allow",
    "files.write.deny",
    "files.delete.allow",
    "files.delete.deny",
    "files.attributes.allow",
    "files.attributes.deny",
];
const EXECUTE_KEYS: [&str; 2] = ["files.exec.allow", "files.exec.deny"];

impl Language {
    /// Asks the parser itself.
    pub(crate) fn of_this_program() -> Self {
        let reads = |line: &str| load_text("p", format!("version = 1\n{line}\n")).is_ok();
        Self {
            patterns: reads(r#"files.read.deny = ["${WORKSPACE}/**/*.pem"]"#),
            execute: reads(r#"files.exec.deny = ["/x"]"#),
            default: reads(r#"files.read.default = "deny""#),
            attributes: super::hooks_exist(&[
                "inode_setattr",
                "inode_setxattr",
                "inode_removexattr",
            ]),
            closed: false,
            misled: false,
        }
    }

    /// The same, for a round in which reading is closed by default, if it can be.
    pub(crate) fn closing(&self, closed: bool) -> Self {
        Self { closed: closed && self.default, ..self.clone() }
    }

    /// The same, for a round in which the kernel is told less than the reference.
    pub(crate) fn misleading(&self) -> Self {
        Self { misled: true, ..self.clone() }
    }

    /// The policy that the kernel gets of these zones.
    pub(crate) fn told(&self, zones: &[(usize, &Line)]) -> String {
        let told = |line: &Line| !(self.misled && line.key == "files.write.deny");
        let zones: Vec<_> = zones.iter().filter(|(_, line)| told(line)).copied().collect();
        self.policy(&zones)
    }

    pub(crate) fn closed(&self) -> bool {
        self.closed
    }

    pub(crate) fn patterns(&self) -> bool {
        self.patterns
    }

    /// Whether the times and extended attributes of files are guarded.
    pub(crate) fn attributes(&self) -> bool {
        self.attributes
    }

    pub(crate) fn keys(&self) -> Vec<&'static str> {
        let more = if self.execute { &EXECUTE_KEYS[..] } else { &[] };
        KEYS.iter().chain(more).copied().collect()
    }

    /// The policy of these zones.
    pub(crate) fn policy(&self, zones: &[(usize, &Line)]) -> String {
        let mut text = "version = 1\n".to_owned();
        if self.closed {
            text.push_str("files.read.default = \"deny\"\n");
        }
        for key in self.keys() {
            let own = zones.iter().filter(|(_, line)| line.key == key);
            let mut list: Vec<String> = own.map(|(zone, line)| line.text(*zone)).collect();
            if self.closed && key == "files.read.allow" {
                // The probe itself must start.
                list.extend(["/bin", "/usr", "/lib", "/lib64", "/proc", "/dev"].map(str::to_owned));
            }
            if !list.is_empty() {
                // A JSON string is a TOML basic string.
                let list: Vec<String> = list
                    .into_iter()
                    .map(|text| serde_json::Value::from(text).to_string())
                    .collect();
                let _ = writeln!(text, "{key} = [\n    {},\n]", list.join(",\n    "));
            }
        }
        text
    }
}

/// A rule about a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    key: &'static str,
    /// From the zone's root, escaped; empty is the root itself.
    path: String,
    /// What an operation that is to meet the rule may be aimed at.
    pub(crate) example: Vec<u8>,
    beneath: bool,
}

impl Line {
    /// A rule on a place. Rules are text: a name that is none is spelled another way.
    pub(crate) fn new(key: &'static str, names: &Names, beneath: bool) -> Self {
        let names: Vec<String> =
            names.iter().map(|name| String::from_utf8_lossy(name).replace('\0', "")).collect();
        let example = names.join("/").into_bytes();
        let path = names.iter().map(|name| escaped(name)).collect::<Vec<_>>().join("/");
        Self { key, path, example, beneath }
    }

    /// A rule on what bears some name.
    pub(crate) fn pattern(rng: &mut Rng, key: &'static str) -> Self {
        const PATTERNS: [(&str, &str); 9] = [
            ("**/.env", "a/.env"),
            ("**/.env*", "a/.env.local"),
            ("**/*.pem", "x.pem"),
            ("**/id_*", "b/id_rsa"),
            ("**/.git/hooks", "c/.git/hooks"),
            ("**/.git/config", ".git/config"),
            ("*/secret", "d/secret"),
            ("src/*.pem", "src/x.pem"),
            ("**/n*a", "a/nna"),
        ];
        let (path, example) = pick(rng, &PATTERNS).copied().unwrap_or_default();
        Self { key, path: path.to_owned(), example: example.into(), beneath: rng.u8(0..4) == 0 }
    }

    fn text(&self, zone: usize) -> String {
        let slash = if self.path.is_empty() { "" } else { "/" };
        let beneath = if self.beneath { "/**" } else { "" };
        format!("${{WORKSPACE}}/z{zone}{slash}{}{beneath}", self.path)
    }

    pub(crate) fn shown(&self) -> String {
        format!("{} = [{:?}]", self.key, self.text(0))
    }
}

/// In a rule a backslash makes the next character plain.
fn escaped(name: &str) -> String {
    let mut text = String::new();
    for character in name.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '{' | '}' | '$' | '\\') {
            text.push('\\');
        }
        text.push(character);
    }
    text
}
