//! `env`: options, assignments, and texts that are split into words.
//!
//! Rule: options first, then `NAME=VALUE` words, then the command, which is searched in the new
//! PATH. The words of `-S` take its place, and more options may be among them. Source: env(1).

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use super::known_wrappers::Table;
use super::wrapper_options::{ParsedOptions, WrapperOptionError, parse};
use super::{ExecContext, WrapperTarget, assign, one};

/// Maximum number of `-S` texts, one inside the other.
const SPLITS: u8 = 8;

pub(super) fn parse_target(
    table: &'static Table,
    args: &[OsString],
    context: &ExecContext,
) -> WrapperTarget {
    let mut place = context.clone();
    let mut removed = Vec::new();
    let mut cleared = false;
    let mut words = args.to_vec();
    for _ in 0..SPLITS {
        let (split, ParsedOptions { options, rest }) = until_split(table, &words)?;
        for (name, value) in options {
            match (name, value) {
                ("i", _) => cleared = true,
                ("u", Some(name)) => removed.push(name),
                ("C", Some(dir)) => place.cwd = place.cwd.join(dir),
                _ => {}
            }
        }
        let Some(text) = split else {
            let mut rest = rest;
            if rest.first().is_some_and(|word| word == "-") {
                cleared = true;
                rest = &rest[1..];
            }
            if cleared {
                place.env.clear();
            }
            for name in removed {
                place.set(name, None);
            }
            return command(rest, place);
        };
        // The words after the text are parsed again, behind the new words.
        let mut next = split_words(text.as_bytes(), context)?;
        next.extend_from_slice(rest);
        words = next;
    }
    Err(WrapperOptionError::Unknown("-S".into()))
}

/// Parses the options up to the first `-S`, and returns its text.
fn until_split<'a>(
    table: &'static Table,
    words: &'a [OsString],
) -> Result<(Option<OsString>, ParsedOptions<'a>), WrapperOptionError> {
    let mut options = Vec::new();
    let mut rest = words;
    // One argument at a time, with the next one for its value.
    while let Some(word) = rest.first() {
        if word == "--" || !super::wrapper_options::looks_like_one(word) {
            break;
        }
        let parsed = parse(table, &rest[..1]);
        let (parsed, used) = match parsed {
            Err(WrapperOptionError::Missing) if rest.len() > 1 => (parse(table, &rest[..2])?, 2),
            other => (other?, 1),
        };
        rest = &rest[used..];
        let mut split = None;
        for (name, value) in parsed.options {
            match name {
                "S" => split = value,
                _ => options.push((name, value)),
            }
        }
        if split.is_some() {
            return Ok((split, ParsedOptions { options, rest }));
        }
    }
    if rest.first().is_some_and(|word| word == "--") {
        rest = &rest[1..];
    }
    Ok((None, ParsedOptions { options, rest }))
}

/// Parses the assignments and the command.
fn command(words: &[OsString], mut place: ExecContext) -> WrapperTarget {
    let assigned = words
        .iter()
        .take_while(|word| word.as_bytes().contains(&b'='))
        .count();
    for word in &words[..assigned] {
        assign(&mut place, word);
    }
    one(&words[assigned..], place)
}

/// Splits the text of `-S`: blanks separate, quotes join, a few escapes, and `${NAME}`.
fn split_words(text: &[u8], place: &ExecContext) -> Result<Vec<OsString>, WrapperOptionError> {
    let wrong = || WrapperOptionError::Unknown(OsString::from_vec([b"-S", text].concat()));
    let mut words = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut quote = None;
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        match (byte, quote) {
            (b'\'' | b'"', None) => {
                quote = Some(byte);
                word.get_or_insert_default();
            }
            (_, Some(open)) if byte == open => quote = None,
            (b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c, None) => {
                words.extend(word.take().map(OsString::from_vec));
            }
            (b'#', None) if word.is_none() => break,
            (b'\\', quote) => {
                let next = bytes.next().ok_or_else(wrong)?;
                let meant = match (next, quote) {
                    (b'\\' | b'\'', Some(b'\'')) => next,
                    (_, Some(b'\'')) => {
                        word.get_or_insert_default().push(b'\\');
                        next
                    }
                    (b'c', None) => break,
                    // A blank that separates, outside of quotes.
                    (b'_', None) => {
                        words.extend(word.take().map(OsString::from_vec));
                        continue;
                    }
                    (b'_', _) => b' ',
                    (b'f', _) => 0x0c,
                    (b'n', _) => b'\n',
                    (b'r', _) => b'\r',
                    (b't', _) => b'\t',
                    (b'v', _) => 0x0b,
                    (b'#' | b'$' | b'"' | b'\\' | b'\'', _) => next,
                    _ => return Err(wrong()),
                };
                word.get_or_insert_default().push(meant);
            }
            (b'$', None | Some(b'"')) => {
                if bytes.next() != Some(b'{') {
                    return Err(wrong());
                }
                let name: Vec<u8> = bytes.by_ref().take_while(|byte| *byte != b'}').collect();
                let name = String::from_utf8(name).map_err(|_| wrong())?;
                let value = place.variable(&name).map(|value| value.as_bytes());
                word.get_or_insert_default()
                    .extend_from_slice(value.unwrap_or_default());
            }
            _ => word.get_or_insert_default().push(byte),
        }
    }
    if quote.is_some() {
        return Err(wrong());
    }
    words.extend(word.map(OsString::from_vec));
    Ok(words)
}
