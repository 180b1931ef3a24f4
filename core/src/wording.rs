//! Parts of messages: numbers with their nouns, and errors of the system without what Rust adds to them.

use std::borrow::Cow;
use std::fmt::Display;

/// `1 rank`, `2 ranks`, `0 processes`.
pub fn counted<N: Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let ending = match (count == N::from(1), noun.ends_with("ss")) {
        (true, _) => "",
        (false, true) => "es",
        (false, false) => "s",
    };
    format!("{count} {noun}{ending}")
}

/// The ending of a verb in the present.
pub fn verb_ending(is_singular: bool) -> &'static str {
    if is_singular { "s" } else { "" }
}

/// Begins the number that Rust adds to the name of an error of the system, up to `)`.
const ERROR_CODE: &str = " (os error ";

/// A message without the numbers of the errors that it names.
pub fn without_error_codes(message: &str) -> Cow<'_, str> {
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

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn one_is_singular() {
        assert_eq!(counted(1_u32, "rank"), "1 rank");
        assert_eq!(counted(0_usize, "rank"), "0 ranks");
        assert_eq!(counted(2_u64, "process"), "2 processes");
    }

    #[test]
    fn an_error_of_the_system_is_its_name() {
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
        ] {
            assert_eq!(without_error_codes(&message), text);
        }
    }
}
