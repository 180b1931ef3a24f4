//! Options of other launchers (`mpiexec`, `mpirun`, `srun`): what means the same here is taken as
//! such, everything else is refused with what to write instead. Nothing is ignored in silence that
//! would have had an effect.

pub(super) mod table;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use table::{HABITS, Habit, Meaning};

use crate::cli::line::{Own, Word};

/// A program's part of the line in our own spelling.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Translated {
    /// Options, program and arguments.
    pub(super) words: Vec<OsString>,
    /// Options that hold for every program of the job.
    pub(super) everywhere: Vec<OsString>,
}

/// An option of another launcher that cannot be taken as it is.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ForeignError {
    #[error("{} needs {}", option.display(), count(*number))]
    Values { option: OsString, number: usize },
    /// It means something else here, or nothing; the advice says what to write.
    #[error("{}: {advice}", option.display())]
    Instead { option: OsString, advice: String },
}

/// Puts the options in front of a program into our own spelling; `first` comes before that and the table. Words after the program, and
/// after an unknown word, are unchanged.
///
/// # Errors
/// [`ForeignError`] with what to write instead of an option of another launcher.
pub(super) fn translate(
    own: &Own,
    first: &[Habit],
    words: Vec<OsString>,
) -> Result<Translated, ForeignError> {
    let mut result = Translated {
        words: Vec::with_capacity(words.len()),
        everywhere: Vec::new(),
    };
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let meaning = own.read(&word);
        let foreign = match meaning {
            Word::Program => None,
            _ if let Some(found) = among(first, &word).or_else(|| letter(first, &word)) => {
                Some(found)
            }
            // Our own spelling comes first, except that `-np` is not `-n p`.
            Word::Option { .. } if is_plain(&word) => whole(&word).map(|habit| (habit, None)),
            _ => habit(&word).or_else(|| letter(HABITS, &word)),
        };
        if let Some((habit, joined)) = foreign {
            let values = take_values(habit, &word, joined, &mut words)?;
            apply(habit.meaning, &word, &values, &mut result)?;
            continue;
        }
        let takes_next = match meaning {
            Word::Option { takes_next } => {
                if let Some(each) = variables(own, &word, takes_next, &mut words) {
                    result.words.extend(each);
                    continue;
                }
                if takes_next && word == "--json" && words.as_slice().first().is_some_and(is_option)
                {
                    result.words.push("--json=-".into());
                    continue;
                }
                result.words.push(word);
                takes_next
            }
            Word::SingleDash {
                respelled,
                takes_next,
            } => {
                result.words.push(respelled);
                takes_next
            }
            Word::Unknown | Word::Program => {
                result.words.push(word);
                break;
            }
        };
        if takes_next {
            result.words.extend(words.next());
        }
    }
    result.words.extend(words);
    Ok(result)
}

/// Cannot be meant as the value of the option before it: an option, or the `--` in front of the program.
fn is_option(word: &OsString) -> bool {
    word.as_bytes().starts_with(b"-") && word != "-"
}

/// Two dashes, or one letter: cannot be a long name behind one dash.
fn is_plain(word: &OsStr) -> bool {
    let bytes = word.as_bytes();
    bytes.starts_with(b"--") || bytes.len() <= 2
}

/// `-x A,B` as `-x A -x B`: other launchers add all that such a list names. `None` for any other option.
fn variables(
    own: &Own,
    word: &OsStr,
    takes_next: bool,
    words: &mut (impl Iterator<Item = OsString> + Clone),
) -> Option<Vec<OsString>> {
    let (_, joined) = own
        .letter_with_value(word)
        .filter(|(letter, _)| *letter == 'x')?;
    let list = match takes_next {
        true => words.clone().next()?,
        false => joined.into(),
    };
    if !list.as_bytes().contains(&b',') || list.as_bytes().contains(&b'=') {
        return None;
    }
    if takes_next {
        words.next();
    }
    let mut each = Vec::new();
    // Switches in front of the letter.
    let switches = &word.as_bytes()[..word.len() - joined.len() - 1];
    if switches != b"-" {
        each.push(OsStr::from_bytes(switches).to_owned());
    }
    for name in list.as_bytes().split(|byte| *byte == b',') {
        if !name.is_empty() {
            each.extend(["-x".into(), OsStr::from_bytes(name).to_owned()]);
        }
    }
    Some(each)
}

/// The entry of a word that is one of wireup's options except for its value.
fn whole(word: &OsStr) -> Option<&'static Habit> {
    let name = name(word.as_bytes());
    let known = |known: &str| known.as_bytes() == name && known.contains('=');
    let named = |habit: &&Habit| habit.names.iter().any(|name| known(name));
    HABITS.iter().find(named)
}

/// A word without the dash or the two dashes in front.
fn name(word: &[u8]) -> &[u8] {
    let name = word.strip_prefix(b"-").unwrap_or(word);
    name.strip_prefix(b"-").unwrap_or(name)
}

