//! Cause of a job's end, in the status stream.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::RankLocation;

/// Cause of a job's end other than the normal end of its ranks.
#[derive(Debug, Serialize, Deserialize)]
pub struct CauseRecord<'a> {
    /// Name of the kind.
    pub kind: Cow<'a, str>,
    /// The line for people.
    pub message: String,
    /// The rank that caused it, and its node.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub place: Option<RankLocation<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// The code it gave to exit or abort.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// The signal that ended it, or the launcher's run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Last request to its process-management interface.
    #[serde(rename = "last", skip_serializing_if = "Option::is_none")]
    pub last_activity: Option<String>,
    /// The ranks that did not enter a fence in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<Box<Missing<'a>>>,
}

/// The ranks that did not enter a fence in time.
#[derive(Debug, Serialize, Deserialize)]
pub struct Missing<'a> {
    /// Number of ranks that are known to be missing.
    pub count: u32,
    /// The first of them.
    pub ranks: Vec<MissingRank<'a>>,
    /// Nodes with missing ranks that are not identified; the first of them.
    pub nodes: Vec<Cow<'a, str>>,
    /// Nodes that did not answer; the first of them.
    pub silent: Vec<Cow<'a, str>>,
}

/// Rank that did not enter a fence in time.
#[derive(Debug, Serialize, Deserialize)]
pub struct MissingRank<'a> {
    #[serde(flatten)]
    pub place: RankLocation<'a>,
    /// Process id; absent if the rank was not started.
    pub pid: Option<i32>,
    /// Last request to its process-management interface.
    #[serde(rename = "last")]
    pub last_activity: String,
    /// Milliseconds since the last request.
    pub idle_ms: Option<u64>,
}
