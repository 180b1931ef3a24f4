//! Fills in `%` patterns in texts of ranks: file names of `--output`, words of
//! `--wrap`. No I/O.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use wireup_core::job::ids::Rank;

/// Values of the patterns for one rank.
#[derive(Clone, Copy, Debug)]
pub struct PatternFields<'a> {
    /// Value of `%r`: the rank in its job.
    pub rank: Rank,
    /// Value of `%h`: the name of the rank's node.
    pub host: &'a str,
    /// Value of `%j`: the name of the job.
    pub job: &'a str,
    /// Value of `%n`: the number of the rank's node.
    pub node: u32,
    /// Value of `%l`: the local rank.
    pub local: u32,
    /// Value of `%s`: the name of a stream; `None` if the pattern must not contain it.
    pub stream: Option<&'a str>,
}

impl PatternFields<'_> {
    /// Fields with which a pattern is checked before the ranks are known.
    pub(crate) const ANY: PatternFields<'static> = PatternFields {
        rank: Rank(0),
        host: "",
        job: "",
        node: 0,
        local: 0,
        stream: None,
    };
}

/// Pattern that cannot be filled in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The character after a `%` has no meaning.
    #[error("unknown pattern %{found}; use {known_codes} or %%")]
    Unknown {
        found: char,
        /// Valid patterns except `%%`.
        known_codes: &'static str,
    },
    /// The last character is a single `%`.
    #[error("a single % at the end; write %% for a percent sign")]
    Unfinished,
}

impl PatternFields<'_> {
    /// Replaces the patterns of a text by their values.
    ///
    /// # Errors
    /// [`PatternError`] for an unknown pattern.
    pub fn fill(&self, pattern: &OsStr) -> Result<OsString, PatternError> {
        let mut out = Vec::with_capacity(pattern.len());
        let mut bytes = pattern.as_bytes().iter();
        while let Some(&byte) = bytes.next() {
            if byte != b'%' {
                out.push(byte);
                continue;
            }
            let kind = bytes.next().ok_or(PatternError::Unfinished)?;
            match (kind, self.stream) {
                (b'r', _) => out.extend_from_slice(self.rank.to_string().as_bytes()),
                (b'l', _) => out.extend_from_slice(self.local.to_string().as_bytes()),
                (b'h', _) => out.extend_from_slice(self.host.as_bytes()),
                (b'j', _) => out.extend_from_slice(self.job.as_bytes()),
                (b'n', _) => out.extend_from_slice(self.node.to_string().as_bytes()),
                (b's', Some(stream)) => out.extend_from_slice(stream.as_bytes()),
                (b'%', _) => out.push(b'%'),
                (other, stream) => {
                    return Err(PatternError::Unknown {
                        found: char::from(*other),
                        known_codes: match stream {
                            Some(_) => "%r %l %h %j %n %s",
                            None => "%r %l %h %j %n",
                        },
                    });
                }
            }
        }
        Ok(OsString::from_vec(out))
    }
}

/// Adds `%j` at the end of a pattern without one, so that ranks with the same number in several jobs have different texts.
pub fn with_job(mut pattern: OsString) -> OsString {
    let mut bytes = pattern.as_bytes().iter();
    while let Some(byte) = bytes.next() {
        if *byte == b'%' && bytes.next() == Some(&b'j') {
            return pattern;
        }
    }
    pattern.push(".%j");
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: PatternFields<'_> = PatternFields {
        rank: Rank(7),
        host: "h",
        job: "j",
        node: 2,
        local: 3,
        stream: Some("out"),
    };

    #[test]
    fn patterns_are_filled_in_and_mistakes_named() {
        let fill = |text: &str| FIELDS.fill(OsStr::new(text));
        assert_eq!(fill("a/%r-%h-%j-%n-%l.%s%%"), Ok("a/7-h-j-2-3.out%".into()));
        let error = fill("%x").unwrap_err().to_string();
        assert_eq!(error, "unknown pattern %x; use %r %l %h %j %n %s or %%");
        assert_eq!(fill("a%"), Err(PatternError::Unfinished));
    }

    #[test]
    fn patterns_of_several_jobs_name_job_once() {
        let of = |text: &str| with_job(text.into());
        assert_eq!(of("out/%j/%r"), "out/%j/%r");
        assert_eq!(of("out.%r"), "out.%r.%j");
        assert_eq!(of("out.%%j"), "out.%%j.%j");
    }

    #[test]
    fn stream_field_is_unknown_without_stream() {
        let fields = PatternFields {
            stream: None,
            ..FIELDS
        };
        let error = fields.fill(OsStr::new("%r.%s")).unwrap_err().to_string();
        assert_eq!(error, "unknown pattern %s; use %r %l %h %j %n or %%");
    }
}
