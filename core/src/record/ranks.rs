//! Records about one rank.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::job::ids::{AppNum, JobIndex, NodeId, Rank};
use crate::job::job_table::KnownRank;
use crate::job::outcome::{RankEnd, signal_name};
use crate::job::usage::ResourceUsage;

/// Whose rank something is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct RankId {
    /// Its job, unless that is the one the user asked for.
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

/// Where a rank lives.
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
    /// Puts it together.
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
    /// It would be started; of a run that starts nothing (`--dry-run`).
    Planned,
    Started,
    /// It is in contact with its process-management interface.
    Connected,
    /// It has left that in order.
    Finalized,
    /// Its process has ended.
    Ended,
    /// It has no process and gets none.
    NotStarted,
    /// What a later version says; this one never writes it.
    #[serde(other)]
    Other,
}

/// See [`Record::Rank`](super::Record::Rank).
#[derive(Debug, Serialize, Deserialize)]
pub struct RankChange<'a> {
    pub state: RankState,
    #[serde(flatten)]
    pub place: RankLocation<'a>,
    /// Its process, if it has one.
    pub pid: Option<i32>,
    /// How it ended; at [`RankState::Ended`].
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub end: Option<EndRecord>,
    /// What its process has used; at [`RankState::Ended`], if it is known.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub usage: Option<ResourceUsage>,
}

/// How a process ended: code or signal is given, neither if it is not known.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EndRecord {
    /// What it gave to exit.
    pub code: Option<u8>,
    /// What killed it.
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
    /// Its process; `null` if it was never started.
    pub pid: Option<i32>,
    /// When that was started.
    pub start: Option<String>,
    /// The same in milliseconds since the start of the run.
    pub start_ms: Option<u64>,
    /// When it ended.
    pub end: Option<String>,
    /// The same in milliseconds since the start of the run.
    pub end_ms: Option<u64>,
    #[serde(flatten)]
    pub how: EndRecord,
    /// What its process has used, if it is known.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub usage: Option<ResourceUsage>,
    /// The kind of failure that this was, as a [`CauseRecord`](super::CauseRecord) has it, or `job_ended`; `null` for an end
    /// in order.
    pub cause: Option<Cow<'a, str>>,
    /// Whether it was ever in contact with its process-management interface.
    pub connected: bool,
    /// The last it did with it.
    pub last: String,
}
