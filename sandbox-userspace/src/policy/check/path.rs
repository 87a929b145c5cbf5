//! Paths: `PATH` or `PATH/**`, absolute or from `~`, `${WORKSPACE}`, `${TMPDIR}`.

use super::super::rule::{Base, Pattern, Scope};
use super::{Problem, nearest};
use sandbox_common::path::{LONG_NAME, RULE_DEPTH};

/// The variables a path may start with.
const VARIABLES: [(&str, Base); 2] = [("WORKSPACE", Base::Workspace), ("TMPDIR", Base::Tmpdir)];
/// Characters that patterns use, or will use; a backslash before one takes it literally.
const SPECIAL: &[char] = &['*', '?', '[', ']', '{', '}', '\\'];

/// Reads a path of `[files]`.
pub fn parse(text: &str) -> Result<Pattern, Problem> {
    if text.is_empty() {
        return Err(Problem::new("empty path", "name a file or directory, or remove the entry"));
    }
    if text.contains('\0') {
        return Err(Problem::new("path with a NUL character", "no file name can contain one"));
    }
    let (base, rest) = base(text)?;
    let mut raw: Vec<&str> = rest.split('/').filter(|part| !part.is_empty()).collect();
    let scope = match raw.last() {
        Some(&"**") => {
            raw.pop();
            Scope::Beneath
        }
        _ => Scope::Tree,
    };
    let mut components = Vec::with_capacity(raw.len());
    for part in raw.into_iter().filter(|part| *part != ".") {
        if part == ".." {
            return Err(Problem::new(
                "`..` in a path",
                "write the path that is meant: `..` depends on symbolic links",
            ));
        }
        let name = literal(part)?;
        if name.len() > LONG_NAME {
            return Err(Problem::new(
                format!("path component of {} bytes", name.len()),
                format!("no file name is longer than {LONG_NAME} bytes"),
            ));
        }
        components.push(name.into_bytes());
    }
    if components.len() > RULE_DEPTH {
        return Err(Problem::new(
            format!("path of {} components", components.len()),
            format!(
                "a rule may name a place at most {RULE_DEPTH} components deep; name a directory above it"
            ),
        ));
    }
    Ok(Pattern { base, components, scope })
}

/// Splits off what the path starts from.
fn base(text: &str) -> Result<(Base, &str), Problem> {
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
                None => "`${WORKSPACE}` and `${TMPDIR}` are known; environment variables are not expanded".to_owned(),
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
    let help = if SPECIAL.iter().any(|special| text.starts_with(*special)) {
        "wildcards that match anywhere are not supported: name the directory, and `/**` for all beneath it".to_owned()
    } else {
        let rest = text.strip_prefix("./").unwrap_or(text);
        format!("write `${{WORKSPACE}}/{rest}`, `~/{rest}` or an absolute path")
    };
    Err(Problem::new("relative path", help))
}

/// A component without its escapes.
fn literal(part: &str) -> Result<String, Problem> {
    let mut name = String::with_capacity(part.len());
    let mut characters = part.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some(escaped) if SPECIAL.contains(&escaped) || escaped == '$' => name.push(escaped),
                _ => {
                    return Err(Problem::new(
                        "`\\` before a character that needs none",
                        "write `\\\\` for the backslash itself",
                    ));
                }
            },
            '$' if characters.as_str().starts_with('{') => {
                return Err(Problem::new(
                    "variable in the middle of a path",
                    "a variable may only begin a path; write `\\$` for the character itself",
                ));
            }
            '*' if part == "**" => {
                return Err(Problem::new(
                    "`**` in the middle of a path",
                    "`/**` may only end a path: everything beneath a directory",
                ));
            }
            special if SPECIAL.contains(&special) => {
                return Err(Problem::new(
                    format!("wildcard `{special}` is not supported"),
                    format!(
                        "name the file, or end the path with `/**` for everything beneath a directory; write `\\{special}` for the character itself"
                    ),
                ));
            }
            plain => name.push(plain),
        }
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(base: Base, components: &[&str], scope: Scope) -> Pattern {
        let components = components.iter().map(|name| name.as_bytes().to_vec()).collect();
        Pattern { base, components, scope }
    }

    #[test]
    fn reads_paths() {
        for (text, expected) in [
            ("/", pattern(Base::Root, &[], Scope::Tree)),
            ("/**", pattern(Base::Root, &[], Scope::Beneath)),
            ("/etc/shadow", pattern(Base::Root, &["etc", "shadow"], Scope::Tree)),
            ("//etc/./x/", pattern(Base::Root, &["etc", "x"], Scope::Tree)),
            ("~", pattern(Base::Home, &[], Scope::Tree)),
            ("~/.ssh/**", pattern(Base::Home, &[".ssh"], Scope::Beneath)),
            ("${WORKSPACE}/**", pattern(Base::Workspace, &[], Scope::Beneath)),
            ("${TMPDIR}/a b", pattern(Base::Tmpdir, &["a b"], Scope::Tree)),
            (r"/a/\[id\]/\*\\\$\{x\}", pattern(Base::Root, &["a", "[id]", r"*\${x}"], Scope::Tree)),
            ("/a/~/$b", pattern(Base::Root, &["a", "~", "$b"], Scope::Tree)),
        ] {
            assert_eq!(parse(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_path() {
        let long = format!("/{}", "x".repeat(256));
        let deep = "/x".repeat(65);
        for (text, message, help) in [
            ("", "empty path", "name a file"),
            ("/a\0b", "path with a NUL character", "no file name"),
            ("src", "relative path", "write `${WORKSPACE}/src`, `~/src`"),
            ("./src", "relative path", "write `${WORKSPACE}/src`, `~/src`"),
            ("**/.env", "relative path", "wildcards that match anywhere"),
            ("~bob/x", "`~` stands for the agent user's home", "absolute path"),
            ("/a/../b", "`..` in a path", "write the path that is meant"),
            ("/a/*.pem", "wildcard `*` is not supported", r"`\*`"),
            ("/a/**/b", "`**` in the middle of a path", "may only end"),
            ("/a/b**", "wildcard `*` is not supported", "/**"),
            ("/a/[x]", "wildcard `[` is not supported", r"`\[`"),
            (r"/a\b", r"`\` before a character that needs none", r"`\\`"),
            ("${WORKSPCE}/x", "unknown variable `${WORKSPCE}`", "did you mean `${WORKSPACE}`?"),
            ("${HOME}/x", "unknown variable `${HOME}`", "not expanded"),
            ("${TMPDIR}x", "`${TMPDIR}` runs into `x`", "write `${TMPDIR}/x`"),
            ("${TMPDIR", "`${` without `}`", "write"),
            ("/a/${TMPDIR}", "variable in the middle of a path", "begin a path"),
            (&long, "path component of 256 bytes", "longer than 255 bytes"),
            (&deep, "path of 65 components", "at most 64 components"),
        ] {
            let problem = parse(text).expect_err(text);
            assert!(problem.message.starts_with(message), "{text}: {problem:?}");
            assert!(problem.help.contains(help), "{text}: {problem:?}");
        }
    }

    #[test]
    fn sixty_four_components_of_255_bytes_are_a_path() {
        let text = format!("/{}", "x".repeat(255)).repeat(64);
        assert_eq!(parse(&text).map(|pattern| pattern.components.len()), Ok(64));
    }
}
