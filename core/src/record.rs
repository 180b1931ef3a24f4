//! The lines of the status stream (`--json`): contents and format; no I/O.
//!
//! Rule: names and meanings of version 1 stay; new fields and events may be added. Source:
//! docs/status.md.

mod base64;
mod cause;
mod fences;
mod order;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::job::ids::{AppNum, JobNumber, NodeId, Rank};
use crate::job::outcome::{RankEnd, signal_name};
use crate::job::wall::WallClock;
pub use cause::{CauseRecord, Missing, MissingRank, kind_of};
pub use fences::{FenceObserver, FenceRecord, LateNode};
pub use order::SignalOrder;

/// Version of the stream, in its first and last line.
pub const VERSION: u32 = 1;

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Record<'a> {
    /// The job came into another state.
    Job(PlannedJob<'a>),
    /// A rank came into another state.
    Rank(RankChange<'a>),
    /// A host has joined the launch.
    Node(JoinedNode<'a>),
    /// A rank or a tool has spawned a job, whose ranks are about to be started.
    Spawned(SpawnedJob<'a>),
    /// A fence or barrier was released on all nodes.
    Fence(Box<FenceRecord<'a>>),
    /// A rank printed something.
    Output(OutputRecord<'a>),
    /// A rank's text for the job record.
    Log(Log<'a>),
    /// Something the user should know.
    Warning { message: Cow<'a, str> },
    /// The end, always the last line.
    Result(Box<Outcome<'a>>),
    /// What a later version says; this one never writes it.
    #[serde(other)]
    Other,
}

/// Standard output or standard error of a rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// States of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// Everything about it is decided; nothing has been started.
    Planned,
    /// All its ranks have been started.
    Running,
    /// Its ranks were asked to end.
    Ending,
    /// Its ranks were killed.
    Killing,
    /// What a later version says; this one never writes it.
    #[serde(other)]
    Other,
}

/// See [`Record::Job`].
#[derive(Debug, Serialize, Deserialize)]
pub struct PlannedJob<'a> {
    pub state: JobState,
    /// What it is; at [`JobState::Planned`].
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub plan: Option<JobPlan<'a>>,
    /// Why; at [`JobState::Ending`] and [`JobState::Killing`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<CauseRecord<'a>>,
}

/// What a job is.
#[derive(Debug, Serialize, Deserialize)]
pub struct JobPlan<'a> {
    /// [`VERSION`].
    pub version: u32,
    pub job: Cow<'a, str>,
    /// Process id of the launcher.
    pub pid: i32,
    pub size: u32,
    /// Interfaces that are offered.
    pub offered: Vec<Cow<'a, str>>,
    pub nodes: Vec<PlannedNode<'a>>,
    pub apps: Vec<AppRecord>,
}

/// A node of a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct PlannedNode<'a> {
    pub node: u32,
    /// Its name.
    pub host: Cow<'a, str>,
    /// Number of ranks on it.
    pub ranks: u32,
}

/// See [`Record::Node`].
#[derive(Debug, Serialize, Deserialize)]
pub struct JoinedNode<'a> {
    pub node: u32,
    /// Its name.
    pub host: Cow<'a, str>,
}

/// See [`Record::Spawned`].
#[derive(Debug, Serialize, Deserialize)]
pub struct SpawnedJob<'a> {
    /// Its number in the launch.
    pub spawned_job: JobNumber,
    /// Its name.
    pub job: Cow<'a, str>,
    pub size: u32,
    pub apps: Vec<AppRecord>,
    /// Whose request it was; `None` for a tool's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Speaker>,
}

/// A program of a job.
#[derive(Debug, Serialize, Deserialize)]
pub struct AppRecord {
    pub app: u32,
    pub program: String,
    /// Number of ranks that run it.
    pub ranks: u32,
}

/// Whose rank something is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Speaker {
    /// Its job, unless that is the one the user asked for.
    #[serde(rename = "spawned_job", default, skip_serializing_if = "is_first")]
    pub job: JobNumber,
    pub rank: Rank,
}

fn is_first(job: &JobNumber) -> bool {
    *job == JobNumber(0)
}

impl From<(JobNumber, Rank)> for Speaker {
    fn from((job, rank): (JobNumber, Rank)) -> Self {
        Self { job, rank }
    }
}

impl fmt::Display for Speaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.job {
            JobNumber(0) => write!(f, "{}", self.rank),
            job => write!(f, "{job}:{}", self.rank),
        }
    }
}

/// Where a rank lives.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RankLocation<'a> {
    #[serde(flatten)]
    pub speaker: Speaker,
    /// Number of the node.
    pub node: u32,
    /// Name of the node.
    pub host: Cow<'a, str>,
    /// Number of the program.
    pub app: u32,
}

