//! The lines of the status stream (`--json`): contents and format; no I/O.
//!
//! Rule: names and meanings of version 1 stay; new fields and events may be added. Source:
//! docs/status.md.

mod base64;
mod cause;
mod fences;
mod order;
mod output;
mod ranks;

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::ids::{JobIndex, Rank};
use crate::job::wall_clock::WallClock;
pub use cause::{CauseRecord, Missing, MissingRank};
pub use fences::{FenceObserver, FenceRecord, LateNode};
pub use order::{ControlCommand, JobCommand, ResizeCommand, SignalCommand};
pub use output::{Log, OptionalRankId, OutputRecord, Stream};
pub use ranks::{EndRecord, RankChange, RankId, RankLocation, RankResult, RankState};

/// Version of the stream, in its first and last line.
pub const VERSION: u32 = 1;

/// Record of the status stream.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum StatusRecord<'a> {
    /// State change of the job.
    Job(PlannedJob<'a>),
    /// State change of a rank.
    Rank(RankChange<'a>),
    /// A host has joined the launch.
    Node(JoinedNode<'a>),
    /// A host has left the launch.
    NodeLeft(JoinedNode<'a>),
    /// Ranks of a job have been bound on a host.
    Bindings(HostBindings<'a>),
    /// A rank or a tool has spawned a job, whose ranks are about to be started.
    Spawned(SpawnRecord<'a>),
    /// Reply to a spawn that `--control` requested.
    SpawnReply(SpawnReplyRecord<'a>),
    /// Reply to a change of the launch's hosts that `--control` requested.
    ResizeReply(ResizeReplyRecord<'a>),
    /// A fence or barrier was released on all nodes.
    Fence(Box<FenceRecord<'a>>),
    /// A rank printed something.
    Output(OutputRecord<'a>),
    /// A rank's text for the job record.
    Log(Log<'a>),
    /// Warning for the user.
    Warning { message: Cow<'a, str> },
    /// The end, always the last line.
    Result(Box<ResultRecord<'a>>),
    /// Record of a later version; this one never writes it.
    #[serde(other)]
    Other,
}

/// States of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Everything about it is decided; nothing has been started.
    Planned,
    /// All its ranks have been started.
    Running,
    /// The ranks were terminated.
    Ending,
    Killing,
    /// State of a later version; this one never writes it.
    #[serde(other)]
    Other,
}

/// Contents of a [`StatusRecord::Job`] record.
#[derive(Debug, Serialize, Deserialize)]
pub struct PlannedJob<'a> {
    pub state: JobState,
    /// Plan of the job; at [`JobState::Planned`].
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Box<JobPlanRecord<'a>>>,
    /// Cause of the end; at [`JobState::Ending`] and [`JobState::Killing`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<CauseRecord<'a>>,
}

/// Plan of a job: its programs, hosts and settings.
#[derive(Debug, Serialize, Deserialize)]
pub struct JobPlanRecord<'a> {
    /// Version of the format: [`VERSION`].
    pub version: u32,
    pub job: Cow<'a, str>,
    /// Process id of the launcher.
    pub pid: i32,
    pub size: u32,
    #[serde(default)]
    pub wireup: Cow<'a, str>,
    /// The command line as a shell would read it, without the values of secrets; `None` for a launch that an agent
    /// describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Interfaces that are offered.
    pub offered: Vec<Cow<'a, str>>,
    /// The libpmix of the launcher's machine, if it serves ranks there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub libpmix: Option<String>,
    pub nodes: Vec<PlannedNode<'a>>,
    /// Whether the nodes are virtual ones of one machine; absent in older streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_nodes: Option<bool>,
    pub apps: Vec<AppRecord>,
}

/// A node of a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct PlannedNode<'a> {
    pub node: u32,
    pub host: Cow<'a, str>,
    /// Number of ranks on it.
    pub ranks: u32,
}

/// Contents of a [`StatusRecord::Node`] or [`StatusRecord::NodeLeft`] record.
#[derive(Debug, Serialize, Deserialize)]
pub struct JoinedNode<'a> {
    pub node: u32,
    pub host: Cow<'a, str>,
}

/// Contents of a [`StatusRecord::Bindings`] record.
#[derive(Debug, Serialize, Deserialize)]
pub struct HostBindings<'a> {
    /// Index of the ranks' job; absent for the initial job.
    #[serde(default, skip_serializing_if = "JobIndex::is_initial")]
    pub spawned_job: JobIndex,
    pub node: u32,
    pub host: Cow<'a, str>,
    /// Summary of the host's topology.
    pub topology: Cow<'a, str>,
    pub ranks: Vec<RankBinding<'a>>,
}

/// Entry of [`HostBindings::ranks`] for one rank.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RankBinding<'a> {
    pub rank: Rank,
    /// The CPUs it is bound to, as parts of the host.
    pub cpus: Cow<'a, str>,
}

/// Contents of a [`StatusRecord::Spawned`] record.
#[derive(Debug, Serialize, Deserialize)]
pub struct SpawnRecord<'a> {
    /// Index of the job in the launch.
    pub spawned_job: JobIndex,
    pub job: Cow<'a, str>,
    pub size: u32,
    pub apps: Vec<AppRecord>,
    /// Rank that requested the job; `None` for a request of a tool or of a controlling process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<RankId>,
}

/// Contents of a [`StatusRecord::SpawnReply`] record: the job whose ranks were started, or the reason why there is none.
#[derive(Debug, Serialize, Deserialize)]
pub struct SpawnReplyRecord<'a> {
    /// Number of the request.
    pub request: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spawned_job: Option<JobIndex>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Cow<'a, str>>,
}

/// Contents of a [`StatusRecord::ResizeReply`] record.
#[derive(Debug, Serialize, Deserialize)]
pub struct ResizeReplyRecord<'a> {
    /// Number of the request.
    pub request: u64,
    /// Changes, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// Reason for a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<Cow<'a, str>>,
}

/// A program of a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct AppRecord {
    pub app: u32,
    pub program: String,
    /// The program with its arguments, as [`JobPlanRecord::command`].
    #[serde(default)]
    pub command: String,
    /// MPI that the program needs, as far as its files show.
    #[serde(default)]
    pub needs: String,
    /// Number of ranks that run it.
    pub ranks: u32,
}

/// Contents of a [`StatusRecord::Result`] record.
#[derive(Debug, Serialize, Deserialize)]
pub struct ResultRecord<'a> {
    /// Version of the format: [`VERSION`].
    pub version: u32,
    /// The job's name; `null` for a run that was refused.
    pub job: Option<Cow<'a, str>>,
    /// Exit code of the run.
    pub exit_code: u8,
    /// The policy that chose it.
    pub exit_policy: Option<String>,
    /// Failure policy of the job.
    pub on_failure: Option<Cow<'a, str>>,
    /// Whether the launch must be requeued.
    pub requeue: bool,
    /// Reason of an exit code other than 0 or of a terminated job; `null` for a normal end.
    pub cause: Option<CauseRecord<'a>>,
    /// Start time of the run.
    pub start: String,
    /// End time of the run.
    pub end: String,
    /// Milliseconds between the two.
    pub elapsed_ms: u64,
    /// The programs, by number.
    pub apps: Vec<AppRecord>,
    /// The ranks, by number.
    pub ranks: Vec<RankResult<'a>>,
}

