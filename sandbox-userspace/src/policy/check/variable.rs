//! Names of environment variables, with wildcards.

use super::super::glob::Glob;
use super::{Problem, path};

/// Reads an entry of the lists of `environment`.
pub fn parse(text: &str) -> Result<Glob, Problem> {
    if text.is_empty() {
        return Err(Problem::new("empty name", "name a variable, or remove the entry"));
    }
    if let Some((name, _)) = text.split_once('=') {
        let help = format!("write the name alone: `{name}`; its value does not count");
        return Err(Problem::new("`=` in the name of a variable", help));
    }
    if text.contains('\0') {
        return Err(Problem::new("name with a NUL character", "no variable's name has one"));
    }
    if let Some(name) = text.strip_prefix('$') {
        let name = name.trim_start_matches('{').trim_end_matches('}');
        return Err(Problem::new("`$` before the name of a variable", format!("write `{name}`")));
    }
    path::glob(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_wildcards() {
        let matches = |text: &str, name: &str| parse(text).unwrap().matches(name.as_bytes());
        assert!(matches("AWS_*", "AWS_SECRET_ACCESS_KEY") && !matches("AWS_*", "AWS"));
        assert!(matches("*_TOKEN", "GH_TOKEN") && !matches("*_TOKEN", "GH_TOKENS"));
        assert!(matches("A[0-9]?", "A1x") && matches("*", "anything"));
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for (text, help) in [
            ("", "name a variable"),
            ("A=b", "write the name alone: `A`"),
            ("$HOME", "write `HOME`"),
            ("${HOME}", "write `HOME`"),
            ("A\0", "no variable's name"),
            ("A**", "between slashes"),
            ("A[", "[a-z]"),
        ] {
            let problem = parse(text).expect_err(text);
            assert!(problem.help.contains(help), "{text}: {problem:?}");
        }
    }
}