impl<'a> RankLocation<'a> {
    /// Puts it together.
    pub fn new(speaker: Speaker, node: NodeId, host: &'a str, app: AppNum) -> Self {
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

/// See [`Record::Rank`].
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

/// See [`Record::Output`].
#[derive(Debug, Serialize, Deserialize)]
pub struct OutputRecord<'a> {
    #[serde(flatten)]
    pub speaker: SpeakerFields,
    /// Where.
    pub stream: Stream,
    #[serde(flatten)]
    content: Content<'a>,
}

impl OutputRecord<'_> {
    /// The bytes that were printed.
    pub fn into_bytes(self) -> Vec<u8> {
        match self.content {
            Content::Text(text) => text.into_owned().into_bytes(),
            Content::Base64(bytes) => bytes.into_owned(),
        }
    }
}

/// See [`Record::Log`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Log<'a> {
    #[serde(flatten)]
    speaker: SpeakerFields,
    #[serde(flatten)]
    content: Content<'a>,
}

/// The rank with output, if one has any.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SpeakerFields {
    /// Its job, unless that is the one the user asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spawned_job: Option<JobNumber>,
    /// Its rank there.
    pub rank: Option<Rank>,
}

impl From<Option<Speaker>> for SpeakerFields {
    fn from(speaker: Option<Speaker>) -> Self {
        let spawned = |speaker: &Speaker| !is_first(&speaker.job);
        Self {
            spawned_job: speaker.filter(spawned).map(|speaker| speaker.job),
            rank: speaker.map(|speaker| speaker.rank),
        }
    }
}

/// Bytes, as text where they are text.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Content<'a> {
    Text(Cow<'a, str>),
    Base64(#[serde(with = "base64")] Cow<'a, [u8]>),
}

impl<'a> Content<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.into()),
            Err(_) => Self::Base64(bytes.into()),
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
    /// How.
    #[serde(flatten)]
    pub how: EndRecord,
    /// The kind of failure that this was, as a [`CauseRecord`] has it, or `job_ended`; `null` for an end
    /// in order.
    pub cause: Option<Cow<'a, str>>,
    /// Whether it was ever in contact with its process-management interface.
    pub connected: bool,
    /// The last it did with it.
    pub last: String,
}

/// See [`Record::Result`].
#[derive(Debug, Serialize, Deserialize)]
pub struct Outcome<'a> {
    /// [`VERSION`].
    pub version: u32,
    /// The job's name; `null` for a run that was refused.
    pub job: Option<Cow<'a, str>>,
    /// Exit code of the run.
    pub exit_code: u8,
    /// The policy that chose it.
    pub exit_policy: Option<String>,
    /// What was to follow from a failure.
    pub on_failure: Option<Cow<'a, str>>,
    /// Whether the launch is to be run again.
    pub requeue: bool,
    /// Why it is not 0, or why the job was ended; `null` for a normal end.
    pub cause: Option<CauseRecord<'a>>,
    /// When the run started.
    pub start: String,
    /// When it ended.
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
struct Timed<R> {
    time: String,
    ms: u64,
    /// Absent in streams of versions before 0.2.
    #[serde(default)]
    us: u64,
    #[serde(flatten)]
    record: R,
}

impl<'a> Record<'a> {
    /// Bytes of a rank, or of an MPI library that speaks through the launcher.
    pub fn output(speaker: Option<Speaker>, stream: Stream, bytes: &'a [u8]) -> Self {
        Self::Output(OutputRecord {
            speaker: SpeakerFields::from(speaker),
            stream,
            content: Content::of(bytes),
        })
    }

    /// A rank's text for the job record.
    pub fn log(speaker: Option<Speaker>, bytes: &'a [u8]) -> Self {
        Self::Log(Log {
            speaker: SpeakerFields::from(speaker),
            content: Content::of(bytes),
        })
    }

    /// Appends the record as one line.
    pub fn write(&self, clock: WallClock, now: Duration, out: &mut Vec<u8>) {
        let timed = Timed {
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

impl Record<'static> {
    /// Reads one line, with or without its end, and its time since the start of the run.
    ///
    /// # Errors
    /// When it is no line of a status stream.
    pub fn read(line: &[u8]) -> serde_json::Result<(Duration, Self)> {
        let Timed { ms, us, record, .. } = serde_json::from_slice(line)?;
        let time = Duration::from_millis(ms).max(Duration::from_micros(us));
        Ok((time, record))
    }
}

#[cfg(test)]
mod tests;
