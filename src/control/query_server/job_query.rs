//! Request to a running launch, and the answers: one line of JSON each.

use std::path::PathBuf;

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::backend::inspection::{Dump, InspectionError, InspectionResult, RankUsage, Stack};
use crate::report::stacks::RankStack;
use wireup_core::job::ids::{JobIndex, Rank};
use wireup_core::job::rank_set::RankSet;

/// Most bytes of a request.
pub(crate) const REQUEST_MAX: usize = 64 * 1024;

/// What a caller wants.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JobQueryKind {
    /// The table of processes.
    Table,
    /// Stacks of those that run.
    Stacks {
        /// Only the frames of Python, where a rank has some.
        python: bool,
        /// `PATH` of the caller, for debuggers that the launcher's does not have.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<String>,
    },
    /// Cores of those that run.
    Core {
        /// Where they go, on each host.
        directory: PathBuf,
    },
    /// What those that run use of their hosts, and where they wait.
    Usage,
}

/// A request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct JobQuery {
    pub(crate) wish: JobQueryKind,
    /// Ranks of the first job; all processes when absent.
    pub(crate) ranks: Option<RankSet>,
    /// Whether the caller takes [`JobAnswer::Taken`] and [`JobAnswer::Found`].
    #[serde(default)]
    pub(crate) progress: bool,
}

/// One process of the launch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct ProcessRecord {
    /// Number of its job; 0 for the one the user asked for.
    pub(crate) job: u32,
    /// Its number there.
    pub(crate) rank: u32,
    pub(crate) host: String,
    /// Its process, once it was started.
    pub(crate) pid: Option<i32>,
    /// What it executes.
    pub(crate) executable: String,
    /// `planned`, `running` or `ended`.
    pub(crate) state: String,
    /// Frames, the outermost first; or the file of its core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) found: Option<Vec<String>>,
    /// Why there is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<String>,
    /// Reason why the frames are not those of Python.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// What it uses of its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Box<RankUsage>>,
}

impl ProcessRecord {
    /// The same with what a debugger found in the process.
    pub(crate) fn with(self, found: Result<InspectionResult, InspectionError>) -> Self {
        let mut known = self;
        match found {
            Ok(InspectionResult::Stack(Stack { frames, note })) => {
                known.found = Some(frames);
                known.note = note;
            }
            Ok(InspectionResult::Dump(Dump { frames, .. })) => known.found = Some(frames),
            Ok(InspectionResult::Core(file)) => known.found = Some(vec![file]),
            Ok(InspectionResult::Usage(usage)) => known.usage = Some(usage),
            Err(error) => known.error = Some(error.to_string()),
        }
        known
    }

    /// What was seen of it.
    pub(crate) fn seen(&self) -> RankStack<'_> {
        RankStack {
            name: (JobIndex(self.job), Rank(self.rank)),
            host: &self.host,
            pid: self.pid,
            found: match (&self.found, &self.error) {
                (Some(found), _) => Ok(found),
                (None, Some(error)) => Err(error),
                (None, None) => Err("it is not known"),
            },
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum JobAnswer {
    /// The launcher has taken the request, for this number of ranks.
    Taken(usize),
    /// Ranks that were inspected, before the others.
    Found(Vec<ProcessRecord>),
    /// Results by rank, without those of [`Found`](Self::Found); the last line.
    Processes(Vec<ProcessRecord>),
    /// Why there is no answer.
    Refused(String),
}

/// The abstract address at which a launch takes requests.
///
/// Rule: all users can read the addresses of sockets, and none but the job's may learn its name (see
/// [`job_label`](crate::backend::job_label)). So the address is a digest of the name, which no other user can guess and take first.
pub(crate) fn address(job: &str) -> Vec<u8> {
    let digest = Sha256::digest(["wireup control ", job].concat());
    let digest = HEXLOWER.encode(&digest[..16]);
    format!("wireup/control/{digest}").into_bytes()
}
