//! Inspection of the ranks' processes with a debugger on each host: requests and results.

use std::path::PathBuf;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use wireup_core::job::ids::GlobalRank;
use wireup_core::job::octets;

/// Kind of data that an inspection collects.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum InspectionKind {
    Stacks {
        /// Whether only Python frames are wanted, where a rank has some.
        python: bool,
        /// `PATH` of the caller, for debuggers that are not in the launcher's.
        path: Option<String>,
    },
    /// Memory is dumped into this directory of each host.
    Core(#[serde(with = "octets")] PathBuf),
    /// Core dump that the kernel made of a rank that has ended.
    Dump,
    /// Resource usage and current fence of ranks; needs no debugger.
    Usage,
}

/// Request to inspect ranks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Inspection {
    /// Identifies the request in the results.
    pub(crate) ticket: u32,
    /// Ranks to inspect; a host ignores those of other hosts.
    pub(crate) ranks: Vec<GlobalRank>,
    pub(crate) look: InspectionKind,
}

/// The result of the inspection of one rank, which `R` identifies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct RankInspection<R = GlobalRank> {
    pub(crate) rank: R,
    pub(crate) result: Result<InspectionResult, InspectionError>,
}

/// Result of the inspection of one rank, by [`InspectionKind`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum InspectionResult {
    Stack(Stack),
    /// Path of the rank's core file.
    Core(String),
    Dump(Dump),
    Usage(Box<RankUsage>),
}

/// The stack of a rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Stack {
    /// Frames of the rank, outermost first.
    pub(crate) frames: Vec<String>,
    /// Reason for which the Python frames of a rank that runs Python are missing.
    pub(crate) note: Option<String>,
}

/// Resource usage and state of a rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct RankUsage {
    /// Processor time in milliseconds of its process and all running descendants.
    pub(crate) cpu_ms: u64,
    /// Time in milliseconds for which threads of these processes have waited for a processor.
    pub(crate) runqueue_ms: u64,
    /// Resident memory of these processes in bytes. Shared memory counts once for each process.
    pub(crate) resident: u64,
    /// Bytes that the rank has printed; `None` if its output does not pass through wireup.
    pub(crate) output: Option<u64>,
    /// Process state, as the letter in `/proc/PID/stat`.
    pub(crate) state: char,
    /// Last request to its process-management interface.
    pub(crate) did: String,
    /// The fence that it waits in.
    pub(crate) fence: Option<String>,
    /// Milliseconds since the first rank of its node entered that fence.
    pub(crate) fence_ms: Option<u64>,
}

/// Core dump that the kernel made of a rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Dump {
    /// Location of the dump, and the debugger's command line for it.
    pub(crate) text: String,
    /// The frames of its stack, the outermost first; none without a debugger.
    pub(crate) frames: Vec<String>,
}

/// Error: a rank was not inspected.
#[derive(Clone, PartialEq, Eq, Debug, Error, Serialize, Deserialize)]
pub(crate) enum InspectionError {
    #[error("gdb is not installed on the rank's host")]
    NotInstalled,
    /// gdb cannot be started, with the error number.
    #[error("gdb cannot be started: {}", std::io::Error::from_raw_os_error(*.0))]
    NotStarted(i32),
    #[error("gdb ended before it inspected the rank")]
    NotReached,
    /// The inspection timed out after this number of seconds.
    #[error("gdb did not inspect the rank within {0} s")]
    Timeout(u64),
    #[error("no reply from the rank's host")]
    HostSilent,
    /// gdb reported an error, with gdb's text.
    #[error("gdb: {0}")]
    Gdb(String),
}

impl From<Errno> for InspectionError {
    fn from(errno: Errno) -> Self {
        Self::NotStarted(errno.raw_os_error())
    }
}
