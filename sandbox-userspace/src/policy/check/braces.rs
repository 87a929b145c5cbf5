//! `{a,b}`: one text that stands for several.

use super::Problem;

/// Most texts that one rule may stand for.
const MOST: usize = 1024;
/// Most braces within braces.
const NESTED: usize = 16;

/// The texts that a text stands for, in the order of their writing; itself where it has no braces.
///
/// What a backslash precedes and the braces of `${NAME}` are left alone.
pub(super) fn expand(text: &str) -> Result<Vec<String>, Problem> {
    if !text.contains(['{', '}']) {
        return Ok(vec![text.to_owned()]);
    }
    let mut rest = text;
    let found = sequence(&mut rest, 0)?;
    if rest.is_empty() { Ok(found) } else { Err(unopened()) }
}

/// Reads up to the end, or to the `,` or `}` that ends an alternative.
fn sequence(rest: &mut &str, depth: usize) -> Result<Vec<String>, Problem> {
    let mut found = vec![String::new()];
    while let Some(character) = rest.chars().next() {
        match character {
            ',' | '}' if depth > 0 => break,
            '}' => return Err(unopened()),
            '{' => {
                *rest = &rest[1..];
                let choices = choices(rest, depth + 1)?;
                if found.len() * choices.len() > MOST {
                    return Err(too_many());
                }
                found = found
                    .iter()
                    .flat_map(|begin| choices.iter().map(move |end| format!("{begin}{end}")))
                    .collect();
            }
            _ => {
                let length = match character {
                    '\\' => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
                    '$' if rest.starts_with("${") => {
                        rest.find('}').map_or(rest.len(), |end| end + 1)
                    }
                    plain => plain.len_utf8(),
                };
                let (plain, after) = rest.split_at(length);
                found.iter_mut().for_each(|text| text.push_str(plain));
                *rest = after;
            }
        }
    }
    Ok(found)
}

/// Reads alternatives and the `}` behind them.
fn choices(rest: &mut &str, depth: usize) -> Result<Vec<String>, Problem> {
    if depth > NESTED {
        return Err(Problem::new(
            format!("braces within braces, more than {NESTED} deep"),
            "write several rules",
        ));
    }
    let mut found = Vec::new();
    loop {
        found.extend(sequence(rest, depth)?);
        if found.len() > MOST {
            return Err(too_many());
        }
        match rest.chars().next() {
            None => {
                return Err(Problem::new(
                    "`{` without `}`",
                    "write `{a,b}`, or `\\{` for the character itself",
                ));
            }
            Some(end) => {
                *rest = &rest[1..];
                if end == '}' {
                    return Ok(found);
                }
            }
        }
    }
}

fn unopened() -> Problem {
    Problem::new("`}` without `{`", "write `\\}` for the character itself")
}

fn too_many() -> Problem {
    Problem::new(
        format!("the braces stand for more than {MOST} paths"),
        "write several rules, or a wildcard instead of the braces",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_are_alternatives() {
        for (text, expected) in [
            ("/a", &["/a"][..]),
            ("/{a,b}/c", &["/a/c", "/b/c"]),
            ("{a,b}{c,d}", &["ac", "ad", "bc", "bd"]),
            ("a{,.b{c,d}}e", &["ae", "a.bce", "a.bde"]),
            ("{a/b,c}", &["a/b", "c"]),
            (r"${W}/\{a,b\}", &[r"${W}/\{a,b\}"]),
            ("{${W},x}/ä", &["${W}/ä", "x/ä"]),
            ("{a}", &["a"]),
            (r"{a\,b,c}", &[r"a\,b", "c"]),
        ] {
            assert_eq!(expand(text).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn what_does_not_close_or_is_too_much_is_refused() {
        for (text, message) in [
            ("/{a,b", "`{` without `}`"),
            ("/a}", "`}` without `{`"),
            ("/{a}}", "`}` without `{`"),
            (&"{".repeat(99_999), "braces within braces, more than 16 deep"),
            (&"{a,b}".repeat(11), "the braces stand for more than 1024 paths"),
        ] {
            assert_eq!(expand(text).unwrap_err().message, message, "{text}");
        }
        assert_eq!(expand(&"{a,b}".repeat(10)).unwrap().len(), 1024);
    }
}
