//! Globs: patterns of one name.
//!
//! A name is bytes; most are UTF-8, so `?` and the sets speak of characters. A byte that is not part of
//! one is matched by `*` alone.

/// A pattern of one name: its parts in order, never two [`Star`](Atom::Star)s in a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Glob(pub Vec<Atom>);

/// A part of a glob.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Atom {
    /// This byte.
    Byte(u8),
    /// One character: of the ASCII characters those in the set, or where negated all others and every
    /// character beyond ASCII. `?` is the negated empty set.
    One {
        /// Bit `n` is ASCII character `n`.
        set: u128,
        /// Whether the set is what does not match.
        negated: bool,
    },
    /// Any bytes, none too.
    Star,
}

/// `?`.
pub const ANY: Atom = Atom::One { set: 0, negated: true };

/// Bytes that a character takes which begins with `lead`; `None` where none begins so.
pub const fn character(lead: u8) -> Option<usize> {
    match lead {
        0..=0x7f => Some(1),
        0xc2..=0xdf => Some(2),
        0xe0..=0xef => Some(3),
        0xf0..=0xf4 => Some(4),
        _ => None,
    }
}

/// Whether a byte continues a character.
pub const fn continues(byte: u8) -> bool {
    matches!(byte, 0x80..=0xbf)
}

impl Atom {
    /// Whether an ASCII character is one that [`Atom::One`] speaks of.
    pub const fn has(set: u128, negated: bool, byte: u8) -> bool {
        byte < 128 && (set >> byte & 1 == 1) != negated
    }
}

impl Glob {
    /// The glob that matches one name.
    pub fn literal(name: &[u8]) -> Self {
        Self(name.iter().map(|byte| Atom::Byte(*byte)).collect())
    }

    /// The name, where it matches only one.
    pub fn name(&self) -> Option<Vec<u8>> {
        let byte = |atom: &Atom| if let Atom::Byte(byte) = atom { Some(*byte) } else { None };
        self.0.iter().map(byte).collect()
    }

    /// Whether it matches every name.
    pub fn is_any(&self) -> bool {
        self.0 == [Atom::Star]
    }

    /// For directories that do not tell upper from lower case: what matches a name folded to lower case
    /// where this matches one of its spellings.
    #[must_use]
    pub fn folded(&self) -> Self {
        Self(
            self.0
                .iter()
                .map(|atom| match *atom {
                    Atom::Byte(byte) => Atom::Byte(byte.to_ascii_lowercase()),
                    Atom::One { set, negated } => {
                        let upper = set & UPPER;
                        Atom::One { set: set & !UPPER | upper << 32, negated }
                    }
                    Atom::Star => Atom::Star,
                })
                .collect(),
        )
    }

    /// Whether it matches a name: the meaning, which the automata are held to.
    pub fn matches(&self, name: &[u8]) -> bool {
        matches(&self.0, name)
    }
}

/// Bits of `A` to `Z`; 32 further are those of `a` to `z`.
const UPPER: u128 = 0x3ff_ffff << 65;

/// Each part behind a star is tried at the first place where it fits; where what comes then does not
/// fit, at the next one.
fn matches(atoms: &[Atom], name: &[u8]) -> bool {
    let (mut at, mut rest) = (0, name);
    let mut star: Option<(usize, &[u8])> = None;
    loop {
        match atoms.get(at) {
            Some(Atom::Star) => {
                at += 1;
                star = Some((at, rest));
                continue;
            }
            None if rest.is_empty() => return true,
            Some(atom) => {
                if let Some(after) = one(*atom, rest) {
                    (at, rest) = (at + 1, after);
                    continue;
                }
            }
            None => {}
        }
        match star {
            Some((behind, from)) if !from.is_empty() => {
                star = Some((behind, &from[1..]));
                (at, rest) = (behind, &from[1..]);
            }
            _ => return false,
        }
    }
}

/// What follows where a name begins as `atom` says.
fn one(atom: Atom, name: &[u8]) -> Option<&[u8]> {
    let (first, after) = name.split_first()?;
    match atom {
        Atom::Star => None,
        Atom::Byte(byte) => (*first == byte).then_some(after),
        Atom::One { set, negated } => match character(*first)? {
            1 => Atom::has(set, negated, *first).then_some(after),
            length => {
                let (more, after) = after.split_at_checked(length - 1)?;
                (negated && more.iter().all(|byte| continues(*byte))).then_some(after)
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::check::path::glob;

    #[test]
    fn globs_match_whole_names() {
        for (text, yes, no) in [
            (".env.*", &[".env.local", ".env."][..], &[".env", "x.env.y"][..]),
            ("*.pem", &["a.pem", ".pem"], &["a.pem.x", "pem"]),
            ("a*b*c", &["abc", "axbxbxc"], &["ab", "acb"]),
            ("?", &["x", "ä", "€", "𝄞"], &["", "xy"]),
            ("[a-c]x", &["ax", "cx"], &["dx", "Ax", "äx"]),
            ("[!a-c]x", &["dx", "Ax", "äx"], &["ax", "x"]),
            (r"[\]\-\\]", &["]", "-", r"\"], &["a"]),
            (r"\*\?", &["*?"], &["ab"]),
            ("*", &["a", ".b"], &[]),
        ] {
            let glob = glob(text).unwrap();
            for name in yes {
                assert!(glob.matches(name.as_bytes()), "{text} {name}");
            }
            for name in no {
                assert!(!glob.matches(name.as_bytes()), "{text} {name}");
            }
        }
        assert!(!glob("?").unwrap().matches(b"\xff"));
        assert!(glob("*").unwrap().matches(b"\xff"));
    }

    #[test]
    fn folding_follows_the_letters_and_the_negation() {
        for (text, folded) in
            [("Read*", "read*"), ("[A-Cx]", "[a-cx]"), ("[!A]", "[!a]"), ("?", "?")]
        {
            assert_eq!(glob(text).unwrap().folded(), glob(folded).unwrap());
        }
    }
}
