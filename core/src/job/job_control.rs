//! Requests of a process that affect processes of its launch, through `PMIx_Abort` or
//! `PMIx_Job_control`.

use serde::{Deserialize, Serialize};

use super::ids::GlobalRank;

/// A request of a rank or a tool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct JobControlRequest {
    /// The rank; nothing for a tool.
    pub requester: Option<GlobalRank>,
    /// What is to be done.
    pub action: JobControlAction,
    /// With whom; with all ranks if absent.
    pub ranks: Option<Vec<GlobalRank>>,
}

/// The requested action.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JobControlAction {
    /// They failed, and are ended.
    Abort {
        code: i32,
        /// The text given, possibly empty.
        message: String,
    },
    /// They are asked to end, and killed after the grace time. That is no failure.
    Terminate,
    /// They are killed. That is no failure.
    Kill,
    /// They get a signal, by its number.
    Signal(i32),
}
