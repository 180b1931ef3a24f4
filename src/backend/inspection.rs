//! Looks into the processes of ranks, with a debugger on each host.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use wireup_core::job::ids::GlobalRank;
use wireup_core::job::octets;

/// What is looked for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum InspectionKind {
    Stacks {
        /// Only the frames of Python, where a rank has some.
        python: bool,
        /// `PATH` of the caller, for debuggers that the launcher's does not have.
        path: Option<String>,
    },
    /// Memory is dumped into this directory of each host.
    Core(#[serde(with = "octets")] PathBuf),
    /// What the kernel has dumped of a rank that has ended.
    Dump,
    /// What ranks use of their host, and where they wait; without a debugger.
    Usage,
}

/// A request to look into ranks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Inspection {
    /// Names the request.
    pub(crate) ticket: u32,
    /// Which ranks; those that live elsewhere are passed over.
    pub(crate) ranks: Vec<GlobalRank>,
    pub(crate) look: InspectionKind,
}

/// The result of the inspection of one rank, which `R` identifies.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct RankInspection<R = GlobalRank> {
    pub(crate) rank: R,
    pub(crate) result: Result<InspectionResult, InspectionError>,
}

/// What the debugger found in a rank, by [`InspectionKind`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum InspectionResult {
    Stack(Stack),
    /// The file of its core.
    Core(String),
    Dump(Dump),
    Usage(Box<RankUsage>),
}

/// The stack of a rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Stack {
    /// Frames of the rank, outermost first.
    pub(crate) frames: Vec<String>,
    /// Reason why a rank that runs Python has no frames of Python here.
    pub(crate) note: Option<String>,
}

/// What a rank uses of its host, and where it waits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct RankUsage {
    /// Milliseconds of processor time of its process and all below it that still run.
    pub(crate) cpu_ms: u64,
    /// Bytes of memory that they have resident. What they share counts once for each.
    pub(crate) resident: u64,
    /// Bytes that it has printed; `None` if that does not pass through wireup.
    pub(crate) output: Option<u64>,
    /// The letter of its state in `/proc`.
    pub(crate) state: char,
    /// The last it did with its process-management interface.
    pub(crate) did: String,
    /// The fence that it waits in.
    pub(crate) fence: Option<String>,
    /// How long the first rank of its node has waited there, in milliseconds.
    pub(crate) fence_ms: Option<u64>,
}

/// What the kernel dumped of a rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Dump {
    /// Where it is, and the debugger's command line.
    pub(crate) text: String,
    /// The frames of its stack, the outermost first; none without a debugger.
    pub(crate) frames: Vec<String>,
}

/// Why a rank was not inspected.
#[derive(Clone, PartialEq, Eq, Debug, Error, Serialize, Deserialize)]
pub(crate) enum InspectionError {
    #[error("gdb is not installed there")]
    NotInstalled,
    /// With the error number.
    #[error("gdb cannot be started: {}", std::io::Error::from_raw_os_error(*.0))]
    NotStarted(i32),
    #[error("gdb did not come to it, or ended before")]
    NotReached,
    /// After this number of seconds.
    #[error("gdb did not read it within {0} s")]
    Timeout(u64),
    #[error("its host has not answered")]
    HostSilent,
    /// In gdb's words.
    #[error("{0}")]
    Gdb(String),
}
