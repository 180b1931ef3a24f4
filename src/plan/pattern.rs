//! `%` patterns in texts that differ from rank to rank: file names of `--output`, words of
//! `--wrap`. No I/O.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use wireup_core::job::ids::Rank;

/// What the patterns of one rank stand for.
#[derive(Clone, Copy, Debug)]
pub struct PatternFields<'a> {
    /// `%r`
    pub rank: Rank,
    /// `%h`: the name of its node.
    pub host: &'a str,
    /// `%j`: the name of the job.
    pub job: &'a str,
    /// `%n`: the number of its node.
    pub node: u32,
    /// `%l`: its number among the ranks of its node.
    pub local: u32,
    /// `%s`: the name of a stream; unknown where there is none.
    pub stream: Option<&'a str>,
}

/// A text that is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// `%` before something that means nothing.
    #[error("%{found} is unknown; known are {known_codes} and %%")]
    Unknown {
        /// Character after it.
        found: char,
        /// Codes that the pattern may have, besides `%%`.
        known_codes: &'static str,
    },
    /// `%` at the end.
    #[error("a single % at the end; write %% for a percent sign")]
    Unfinished,
}

impl PatternFields<'_> {
    /// Fills a pattern in.
    ///
    /// # Errors
    /// [`PatternError`] for a `%` that means nothing.
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

/// The pattern with the job's name at its end, unless it is in it already: for jobs that have the
/// ranks of another.
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
        assert_eq!(error, "%x is unknown; known are %r %l %h %j %n %s and %%");
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
        assert_eq!(error, "%s is unknown; known are %r %l %h %j %n and %%");
    }
}
