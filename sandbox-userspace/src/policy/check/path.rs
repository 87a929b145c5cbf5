//! Paths: absolute, or from `~`, `${WORKSPACE}`, `${TMPDIR}`, `${RUNTIME_DIR}`, or from `**`; with wildcards.

use super::super::glob::{ANY, Atom, Glob};
use super::super::rule::{Base, Pattern, Scope, Step};
use super::{Problem, braces, nearest};
use sandbox_common::path::{LONG_NAME, RULE_DEPTH};

/// The variables a path may start with.
const VARIABLES: [(&str, Base); 3] =
    [("WORKSPACE", Base::Workspace), ("TMPDIR", Base::Tmpdir), ("RUNTIME_DIR", Base::Runtime)];
/// Characters that have a meaning; a backslash before one takes it literally.
const SPECIAL: &[char] = &['*', '?', '[', ']', '{', '}', '\\', '$', ',', '-', '!'];

/// Reads a path of `[files]`; braces make several of it.
pub fn parse(text: &str) -> Result<Vec<Pattern>, Problem> {
    if text.is_empty() {
        return Err(Problem::new("empty path", "name a file or directory, or remove the entry"));
    }
    if text.contains('\0') {
        return Err(Problem::new("path with a NUL character", "no file name can contain one"));
    }
    braces::expand(text)?.iter().map(|text| pattern(text)).collect()
}

/// Reads a path without braces.
fn pattern(text: &str) -> Result<Pattern, Problem> {
    let (mut base, rest) = base(text)?;
    let mut steps = Vec::new();
    for part in rest.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            return Err(Problem::new(
                "`..` in a path",
                "write the path that is meant: `..` depends on symbolic links",
            ));
        }
        let step = step(part)?;
        // Two in a row say no more than one.
        if step != Step::Deep || steps.last() != Some(&Step::Deep) {
            steps.push(step);
        }
    }
    let scope = match steps.last() {
        Some(Step::Deep) => {
            steps.pop();
            Scope::Beneath
        }
        _ => Scope::Tree,
    };
    if steps.len() > RULE_DEPTH {
        return Err(Problem::new(
            format!("path of {} components", steps.len()),
            format!(
                "a rule may name a place at most {RULE_DEPTH} components deep; name a directory above it"
            ),
        ));
    }
    if base == Base::Everywhere && steps.is_empty() {
        return Err(Problem::new(
            "`**` alone",
            "write `/` for everything, or `**/NAME` for a name anywhere",
        ));
    }
    let literal = |step: &Step| match step {
        Step::Name(glob) => glob.name(),
        _ => None,
    };
    let components: Vec<Vec<u8>> = steps.iter().map_while(literal).collect();
    let tail = steps.split_off(components.len());
    // Beneath `/` is everywhere.
    if base == Base::Root && components.is_empty() && tail.first() == Some(&Step::Deep) {
        base = Base::Everywhere;
    }
    Ok(Pattern { base, components, tail, scope })
}

/// An absolute path as a policy spells it out.
pub fn spelled_out(path: &str) -> String {
    let mut text = String::with_capacity(path.len());
    for (at, character) in path.char_indices() {
        let variable = character == '$' && path[at + 1..].starts_with('{');
        if variable || matches!(character, '*' | '?' | '[' | ']' | '{' | '}' | '\\') {
            text.push('\\');
        }
        text.push(character);
    }
    text
}

