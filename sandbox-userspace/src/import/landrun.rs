//! landrun: its command line, out of a script or a unit of systemd. Nothing is open but what it names.

use super::{EVERY_HOST, Import, srt};

/// What needs no rule here, with a value and without.
const SILENT: [&str; 6] = [
    "best-effort",
    "ignore-missing",
    "log-disable-originating",
    "log-enable-subprocesses",
    "log-disable-subdomains",
    "log-level",
];

/// What takes its walls away.
const UNRESTRICTED: [(&str, &str); 3] = [
    ("unrestricted-network", EVERY_HOST),
    ("unrestricted-filesystem", "every file: reading and running stay open, name what is written"),
    ("unrestricted-scoped", "stricter: signals and abstract sockets of others stay closed"),
];

pub(super) fn read(text: &str, import: &mut Import) -> Result<(), String> {
    let mut words = command(text)?.into_iter();
    import.rule("environment.deny", "*", "landrun", "what --env does not name");
    let mut open = Vec::new();
    let mut program = None;
    while let Some(word) = words.next() {
        let Some(option) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
            program = Some(word);
            break;
        };
        if option.is_empty() {
            program = words.next();
            break;
        }
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (option, None),
        };
        if let Some((name, why)) = UNRESTRICTED.iter().find(|(known, _)| *known == name) {
            import.lose(&format!("--{name}"), "", why);
            open.push(*name);
        } else if !self::option(name, value, &mut words, import) {
            return Err(format!("landrun has no option `{word}`"));
        }
    }
    if !open.contains(&"unrestricted-network") {
        import.lose("landrun", "UDP", "stricter: it limits TCP only, here UDP takes a rule too");
    }
    if !open.contains(&"unrestricted-filesystem") {
        import.word("files.read.default", "deny", "landrun", "what it does not list");
        import.word("files.exec.default", "deny", "landrun", "what it does not list");
        if let Some(program) = program.filter(|_| !import.rules.contains_key("files.exec.allow")) {
            let why = "nothing may be run, this neither: name it with --rox";
            import.lose("landrun", &program, why);
        }
    }
    Ok(())
}

/// The words behind `landrun`.
fn command(text: &str) -> Result<Vec<String>, String> {
    let text = text.replace("\\\r\n", " ").replace("\\\n", " ");
    let mut found = Vec::new();
    for line in text.lines().filter(|line| line.contains("landrun")) {
        let line = line.split_once("ExecStart=").map_or(line, |(_, rest)| rest);
        let Some(words) = shlex::split(line) else {
            return Err("a quotation in the command line does not end".to_owned());
        };
        let named = |word: &String| word == "landrun" || word.ends_with("/landrun");
        if let Some(at) = words.iter().position(named) {
            found.push(words[at + 1..].to_vec());
        }
    }
    match found.len() {
        0 => Err("no command line of landrun is in it".to_owned()),
        1 => Ok(found.remove(0)),
        _ => Err("several command lines of landrun are in it: import each by itself".to_owned()),
    }
}

/// One option; `false` where it is none.
fn option(
    name: &str,
    value: Option<String>,
    words: &mut impl Iterator<Item = String>,
    import: &mut Import,
) -> bool {
    let key = format!("--{name}");
    if matches!(name, "add-exec" | "ldd") {
        import.lose(&key, "", "which files that means is not looked up: name them with --rox");
        return true;
    }
    if SILENT.contains(&name) {
        if name == "log-level" && value.is_none() {
            words.next();
        }
        return true;
    }
    if !matches!(name, "ro" | "rox" | "rw" | "rwx" | "unix" | "bind-tcp" | "connect-tcp" | "env") {
        return false;
    }
    let Some(value) = value.or_else(|| words.next()) else {
        import.lose(&key, "", "its value is missing");
        return true;
    };
    if name == "env" {
        variable(&key, &value, import);
        return true;
    }
    for part in value.split(',').filter(|part| !part.is_empty()) {
        match name {
            "bind-tcp" => {
                for any in ["0.0.0.0", "[::]"] {
                    import.rule("network.listen", &format!("{any}:{part}/tcp"), &key, part);
                }
            }
            "connect-tcp" => {
                for any in ["0.0.0.0/0", "[::]/0"] {
                    import.rule("network.allow", &format!("{any}:{part}/tcp"), &key, part);
                }
                let why = "stricter: link-local and metadata addresses take a rule of their own";
                import.lose(&key, part, why);
            }
            "unix" => import.rule("network.unix.allow", &srt::path(part), &key, part),
            _ => place(name, &key, part, import),
        }
    }
    true
}

/// A path of `--ro` and its like.
fn place(name: &str, key: &str, path: &str, import: &mut Import) {
    let rule = srt::path(path);
    import.rule("files.read.allow", &rule, key, path);
    if name.ends_with('x') {
        import.rule("files.exec.allow", &rule, key, path);
    }
    if name.starts_with("rw") {
        import.rule("files.write.allow", &rule, key, path);
    }
}

fn variable(key: &str, value: &str, import: &mut Import) {
    let (name, set) = value.split_once('=').unzip();
    let name = name.unwrap_or(value);
    import.rule("environment.allow", name, key, name);
    if set.is_some() {
        import.lose(
            key,
            name,
            "a policy gives variables no value: set it where the session is started",
        );
    }
}
