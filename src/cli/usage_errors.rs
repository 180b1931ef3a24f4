//! Errors in command lines, in one line: the error and the correction.

use std::env;
use std::error::Error as _;
use std::ffi::{OsStr, OsString};

use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::cli::line::Own;
use crate::cli::run::RunArgs;
use crate::cli::tree;
use crate::inspect::program::{Program, ProgramError, is_assignment, run_line};
use crate::report::command_line::quoted;

/// Clap's own words, without its usage text; what is missing, with the line that has it.
pub(super) fn one_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::InvalidUtf8 {
        let words: Vec<OsString> = env::args_os().skip(1).collect();
        return non_utf8_error(&words);
    }
    let text = error.to_string();
    if let Some(line) = of_missing(error, &text).or_else(|| switch_value_error(error)) {
        return line;
    }
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let mut line = String::new();
    let mut tipped = false;
    for part in text.lines().map(str::trim) {
        if part.starts_with("Usage:") || part.starts_with("For more information") {
            break;
        }
        if let Some(tip) = part.strip_prefix("tip: ") {
            // The advice to write `-- --option` is wrong here: it would become the program.
            if !tip.starts_with("to pass ") && !is_guess(error) {
                line.push_str("; ");
                line.push_str(tip);
                tipped = true;
            }
        } else if !part.is_empty() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(part);
        }
    }
    if error.kind() == ErrorKind::UnknownArgument && !tipped {
        line.push_str("; --help lists the options");
    }
    let reason = error.source().map(ToString::to_string).unwrap_or_default();
    match (line.strip_suffix(&reason), of_number(&reason)) {
        (Some(front), Some(advice)) => format!("{front}{advice}"),
        _ => line,
    }
}

/// Why a value is wrong, without the option and the value.
pub(super) fn reason(error: &clap::Error) -> String {
    match error.source().map(ToString::to_string) {
        Some(reason) => of_number(&reason).unwrap_or(reason),
        None if error.kind() == ErrorKind::InvalidUtf8 => "this is not UTF-8".to_owned(),
        None => one_line(error),
    }
}

/// The words for a value that is no text, which clap does not name.
fn non_utf8_error(words: &[OsString]) -> String {
    let named = (0..words.len()).filter(|at| words[*at].to_str().is_none());
    let named = named.map(|at| {
        let option = at.checked_sub(1).map(|before| &words[before]);
        let option = option.filter(|word| word.as_encoded_bytes().starts_with(b"-"));
        let option = option.map(|word| format!("{} ", quoted(word)));
        option.unwrap_or_default() + &quoted(&words[at])
    });
    let named: Vec<String> = named.collect();
    format!(
        "{} is not UTF-8; only files, variables, programs and their arguments may have other bytes",
        named.join(" or ")
    )
}

/// The words for an option without a value that got one.
fn switch_value_error(error: &clap::Error) -> Option<String> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    };
    let (option, value) = (
        text(ContextKind::InvalidArg)?,
        text(ContextKind::InvalidValue)?,
    );
    let is_switch = error.kind() == ErrorKind::TooManyValues && option.starts_with('-');
    is_switch.then(|| format!("{option} takes no value; leave out ={value}"))
}

/// The words for arguments that are missing, and the line that has them.
fn of_missing(error: &clap::Error, text: &str) -> Option<String> {
    let (ErrorKind::MissingRequiredArgument, Some(ContextValue::Strings(names))) =
        (error.kind(), error.get(ContextKind::InvalidArg))
    else {
        return None;
    };
    let plain = |text: &str| text.replace(['<', '>'], "");
    let names: Vec<String> = names
        .iter()
        .map(|name| plain(name.trim_end_matches('.')))
        .collect();
    let verb = if names.len() == 1 { "is" } else { "are" };
    let line = format!("{} {verb} missing", listed(&names));
    let usage = text.lines().find_map(|line| line.strip_prefix("Usage: "));
    let usage = usage.map(plain).unwrap_or_default();
    // A usage of our own may lack an option that another one requires.
    match names.iter().all(|name| usage.contains(name)) {
        true => Some(format!("{line}; write: {usage}")),
        false => Some(line),
    }
}