/// Splits off what the path starts from.
fn base(text: &str) -> Result<(Base, &str), Problem> {
    if text == "**" || text.starts_with("**/") {
        return Ok((Base::Everywhere, text));
    }
    if let Some(rest) = text.strip_prefix('/') {
        return Ok((Base::Root, rest));
    }
    if let Some(rest) = text.strip_prefix('~') {
        return match rest.strip_prefix('/') {
            Some(rest) => Ok((Base::Home, rest)),
            None if rest.is_empty() => Ok((Base::Home, rest)),
            None => Err(Problem::new(
                "`~` stands for the agent user's home and for no other",
                "write the other home's absolute path",
            )),
        };
    }
    if let Some(rest) = text.strip_prefix("${") {
        let Some((name, rest)) = rest.split_once('}') else {
            return Err(Problem::new("`${` without `}`", "write `${WORKSPACE}` or `${TMPDIR}`"));
        };
        let Some((_, base)) = VARIABLES.iter().find(|(known, _)| *known == name) else {
            let names = VARIABLES.map(|(known, _)| known);
            let help = match nearest(name, &names) {
                Some(known) => format!("did you mean `${{{known}}}`?"),
                None => "`${WORKSPACE}`, `${TMPDIR}` and `${RUNTIME_DIR}` are known; environment variables are not expanded".to_owned(),
            };
            return Err(Problem::new(format!("unknown variable `${{{name}}}`"), help));
        };
        return match rest.strip_prefix('/') {
            Some(rest) => Ok((*base, rest)),
            None if rest.is_empty() => Ok((*base, rest)),
            None => Err(Problem::new(
                format!("`${{{name}}}` runs into `{rest}`"),
                format!("write `${{{name}}}/{rest}`"),
            )),
        };
    }
    let rest = text.strip_prefix("./").unwrap_or(text);
    let anywhere = if rest.contains('/') { "" } else { ", or `**/` before it for any directory" };
    let help = format!("write `${{WORKSPACE}}/{rest}`, `~/{rest}` or an absolute path{anywhere}");
    Err(Problem::new("relative path", help))
}

/// Reads a component.
fn step(part: &str) -> Result<Step, Problem> {
    if part == "**" {
        return Ok(Step::Deep);
    }
    let glob = glob(part)?;
    let bytes = glob.0.iter().filter(|atom| **atom != Atom::Star).count();
    if bytes > LONG_NAME {
        return Err(Problem::new(
            format!("path component of {bytes} bytes"),
            format!("no file name is longer than {LONG_NAME} bytes"),
        ));
    }
    Ok(if glob.is_any() { Step::Any } else { Step::Name(glob) })
}

/// Reads a pattern of one name.
pub fn glob(part: &str) -> Result<Glob, Problem> {
    let mut atoms = Vec::with_capacity(part.len());
    let mut characters = part.chars();
    while let Some(character) = characters.next() {
        let rest = characters.as_str();
        match character {
            '\\' => {
                let escaped = escaped(characters.next())?;
                atoms.extend(escaped.encode_utf8(&mut [0; 4]).bytes().map(Atom::Byte));
            }
            '$' if rest.starts_with('{') => {
                return Err(Problem::new(
                    "variable in the middle of a path",
                    "a variable may only begin a path; write `\\$` for the character itself",
                ));
            }
            '*' if rest.starts_with('*') => {
                return Err(Problem::new(
                    "`**` within a name",
                    "`**` stands between slashes: any directories; within a name write one `*`",
                ));
            }
            '*' => atoms.push(Atom::Star),
            '?' => atoms.push(ANY),
            '[' => {
                let (atom, after) = set(rest)?;
                atoms.push(atom);
                characters = after.chars();
            }
            ']' => {
                return Err(Problem::new(
                    "`]` without `[`",
                    "write `\\]` for the character itself",
                ));
            }
            plain => atoms.extend(plain.encode_utf8(&mut [0; 4]).bytes().map(Atom::Byte)),
        }
    }
    Ok(Glob(atoms))
}

/// The character behind a backslash.
fn escaped(character: Option<char>) -> Result<char, Problem> {
    character.filter(|character| SPECIAL.contains(character)).ok_or_else(|| {
        Problem::new(
            "`\\` before a character that needs none",
            "write `\\\\` for the backslash itself",
        )
    })
}

