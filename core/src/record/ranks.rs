//! Records about one rank.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::job::ids::{AppNum, JobIndex, NodeId, Rank};
use crate::job::job_table::KnownRank;
use crate::job::outcome::{RankEnd, signal_name};
use crate::job::usage::ResourceUsage;

/// Identity of a rank: job and rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct RankId {
    /// Index of the job; absent for the initial job.
    #[serde(
        rename = "spawned_job",
        default,
        skip_serializing_if = "JobIndex::is_initial"
    )]
    pub job: JobIndex,
    pub rank: Rank,
}

impl From<(JobIndex, Rank)> for RankId {
    fn from(identity: (JobIndex, Rank)) -> Self {
        let (job, rank) = identity;
        Self { job, rank }
    }
}

impl From<KnownRank> for RankId {
    fn from(rank: KnownRank) -> Self {
        (rank.job(), rank.rank()).into()
    }
}

impl fmt::Display for RankId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.job.is_initial() {
            true => write!(f, "{}", self.rank),
            false => write!(f, "{}:{}", self.job, self.rank),
        }
    }
}

/// Node, host and application of a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RankLocation<'a> {
    #[serde(flatten)]
    pub speaker: RankId,
    /// Number of the node.
    pub node: u32,
    /// Name of the node.
    pub host: Cow<'a, str>,
    /// Number of the program.
    pub app: u32,
}

impl<'a> RankLocation<'a> {
    /// Creates the location of a rank.
    pub fn new(speaker: RankId, node: NodeId, host: &'a str, app: AppNum) -> Self {
        Self {
            speaker,
            node: node.0,
            host: host.into(),
            app: app.0,
        }
    }
}

/// States of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RankState {
    /// Planned in a run that starts nothing (`--dry-run`).
    Planned,
    Started,
    /// In contact with its process-management interface.
    Connected,
    /// Disconnected in order from its process-management interface.
    Finalized,
    Ended,
    /// Without a process, now and later.
    NotStarted,
    /// State of a later version; this one never writes it.
    #[serde(other)]
    Other,
}

/// Contents of a [`StatusRecord::Rank`](super::StatusRecord::Rank) record.
#[derive(Debug, Serialize, Deserialize)]
pub struct RankChange<'a> {
    pub state: RankState,
    #[serde(flatten)]
    pub place: RankLocation<'a>,
    /// Process id; absent without a process.
    pub pid: Option<i32>,
    /// End of the process; at [`RankState::Ended`].
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub end: Option<EndRecord>,
    /// Resources that the process has used; at [`RankState::Ended`], if known.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub usage: Option<ResourceUsage>,
}

/// End of a process: either code or signal is present, neither if the end is unknown.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EndRecord {
    /// Exit code of the process.
    pub code: Option<u8>,
    /// Signal that killed the process.
    pub signal: Option<i32>,
    signal_name: Option<Cow<'static, str>>,
}

impl From<RankEnd> for EndRecord {
    fn from(end: RankEnd) -> Self {
        match end {
            RankEnd::Code(code) => Self {
                code: Some(code),
                ..Self::default()
            },
            RankEnd::Signal(signal) => Self {
                signal: Some(signal),
                signal_name: signal_name(signal).map(Cow::from),
                ..Self::default()
            },
        }
    }
}

/// One rank in the result.
#[derive(Debug, Serialize, Deserialize)]
pub struct RankResult<'a> {
    #[serde(flatten)]
    pub place: RankLocation<'a>,
    /// Process id; `null` if the rank was never started.
    pub pid: Option<i32>,
    /// Start time of the process.
    pub start: Option<String>,
    /// Start of the process, in milliseconds since the start of the run.
    pub start_ms: Option<u64>,
    /// End time of the process.
    pub end: Option<String>,
    /// End of the process, in milliseconds since the start of the run.
    pub end_ms: Option<u64>,
    #[serde(flatten)]
    pub how: EndRecord,
    /// Resources that the process has used, if known.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub usage: Option<ResourceUsage>,
    /// The kind of failure that this was, as a [`CauseRecord`](super::CauseRecord) has it, or `job_ended`; `null` for an end
    /// in order.
    pub cause: Option<Cow<'a, str>>,
    /// Whether it was ever in contact with its process-management interface.
    pub connected: bool,
    /// Last request to its process-management interface.
    #[serde(rename = "last")]
    pub last_activity: String,
}
