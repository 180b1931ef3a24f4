//! Defaults files of the site and of the user, in TOML. Their values become words in front of those of the command line, so
//! every option of `wireup run` works in them and one parser checks both.
//!
//! The last value of an option counts, in this order: built-in default, site's file, user's file, environment variable (if
//! the option has one), command line. Lists grow in this order. Defaults files give no rights: a user who can name another
//! file can also give the options.

mod defaults_file;
mod location;
pub(super) mod show;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;

use self::defaults_file::{ConfigEntry, EntryError};
use self::location::{FileLocation, SITE_VARIABLE};
use super::apps::NextApp;
use super::option_scan::{ArgumentKind, OptionTable};
use super::run_args::{self, RunArgs};
use crate::inspect::libpmix;
use wireup_agent_args::usage_errors::one_line;
use wireup_sys::log;

/// Options that belong to one job and make no sense as a default.
const PER_JOB: &[&str] = &[
    "ranks",
    "wdir",
    "no-config",
    "dry-run",
    "explain",
    "detach",
    "impi",
    "rankfile",
    "on-terminal-loss",
];
/// Options that an environment variable precedes.
const VARIABLES: &[(&str, &str)] = &[("libpmix", libpmix::VARIABLE), ("log", log::VARIABLE)];

/// A defaults file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfigError {
    /// The named file does not exist.
    #[error("{SITE_VARIABLE} names {}, which does not exist; correct it, or set it to an empty value", .0.display())]
    Missing(PathBuf),
    /// The file exists and cannot be read.
    #[error("cannot read the defaults in {}: {error}; make it readable, or use --no-config", .path.display())]
    Unreadable {
        path: PathBuf,
        error: std::io::Error,
    },
    /// The file has an invalid line.
    #[error("{}:{line}: {error}", .path.display())]
    Wrong {
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        error: EntryError,
    },
}

/// The contents of the files, the site's first.
#[derive(Debug, Default)]
pub(super) struct Defaults {
    files: Vec<DefaultsFile>,
    /// Options that a variable of the environment gives instead.
    replaced: Vec<&'static str>,
}

#[derive(Debug)]
struct DefaultsFile {
    path: PathBuf,
    entries: Vec<ConfigEntry>,
}

/// Whether the options before the program disable reading of files.
pub(super) fn is_refused(own: &OptionTable, words: &[OsString]) -> bool {
    own.scan(words)
        .take_while(|(_, kind)| matches!(kind, ArgumentKind::Option { .. }))
        .any(|(at, _)| words[at] == "--no-config")
}

/// Reads the files that exist.
///
/// # Errors
/// [`ConfigError`] when one is there and cannot be used.
pub(super) fn read(own: &OptionTable) -> Result<Defaults, ConfigError> {
    let mut files = Vec::new();
    for place in [FileLocation::site(), FileLocation::user()]
        .into_iter()
        .flatten()
    {
        let Some(text) = place.read()? else {
            continue;
        };
        let entries = defaults_file::entries(own, &place.path, &text)?;
        files.push(DefaultsFile {
            path: place.path,
            entries,
        });
    }
    let by_variable = VARIABLES.iter().map(|(option, _)| *option);
    let replaced = by_variable.filter(|option| variable_of(option).is_some());
    Ok(Defaults {
        files,
        replaced: replaced.collect(),
    })
}

/// The variable that takes the place of an option's default, if it is set.
fn variable_of(key: &str) -> Option<(&'static str, OsString)> {
    let (_, name) = VARIABLES.iter().find(|(option, _)| *option == key)?;
    let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
    Some((name, value))
}

impl Defaults {
    fn entries(&self) -> impl Iterator<Item = (&DefaultsFile, &ConfigEntry)> {
        self.files
            .iter()
            .flat_map(|file| file.entries.iter().map(move |entry| (file, entry)))
            .filter(|(_, entry)| !self.replaced.contains(&entry.key.as_str()))
    }

    /// Words for the front of the command line.
    pub(super) fn words(&self) -> Vec<OsString> {
        let words = self.entries().flat_map(|(_, entry)| &entry.words);
        words.cloned().collect()
    }

    /// Returns the values of an option that takes texts.
    pub(super) fn values_of(&self, key: &str) -> Vec<&str> {
        let entries = self.entries().filter(|(_, entry)| entry.key == key);
        let words = entries.flat_map(|(_, entry)| &entry.words);
        let words = words.filter_map(|word| word.to_str()?.split_once('='));
        words.map(|(_, value)| value).collect()
    }

    /// Returns those words that may be given for each program, and that apply to all programs.
    pub(super) fn words_of_every_program(&self) -> Vec<OsString> {
        if self.files.is_empty() {
            return Vec::new();
        }
        let per_program = OptionTable::from_parser::<NextApp>();
        self.entries()
            .filter(|(_, entry)| per_program.long(&entry.key).is_some())
            .flat_map(|(_, entry)| entry.words.iter().cloned())
            .collect()
    }

    /// The error in the files alone; `None` if they are valid.
    pub(super) fn blame(&self) -> Option<String> {
        let error = refused(self.words())?;
        let together = || format!("{}: {}", self.files(), one_line(&error));
        Some(self.blame_entry().unwrap_or_else(together))
    }

    /// The entry that is invalid in any case; `None` if there is none.
    pub(super) fn blame_entry(&self) -> Option<String> {
        self.entries().find_map(|(file, entry)| {
            // Alone it may lack another one.
            let error = refused(entry.words.clone())
                .filter(|error| error.kind() != ErrorKind::MissingRequiredArgument)?;
            let wrong = ConfigError::Wrong {
                path: file.path.clone(),
                line: entry.line,
                error: EntryError::Refused {
                    problem: one_line(&error),
                },
            };
            Some(wrong.to_string())
        })
    }

    /// The files that were read, for a sentence.
    pub(super) fn files(&self) -> String {
        let paths = self
            .files
            .iter()
            .map(|file| file.path.display().to_string());
        paths.collect::<Vec<_>>().join(" and ")
    }

    /// The lines for `-v`.
    pub(super) fn describe(&self, refused: bool) -> Vec<String> {
        if refused {
            return vec!["no defaults file is read, as requested".into()];
        }
        let of_file = |file: &DefaultsFile| {
            let keys: Vec<&str> = file
                .entries
                .iter()
                .map(|entry| entry.key.as_str())
                .collect();
            format!("defaults of {}: {}", file.path.display(), keys.join(", "))
        };
        self.files.iter().map(of_file).collect()
    }
}

/// The parser's error for these words before a program.
fn refused(words: Vec<OsString>) -> Option<clap::Error> {
    let words = words.into_iter().chain(["program".into()]).collect();
    run_args::parse(OptionTable::from_parser::<RunArgs>(), words).err()
}

/// Returns the options that a defaults file may set.
fn file_options(own: &OptionTable) -> impl Iterator<Item = &clap::Arg> {
    own.options()
        .filter(|arg| arg.get_long().is_some_and(|name| !PER_JOB.contains(&name)))
}

#[cfg(test)]
mod tests;
