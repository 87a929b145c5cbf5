//! Programs by their names and arguments: `git push`.

use super::Problem;
use sandbox_common::ask::{WORD, WORDS};

/// A program and what stands behind it: `["git", "push"]`.
pub type Words = Vec<String>;

/// Reads an entry of `files.exec.ask`: what would be typed, words between spaces.
pub fn parse(text: &str) -> Result<Words, Problem> {
    if let Some(found) = text.chars().find(|c| c.is_control()) {
        let message = format!("{found:?} in the name of a program");
        return Err(Problem::new(message, "write words with spaces between them"));
    }
    let words: Words = text.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect();
    let Some((program, behind)) = words.split_first() else {
        return Err(Problem::new("empty command", "name a program, or remove the entry"));
    };
    if let Some(name) = program.rsplit_once('/').map(|(_, name)| name) {
        let name = if name.is_empty() { "git" } else { name };
        let help = format!(
            "write its name alone: `{name}`; `files.exec.deny` closes a program by its path"
        );
        return Err(Problem::new("a program with its directory", help));
    }
    if behind.len() > WORDS {
        let help = format!("leave out the last ones: {WORDS} words are held to the arguments");
        return Err(Problem::new(format!("{} words behind the program", behind.len()), help));
    }
    for word in &words {
        if word.len() > WORD {
            let help = format!("a word here has {WORD} bytes at most; leave it out");
            return Err(Problem::new(format!("`{word}` has {} bytes", word.len()), help));
        }
        if let Some(found) = word.chars().find(|c| "*?[]{}\"'\\".contains(*c)) {
            let help = "words are compared as they are, without patterns and quotes";
            return Err(Problem::new(format!("`{found}` in a word"), help));
        }
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_between_spaces() {
        assert_eq!(parse("git").unwrap(), ["git"]);
        assert_eq!(parse(" git  push --force ").unwrap(), ["git", "push", "--force"]);
        assert_eq!(parse(&"a".repeat(WORD)).unwrap().len(), 1);
    }

    #[test]
    fn what_is_no_command_is_refused() {
        for (text, message, help) in [
            ("", "empty command", "name a program"),
            ("  ", "empty command", "name a program"),
            ("/usr/bin/git push", "its directory", "`git`; `files.exec.deny`"),
            ("./git", "its directory", "`git`"),
            ("bin/", "its directory", "`git`"),
            ("git a b c d", "4 words", "leave out"),
            (&"a".repeat(WORD + 1), "has 32 bytes", "31 bytes"),
            ("git push*", "`*` in a word", "without patterns"),
            ("sh -c 'x'", "`'` in a word", "without patterns and quotes"),
            ("git\tpush", "'\\t'", "spaces"),
            ("git\0", "'\\0'", "spaces"),
        ] {
            let problem = parse(text).expect_err(text);
            assert!(problem.message.contains(message), "{text}: {problem:?}");
            assert!(problem.help.contains(help), "{text}: {problem:?}");
        }
    }
}
