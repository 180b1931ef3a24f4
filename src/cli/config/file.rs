//! One defaults file: a table `[run]`, whose keys are the long names of options.

use std::ffi::OsString;
use std::path::Path;

use clap::{Arg, ArgAction};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{ConfigError, PER_JOB, may_be_given};
use crate::cli::line::Own;
use crate::cli::negation::opposite;
use crate::cli::usage_errors::is_near;

/// The table of `wireup run`.
const TABLE: &str = "run";

/// A key of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Long name of the option.
    pub(super) key: String,
    /// Counted from 1.
    pub(super) line: usize,
    /// Its equivalent on a command line.
    pub(super) words: Vec<OsString>,
    /// Its values as texts, for showing.
    pub(super) values: Vec<String>,
}

/// The entries of a file, in its order.
///
/// # Errors
/// [`ConfigError::Wrong`] naming the line, the key and the remedy.
pub(super) fn entries(own: &Own, path: &Path, text: &str) -> Result<Vec<Entry>, ConfigError> {
    let wrong = |at: usize, what: String| ConfigError::Wrong {
        path: path.to_owned(),
        line: line_of(text, at),
        text: what,
    };
    let document = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        wrong(at, error.message().to_owned())
    })?;
    let mut entries = Vec::new();
    for (name, value) in document.get_ref() {
        let at = name.span().start;
        let name = name.get_ref();
        let table = match value.get_ref() {
            DeValue::Table(table) if name == TABLE => table,
            _ if name == TABLE => return Err(wrong(at, "write [run] and its keys below".into())),
            DeValue::Table(_) => {
                let text = format!("unknown table [{name}]; the options stand in [{TABLE}]");
                return Err(wrong(at, text));
            }
            _ => {
                let text = format!("'{name}' stands in no table; write [{TABLE}] above it");
                return Err(wrong(at, text));
            }
        };
        for (key, value) in table {
            let line = key.span().start;
            let entry = entry(own, key.get_ref(), value).map_err(|text| wrong(line, text))?;
            entries.push(Entry {
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

fn entry(own: &Own, key: &str, value: &Spanned<DeValue<'_>>) -> Result<Entry, String> {
    if PER_JOB.contains(&key) {
        return Err(format!(
            "'{key}' belongs to one job; give --{key} on the command line"
        ));
    }
    // `no-X = true` where X has an option of its own for both: one key for both.
    if let Some(positive) = key.strip_prefix("no-")
        && let DeValue::Boolean(on) = value.get_ref()
        && may_be_given(own).any(|arg| arg.get_long() == Some(key))
        && may_be_given(own).any(|arg| arg.get_long() == Some(positive))
    {
        let value = Spanned::new(value.span(), DeValue::Boolean(!on));
        return entry(own, positive, &value);
    }
    let options = || may_be_given(own).filter_map(Arg::get_long);
    let Some(arg) = may_be_given(own).find(|arg| arg.get_long() == Some(key)) else {
        return Err(unknown(key, options()));
    };
    let value = value.get_ref();
    let values = match (arg.get_action(), value) {
        (ArgAction::SetTrue | ArgAction::SetFalse, DeValue::Boolean(on)) => vec![on.to_string()],
        (ArgAction::SetTrue | ArgAction::SetFalse, _) => {
            return Err(format!(
                "'{key}' is a switch; write true or false, without quotes"
            ));
        }
        (ArgAction::Count, value) => vec![
            times(value)
                .ok_or_else(|| format!("'{key}' is counted; write a number from 0 to 9"))?
                .to_string(),
        ],
        (ArgAction::Append, DeValue::Array(items)) => items
            .iter()
            .map(|item| plain(key, item.get_ref()))
            .collect::<Result<_, _>>()?,
        (_, DeValue::Array(_)) => return Err(format!("'{key}' takes one value, not a list")),
        (_, value) => vec![plain(key, value)?],
    };
    Ok(Entry {
        key: key.to_owned(),
        line: 0,
        words: words(arg, key, &values),
        values,
    })
}

/// How often a counted switch is given.
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
fn plain(key: &str, value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) if text.contains('\0') => Err(format!("'{key}' holds a NUL byte")),
        DeValue::String(text) => Ok(text.clone().into_owned()),
        // As written: 0o22 is not 18 to an option that takes octal numbers.
        DeValue::Integer(number) => Ok(number.to_string()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Boolean(on) => Err(format!(
            "'{key}' takes a value and {on} is a boolean; write a text in quotes or a number, or leave \
             the key out"
        )),
        _ => Err(format!(
            "'{key}' takes a text or a number, in quotes if need be"
        )),
    }
}

fn words(arg: &Arg, key: &str, values: &[String]) -> Vec<OsString> {
    let switch = |on: bool| {
        let name = if on { key.to_owned() } else { opposite(key) };
        OsString::from(format!("--{name}"))
    };
    match arg.get_action() {
        ArgAction::SetTrue | ArgAction::SetFalse => {
            values.iter().map(|value| switch(value == "true")).collect()
        }
        ArgAction::Count => {
            let times = values
                .iter()
                .filter_map(|value| value.parse::<usize>().ok())
                .sum();
            std::iter::once(switch(false))
                .chain(std::iter::repeat_n(switch(true), times))
                .collect()
        }
        _ => values
            .iter()
            .map(|value| format!("--{key}={value}").into())
            .collect(),
    }
}

/// An unknown key, with the option whose name is nearest, if any is near.
fn unknown<'a>(key: &str, options: impl Iterator<Item = &'a str>) -> String {
    let positive = key.strip_prefix("no-");
    let near = options
        .map(|name| (strsim::jaro_winkler(key, name), name))
        .filter(|(score, name)| *score > 0.8 && is_near(key, name))
        .max_by(|one, other| one.0.total_cmp(&other.0));
    match (near, positive) {
        (_, Some(positive)) => format!("unknown key '{key}', write {positive} = false"),
        (Some((_, name)), None) => format!("unknown key '{key}', did you mean '{name}'?"),
        (None, None) => {
            format!("unknown key '{key}'; keys are the long options of wireup run, without dashes")
        }
    }
}
