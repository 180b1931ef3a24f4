//! Options in front of a command, parsed by a table as getopt_long does: the first word that
//! is not an option ends them, and so does `--`; letters may be combined, and long names abbreviated.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use super::known_wrappers::Table;

/// Options of a command line, each with the first of its names in the table and its value; and
/// the words after them.
#[derive(Debug)]
pub(super) struct ParsedOptions<'a> {
    pub(super) options: Vec<(&'static str, Option<OsString>)>,
    pub(super) rest: &'a [OsString],
}

/// Reason why a command line has no command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum WrapperOptionError {
    /// An option that the table lacks.
    Unknown(OsString),
    /// A required argument is missing.
    Missing,
    /// The wrapper does something else: `--help`, `--pid`.
    NoCommand,
    /// The wrapper reads its commands from a file or from its user.
    Script,
}

/// Whether an option has a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    No,
    /// The value is in the same word or the next.
    Needed,
    /// The value, if any, is in the same word.
    Optional,
}

/// One option of a table, under one of its names.
#[derive(Clone, Copy)]
struct Entry {
    /// Name with its dashes.
    spelled: &'static str,
    /// First of its names, without dashes.
    name: &'static str,
    value: Value,
    /// Whether the wrapper starts no command with this option.
    instead: bool,
    /// Whether the next word is the command, whatever it is.
    is_last: bool,
}

/// Returns the options of a table, once for every name. In its text each word is one option: names
/// with dashes, separated by commas. In front of it `!` means that no command is started, `.`
/// that the command follows; behind a name `=` means that a value is needed, `?` that there may be one.
fn entries(table: &Table) -> impl Iterator<Item = Entry> {
    let plain = |name: &'static str| name.trim_end_matches(['=', '?']);
    let words = table.options.split_ascii_whitespace();
    words.flat_map(move |word| {
        let names = word.trim_start_matches(['!', '.']);
        let first = names.split(',').next().unwrap_or_default();
        names.split(',').map(move |spelled| Entry {
            spelled: plain(spelled),
            name: plain(first).trim_start_matches('-'),
            value: match spelled.as_bytes().last() {
                Some(b'=') => Value::Needed,
                Some(b'?') => Value::Optional,
                _ => Value::No,
            },
            instead: word.starts_with('!'),
            is_last: word.starts_with('.'),
        })
    })
}

/// Finds an option by its name with dashes, a long one also by an unambiguous abbreviation.
fn find(table: &Table, name: &[u8]) -> Option<Entry> {
    if let Some(exact) = entries(table).find(|entry| entry.spelled.as_bytes() == name) {
        return Some(exact);
    }
    let mut starting = entries(table)
        .filter(|entry| name.starts_with(b"--") && entry.spelled.as_bytes().starts_with(name));
    let first = starting.next()?;
    starting
        .all(|other| other.name == first.name)
        .then_some(first)
}

/// Parses the options at the start of `args`.
pub(super) fn parse<'a>(
    table: &Table,
    args: &'a [OsString],
) -> Result<ParsedOptions<'a>, WrapperOptionError> {
    let mut options = Vec::new();
    let mut rest = args;
    while let Some((word, mut more)) = rest.split_first() {
        let bytes = word.as_bytes();
        if bytes == b"--" {
            rest = more;
            break;
        }
        if bytes.len() < 2 || !matches!(bytes[0], b'-' | b'+') {
            break;
        }
        let unknown = || WrapperOptionError::Unknown(word.clone());
        let mut take = |entry: Entry, attached: Option<&[u8]>| {
            let value = match (entry.value, attached) {
                (Value::No, _) => None,
                (_, Some(bytes)) => Some(OsString::from_vec(bytes.to_vec())),
                (Value::Optional, None) => None,
                (Value::Needed, None) => {
                    let (next, after) = more.split_first().ok_or(WrapperOptionError::Missing)?;
                    more = after;
                    Some(next.clone())
                }
            };
            options.push((entry.name, value));
            match entry.instead {
                true => Err(WrapperOptionError::NoCommand),
                false => Ok(entry.is_last),
            }
        };
        let long = bytes.starts_with(b"--") || table.one_dash;
        let last = if table.digits && is_number(&bytes[1..]) {
            false
        } else if long {
            let (name, value) = match bytes.iter().position(|byte| *byte == b'=') {
                Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
                None => (bytes, None),
            };
            let found = find(table, name).or_else(|| {
                let longer = [b"-", name].concat();
                table.one_dash.then(|| find(table, &longer)).flatten()
            });
            match found {
                Some(entry) => take(entry, value)?,
                // Every long option has its value in the same word.
                None if table.any_long => false,
                None => return Err(unknown()),
            }
        } else {
            letters(table, bytes, take).ok_or_else(unknown)??
        };
        rest = more;
        if last {
            break;
        }
    }
    Ok(ParsedOptions { options, rest })
}

/// Parses one word of letters, of which the last may have a value.
fn letters(
    table: &Table,
    word: &[u8],
    mut take: impl FnMut(Entry, Option<&[u8]>) -> Result<bool, WrapperOptionError>,
) -> Option<Result<bool, WrapperOptionError>> {
    for (at, letter) in word.iter().enumerate().skip(1) {
        let entry = find(table, &[b'-', *letter])?;
        let attached = word.get(at + 1..).filter(|rest| !rest.is_empty());
        let ends = entry.is_last || entry.value != Value::No;
        let taken = take(entry, attached);
        if ends || taken.is_err() {
            return Some(taken);
        }
    }
    Some(Ok(false))
}

/// Whether a text is an optional sign and digits: `nice -5`, `nice --5`.
fn is_number(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let digits = digits.strip_prefix(b"+").unwrap_or(digits);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// Whether a word could be an option.
pub(super) fn looks_like_one(word: &OsStr) -> bool {
    word.as_bytes().len() > 1 && matches!(word.as_bytes()[0], b'-' | b'+')
}
