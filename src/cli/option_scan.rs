//! Scans the options in front of a program, word by word: which words are options of wireup, and which of these take the
//! next word. Derived from the parser's description, so there is no second list.

use std::ffi::{OsStr, OsString};
use std::iter;
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, Command, CommandFactory};

use super::negation;

/// The meaning of a word where an option or a program is expected.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ArgumentKind {
    /// An option; the next word is its value if `takes_next`.
    Option {
        /// Whether the next word belongs to it.
        takes_next: bool,
    },
    /// `-name` for wireup's `--name`, as other launchers spell it.
    SingleDash {
        /// The word with two dashes.
        respelled: OsString,
        /// Whether the next word belongs to it.
        takes_next: bool,
    },
    /// Word that looks like an option and is not one of wireup.
    Unknown,
    /// The program, or `--` in front of it.
    Program,
}

impl ArgumentKind {
    /// Whether it is an option of wireup in any spelling.
    pub(super) fn is_option(&self) -> bool {
        matches!(self, Self::Option { .. } | Self::SingleDash { .. })
    }

    /// Whether the next word belongs to it.
    pub(super) fn takes_next(&self) -> bool {
        match self {
            Self::Option { takes_next } | Self::SingleDash { takes_next, .. } => *takes_next,
            Self::Unknown | Self::Program => false,
        }
    }
}

/// The options of a command.
#[derive(Debug)]
pub(super) struct OptionTable {
    command: Command,
}

impl From<Command> for OptionTable {
    fn from(command: Command) -> Self {
        Self { command }
    }
}

impl OptionTable {
    /// Creates the table of a parser's options.
    pub(super) fn from_parser<P: CommandFactory>() -> Self {
        Self {
            command: P::command(),
        }
    }

    /// The parser for these words; it has negations only if a word is one.
    pub(super) fn into_parser(self, words: &[OsString]) -> Command {
        match words.iter().any(|word| self.negates(word)) {
            true => negation::with_negations(self.command),
            false => self.command,
        }
    }

    /// Returns all options, in the order of the help.
    pub(super) fn options(&self) -> impl Iterator<Item = &Arg> {
        let arguments = self.command.get_arguments();
        arguments.filter(|arg| !arg.is_positional())
    }

    /// Returns the option with this long name or alias.
    pub(super) fn long(&self, name: &str) -> Option<&Arg> {
        let named = |arg: &&Arg| {
            arg.get_long() == Some(name)
                || arg.get_all_aliases().is_some_and(|all| all.contains(&name))
        };
        self.command.get_arguments().find(named)
    }

    /// Whether a word is an option of wireup, in wireup's spelling.
    pub(super) fn knows(&self, word: &OsStr) -> bool {
        matches!(self.read(word), ArgumentKind::Option { .. })
    }

    /// Returns the positions and meanings of all words that are no values of options.
    pub(super) fn scan(&self, words: &[OsString]) -> impl Iterator<Item = (usize, ArgumentKind)> {
        let mut next = 0;
        iter::from_fn(move || {
            let (at, kind) = (next, self.read(words.get(next)?));
            next += 1 + usize::from(kind.takes_next());
            Some((at, kind))
        })
    }

    /// The meaning of a word.
    pub(super) fn read(&self, word: &OsStr) -> ArgumentKind {
        let bytes = word.as_bytes();
        if !bytes.starts_with(b"-") || bytes == b"-" || bytes == b"--" {
            return ArgumentKind::Program;
        }
        let text = word.to_string_lossy();
        if let Some(name) = text.strip_prefix("--") {
            return match self.read_long(name) {
                Some(takes_next) => ArgumentKind::Option { takes_next },
                None => ArgumentKind::Unknown,
            };
        }
        let name = &text[1..];
        // Two letters and more: `-wdir` is never meant as `-w dir`.
        if name.chars().nth(1).is_some()
            && let Some(takes_next) = self.read_long(name)
        {
            let mut respelled = OsString::from("-");
            respelled.push(word);
            return ArgumentKind::SingleDash {
                respelled,
                takes_next,
            };
        }
        self.read_cluster(name)
    }

    /// Whether `name` or `name=value` takes the next word; `None` if it is not an option of wireup.
    fn read_long(&self, text: &str) -> Option<bool> {
        let (name, joined) = match text.split_once('=') {
            Some((name, _)) => (name, true),
            None => (text, false),
        };
        // Clap adds its own option when it parses.
        if text == "help" {
            return Some(false);
        }
        if let Some(arg) = self.long(name) {
            return Some(!joined && takes_next(arg));
        }
        (self.takes_back(name) && !joined).then_some(false)
    }

