//! Errors in command lines, in one line: the error and the correction.

use std::env;
use std::error::Error as _;
use std::ffi::OsString;
use std::io::{self, Write as _};

use clap::error::{ContextKind, ContextValue, ErrorKind};

use wireup_core::failure::CommandError;
use wireup_core::job::outcome::EXIT_WIREUP;
use wireup_core::shell_words::quoted;
use wireup_sys::eprintln;

/// Returns the error in one line: the words of clap without its usage text, or those for a missing argument, with its line.
pub fn one_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::InvalidUtf8 {
        let words: Vec<OsString> = env::args_os().skip(1).collect();
        return non_utf8_error(&words);
    }
    let text = error.to_string();
    if let Some(line) = missing_args_text(error, &text).or_else(|| switch_value_error(error)) {
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
    match (line.strip_suffix(&reason), number_advice(&reason)) {
        (Some(front), Some(advice)) => format!("{front}{advice}"),
        _ => line,
    }
}

/// Returns the reason why a value is invalid, without the option and the value.
pub fn reason(error: &clap::Error) -> String {
    match error.source().map(ToString::to_string) {
        Some(reason) => number_advice(&reason).unwrap_or(reason),
        None if error.kind() == ErrorKind::InvalidUtf8 => "not UTF-8".to_owned(),
        None => one_line(error),
    }
}

/// Returns the error of a value that is not UTF-8, which clap does not name.
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
        "{} is not UTF-8; only files, variables, programs and their arguments may contain other bytes",
        named.join(" or ")
    )
}

/// Returns the error of an option that takes no value and has one.
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
    is_switch.then(|| format!("{option} takes no value; omit ={value}"))
}

/// Returns the error of missing arguments, with the line that has them.
fn missing_args_text(error: &clap::Error, text: &str) -> Option<String> {
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
fn number_advice(reason: &str) -> Option<String> {
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
pub fn is_near(word: &str, name: &str) -> bool {
    let wrong = strsim::osa_distance(word, name);
    let wrong_max = match word.chars().next() == name.chars().next() {
        true => (word.len() / 3).max(1),
        false => 1,
    };
    wrong <= wrong_max || word.len() >= 3 && name.starts_with(word)
}

/// Handles the result of clap: prints help and version, and returns the exit code; everything else fails with `line`.
///
/// # Errors
/// [`CommandError`] with the line, or if standard output cannot be written.
pub fn answer(error: &clap::Error, line: impl FnOnce() -> String) -> Result<u8, CommandError> {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            print(error.render().to_string().as_bytes())
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprintln!("wireup: no command given\n\n{error}");
            Ok(EXIT_WIREUP)
        }
        _ => Err(CommandError::request(line())),
    }
}

/// Prints the requested text. A closed reader is not a failure.
///
/// # Errors
/// [`CommandError`] if standard output cannot be written.
pub fn print(text: &[u8]) -> Result<u8, CommandError> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CommandError::system(
            "cannot write to standard output",
            error,
        )),
        _ => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_text_value_is_named_with_its_option() {
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
    fn similar_name_shares_prefix_or_differs_in_one_letter() {
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
