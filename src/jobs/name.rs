//! Names of jobs as users write them. No I/O.
//!
//! The name of a job is `wireup-` and 16 hexadecimal digits. Output shows as many of the first digits as distinguish the job
//! from the others. Input is any prefix of the digits or of the whole name, or the pid of the
//! launcher or of a step daemon.

use super::LocalJobInfo;

/// Prefix of every job name.
pub const PREFIX: &str = "wireup-";

/// Number of hexadecimal digits after [`PREFIX`].
pub const DIGITS: usize = 16;

/// Minimum number of digits that are shown, so that later jobs are unlikely to have the same short name.
const SHOWN: usize = 6;

/// Whether a text is the name of a job.
pub fn is_job(text: &str) -> bool {
    let digits = text.strip_prefix(PREFIX);
    digits.is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(is_digit))
}

fn is_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// Text that does not name exactly one job.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NameError {
    #[error("no job {0:?}")]
    Unknown(String),
    #[error("{text:?} means more than one job: {}", candidates.join(", "))]
    Ambiguous {
        text: String,
        /// Names and pids of the matching jobs.
        candidates: Vec<String>,
    },
}

/// Short name of each job: the shortest prefix of its digits that no other job has; `None` for a job without a known name.
pub fn short(jobs: &[LocalJobInfo]) -> Vec<Option<String>> {
    let digits = |job: &LocalJobInfo| Some(job.name.as_ref()?.strip_prefix(PREFIX)?.to_owned());
    let all: Vec<Option<String>> = jobs.iter().map(digits).collect();
    let unique = |index: usize, text: &str| {
        let others = all.iter().enumerate().filter(|(other, _)| *other != index);
        let mut others = others.filter_map(|(_, other)| other.as_ref());
        let mut pids = jobs
            .iter()
            .flat_map(LocalJobInfo::leaders)
            .map(|leader| leader.pid);
        !others.any(|other| other.starts_with(text)) && !pids.any(|pid| pid.to_string() == text)
    };
    let shortest = |index: usize, digits: &String| {
        let lengths = SHOWN..=digits.len();
        let mut texts = lengths.map(|length| digits[..length].to_owned());
        texts.find(|text| unique(index, text))
    };
    let each = all.iter().enumerate();
    each.map(|(index, digits)| digits.as_ref().and_then(|digits| shortest(index, digits)))
        .collect()
}

/// Whether `text`, with or without [`PREFIX`], is a prefix of the name of a job.
pub fn begins(name: &str, text: &str) -> bool {
    let digits = text.strip_prefix(PREFIX).unwrap_or(text);
    let own = name.strip_prefix(PREFIX);
    !digits.is_empty() && own.is_some_and(|own| own.starts_with(digits))
}

/// Finds the index of the job that `text` means.
///
/// # Errors
/// [`NameError`] when no job matches, or more than one.
pub fn resolve(text: &str, jobs: &[LocalJobInfo]) -> Result<usize, NameError> {
    let means = |job: &LocalJobInfo| {
        let mut pids = job.leaders().map(|leader| leader.pid);
        let by_pid = text
            .parse()
            .is_ok_and(|pid: i32| pids.any(|leader| leader == pid));
        by_pid || job.name.as_ref().is_some_and(|name| begins(name, text))
    };
    let found: Vec<usize> = (0..jobs.len())
        .filter(|index| means(&jobs[*index]))
        .collect();
    match found[..] {
        [] => Err(NameError::Unknown(text.to_owned())),
        [index] => Ok(index),
        _ => {
            let called = found.iter().map(|index| called(&jobs[*index]));
            Err(NameError::Ambiguous {
                text: text.to_owned(),
                candidates: called.collect(),
            })
        }
    }
}

/// Name and pid of a job for messages.
pub fn called(job: &LocalJobInfo) -> String {
    let pid = job.pid().map_or_else(String::new, |pid| pid.to_string());
    match &job.name {
        Some(name) => format!("{name} (pid {pid})"),
        None => format!("pid {pid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::discover::tests::job;
    use super::*;

    #[test]
    fn job_name_has_one_form() {
        assert!(is_job("wireup-0123456789abcdef"));
        for bad in [
            "wireup-0123456789ABCDEF",
            "wireup-0123456789abcde",
            "wireup-0123456789abcdef0",
            "0123456789abcdef",
            "..",
        ] {
            assert!(!is_job(bad), "{bad}");
        }
    }

    #[test]
    fn short_names_are_minimal_and_unique() {
        let jobs = [
            job("wireup-0000000000000001", 100),
            job("wireup-0000001000000001", 200),
            job("wireup-9999990000000001", 999_999),
        ];
        let short = short(&jobs);
        // The second name differs in its seventh digit; the first six digits of the third are a pid.
        let expected = ["0000000", "0000001", "9999990"].map(|text| Some(text.to_owned()));
        assert_eq!(short, expected);
        for (index, text) in short.iter().enumerate() {
            assert_eq!(resolve(text.as_ref().unwrap(), &jobs), Ok(index));
        }
    }

    #[test]
    fn job_is_selected_by_prefix_of_name_or_pid() {
        let jobs = [
            job("wireup-1230000000000001", 77),
            job("wireup-1240000000000001", 123),
        ];
        for (text, index) in [
            ("77", 0),
            ("wireup-1230000000000001", 0),
            ("wireup-124", 1),
            ("124", 1),
        ] {
            assert_eq!(resolve(text, &jobs), Ok(index), "{text}");
        }
        // Pid of one job, and prefix of the other's name.
        for text in ["123", "12"] {
            let error = resolve(text, &jobs);
            assert!(
                matches!(error, Err(NameError::Ambiguous { .. })),
                "{error:?}"
            );
        }
        for text in ["", "wireup-", "78", "x", "-1"] {
            assert_eq!(
                resolve(text, &jobs),
                Err(NameError::Unknown(text.into())),
                "{text}"
            );
        }
    }

    #[test]
    fn unnamed_job_is_selected_by_pid() {
        let mut jobs = [job("wireup-1230000000000001", 77)];
        jobs[0].name = None;
        assert_eq!(short(&jobs), [None]);
        assert_eq!(resolve("77", &jobs), Ok(0));
    }
}