    /// Returns the letter that takes a value in a word like `-x`, `-xA` or `-lxA`, with the joined value.
    pub(super) fn letter_with_value<'w>(&self, word: &'w OsStr) -> Option<(char, &'w str)> {
        let letters = word.to_str()?.strip_prefix('-')?;
        let mut rest = letters.chars();
        while let Some(letter) = rest.next() {
            let mut options = self.options();
            let arg = options.find(|arg| arg.get_short() == Some(letter))?;
            if arg.get_action().takes_values() && !has_optional_value(arg) {
                return Some((letter, rest.as_str()));
            }
        }
        None
    }

    /// Whether a word is the negation of an option that does not define one.
    fn negates(&self, word: &OsStr) -> bool {
        let name = word.to_str().and_then(|text| text.strip_prefix("--"));
        name.is_some_and(|name| self.long(name).is_none() && self.takes_back(name))
    }

    fn takes_back(&self, name: &str) -> bool {
        self.long(&negation::opposite(name)).is_some()
    }

    /// Reads the letters after one dash: the first that takes a value ends the cluster.
    fn read_cluster(&self, letters: &str) -> ArgumentKind {
        let mut rest = letters.chars();
        while let Some(letter) = rest.next() {
            if letter == 'h' {
                continue;
            }
            let named = |arg: &&Arg| {
                arg.get_short() == Some(letter)
                    || arg
                        .get_all_short_aliases()
                        .is_some_and(|all| all.contains(&letter))
            };
            match self.command.get_arguments().find(named) {
                None => return ArgumentKind::Unknown,
                Some(arg) if has_optional_value(arg) && !rest.as_str().starts_with('=') => {}
                Some(arg) if arg.get_action().takes_values() => {
                    let takes_next = rest.as_str().is_empty() && takes_next(arg);
                    return ArgumentKind::Option { takes_next };
                }
                Some(_) => {}
            }
        }
        ArgumentKind::Option { takes_next: false }
    }
}

/// Whether an option takes the next word as its value.
pub(super) fn takes_next(arg: &Arg) -> bool {
    arg.get_action().takes_values() && !has_optional_value(arg)
}

/// Whether an option may be given with `=VALUE` and without a value.
pub(super) fn has_optional_value(arg: &Arg) -> bool {
    let is_optional = arg
        .get_num_args()
        .is_some_and(|range| range.min_values() == 0);
    arg.get_action().takes_values() && (is_optional || arg.is_require_equals_set())
}

#[cfg(test)]
mod tests {
    use super::super::run_args::RunArgs;
    use super::*;

    #[test]
    fn options_are_recognized_in_every_spelling_of_clap() {
        let own = OptionTable::from_parser::<RunArgs>();
        let next = |takes_next| ArgumentKind::Option { takes_next };
        for (word, meaning) in [
            ("-n", next(true)),
            ("-n4", next(false)),
            ("-lv", next(false)),
            ("-lvn", next(true)),
            ("-l=%h: ", next(false)),
            ("--timeout", next(true)),
            ("--timeout=3", next(false)),
            ("--no-timeout", next(false)),
            ("--no-timeout=3", ArgumentKind::Unknown),
            ("--frob", ArgumentKind::Unknown),
            ("-frob", ArgumentKind::Unknown),
            ("-h", next(false)),
            ("--help", next(false)),
            ("-", ArgumentKind::Program),
            ("--", ArgumentKind::Program),
            ("./a", ArgumentKind::Program),
        ] {
            assert_eq!(own.read(OsStr::new(word)), meaning, "{word}");
        }
        let single = |word: &str, takes_next| ArgumentKind::SingleDash {
            respelled: format!("-{word}").into(),
            takes_next,
        };
        assert_eq!(own.read(OsStr::new("-wdir")), single("-wdir", true));
        assert_eq!(own.read(OsStr::new("-pmi=all")), single("-pmi=all", false));
    }

    #[test]
    fn every_option_is_read_as_clap_would() {
        let own = OptionTable::from_parser::<RunArgs>();
        for arg in own.options() {
            let takes_next = takes_next(arg);
            let long = arg.get_long().expect("every option has a long name");
            let words = [format!("--{long}")];
            let short = arg.get_short().map(|letter| format!("-{letter}"));
            for word in words.into_iter().chain(short) {
                let meaning = own.read(OsStr::new(&word));
                assert_eq!(meaning, ArgumentKind::Option { takes_next }, "{word}");
            }
        }
    }
}
