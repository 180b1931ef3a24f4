//! `wireup run --help TOPIC`: the options under some headings of the help.

use std::ffi::OsString;

use clap::{Arg, Command, CommandFactory as _};

use super::RunArgs;
use crate::cli::option_scan::{ArgumentKind, OptionTable};
use crate::cli::print;
use wireup_core::failure::CommandError;

/// The heading of options that have none of their own.
const GENERAL: &str = "Options";

/// Word that no heading has.
#[derive(Debug, thiserror::Error)]
#[error(
    "unknown help topic {topic}; use a word of one of these: {}; wireup run --help shows all options, wireup run {topic} \
     --help runs the program {topic}", headings(&RunArgs::command()).join(", ")
)]
struct UnknownTopic {
    topic: String,
}

/// The value of `--help` in front of a program: behind `=`, or the last word.
pub(in crate::cli) fn topic<'w>(own: &OptionTable, words: &'w [OsString]) -> Option<&'w str> {
    for (at, kind) in own.scan(words) {
        let word = &words[at];
        let joined = word.to_str().and_then(|word| word.strip_prefix("--help="));
        if let Some(topic) = joined.filter(|topic| !topic.is_empty()) {
            return Some(topic);
        }
        if !matches!(kind, ArgumentKind::Option { .. }) {
            return None;
        }
        if word == "--help" {
            let [topic] = &words[at + 1..] else {
                return None;
            };
            // A path is a program, to which the help does not belong.
            let topic = topic.to_str();
            return topic.filter(|topic| !topic.starts_with('-') && !topic.contains('/'));
        }
    }
    None
}

/// Prints the options of a topic.
///
/// # Errors
/// If there are none.
pub(in crate::cli) fn show(topic: &str) -> Result<u8, CommandError> {
    let text = help(RunArgs::command(), topic).map_err(CommandError::request)?;
    print(text.as_bytes())
}

fn help(command: Command, topic: &str) -> Result<String, UnknownTopic> {
    let shown = |arg: &Arg| !arg.is_positional() && has_word(heading(arg), topic);
    if !command.get_arguments().any(shown) {
        let topic = topic.to_owned();
        return Err(UnknownTopic { topic });
    }
    let mut command = command
        .disable_help_flag(true)
        .mut_args(|arg| match shown(&arg) {
            true => arg,
            false => arg.hide(true),
        })
        .help_template("{all-args}\n");
    Ok(command.render_long_help().to_string())
}

fn heading(arg: &Arg) -> &str {
    arg.get_help_heading().unwrap_or(GENERAL)
}

/// Whether a word of a heading begins so.
fn has_word(heading: &str, topic: &str) -> bool {
    let topic = topic.to_lowercase();
    let heading = heading.to_lowercase();
    let mut words = heading.split(|char: char| !char.is_alphabetic());
    topic.len() >= 3 && words.any(|word| word.starts_with(&topic))
}

/// All headings, in the order of the help.
pub(super) fn headings(command: &Command) -> Vec<String> {
    let mut headings: Vec<String> = Vec::new();
    for arg in command.get_arguments().filter(|arg| !arg.is_positional()) {
        let heading = heading(arg).to_owned();
        if !headings.contains(&heading) {
            headings.push(heading);
        }
    }
    headings
}

/// The line of the help that lists them.
pub(super) fn list(command: &Command) -> String {
    format!(
        "Topics:\n  wireup run --help WORD shows the options under the headings with this word: {}.",
        headings(command).join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_heading_is_topic_with_own_options() {
        let command = RunArgs::command();
        for heading in headings(&command) {
            let word = heading.split(' ').next().unwrap().to_lowercase();
            let text = help(RunArgs::command(), &word).unwrap();
            assert!(text.starts_with(&format!("{heading}:\n")), "{text}");
        }
        let binding = help(command, "bind").unwrap();
        for (option, is_shown) in [
            ("--bind-to", true),
            ("--mem-bind", true),
            ("--hosts", false),
            ("--help", false),
            ("PROGRAM", false),
        ] {
            let found = binding.lines().any(|line| line.trim().starts_with(option));
            assert_eq!(found, is_shown, "{option}: {binding}");
        }
    }

    #[test]
    fn unknown_topics_are_refused_with_list() {
        for topic in ["bindng", "of", ""] {
            let error = help(RunArgs::command(), topic).unwrap_err().to_string();
            assert!(error.contains("Placement, Binding"), "{error}");
        }
    }

    #[test]
    fn help_topic_is_last_word_after_help() {
        let own = OptionTable::from_parser::<RunArgs>();
        let found = |line: &str| {
            let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
            topic(&own, &words).map(str::to_owned)
        };
        for line in [
            "-n 2 --help hosts",
            "-n 2 --help=hosts",
            "--help=hosts ./app",
        ] {
            assert_eq!(found(line).as_deref(), Some("hosts"), "{line}");
        }
        for line in [
            "--help",
            "--help -n 2",
            "--help hosts x",
            "./app --help hosts",
            "./app --help=hosts",
            "--help=",
            "-h hosts",
            "-n --help hosts",
        ] {
            assert_eq!(found(line), None, "{line}");
        }
    }
}
