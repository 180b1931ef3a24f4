//! The launcher's status stream, read; no I/O. Source: docs/status.md.

use data_encoding::BASE64;
use prost::bytes::Bytes;
use serde::Deserialize;

/// One line.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Line {
    /// The job came into another state.
    Job(Job),
    /// A rank came into another state.
    Rank(Rank),
    /// A rank printed something.
    Output(Output),
    /// Something people should know.
    Warning {
        message: String,
    },
    Result(Box<Outcome>),
    /// Unknown values of later versions.
    #[serde(other)]
    Other,
}

/// States of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Decided.
    Planned,
    /// All ranks were started.
    Running,
    /// Asked to end.
    Ending,
    /// Killed.
    Killing,
    /// Unknown values of later versions.
    #[serde(other)]
    Other,
}

/// See [`Line::Job`].
#[derive(Debug, PartialEq, Deserialize)]
pub struct Job {
    pub state: JobState,
    pub cause: Option<Cause>,
}

/// States of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankState {
    Started,
    /// It uses its interface.
    Connected,
    /// It has left it.
    Finalized,
    /// Its process has ended.
    Ended,
    /// It gets no process.
    NotStarted,
    /// Unknown values of later versions.
    #[serde(other)]
    Other,
}

/// See [`Line::Rank`].
#[derive(Debug, PartialEq, Deserialize)]
pub struct Rank {
    pub state: RankState,
    /// Number of its job, if that was spawned.
    #[serde(default)]
    pub spawned_job: u32,
    /// Whose.
    pub rank: u32,
    pub node: u32,
    pub app: u32,
    pub pid: Option<i32>,
    pub code: Option<u8>,
    pub signal: Option<i32>,
}

/// Standard output or standard error.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// See [`Line::Output`].
#[derive(Debug, PartialEq, Deserialize)]
pub struct Output {
    /// Number of its job, if that was spawned.
    #[serde(default)]
    pub spawned_job: u32,
    /// Whose.
    pub rank: Option<u32>,
    /// Where.
    pub stream: Stream,
    text: Option<String>,
    base64: Option<String>,
}

/// Why a job ended.
#[derive(Debug, PartialEq, Deserialize)]
pub struct Cause {
    pub kind: String,
    pub message: String,
    /// Number of its job, if that was spawned.
    #[serde(default)]
    pub spawned_job: u32,
    /// Who.
    pub rank: Option<u32>,
}

/// See [`Line::Result`].
#[derive(Debug, PartialEq, Deserialize)]
pub struct Outcome {
    pub exit_code: u8,
    /// Why it is not 0, or why the job was ended.
    pub cause: Option<Cause>,
}

/// A line with its time.
#[derive(Deserialize)]
struct Timed {
    #[serde(default)]
    ms: u64,
    #[serde(flatten)]
    line: Line,
}

/// An invalid line of a status stream.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// No JSON, or other fields.
    #[error("the launcher wrote a line that cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// It has no end.
    #[error("the launcher wrote a line that has no end")]
    Cut,
    /// Output that is neither text nor bytes.
    #[error("the launcher wrote output that cannot be read")]
    Output,
}

impl Line {
    /// Reads one line, with or without its end, and its time in milliseconds since the start of the
    /// run.
    ///
    /// # Errors
    /// [`LineError::Json`].
    pub fn parse(line: &[u8]) -> Result<(u64, Self), LineError> {
        let Timed { ms, line } = serde_json::from_slice(line)?;
        Ok((ms, line))
    }
}

impl Output {
    /// The bytes that were printed.
    ///
    /// # Errors
    /// [`LineError::Output`].
    pub fn into_bytes(self) -> Result<Bytes, LineError> {
        match (self.text, self.base64) {
            (Some(text), None) => Ok(text.into()),
            (None, Some(digits)) => {
                let bytes = BASE64.decode(digits.as_bytes());
                bytes.map(Bytes::from).map_err(|_| LineError::Output)
            }
            _ => Err(LineError::Output),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Line {
        Line::parse(line.as_bytes()).unwrap().1
    }

    #[test]
    fn output_is_the_bytes_that_were_printed() {
        let bytes = |line: &str| match parse(line) {
            Line::Output(output) => output.into_bytes().ok(),
            other => panic!("{other:?}"),
        };
        let line = r#"{"time":"t","ms":1,"event":"output","rank":3,"stream":"stdout",ENDING}"#;
        let with = |ending: &str| bytes(&line.replace("ENDING", ending));
        assert_eq!(with(r#""text":"a\nb\u0000""#).unwrap(), "a\nb\0");
        for (digits, expected) in [
            ("", Some(&b""[..])),
            ("/w==", Some(b"\xff")),
            ("/4A=", Some(b"\xff\x80")),
            ("+v8A", Some(b"\xfa\xff\x00")),
            ("AAECAw==", Some(b"\x00\x01\x02\x03")),
            ("/w=", None),
            ("/w", None),
            ("A===", None),
            ("!w==", None),
        ] {
            let found = with(&format!("\"base64\":\"{digits}\""));
            assert_eq!(found.as_deref(), expected, "{digits}");
        }
        assert!(with(r#""other":1"#).is_none());
    }

    #[test]
    fn what_a_later_version_tells_is_passed_over() {
        assert_eq!(parse(r#"{"event":"weather","x":1}"#), Line::Other);
        let line =
            r#"{"event":"rank","state":"asleep","rank":0,"node":0,"app":0,"pid":7,"new":[]}"#;
        assert!(matches!(
            parse(line),
            Line::Rank(Rank {
                state: RankState::Other,
                ..
            })
        ));
        assert!(Line::parse(b"wireup: hello").is_err());
    }
}
