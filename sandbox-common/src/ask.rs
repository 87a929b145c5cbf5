//! Programs that a person is asked about before they run: keys and values of map `ASKS`, and how the
//! arguments of a program are held to a rule.
//!
//! A rule is a program and the words behind it: `git push`. Both sides of the border follow the arguments with
//! [`Progress`].

/// Most bytes of a word.
pub const WORD: usize = 31;
/// Most words of a rule behind its program.
pub const WORDS: usize = 3;
/// Most rules about one program.
pub const RULES: usize = 8;
/// So many arguments are looked at, the program itself not counted. What is not decided by then is asked about.
pub const ARGUMENTS: u32 = 64;

/// A word of a rule, or an argument: at most [`WORD`] bytes and zeros behind them. An argument that is longer
/// fills it, and so is no word of a rule.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Word(pub [u64; 4]);

impl Word {
    /// Of a text; `None` where that is empty, too long or has a zero.
    pub fn of(text: &[u8]) -> Option<Self> {
        if text.is_empty() || text.len() > WORD || text.contains(&0) {
            return None;
        }
        Some(Self::cut(text))
    }

    /// Of an argument, of which only the beginning counts.
    pub fn cut(text: &[u8]) -> Self {
        let mut words = [0; 4];
        for (at, byte) in text.iter().take(WORD + 1).enumerate() {
            words[at / 8] |= u64::from(*byte) << (at % 8 * 8);
        }
        Self(words.map(u64::from_le))
    }

    /// Whether it begins with a dash.
    #[inline(always)]
    pub const fn is_option(&self) -> bool {
        self.0[0].to_le() & 0xff == b'-' as u64
    }

    /// Whether both are the same, without a call.
    #[inline(always)]
    pub const fn is(&self, other: &Self) -> bool {
        let differs = (self.0[0] ^ other.0[0])
            | (self.0[1] ^ other.0[1])
            | (self.0[2] ^ other.0[2])
            | (self.0[3] ^ other.0[3]);
        differs == 0
    }
}

/// Key of map `ASKS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct AskKey {
    /// Policy slot.
    pub slot: u32,
    /// Zero.
    pub pad: u32,
    /// The program's name, without directories.
    pub program: Word,
}

/// A rule about the program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Ask {
    /// Its number; 0 is none, and ends the list.
    pub rule: u32,
    /// How many words it has behind the program, at most [`WORDS`].
    pub words: u32,
    /// They.
    pub word: [Word; WORDS],
}

/// Value of map `ASKS`: the rules about one program.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Asks {
    /// In the order in which they are told of.
    pub rules: [Ask; RULES],
}

/// How far the arguments have followed a rule.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Progress(u8);

impl Progress {
    /// Nothing was seen yet.
    pub const START: Self = Self(0);
    const LOST: u8 = u8::MAX;

    /// Whether all words were seen.
    #[inline(always)]
    pub const fn is_whole(self, ask: &Ask) -> bool {
        self.0 as u32 >= ask.words && self.0 != Self::LOST
    }

    /// Whether it can still become whole.
    #[inline(always)]
    pub const fn is_possible(self) -> bool {
        self.0 != Self::LOST
    }

    /// After one more argument. `valued` says that it may be the value of an option before it.
    ///
    /// A word stands where a program looks for its command: behind options, and behind a word after each that may
    /// be its value (`git -C here push`). A word that is an option stands anywhere behind the others.
    #[inline(always)]
    #[must_use]
    pub const fn after(self, ask: &Ask, argument: &Word, valued: bool) -> Self {
        if !self.is_possible() || self.is_whole(ask) {
            return self;
        }
        // In bounds, and so that the verifier sees it.
        let wanted = &ask.word[if self.0 as usize >= WORDS { 0 } else { self.0 as usize }];
        if wanted.is(argument) {
            return Self(self.0 + 1);
        }
        if wanted.is_option() || argument.is_option() || valued {
            return self;
        }
        Self(Self::LOST)
    }
}