/// Reads what follows a `[`: the set, and what stands behind its `]`.
fn set(text: &str) -> Result<(Atom, &str), Problem> {
    let negated = text.starts_with('!');
    let mut characters = if negated { text[1..].chars() } else { text.chars() };
    let mut found: u128 = 0;
    // The character before, and whether a `-` follows it.
    let (mut before, mut range): (Option<u8>, bool) = (None, false);
    loop {
        let written = characters.next().ok_or_else(|| {
            Problem::new("`[` without `]`", "write `[a-z]`, or `\\[` for the character itself")
        })?;
        let character = match written {
            ']' if range => {
                return Err(Problem::new("`-` ends a set", "write `\\-` for the character itself"));
            }
            ']' if found == 0 => {
                return Err(Problem::new("`[]` is empty", "write `?` for any character"));
            }
            ']' => return Ok((Atom::One { set: found, negated }, characters.as_str())),
            '-' if before.is_some() && !range => {
                range = true;
                continue;
            }
            '-' => {
                return Err(Problem::new(
                    "`-` begins a set",
                    "write `\\-` for the character itself",
                ));
            }
            '^' if found == 0 && !negated => {
                return Err(Problem::new("`[^` in a path", "write `[!` for all others"));
            }
            '\\' => escaped(characters.next())?,
            plain => plain,
        };
        let Some(byte) = u8::try_from(character).ok().filter(u8::is_ascii) else {
            return Err(Problem::new(
                format!("`{character}` in a set"),
                format!("sets are of ASCII characters: write `{{…,{character}}}`"),
            ));
        };
        let first = if range { before.unwrap_or(byte) } else { byte };
        if first > byte {
            return Err(Problem::new(
                format!("`{}-{character}` is empty", char::from(first)),
                "write the lower character first",
            ));
        }
        found |= (first..=byte).fold(0, |set, byte| set | 1 << byte);
        (before, range) = (if range { None } else { Some(byte) }, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(base: Base, components: &[&str], tail: &[Step], scope: Scope) -> Pattern {
        let components = components.iter().map(|name| name.as_bytes().to_vec()).collect();
        Pattern { base, components, tail: tail.to_vec(), scope }
    }

    fn name(text: &str) -> Step {
        Step::Name(glob(text).unwrap())
    }

    #[test]
    fn reads_paths() {
        for (text, base, components, scope) in [
            ("/", Base::Root, &[][..], Scope::Tree),
            ("/**", Base::Root, &[], Scope::Beneath),
            ("/**/**", Base::Root, &[], Scope::Beneath),
            ("/etc/shadow", Base::Root, &["etc", "shadow"], Scope::Tree),
            ("//etc/./x/", Base::Root, &["etc", "x"], Scope::Tree),
            ("~", Base::Home, &[], Scope::Tree),
            ("~/.ssh/**", Base::Home, &[".ssh"], Scope::Beneath),
            ("${WORKSPACE}/**", Base::Workspace, &[], Scope::Beneath),
            ("${TMPDIR}/a b", Base::Tmpdir, &["a b"], Scope::Tree),
            (r"/a/\[id\]/\*\\\$\{x\}", Base::Root, &["a", "[id]", r"*\${x}"], Scope::Tree),
            ("/a/~/$b", Base::Root, &["a", "~", "$b"], Scope::Tree),
        ] {
            assert_eq!(parse(text), Ok(vec![pattern(base, components, &[], scope)]), "{text}");
        }
    }

    #[test]
    fn reads_patterns() {
        let (deep, any) = (Step::Deep, Step::Any);
        for (text, expected) in [
            ("**/.env", pattern(Base::Everywhere, &[], &[deep.clone(), name(".env")], Scope::Tree)),
            ("/**/x", pattern(Base::Everywhere, &[], &[deep.clone(), name("x")], Scope::Tree)),
            (
                "**/.git/**",
                pattern(Base::Everywhere, &[], &[deep.clone(), name(".git")], Scope::Beneath),
            ),
            ("~/a/*/b", pattern(Base::Home, &["a"], &[any.clone(), name("b")], Scope::Tree)),
            ("/a/**/**/x*", pattern(Base::Root, &["a"], &[deep.clone(), name("x*")], Scope::Tree)),
            ("/*", pattern(Base::Root, &[], &[any], Scope::Tree)),
        ] {
            assert_eq!(parse(text), Ok(vec![expected]), "{text}");
        }
        let both = parse("{~,**}/{a,b?}").unwrap();
        let bases: Vec<_> = both.iter().map(|pattern| (pattern.base, pattern.tail.len())).collect();
        assert_eq!(
            bases,
            [(Base::Home, 0), (Base::Home, 1), (Base::Everywhere, 2), (Base::Everywhere, 2)]
        );
    }

    #[test]
    fn refuses_what_is_no_path() {
        let long = format!("/{}", "x".repeat(256));
        let wide = format!("/*{}", "?".repeat(256));
        let deep = "/x".repeat(65);
        for (text, message, help) in [
            ("", "empty path", "name a file"),
            ("/a\0b", "path with a NUL character", "no file name"),
            ("src", "relative path", "write `${WORKSPACE}/src`, `~/src`"),
            ("./src", "relative path", "write `${WORKSPACE}/src`, `~/src`"),
            ("*.pem", "relative path", "`**/` before it"),
            ("**", "`**` alone", "write `/`"),
            ("**/**", "`**` alone", "write `/`"),
            ("~bob/x", "`~` stands for the agent user's home", "absolute path"),
            ("/a/../b", "`..` in a path", "write the path that is meant"),
            ("/a/b**", "`**` within a name", "between slashes"),
            ("/a/***", "`**` within a name", "between slashes"),
            ("/a/[x", "`[` without `]`", r"`\[`"),
            ("/a/[]x]", "`[]` is empty", "`?`"),
            ("/a/x]", "`]` without `[`", r"`\]`"),
            ("/a/[^x]", "`[^` in a path", "`[!`"),
            ("/a/[z-a]", "`z-a` is empty", "lower"),
            ("/a/[a-]", "`-` ends a set", r"`\-`"),
            ("/a/[-a]", "`-` begins a set", r"`\-`"),
            ("/a/[ä]", "`ä` in a set", "`{…,ä}`"),
            ("/a/{x", "`{` without `}`", r"`\{`"),
            ("/a/x}", "`}` without `{`", r"`\}`"),
            (r"/a\b", r"`\` before a character that needs none", r"`\\`"),
            ("${WORKSPCE}/x", "unknown variable `${WORKSPCE}`", "did you mean `${WORKSPACE}`?"),
            ("${HOME}/x", "unknown variable `${HOME}`", "not expanded"),
            ("${TMPDIR}x", "`${TMPDIR}` runs into `x`", "write `${TMPDIR}/x`"),
            ("${TMPDIR", "`${` without `}`", "write"),
            ("/a/${TMPDIR}", "variable in the middle of a path", "begin a path"),
            (&long, "path component of 256 bytes", "longer than 255 bytes"),
            (&wide, "path component of 256 bytes", "longer than 255 bytes"),
            (&deep, "path of 65 components", "at most 64 components"),
        ] {
            let problem = parse(text).expect_err(text);
            assert!(problem.message.starts_with(message), "{text}: {problem:?}");
            assert!(problem.help.contains(help), "{text}: {problem:?}");
        }
    }

    #[test]
    fn a_path_can_be_spelled_out() {
        for path in ["/a b/ä", r"/a/[id]/{x}/*?\y", "/${HOME}/$x/!,-"] {
            let expected = path[1..].split('/').map(|name| name.as_bytes().to_vec()).collect();
            let found = parse(&spelled_out(path)).unwrap();
            let all = Pattern {
                base: Base::Root,
                components: expected,
                tail: Vec::new(),
                scope: Scope::Tree,
            };
            assert_eq!(found, [all]);
        }
    }

    #[test]
    fn sixty_four_components_of_255_bytes_are_a_path() {
        let text = format!("/{}", "x".repeat(255)).repeat(64);
        assert_eq!(parse(&text).map(|patterns| patterns[0].components.len()), Ok(64));
    }
}
