//! Labels in front of output lines: the pattern of `--label=PATTERN`, filled in for one process. No I/O.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use crate::plan::pattern::{PatternError, PatternFields};
use wireup_core::job::ids::JobIndex;
use wireup_core::job::wall_clock::WallClock;
use wireup_core::record::Stream;

/// Codes of a label's pattern, besides `%%`.
const CODES: &str = "%r %R %l %h %j %J %g %n %p %s %t %c";

/// Facts about a process that its label can show.
#[derive(Clone, Copy, Debug)]
pub struct LabelFields<'a> {
    /// Codes that file names have too.
    pub fields: PatternFields<'a>,
    /// Number of ranks of the job, for the width of `%R`.
    pub size: u32,
    /// Job of the process: `%g` counts from 0, `%J` from 1.
    pub job: JobIndex,
    /// `%p`: process id, 0 if the start is not reported yet.
    pub pid: i32,
    /// Clock that formats `%c`.
    pub clock: WallClock,
}

/// Part of a label.
#[derive(Clone, PartialEq, Eq, Debug)]
enum LabelPart {
    Text(Vec<u8>),
    /// Name of the stream, `out` or `err`.
    Stream,
    /// Whole seconds since the start of the launch.
    Seconds,
    /// Local date and time.
    Date(WallClock),
}

/// Label of one process, except for what differs from line to line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Label(Vec<LabelPart>);

impl Label {
    /// Fills a pattern in.
    ///
    /// # Errors
    /// [`PatternError`] for an unknown `%` code.
    pub fn fill(pattern: &OsStr, process: &LabelFields<'_>) -> Result<Self, PatternError> {
        let (mut parts, mut text) = (Vec::new(), Vec::new());
        let mut bytes = pattern.as_bytes().iter();
        while let Some(&byte) = bytes.next() {
            if byte != b'%' {
                text.push(byte);
                continue;
            }
            let kind = *bytes.next().ok_or(PatternError::Unfinished)?;
            let of_line = match kind {
                b's' => Some(LabelPart::Stream),
                b't' => Some(LabelPart::Seconds),
                b'c' => Some(LabelPart::Date(process.clock)),
                _ => None,
            };
            match of_line {
                Some(part) => {
                    parts.push(LabelPart::Text(std::mem::take(&mut text)));
                    parts.push(part);
                }
                None => text.extend_from_slice(&process.value(kind)?),
            }
        }
        parts.push(LabelPart::Text(text));
        Ok(Self(parts))
    }

    /// Refuses a pattern that [`Label::fill`] would refuse.
    ///
    /// # Errors
    /// The errors of [`Label::fill`].
    pub fn check(pattern: &OsStr) -> Result<(), PatternError> {
        let any = LabelFields {
            fields: PatternFields::ANY,
            size: 1,
            job: JobIndex::INITIAL,
            pid: 0,
            clock: WallClock::utc(Duration::ZERO),
        };
        Self::fill(pattern, &any).map(drop)
    }

    /// Appends the label of a line that arrived at `at`, since the start of the launch.
    pub fn write(&self, stream: Stream, at: Duration, out: &mut Vec<u8>) {
        for part in &self.0 {
            let text = match part {
                LabelPart::Text(text) => {
                    out.extend_from_slice(text);
                    continue;
                }
                LabelPart::Stream => match stream {
                    Stream::Stdout => "out".to_owned(),
                    Stream::Stderr => "err".to_owned(),
                },
                LabelPart::Seconds => at.as_secs().to_string(),
                LabelPart::Date(clock) => clock.at(at).ctime(),
            };
            out.extend_from_slice(text.as_bytes());
        }
    }
}

impl LabelFields<'_> {
    /// Value of a code that is the same for all lines.
    fn value(&self, kind: u8) -> Result<Vec<u8>, PatternError> {
        let mut value = Vec::new();
        // Writing to memory does not fail.
        let _ = match kind {
            b'R' => {
                let width = self.size.saturating_sub(1).to_string().len();
                write!(value, "{:>width$}", self.fields.rank.0)
            }
            b'J' => write!(value, "{}", self.job.0.saturating_add(1)),
            b'g' => write!(value, "{}", self.job.0),
            b'p' => write!(value, "{}", self.pid),
            other => {
                let filled = self.fields.fill(OsStr::from_bytes(&[b'%', other]));
                let filled = filled.map_err(|_| PatternError::Unknown {
                    found: char::from(other),
                    known_codes: CODES,
                });
                value.write_all(filled?.as_bytes())
            }
        };
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireup_core::job::ids::Rank;

    #[test]
    fn codes_of_process_and_line_are_filled_in() {
        let process = LabelFields {
            fields: PatternFields {
                rank: Rank(7),
                host: "n1",
                job: "ns",
                node: 1,
                local: 3,
                stream: None,
            },
            size: 11,
            job: JobIndex(1),
            pid: 99,
            clock: WallClock::utc(Duration::ZERO),
        };
        for (pattern, expected) in [
            ("%R: ", " 7: "),
            ("[%J,%r]<std%s>: ", "[2,7]<stderr>: "),
            ("%g %l %h %j %n %p %t %%", "1 3 n1 ns 1 99 61 %"),
            ("[%c]", "[Thu Jan  1 00:01:01 1970]"),
            ("", ""),
        ] {
            let label = Label::fill(pattern.as_ref(), &process).unwrap();
            let mut out = Vec::new();
            label.write(Stream::Stderr, Duration::from_secs(61), &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn unknown_codes_are_refused_with_known_ones() {
        let refusal = |pattern: &str| Label::check(pattern.as_ref()).unwrap_err().to_string();
        assert_eq!(
            refusal("%x"),
            format!("unknown pattern %x; use {CODES} or %%")
        );
        assert!(refusal("a%").contains("%%"));
        assert_eq!(Label::check("%R %c".as_ref()), Ok(()));
    }
}
