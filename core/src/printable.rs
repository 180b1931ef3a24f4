//! Foreign texts for terminals: names of programs and files, and texts from launchers of other users. No I/O.

use std::borrow::Cow;
use std::fmt::Write as _;

use crate::wording::without_error_codes;
use serde::Serialize;

/// Whether a terminal interprets a character, starts a line with it, or reorders others because of it.
fn is_unprintable(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns the text in one line, with escapes in place of unprintable characters.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unprintable) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for char in text.chars() {
        match char {
            '\n' => shown.push_str(r"\n"),
            '\t' => shown.push_str(r"\t"),
            '\r' => shown.push_str(r"\r"),
            char if is_unprintable(char) => {
                let _ = match u32::from(char) {
                    code @ 0..0x80 => write!(shown, r"\x{code:02x}"),
                    code => write!(shown, r"\u{{{code:x}}}"),
                };
            }
            char => shown.push(char),
        }
    }
    Cow::Owned(shown)
}

/// Formats lines for a terminal, each printable and without error codes, with a line feed at the end.
pub fn lines<T: AsRef<str>>(lines: impl IntoIterator<Item = T>) -> String {
    let mut text = String::new();
    for line in lines {
        text.push_str(&printable(&without_error_codes(line.as_ref())));
        text.push('\n');
    }
    text
}

/// Formats a value as JSON of several lines without unprintable characters.
///
/// # Errors
/// If the value cannot be written as JSON.
pub fn json(value: &impl Serialize) -> serde_json::Result<String> {
    let text = serde_json::to_string_pretty(value)?;
    // Rule: JSON strings have escapes in place of U+0000 to U+001F; other control characters may be in them
    // unescaped. Source: RFC 8259, section 7.
    let obeyed = |char: char| char != '\n' && is_unprintable(char);
    if !text.contains(obeyed) {
        return Ok(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for char in text.chars() {
        match obeyed(char) {
            true => {
                let _ = write!(shown, r"\u{:04x}", u32::from(char));
            }
            false => shown.push(char),
        }
    }
    Ok(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_escapes_terminal_control_characters() {
        for (text, shown) in [
            ("./a.out -x", "./a.out -x"),
            ("é \\ '", "é \\ '"),
            ("a\nwireup: b", r"a\nwireup: b"),
            ("\u{1b}]0;x\u{7}\r\t\u{7f}", r"\x1b]0;x\x07\r\t\x7f"),
            ("\u{9b}2J\u{202e}x\u{2028}", r"\u{9b}2J\u{202e}x\u{2028}"),
        ] {
            assert_eq!(printable(text), shown);
        }
        assert_eq!(lines(["a\n", "b"]), "a\\n\nb\n");
    }

    #[test]
    fn json_is_printable_with_equal_value() {
        let value = ["\u{9b}2J", "\u{1b}\u{7f}\n", "\u{202e}é"];
        let text = json(&value).unwrap();
        assert!(
            !text.contains(|char| char != '\n' && is_unprintable(char)),
            "{text:?}"
        );
        assert_eq!(serde_json::from_str::<[String; 3]>(&text).unwrap(), value);
    }
}
