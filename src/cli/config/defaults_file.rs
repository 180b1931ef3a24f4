//! One defaults file: a table `[run]`, whose keys are the long names of options.

use std::ffi::OsString;
use std::path::Path;

use clap::{Arg, ArgAction};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::show::{quoted, toml_value};
use super::{ConfigError, PER_JOB, file_options};
use crate::cli::negation::opposite;
use crate::cli::option_scan::{OptionTable, has_optional_value};
use wireup_agent_args::usage_errors::is_near;

/// The table of `wireup run`.
const TABLE: &str = "run";

/// A key of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConfigEntry {
    /// Long name of the option.
    pub(super) key: String,
    /// Line number, from 1.
    pub(super) line: usize,
    /// Equivalent words of a command line.
    pub(super) words: Vec<OsString>,
    /// Values as in TOML.
    pub(super) shown: Vec<String>,
}

/// Error in a line of a defaults file, with the remedy.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum EntryError {
    /// The line is not TOML, with the text of the TOML parser.
    #[error("invalid TOML: {0}")]
    Syntax(String),
    /// The option does not accept this value, with the text of the parser of the command line.
    #[error("{problem}")]
    Refused { problem: String },
    #[error("write [{TABLE}] and its keys below")]
    NoTable,
    #[error("unknown table [{0}]; write the options in [{TABLE}]")]
    OtherTable(String),
    #[error("'{0}' is outside of a table; write [{TABLE}] above it")]
    Outside(String),
    #[error("'{0}' belongs to one job; give --{0} on the command line")]
    PerJob(String),
    #[error("unknown key 'no-{0}', write {0} = false")]
    Negated(String),
    #[error("unknown key '{key}', did you mean '{near}'?")]
    Misspelt { key: String, near: String },
    #[error("unknown key '{0}'; keys are the long options of wireup run, without dashes")]
    Unknown(String),
    #[error("'{0}' is a switch; write true or false, without quotes")]
    Switch(String),
    #[error("'{0}' is counted; write a number from 0 to 9")]
    Counted(String),
    #[error("'{0}' takes one value, not a list")]
    List(String),
    #[error("'{0}' holds a NUL byte")]
    Nul(String),
    #[error(
        "'{key}' takes a value and {value} is a boolean; write a text in quotes or a number, or leave \
         the key out"
    )]
    Boolean { key: String, value: bool },
    #[error("'{0}' takes a text or a number, in quotes if need be")]
    NoText(String),
}

/// The entries of a file, in its order.
///
/// # Errors
/// [`ConfigError::Wrong`] naming the line, the key and the remedy.
pub(super) fn entries(
    options: &OptionTable,
    path: &Path,
    text: &str,
) -> Result<Vec<ConfigEntry>, ConfigError> {
    let wrong = |at: usize, error: EntryError| ConfigError::Wrong {
        path: path.to_owned(),
        line: line_of(text, at),
        error,
    };
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        wrong(at, EntryError::Syntax(error.message().to_owned()))
    })?;
    let mut entries = Vec::new();
    for (name, value) in document.get_ref() {
        let at = name.span().start;
        let name = name.get_ref();
        let table = match value.get_ref() {
            DeValue::Table(table) if name == TABLE => table,
            _ if name == TABLE => return Err(wrong(at, EntryError::NoTable)),
            DeValue::Table(_) => return Err(wrong(at, EntryError::OtherTable(name.to_string()))),
            _ => return Err(wrong(at, EntryError::Outside(name.to_string()))),
        };
        for (key, value) in table {
            let line = key.span().start;
            let entry = entry(options, key.get_ref(), value).map_err(|error| wrong(line, error))?;
            entries.push(ConfigEntry {
                line: line_of(text, line),
                ..entry
            });
        }
    }
    // The parser sorts by key; of two that exclude each other the later one counts.
    entries.sort_by_key(|entry| entry.line);
    Ok(entries)
}

fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().iter().take(at);
    1 + before.filter(|byte| **byte == b'\n').count()
}

