//! Request to a running launch, and the answers; each is one line of JSON.

use std::path::PathBuf;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::backend::inspection::{Dump, InspectionError, InspectionResult, RankUsage, Stack};
use crate::control::resize_request::ResizeReport;
use crate::report::stacks::RankStack;
use wireup_core::job::ids::{JobIndex, Rank};
use wireup_core::job::rank_set::RankSet;
use wireup_core::record::ResizeCommand;

/// Maximum bytes of a request.
pub(crate) const REQUEST_MAX: usize = 64 * 1024;

/// Information or action that a caller requests.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JobQueryKind {
    /// The table of processes.
    Table,
    /// Stacks of the running processes.
    Stacks {
        /// Only the frames of Python, where a rank has some.
        python: bool,
        /// `PATH` of the caller, for debuggers that are not in the launcher's `PATH`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
    },
    /// Core files of the running processes.
    Core {
        /// Directory of the files, on each host.
        directory: PathBuf,
    },
    /// Resources that the running processes use, and where they wait.
    Usage,
    /// Hosts that join the launch, and hosts that leave it.
    Resize(ResizeCommand),
}

/// Request of a caller.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct JobQuery {
    pub(crate) wish: JobQueryKind,
    /// Ranks of the initial job; all processes of the launch when absent.
    pub(crate) ranks: Option<RankSet>,
    /// Whether the caller accepts [`JobAnswer::Taken`] and [`JobAnswer::Found`].
    #[serde(default)]
    pub(crate) progress: bool,
}

/// Process of the launch, with results of an inspection.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ProcessRecord {
    /// Index of its job; 0 for the initial job.
    pub(crate) job: u32,
    /// Rank in that job.
    pub(crate) rank: u32,
    pub(crate) host: String,
    /// Process id, once it was started.
    pub(crate) pid: Option<i32>,
    /// Path of the executable.
    pub(crate) executable: String,
    /// `planned`, `running` or `ended`.
    pub(crate) state: String,
    /// Frames, the outermost first; or the path of the core file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) found: Option<Vec<String>>,
    /// Reason why there is no result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Reason why the frames are not those of Python.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// Resources that the process uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Box<RankUsage>>,
}

impl ProcessRecord {
    /// Adds the result of an inspection.
    pub(crate) fn with(mut self, found: Result<InspectionResult, InspectionError>) -> Self {
        match found {
            Ok(InspectionResult::Stack(Stack { frames, note })) => {
                self.found = Some(frames);
                self.note = note;
            }
            Ok(InspectionResult::Dump(Dump { frames, .. })) => self.found = Some(frames),
            Ok(InspectionResult::Core(file)) => self.found = Some(vec![file]),
            Ok(InspectionResult::Usage(usage)) => self.usage = Some(usage),
            Err(error) => self.error = Some(error.to_string()),
        }
        self
    }

    /// Returns the result of an inspection, for the report about stacks.
    pub(crate) fn stack(&self) -> RankStack<'_> {
        RankStack {
            name: (JobIndex(self.job), Rank(self.rank)),
            host: &self.host,
            pid: self.pid,
            found: match (&self.found, &self.error) {
                (Some(found), _) => Ok(found),
                (None, Some(error)) => Err(error),
                (None, None) => Err("no result"),
            },
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JobAnswer {
    /// The launcher has accepted the request, for this number of ranks.
    Taken(usize),
    /// Results for some ranks, before the others.
    Found(Vec<ProcessRecord>),
    /// Results by rank, without those of [`Found`](Self::Found); the last line.
    Processes(Vec<ProcessRecord>),
    /// Changes of the launch's hosts; the last line.
    Resized(ResizeReport),
    /// Reason for a refusal.
    Refused(String),
}

/// Returns the abstract address at which a launch accepts requests.
///
/// Rule: all users can read the addresses of sockets, and only the job's user may learn its name (see
/// [`job_label`](crate::backend::job_label)). So the address is a digest of the name, which no other user can guess and take first.
pub(crate) fn address(job: &str) -> Vec<u8> {
    let digest = Sha256::digest(["wireup control ", job].concat());
    let digest = HEXLOWER.encode(&digest[..16]);
    format!("wireup/control/{digest}").into_bytes()
}