/// What the kernel side keeps while it follows the arguments of a program: in the task's own memory, of which the
/// verifier keeps no account. With these numbers on the stack of a global function, rules asked about every call of a
/// 32-bit program on 6.1, whatever its arguments (`T asks`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    feature = "user",
    derive(zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable, zerocopy::KnownLayout)
)]
pub struct Following {
    /// The program.
    pub asked: AskKey,
    /// How far the arguments have followed each rule about it.
    pub progress: [Progress; RULES],
    /// Where the list of the arguments' addresses begins; 0 is an empty list.
    pub at: u64,
    /// Bytes of an address.
    pub width: u32,
    /// The next argument may be the value of the one before.
    pub valued: u32,
    /// All arguments were seen.
    pub ended: u32,
    /// Zero.
    pub pad: u32,
}

#[cfg(feature = "user")]
impl Asks {
    /// The rule that asks about a program with these arguments, the program itself not among them.
    pub fn meet<'a>(&self, arguments: impl IntoIterator<Item = &'a [u8]>) -> Option<u32> {
        let mut progress = [Progress::START; RULES];
        let mut valued = false;
        let mut cut = false;
        for (read, argument) in (0..).zip(arguments) {
            if read == ARGUMENTS {
                cut = true;
                break;
            }
            let argument = Word::cut(argument);
            for (progress, ask) in progress.iter_mut().zip(&self.rules) {
                *progress = progress.after(ask, &argument, valued);
            }
            valued = argument.is_option();
        }
        let asked = |(progress, ask): &(&Progress, &Ask)| {
            ask.rule != 0 && (progress.is_whole(ask) || cut && progress.is_possible())
        };
        progress.iter().zip(&self.rules).find(asked).map(|(_, ask)| ask.rule)
    }
}

#[cfg(feature = "user")]
crate::pod!(Word, AskKey, Ask, Asks);

#[cfg(all(test, feature = "user"))]
mod tests {
    use super::*;

    fn ask(rule: u32, words: &[&str]) -> Ask {
        let mut ask = Ask { rule, ..Ask::default() };
        for (place, word) in ask.word.iter_mut().zip(words) {
            *place = Word::cut(word.as_bytes());
            ask.words += 1;
        }
        ask
    }

    #[test]
    fn words_are_texts() {
        assert_eq!(Word::of(b""), None);
        assert_eq!(Word::of(&[b'a'; WORD + 1]), None);
        assert_eq!(Word::of(b"a\0b"), None);
        let whole = Word::of(&[b'a'; WORD]).unwrap_or_default();
        assert!(!whole.is(&Word::cut(&[b'a'; WORD + 1])) && whole.is(&Word::cut(&[b'a'; WORD])));
        assert!(Word::cut(&[b'a'; 99]).is(&Word::cut(&[b'a'; WORD + 1])));
        assert!(Word::cut(b"-f").is_option() && !Word::cut(b"f-").is_option());
    }

    #[test]
    fn commands_are_found_behind_options() {
        let mut asks = Asks::default();
        asks.rules[0] = ask(1, &["push"]);
        asks.rules[1] = ask(2, &["remote", "add"]);
        asks.rules[2] = ask(3, &["reset", "--hard"]);
        for (line, rule) in [
            ("push", Some(1)),
            ("push origin", Some(1)),
            ("-C there push", Some(1)),
            ("--no-pager -c a.b=c push", Some(1)),
            ("stash push", None),
            ("commit -m push", None),
            ("-v commit push", Some(1)),
            ("pushx", None),
            ("", None),
            ("remote -v add x y", Some(2)),
            ("remote show add", None),
            ("add remote", None),
            ("reset HEAD --hard", Some(3)),
            ("reset --hard", Some(3)),
            ("--hard reset", None),
            ("reset HEAD", None),
        ] {
            let words = line.split(' ').filter(|word| !word.is_empty());
            assert_eq!(asks.meet(words.map(str::as_bytes)), rule, "{line}");
        }
    }

    #[test]
    fn what_is_not_decided_is_asked_about() {
        let mut asks = Asks::default();
        asks.rules[0] = ask(1, &["push"]);
        let options = [b"-x".as_slice(); 65];
        assert_eq!(asks.meet(options.into_iter().skip(1)), None);
        assert_eq!(asks.meet(options), Some(1));
        let decided = [b"status".as_slice()].into_iter().chain(options);
        assert_eq!(asks.meet(decided), None);
        asks.rules[0] = ask(1, &[]);
        assert_eq!(asks.meet([]), Some(1));
        assert_eq!(Asks::default().meet(options), None);
    }
}
