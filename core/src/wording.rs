//! Parts of messages: numbers with their nouns, and errors of the system and of libraries without Rust's additions.

use std::borrow::Cow;
use std::fmt::Display;

use serde_json::error::Category;

/// Formats a number with its noun: `1 rank`, `2 ranks`, `0 processes`.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let ending = match (count == N::from(1), noun.ends_with("ss")) {
        (true, _) => "",
        (false, true) => "es",
        (false, false) => "s",
    };
    format!("{count} {noun}{ending}")
}

/// Returns the ending of a verb in the present tense.
pub fn verb_ending(is_singular: bool) -> &'static str {
    if is_singular { "s" } else { "" }
}

/// Begins the number that Rust adds to the name of an error of the system, up to `)`.
const ERROR_CODE: &str = " (os error ";

/// Prefix that Rust puts in front of the resolver's text.
const LOOKUP: &str = "failed to lookup address information: ";

/// Removes the numbers of errors from a message, and Rust's prefix of a resolver's text.
pub fn without_error_codes(message: &str) -> Cow<'_, str> {
    if message.contains(LOOKUP) {
        let shorter = message.replace(LOOKUP, "");
        return Cow::Owned(without_error_codes(&shorter).into_owned());
    }
    if !message.contains(ERROR_CODE) {
        return Cow::Borrowed(message);
    }
    let mut parts = message.split(ERROR_CODE);
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        match part[digits..].strip_prefix(')') {
            Some(rest) => text.push_str(rest),
            None => text.extend([ERROR_CODE, part]),
        }
    }
    Cow::Owned(text)
}

/// Describes why a text is not the expected JSON.
pub fn json_problem(error: &serde_json::Error) -> String {
    match error.classify() {
        Category::Io => error.to_string(),
        Category::Syntax => "not valid JSON".to_owned(),
        Category::Eof => "the JSON is incomplete".to_owned(),
        Category::Data => {
            let text = error.to_string();
            let place = text.rfind(" at line ").unwrap_or(text.len());
            value_problem(&text[..place])
        }
    }
}

/// Types as serde names them, and the words for people.
const EXPECTED: &[(&str, &str)] = &[
    ("socket address", "ADDRESS:PORT in quotes"),
    ("a string", "a text in quotes"),
    ("path string", "a path in quotes"),
    ("a boolean", "true or false"),
    ("a sequence", "a list"),
    ("a map", "a table"),
];

/// Describes the error in a value of a file, from serde's text.
pub fn value_problem(text: &str) -> String {
    let plain = |text: &str| text.replace('`', "");
    if let Some((name, known)) = text
        .strip_prefix("unknown field `")
        .and_then(|rest| rest.split_once("`, "))
    {
        let known = known.trim_start_matches("expected ");
        return match known.trim_start_matches("one of ") {
            "there are no fields" => format!("{name} is unknown"),
            known => format!("{name} is unknown; write one of these: {}", plain(known)),
        };
    }
    if let Some(name) = text.strip_prefix("missing field ") {
        return format!("{} is missing", plain(name));
    }
    let wrong = ["invalid type: ", "invalid value: "];
    let wrong = wrong.iter().find_map(|front| text.strip_prefix(front));
    if let Some((found, expected)) = wrong.and_then(|rest| rest.split_once(", expected ")) {
        let known = EXPECTED.iter().find(|(serde, _)| *serde == expected);
        let expected = match known {
            Some((_, written)) => written,
            None if expected.starts_with("struct ") => "an object",
            None if expected.starts_with(['u', 'i']) => "a whole number",
            None => expected,
        };
        return format!("{} is not valid here; write {expected}", plain(found));
    }
    match text {
        "invalid socket address syntax" => {
            "write ADDRESS:PORT, such as \"127.0.0.1:9437\"".to_owned()
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn count_of_one_is_singular() {
        assert_eq!(counted(1_u32, "rank"), "1 rank");
        assert_eq!(counted(0_usize, "rank"), "0 ranks");
        assert_eq!(counted(2_u64, "process"), "2 processes");
    }

    #[test]
    fn system_error_is_shown_without_number() {
        let error = io::Error::from_raw_os_error(2);
        for (message, text) in [
            (format!("a: {error}"), "a: No such file or directory"),
            (
                format!("a ({error}), b: {error}; c"),
                "a (No such file or directory), b: No such file or directory; c",
            ),
            ("a (os error x)".to_owned(), "a (os error x)"),
            ("a (os error 2".to_owned(), "a (os error 2"),
            ("a".to_owned(), "a"),
            (
                format!("server h:1: {LOOKUP}Name or service not known"),
                "server h:1: Name or service not known",
            ),
        ] {
            assert_eq!(without_error_codes(&message), text);
        }
    }

    #[test]
    fn invalid_value_is_named_with_remedy() {
        for (serde, text) in [
            (
                "unknown field `foo`, expected one of `a`, `b`",
                "foo is unknown; write one of these: a, b",
            ),
            (
                "unknown field `foo`, expected `a`",
                "foo is unknown; write one of these: a",
            ),
            ("unknown field `foo`, there are no fields", "foo is unknown"),
            (
                "invalid type: integer `3`, expected socket address",
                "integer 3 is not valid here; write ADDRESS:PORT in quotes",
            ),
            (
                "invalid value: integer `-1`, expected u32",
                "integer -1 is not valid here; write a whole number",
            ),
            (
                "invalid type: integer `3`, expected struct State",
                "integer 3 is not valid here; write an object",
            ),
            ("missing field `ms`", "ms is missing"),
            ("give a number", "give a number"),
        ] {
            assert_eq!(value_problem(serde), text);
        }
    }

    #[test]
    fn text_that_is_not_json_is_reported_as_such() {
        for (json, text) in [
            ("import os", "not valid JSON"),
            ("", "the JSON is incomplete"),
            (
                "\"a\"",
                "string \"a\" is not valid here; write a whole number",
            ),
        ] {
            let error = serde_json::from_str::<u32>(json).unwrap_err();
            assert_eq!(json_problem(&error), text);
        }
    }
}
