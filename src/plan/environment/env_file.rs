//! Parses files of variables for ranks (`--env-file`) as Docker does. No I/O.
//!
//! Rule: a line is `NAME=VALUE`, whose value is all text after the `=`, with quotes and blanks;
//! or `NAME`, which passes on the value that wireup has; or blank; or a comment that
//! starts with `#`. Blanks before the name are ignored. Source: docs/environment.md#files.
//!
//! In addition, `export ` before a name and a carriage return at the end of a line are ignored,
//! so that most files for a shell can be read.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use super::{EnvForward, ForwardError};

/// Invalid line of a file of variables.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {error}")]
pub struct FileError {
    /// Number of the line, from 1.
    pub line: usize,
    pub error: LineError,
}

/// Error in a line of a file of variables.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// The line has no name, or a NUL byte.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// The name contains a blank.
    #[error("the name {0:?} contains a blank; write NAME=VALUE without blanks around the =")]
    Blank(String),
}

/// Parses the text of a file.
///
/// # Errors
/// [`FileError`] for the first invalid line.
pub fn parse(text: &[u8]) -> Result<Vec<EnvForward>, FileError> {
    // Some editors write a byte order mark.
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let mut forwards = Vec::new();
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line).trim_ascii_start();
        if line.is_empty() || line[0] == b'#' {
            continue;
        }
        let forward = variable(line).map_err(|error| FileError {
            line: index + 1,
            error,
        })?;
        forwards.push(forward);
    }
    Ok(forwards)
}

fn variable(line: &[u8]) -> Result<EnvForward, LineError> {
    let line = match line.strip_prefix(b"export") {
        Some(rest) if rest.first().is_some_and(u8::is_ascii_whitespace) => rest.trim_ascii_start(),
        _ => line,
    };
    let end = line.iter().position(|byte| *byte == b'=');
    let name = &line[..end.unwrap_or(line.len())];
    if name.iter().any(u8::is_ascii_whitespace) {
        return Err(LineError::Blank(String::from_utf8_lossy(name).into()));
    }
    Ok(EnvForward::parse(OsStr::from_bytes(line))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_literal_to_end_of_line() {
        let text =
            b"\xef\xbb\xbfA=1\n# no = value\n\n  \t B= two  words \r\nQ=\"quoted\" 'x' # y\nE=\n\
            export  X=$A\nexported=1\nBYTES=\xff\xfe\nPASSED\nP_*\nLAST=a=b";
        let set = |name: &str, value: &[u8]| {
            EnvForward::Set(name.into(), OsStr::from_bytes(value).to_owned())
        };
        let expected = [
            set("A", b"1"),
            set("B", b" two  words "),
            set("Q", b"\"quoted\" 'x' # y"),
            set("E", b""),
            set("X", b"$A"),
            set("exported", b"1"),
            set("BYTES", b"\xff\xfe"),
            EnvForward::Inherit("PASSED".into()),
            EnvForward::InheritAll("P_".into()),
            set("LAST", b"a=b"),
        ];
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn first_invalid_line_is_named() {
        let wrong = |text: &str| parse(text.as_bytes()).unwrap_err();
        let error = wrong("A=1\n\nB =2\n=3");
        assert_eq!(error.line, 3);
        assert_eq!(error.error, LineError::Blank("B ".into()));
        let error = wrong("=3").to_string();
        assert!(
            error.starts_with("line 1: \"=3\" has no variable name"),
            "{error}"
        );
        assert_eq!(wrong("A\0=1").line, 1);
        assert_eq!(wrong("some words").line, 1);
    }
}