/// Milliseconds as the stream counts them.
pub fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A line with its time.
#[derive(Serialize, Deserialize)]
struct TimedRecord<R> {
    time: String,
    ms: u64,
    /// Absent in streams of versions before 0.2.
    #[serde(default)]
    us: u64,
    #[serde(flatten)]
    record: R,
}

impl<'a> StatusRecord<'a> {
    /// Appends the record as one line.
    pub fn write(&self, clock: WallClock, now: Duration, out: &mut Vec<u8>) {
        let timed = TimedRecord {
            time: clock.at(now).to_string(),
            ms: ms(now),
            us: us(now),
            record: self,
        };
        serde_json::to_writer(&mut *out, &timed)
            .expect("texts, numbers and lists of them can be written into memory");
        out.push(b'\n');
    }
}

impl StatusRecord<'static> {
    /// Reads one line, with or without its end, and its time since the start of the run.
    ///
    /// # Errors
    /// When it is no line of a status stream.
    pub fn read(line: &[u8]) -> serde_json::Result<(Duration, Self)> {
        let TimedRecord { ms, us, record, .. } = serde_json::from_slice(line)?;
        let time = Duration::from_millis(ms).max(Duration::from_micros(us));
        Ok((time, record))
    }
}

#[cfg(test)]
mod tests;
