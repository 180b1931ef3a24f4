//! Job that an agent passes to the launcher that it starts for a scheduler (`wireup launch`), and the source of orders
//! to that launcher. The launcher reports the job's progress on its standard output as [records](crate::record).

use std::ffi::OsString;

use super::agent_protocol::VERSION;
use super::{DecodeError, decode, encode};
use crate::job::spec::JobSpec;

/// The command. Its arguments are those of [`shown`] and have no effect.
pub const COMMAND: &str = "launch";

/// The descriptor from which the launcher reads [orders](crate::record::SignalOrder). Its end is the job's.
pub const ORDERS: i32 = 3;

/// The descriptor of a file in memory with the job, as [`describe`] writes it.
pub const JOB: i32 = 4;

/// Most bytes of a job: far more than the arguments and variables of any have.
pub const JOB_MAX: u64 = 256 * 1024 * 1024;

/// Error: a launcher cannot read the job description of its agent.
#[derive(Debug, thiserror::Error)]
pub enum DescriptionError {
    /// Description in another version's format.
    #[error(
        "the agent that started this launcher has link version {0}, this wireup has {VERSION}; restart the agent with \
         the installed wireup"
    )]
    Version(u32),
    /// Bytes that are not a job description.
    #[error("invalid job from the agent: {0}")]
    Garbage(#[from] DecodeError),
}

/// Encodes a job as a file for a launcher: the version comes first, whatever follows it.
pub fn describe(job: &JobSpec) -> Vec<u8> {
    encode(&(VERSION, job))
}

/// Decodes the job of a file from [`describe`].
///
/// # Errors
/// [`DescriptionError`].
pub fn read(file: &[u8]) -> Result<JobSpec, DescriptionError> {
    match postcard::take_from_bytes(file)? {
        (VERSION, job) => Ok(decode(job)?),
        (version, _) => Err(DescriptionError::Version(version)),
    }
}

/// Returns the text that the process list shows behind the command: programs with their arguments, and `:` between
/// them.
pub fn shown(job: &JobSpec) -> Vec<OsString> {
    let apps: Vec<&[OsString]> = job.apps.iter().map(|app| &*app.argv).collect();
    apps.join(&OsString::from(":"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::spec::AppRequest;

    fn job() -> JobSpec {
        let app = |words: &[&str]| AppRequest {
            argv: words.iter().map(Into::into).collect(),
            ..AppRequest::default()
        };
        JobSpec::from_apps(vec![app(&["a", "x y"]), app(&["b"])])
    }

    #[test]
    fn job_is_decoded_and_other_version_is_refused() {
        let file = describe(&job());
        assert_eq!(read(&file).unwrap(), job());
        assert!(matches!(
            read(&file[..9]),
            Err(DescriptionError::Garbage(_))
        ));
        let other = encode(&(VERSION + 1, "whatever that version says"));
        let refused = read(&other).unwrap_err().to_string();
        let versions = [
            format!("has link version {}", VERSION + 1),
            format!("this wireup has {VERSION};"),
        ];
        assert!(
            versions.iter().all(|version| refused.contains(version)),
            "{refused}"
        );
    }

    #[test]
    fn process_list_shows_programs() {
        assert_eq!(shown(&job()), ["a", "x y", ":", "b"]);
    }
}