/// The entry of a word in the table, and the value that is joined to it with `=`.
fn habit(word: &OsStr) -> Option<(&'static Habit, Option<OsString>)> {
    among(HABITS, word)
}

/// The entry of a name behind one dash with its number, as in `-N2` and `-np2`.
fn letter<'h>(habits: &'h [Habit], word: &OsStr) -> Option<(&'h Habit, Option<OsString>)> {
    let bytes = word.as_bytes();
    let digits = bytes.iter().rev().take_while(|byte| byte.is_ascii_digit());
    let (name, value) = bytes.split_at(bytes.len() - digits.count());
    let is_joined = !value.is_empty() && !name.starts_with(b"--");
    let (habit, _) = among(habits, OsStr::from_bytes(name)).filter(|_| is_joined)?;
    Some((habit, Some(OsStr::from_bytes(value).to_owned())))
}

/// As [`habit`], among these.
fn among<'h>(habits: &'h [Habit], word: &OsStr) -> Option<(&'h Habit, Option<OsString>)> {
    let bytes = word.as_bytes();
    let (option, joined) = match bytes.iter().position(|byte| *byte == b'=') {
        // Behind one dash too, for names that are no letters.
        Some(at) if at > 2 => (
            &bytes[..at],
            Some(OsStr::from_bytes(&bytes[at + 1..]).into()),
        ),
        _ => (bytes, None),
    };
    let name = name(option);
    let known = |known: &str| [option, name].contains(&known.as_bytes());
    let named = |habit: &&Habit| habit.names.iter().any(|name| known(name));
    Some((habits.iter().find(named)?, joined))
}

fn take_values(
    habit: &Habit,
    word: &OsStr,
    joined: Option<OsString>,
    words: &mut impl Iterator<Item = OsString>,
) -> Result<Vec<OsString>, ForeignError> {
    let missing = habit.values - usize::from(joined.is_some()).min(habit.values);
    let mut values: Vec<OsString> = joined.into_iter().collect();
    let is_variable = matches!(
        habit.meaning,
        Meaning::Variable | Meaning::VariableEverywhere
    );
    for _ in 0..missing {
        // Hydra takes `-genv A=B` as `-genv A B`.
        let assigned = |value: &OsString| value.as_bytes().contains(&b'=');
        if is_variable && values.first().is_some_and(assigned) {
            return Ok(values);
        }
        values.extend(words.next());
    }
    // An option that is refused anyway is refused with its values.
    if values.len() < habit.values && !matches!(habit.meaning, Meaning::Instead(_)) {
        return Err(ForeignError::Values {
            option: word.to_owned(),
            number: habit.values,
        });
    }
    Ok(values)
}

fn count(values: usize) -> String {
    match values {
        1 => "a value".into(),
        number => format!("{number} values"),
    }
}

fn apply(
    meaning: Meaning,
    word: &OsStr,
    values: &[OsString],
    result: &mut Translated,
) -> Result<(), ForeignError> {
    match meaning {
        Meaning::Nothing => {}
        Meaning::Only(only, instead) => {
            if values.iter().any(|value| value != only) {
                return Err(refusal(instead, word, values));
            }
        }
        Meaning::Option(option) => {
            result.words.push(option.into());
            result.words.extend_from_slice(values);
        }
        Meaning::Words(words) => {
            let filled = words.iter().map(|word| filled(word, None, values));
            result.words.extend(filled.map(OsString::from));
        }
        Meaning::Computed(compute, instead) => {
            let value = values.first().and_then(|value| value.to_str());
            match value.and_then(compute) {
                Some(words) => result.words.extend(words),
                None => return Err(refusal(instead, word, values)),
            }
        }
        Meaning::Variable => result.words.extend(["-x".into(), assignment(values)]),
        Meaning::VariableEverywhere => {
            result.everywhere.extend(["-x".into(), assignment(values)]);
        }
        Meaning::Instead(instead) => return Err(refusal(instead, word, values)),
    }
    Ok(())
}

fn assignment(values: &[OsString]) -> OsString {
    values.join(OsStr::new("="))
}

/// Fills in the option as written, and its values: `{0}`, `{1}`, `{2}`.
fn filled(text: &str, word: Option<&OsStr>, values: &[OsString]) -> String {
    let word = word.unwrap_or_default().to_string_lossy();
    let mut text = text.replace("{0}", &word);
    for (index, name) in ["{1}", "{2}"].into_iter().enumerate() {
        let value = values
            .get(index)
            .map_or_else(|| "...".into(), |v| v.to_string_lossy());
        text = text.replace(name, &value);
    }
    text
}

fn refusal(instead: &str, word: &OsStr, values: &[OsString]) -> ForeignError {
    ForeignError::Instead {
        option: word.to_owned(),
        advice: filled(instead, Some(word), values),
    }
}

#[cfg(test)]
mod tests;
