//! Files that wireup may replace: those that it wrote itself, and empty ones. If the value of an option is forgotten, the
//! option takes the program as its value, and the program must not be overwritten.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use wireup_core::failure::RequestError;
use wireup_sys::access::is_program;

/// Number of bytes at the beginning of a file by which its kind is recognized.
const BEGINNING: u64 = 1024;

/// Kind of a file that wireup writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileKind {
    Stream,
    Page,
    Trace,
}

impl FileKind {
    /// Whether a file with this beginning is of this kind, in any version.
    fn begins_with(self, beginning: &[u8]) -> bool {
        let beginning = String::from_utf8_lossy(beginning);
        match self {
            Self::Stream => {
                beginning.starts_with(r#"{"time":""#) && beginning.contains(r#""event":""#)
            }
            Self::Page => {
                beginning.starts_with("<!DOCTYPE html>")
                    && beginning.contains("<title>wireup</title>")
            }
            Self::Trace => beginning.starts_with(r#"{"displayTimeUnit":"ms","otherData":{"job":""#),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Stream => "status stream",
            Self::Page => "report",
            Self::Trace => "trace",
        }
    }

    /// Returns the remedy for a forgotten value.
    fn remedy(self) -> &'static str {
        match self {
            Self::Stream => "write --json - for standard output",
            Self::Page => "name a file for the report before the program",
            Self::Trace => "name a file for the trace before the program",
        }
    }
}

/// Error: a file is not replaced.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReplacementError {
    #[error("{option} {} would overwrite a program; {}", path.display(), kind.remedy())]
    Program {
        option: &'static str,
        path: PathBuf,
        kind: FileKind,
    },
    #[error(
        "{option} {} would overwrite a file that is not a {} of wireup; use another name, or remove the file",
        path.display(),
        kind.name()
    )]
    Foreign {
        option: &'static str,
        path: PathBuf,
        kind: FileKind,
    },
}

impl RequestError for ReplacementError {}

/// Refuses a path to a file whose contents this option does not write.
///
/// # Errors
/// [`ReplacementError`] that names the path.
pub(crate) fn check_replaceable(
    option: &'static str,
    path: &Path,
    kind: FileKind,
) -> Result<(), ReplacementError> {
    // Devices and pipes have no contents; a file that cannot be examined is reported when it is opened.
    let is_empty = |meta: std::fs::Metadata| !meta.is_file() || meta.len() == 0;
    if path.metadata().map_or(true, is_empty) {
        return Ok(());
    }
    let mut beginning = Vec::new();
    let Ok(file) = File::open(path) else {
        return Ok(());
    };
    let _ = file.take(BEGINNING).read_to_end(&mut beginning);
    if kind.begins_with(&beginning) {
        return Ok(());
    }
    let path = path.to_owned();
    Err(match is_program(&path) {
        true => ReplacementError::Program { option, path, kind },
        false => ReplacementError::Foreign { option, path, kind },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::page::page;
    use wireup_core::timeline::{Timeline, trace};

    /// A line as [`Record::write`](wireup_core::record::Record::write) writes it.
    const LINE: &str = concat!(
        r#"{"time":"t","ms":1,"us":1,"event":"warning","message":"m"}"#,
        "\n"
    );

    #[test]
    fn only_files_of_same_kind_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let timeline = Timeline::read(LINE.as_bytes()).unwrap();
        let page = page(&timeline);
        let contents = [
            (FileKind::Stream, LINE.to_owned()),
            (FileKind::Page, page),
            (FileKind::Trace, trace(&timeline).to_string()),
        ];
        for (kind, _) in &contents {
            assert!(check_replaceable("--x", &path, *kind).is_ok(), "{kind:?}");
            for (other, text) in &contents {
                std::fs::write(&path, text).unwrap();
                let is_replaced = check_replaceable("--x", &path, *kind).is_ok();
                assert_eq!(is_replaced, kind == other, "{kind:?} {other:?}");
            }
            for foreign in [
                "#!/bin/sh\n",
                "\x7fELF",
                "int main",
                "<!DOCTYPE html>",
                "{}",
                "\n",
            ] {
                std::fs::write(&path, foreign).unwrap();
                let error = check_replaceable("--x", &path, *kind).unwrap_err();
                let is_program = matches!(error, ReplacementError::Program { .. });
                let expected = foreign.starts_with("#!") || foreign.starts_with('\x7f');
                assert_eq!(is_program, expected, "{foreign:?}");
            }
            std::fs::write(&path, "").unwrap();
            assert!(check_replaceable("--x", &path, *kind).is_ok(), "empty");
            std::fs::remove_file(&path).unwrap();
        }
        assert!(check_replaceable("--x", Path::new("/dev/null"), FileKind::Page).is_ok());
    }
}