/// `a`, `a and b`, `a, b and c`.
fn listed(names: &[String]) -> String {
    match names {
        [front @ .., last] if !front.is_empty() => format!("{} and {last}", front.join(", ")),
        _ => names.concat(),
    }
}

/// Reasons of Rust's parsers, and the advice that takes their place.
const REASONS: &[(&str, &str)] = &[
    ("invalid digit found in string", "give a whole number"),
    (
        "cannot parse integer from empty string",
        "give a whole number",
    ),
    (
        "number too large to fit in target type",
        "give a smaller number",
    ),
    (
        "number too small to fit in target type",
        "give a larger number",
    ),
    ("invalid float literal", "give a number"),
    (
        "invalid socket address syntax",
        "give ADDRESS:PORT, such as 127.0.0.1:9437 or [::1]:9437",
    ),
    (
        "invalid IP address syntax",
        "give an IP address, such as 10.0.0.1",
    ),
];

/// The advice for a value that is no number, or one out of range, by the reason that clap or Rust's library has.
fn of_number(reason: &str) -> Option<String> {
    // Larger ones are the ends of types.
    const SENSIBLE_MAX: u64 = 1 << 24;
    if let Some((_, range)) = reason.split_once(" is not in ") {
        let (first, last) = range.split_once("..=")?;
        return Some(match last.parse() {
            Ok(last @ 0..=SENSIBLE_MAX) => format!("give a number from {first} to {last}"),
            _ => format!("give a number, {first} or more"),
        });
    }
    let found = REASONS.iter().find(|(rust, _)| *rust == reason)?;
    Some(found.1.to_owned())
}

/// Whether clap suggests an option that is not similar to the given one.
fn is_guess(error: &clap::Error) -> bool {
    match (
        error.get(ContextKind::InvalidArg),
        error.get(ContextKind::SuggestedArg),
    ) {
        (Some(ContextValue::String(written)), Some(ContextValue::String(suggested))) => {
            !is_near(written.trim_matches('-'), suggested.trim_matches('-'))
        }
        _ => false,
    }
}

/// Whether a word may be a misspelled or incomplete name. Several letters may be wrong behind a first one that is right.
pub(super) fn is_near(word: &str, name: &str) -> bool {
    let wrong = strsim::osa_distance(word, name);
    let wrong_max = match word.chars().next() == name.chars().next() {
        true => (word.len() / 3).max(1),
        false => 1,
    };
    wrong <= wrong_max || word.len() >= 3 && name.starts_with(word)
}

/// Words for `wireup run`, whose programs are positional and whose files may have set anything.
pub(super) fn of_run(error: &clap::Error) -> String {
    if lacks_program(error) {
        return "no program is given; write: wireup run [OPTIONS] PROGRAM [ARG]...".into();
    }
    one_line(error)
}

/// Whether the program is what is missing.
pub(super) fn lacks_program(error: &clap::Error) -> bool {
    let missing = matches!(
        error.get(ContextKind::InvalidArg),
        Some(ContextValue::Strings(names)) if names.iter().any(|name| name.contains("PROGRAM"))
    );
    error.kind() == ErrorKind::MissingRequiredArgument && missing
}

/// Advice for a line without a program, the last word of which an option takes as its file.
pub(super) fn taken_as_file(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let [.., option, file] = words else {
        return None;
    };
    if !lacks_program(error) {
        return None;
    }
    let file = quoted(file);
    match option.to_str()? {
        "--json" => Some(format!(
            "; --json takes {file} as its file, for standard output write --json - {file}"
        )),
        option @ ("--report" | "--trace" | "--output") => Some(format!(
            "; {option} takes {file} as its file, write {option} FILE {file}"
        )),
        _ => None,
    }
}

/// Words for a further program, whose options are only some of them.
pub(super) fn of_next_program(error: &clap::Error) -> String {
    let blamed = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    let known = Own::of::<RunArgs>().knows(OsStr::new(blamed));
    if error.kind() == ErrorKind::UnknownArgument && known {
        return format!("{blamed} holds for the whole job: write it in front of the first program");
    }
    of_run(error)
}