fn entry(
    table: &OptionTable,
    key: &str,
    value: &Spanned<DeValue<'_>>,
) -> Result<ConfigEntry, EntryError> {
    if PER_JOB.contains(&key) {
        return Err(EntryError::PerJob(key.to_owned()));
    }
    // `no-X = true` where X has an option of its own for both: one key for both.
    if let Some(positive) = key.strip_prefix("no-")
        && let DeValue::Boolean(on) = value.get_ref()
        && file_options(table).any(|arg| arg.get_long() == Some(key))
        && file_options(table).any(|arg| arg.get_long() == Some(positive))
    {
        let value = Spanned::new(value.span(), DeValue::Boolean(!on));
        return entry(table, positive, &value);
    }
    let Some(arg) = file_options(table).find(|arg| arg.get_long() == Some(key)) else {
        let current = file_options(table).filter(|arg| !arg.is_hide_set());
        return Err(unknown(key, current.filter_map(Arg::get_long)));
    };
    let values: Vec<(Vec<OsString>, String)> = match (arg.get_action(), value.get_ref()) {
        (ArgAction::SetTrue | ArgAction::SetFalse, DeValue::Boolean(on)) => {
            vec![(vec![switch(key, *on)], on.to_string())]
        }
        (ArgAction::SetTrue | ArgAction::SetFalse, _) => {
            return Err(EntryError::Switch(key.to_owned()));
        }
        (ArgAction::Count, value) => {
            let times = times(value).ok_or_else(|| EntryError::Counted(key.to_owned()))?;
            let counted = std::iter::repeat_n(switch(key, true), times.into());
            let words = std::iter::once(switch(key, false)).chain(counted);
            vec![(words.collect(), times.to_string())]
        }
        (ArgAction::Append, DeValue::Array(items)) => items
            .iter()
            .map(|item| with_value(arg, key, item.get_ref()))
            .collect::<Result<_, _>>()?,
        (_, DeValue::Array(_)) => return Err(EntryError::List(key.to_owned())),
        (_, value) => vec![with_value(arg, key, value)?],
    };
    let (words, shown): (Vec<Vec<OsString>>, Vec<String>) = values.into_iter().unzip();
    Ok(ConfigEntry {
        key: key.to_owned(),
        line: 0,
        words: words.concat(),
        shown,
    })
}

/// The words for one value of an option that takes values, and the value in TOML.
fn with_value(
    arg: &Arg,
    key: &str,
    value: &DeValue<'_>,
) -> Result<(Vec<OsString>, String), EntryError> {
    if let DeValue::Boolean(on) = value
        && has_optional_value(arg)
    {
        return Ok((vec![switch(key, *on)], on.to_string()));
    }
    let text = plain(key, value)?;
    let shown = match arg.get_action() {
        ArgAction::Set => toml_value(text.as_ref()),
        _ => quoted(text.as_ref()),
    };
    Ok((vec![format!("--{key}={text}").into()], shown))
}

/// The word that gives an option without a value, or takes it back.
fn switch(key: &str, on: bool) -> OsString {
    let name = if on { key.to_owned() } else { opposite(key) };
    format!("--{name}").into()
}

/// Returns the number of times that a counted switch is given.
fn times(value: &DeValue<'_>) -> Option<u8> {
    match value {
        DeValue::Boolean(on) => Some(u8::from(*on)),
        DeValue::Integer(number) => {
            let number = u8::from_str_radix(number.as_str(), number.radix()).ok()?;
            (number <= 9).then_some(number)
        }
        _ => None,
    }
}

/// A single value as it would be written on the command line.
fn plain(key: &str, value: &DeValue<'_>) -> Result<String, EntryError> {
    match value {
        DeValue::String(text) if text.contains('\0') => Err(EntryError::Nul(key.to_owned())),
        DeValue::String(text) => Ok(text.clone().into_owned()),
        // As written: 0o22 is not 18 to an option that takes octal numbers.
        DeValue::Integer(number) => Ok(number.to_string()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Boolean(on) => Err(EntryError::Boolean {
            key: key.to_owned(),
            value: *on,
        }),
        _ => Err(EntryError::NoText(key.to_owned())),
    }
}

/// An unknown key, with the option whose name is nearest, if any is near.
fn unknown<'a>(key: &str, options: impl Iterator<Item = &'a str>) -> EntryError {
    let positive = key.strip_prefix("no-");
    let near = options
        .map(|name| (strsim::jaro_winkler(key, name), name))
        .filter(|(score, name)| *score > 0.8 && is_near(key, name))
        .max_by(|one, other| one.0.total_cmp(&other.0));
    match (near, positive) {
        (_, Some(positive)) => EntryError::Negated(positive.to_owned()),
        (Some((_, name)), None) => EntryError::Misspelt {
            key: key.to_owned(),
            near: name.to_owned(),
        },
        (None, None) => EntryError::Unknown(key.to_owned()),
    }
}
