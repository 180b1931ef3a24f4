//! Words in the quotes of a shell.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;

/// Quotes a word for a shell, where necessary.
pub fn quoted(word: &OsStr) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_changed_by_shell_are_quoted() {
        for (word, expected) in [
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
            assert_eq!(quoted(OsStr::from_bytes(word)), expected);
        }
    }
}