/// Commands by the names that other programs have for them.
const SYNONYMS: &[(&[&str], &str)] = &[
    (&["list", "ls", "jobs", "status", "top", "squeue"], "ps"),
    (&["stop", "cancel", "scancel", "end", "signal"], "kill"),
    (
        &[
            "exec", "launch", "start", "mpirun", "mpiexec", "srun", "submit",
        ],
        "run",
    ),
    (&["version"], "--version"),
];

/// Words for a line whose first word is no command: most often `run` was forgotten.
pub(super) fn of_commands(error: &clap::Error, words: &[OsString]) -> String {
    let Some(first) = words.first().map(OsString::as_os_str) else {
        return one_line(error);
    };
    let word = first.to_string_lossy();
    let suggested = match error.get(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::Strings(names)) => names.iter().any(|name| is_near(&word, name)),
        _ => false,
    };
    let tree = tree();
    // The wrong word comes later: clap knows what the command has.
    if tree.find_subcommand(&*word).is_some() {
        return one_line(error);
    }
    // What other programs call it.
    let known = SYNONYMS.iter().find(|(others, _)| others.contains(&&*word));
    if let (ErrorKind::InvalidSubcommand, Some((_, ours))) = (error.kind(), known) {
        return format!("{word:?} is no command of wireup; did you mean: wireup {ours}");
    }
    // Clap does not see that two letters changed places.
    let near = tree.get_subcommands().map(Command::get_name);
    let near = near
        .filter(|name| strsim::osa_distance(name, &word) <= 1)
        .last();
    if let (ErrorKind::InvalidSubcommand, Some(near)) = (error.kind(), near) {
        return format!("{word:?} is no command of wireup; did you mean: wireup {near}");
    }
    let blamed = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => "",
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand if is_assignment(first) => format!(
            "{word:?} is no command of wireup; to run a program with this variable: {}",
            run_line(&without_run(words), None)
        ),
        ErrorKind::InvalidSubcommand if let Some(advice) = of_source(first) => {
            format!("{word:?} is no command of wireup; to run this source: {advice}")
        }
        ErrorKind::InvalidSubcommand if !suggested && first != "help" => format!(
            "{word:?} is no command of wireup; to run a program: wireup run {}",
            quoted(first)
        ),
        // Clap names the first letter only of what it takes for a cluster.
        ErrorKind::UnknownArgument if !blamed.is_empty() && word.starts_with(blamed) => {
            let known = if Own::of::<RunArgs>().knows(first) {
                "is an option of a command"
            } else {
                "is no option of wireup"
            };
            format!(
                "{word} {known}; to run a program: wireup run {} ...",
                quoted(first)
            )
        }
        _ => one_line(error),
    }
}

/// Words as behind `wireup run`, of a line with variables in front of `run`.
fn without_run(words: &[OsString]) -> Vec<OsString> {
    let command = words.iter().position(|word| !is_assignment(word));
    let mut words = words.to_vec();
    if let Some(at) = command.filter(|at| words[*at] == "run") {
        words.remove(at);
    }
    words
}

/// The advice for a source that the system cannot execute.
fn of_source(name: &OsStr) -> Option<String> {
    let cwd = env::current_dir().ok()?;
    let path = env::var_os("PATH");
    match Program::find(name, path.as_deref(), &cwd) {
        Err(ProgramError::Source { name, way, .. }) => Some(way.advice(&name, None).to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_that_is_no_text_is_named_with_its_option() {
        use std::os::unix::ffi::OsStringExt as _;
        let words = [&b"run"[..], b"--hosts", b"h\xe9", b"./a"];
        let words = words.map(|word| OsString::from_vec(word.to_vec()));
        let text = non_utf8_error(&words);
        assert!(
            text.starts_with(r"--hosts $'h\xe9' is not UTF-8; "),
            "{text}"
        );
    }

    #[test]
    fn near_name_begins_alike_or_has_one_wrong_letter() {
        for (word, name) in [
            ("lable", "label"),
            ("abel", "label"),
            ("oversubscirb", "oversubscribe"),
            ("over", "oversubscribe"),
        ] {
            assert!(is_near(word, name), "{word} {name}");
        }
        for (word, name) in [
            ("tres-bind", "mem-bind"),
            ("ov", "oversubscribe"),
            ("", "np"),
        ] {
            assert!(!is_near(word, name), "{word} {name}");
        }
    }
}
