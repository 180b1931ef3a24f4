//! Requests of a process that affect processes of its launch, through `PMIx_Abort` or
//! `PMIx_Job_control`.

use serde::{Deserialize, Serialize};

use super::ids::GlobalRank;

/// A request of a rank or a tool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobControlRequest {
    /// The rank; nothing for a tool.
    pub requester: Option<GlobalRank>,
    pub action: JobControlAction,
    /// With whom; with all ranks if absent.
    pub ranks: Option<Vec<GlobalRank>>,
}

/// Action on the ranks of a request.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JobControlAction {
    /// The ranks failed, and are terminated.
    Abort {
        code: i32,
        /// The text given, possibly empty.
        message: String,
    },
    /// The ranks are terminated. This does not count as a failure.
    Terminate,
    /// The ranks are killed. This does not count as a failure.
    Kill,
    /// The ranks get this signal.
    Signal(i32),
}
