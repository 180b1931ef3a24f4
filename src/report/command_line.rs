//! Command lines in a form that a shell reads, without the values of secrets.

use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;

use crate::plan::environment;

/// Text in place of a hidden value.
pub(crate) const HIDDEN: &str = "…hidden";

/// Options whose next two words are a variable and its value.
const TWO_WORDS: [&str; 3] = ["-env", "-genv", "--genv"];

/// Quotes a word for a shell, where necessary.
pub(crate) fn quoted(word: &OsStr) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,+@%".contains(c);
    let Some(text) = word
        .to_str()
        .filter(|text| !text.contains(char::is_control))
    else {
        return escaped(word.as_bytes());
    };
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Quotes with `$'…'`, as bash and other shells read it: for control characters, and bytes that are not valid UTF-8.
fn escaped(bytes: &[u8]) -> String {
    let mut text = String::from("$'");
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => text.push_str(r"\n"),
                '\t' => text.push_str(r"\t"),
                '\'' | '\\' => text.extend(['\\', c]),
                c if c.is_control() => hex(c.encode_utf8(&mut [0; 4]).as_bytes(), &mut text),
                c => text.push(c),
            }
        }
        hex(chunk.invalid(), &mut text);
    }
    text.push('\'');
    text
}

fn hex(bytes: &[u8], text: &mut String) {
    for byte in bytes {
        let _ = write!(text, r"\x{byte:02x}");
    }
}

/// Returns a whole command line for records and pages that others read. Values of variables that a dry run hides, and of
/// those whose names mark them as secrets, are left out.
pub(crate) fn command_line(words: &[OsString]) -> String {
    let mut line = String::new();
    for (index, word) in words.iter().enumerate() {
        if index > 0 {
            line.push(' ');
        }
        let set_by = index.checked_sub(2).map(|at| &words[at]);
        let is_value = set_by.is_some_and(|option| TWO_WORDS.iter().any(|known| option == known));
        if is_value && environment::is_secret(&words[index - 1]) {
            line.push_str(HIDDEN);
        } else if let Some(at) = environment::secret_value(word) {
            line.push_str(&quoted(OsStr::from_bytes(&word.as_bytes()[..at])));
            line.push_str(HIDDEN);
        } else {
            line.push_str(&quoted(word));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_changed_by_shell_are_quoted() {
        for (word, wanted) in [
            (&b"a.out"[..], "a.out"),
            (b"./a-b_c=1", "./a-b_c=1"),
            (b"", "''"),
            (b"a b", "'a b'"),
            (b"it's", r"'it'\''s'"),
            (b"$HOME", "'$HOME'"),
            (b"a\nb'\\", r"$'a\nb\'\\'"),
            (b"\x1b[1m\xff", r"$'\x1b[1m\xff'"),
            ("\u{85}é".as_bytes(), r"$'\xc2\x85é'"),
        ] {
            assert_eq!(quoted(OsStr::from_bytes(word)), wanted);
        }
    }

    #[test]
    fn command_line_hides_values_of_secrets() {
        let line = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            command_line(&words)
        };
        for (words, wanted) in [
            (&["run", "-x", "A=b c", "./a"][..], "run -x 'A=b c' ./a"),
            (&["-x", "FI_CXI_A=s", "./a"], "-x FI_CXI_A=…hidden ./a"),
            (&["-xSLINGSHOT_VNIS=1,2"], "-xSLINGSHOT_VNIS=…hidden"),
            (&["--env=MY_API_TOKEN=s"], "--env=MY_API_TOKEN=…hidden"),
            (
                &["--export=A=1,DB_PASSWORD=s"],
                "--export=A=1,DB_PASSWORD=…hidden",
            ),
            (
                &["-genv", "FI_CXI_A", "s", "./a"],
                "-genv FI_CXI_A …hidden ./a",
            ),
            (&["-x", "FI_CXI_A", "./a"], "-x FI_CXI_A ./a"),
            (&["-x", "MAX_TOKENS=5"], "-x MAX_TOKENS=5"),
        ] {
            assert_eq!(line(words), wanted);
        }
    }
}
