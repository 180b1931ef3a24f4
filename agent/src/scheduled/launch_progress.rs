//! The state of a launch from its launcher's reports, and the events for its watchers; no I/O.
//!
//! Watchers read a log of changes, each from its own position. The log is bounded: a watcher that
//! is further behind gets the current state again, as at its beginning.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::proto::v1::watch_event::Event;
use crate::proto::v1::{
    LaunchChange, LaunchCompleteNotification, LaunchState, RankExitStatus, RankInfo, RankState,
    WatchEvent,
};
use wireup_core::record::{self, StatusRecord};

/// Ranks in one notification of the end.
const COMPLETE_RANKS: usize = 65_536;

/// Changes that are kept, beyond some for each rank.
const LOG: usize = 4096;
/// Changes that are kept for each rank.
const LOG_PER_RANK: usize = 4;

/// The state of a launch.
#[derive(Debug, Default)]
pub struct Progress {
    state: LaunchState,
    reason: Arc<str>,
    changed_at: i64,
    size: u32,
    ranks: Vec<RankProgress>,
    log: VecDeque<ProgressChange>,
    /// Number of the log's first change.
    base: u64,
    abort: Option<Arc<str>>,
    result: Option<LaunchResult>,
}

/// Result of an ended launch.
#[derive(Clone, Debug)]
pub struct LaunchResult {
    /// Exit code of the job; -1 if it is not known.
    pub exit_code: i32,
    /// Kind of the cause.
    pub kind: String,
    /// The line for people.
    pub message: String,
    /// The rank that caused it.
    pub rank: Option<u32>,
}

#[derive(Clone, Copy, Debug, Default)]
struct RankProgress {
    /// Number of its job, if that was spawned.
    job: u32,
    node: u32,
    app: u32,
    pid: i32,
    state: RankState,
    end: RankExitState,
    time: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum RankExitState {
    #[default]
    Unknown,
    Code(u8),
    Signal(i32),
}

#[derive(Clone, Debug)]
enum ProgressChange {
    Launch(LaunchState, Arc<str>, i64),
    Rank(u32, RankProgress),
    Warning(Arc<str>, i64),
}

/// Position up to which a watcher has read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cursor(Option<u64>);

impl Progress {
    /// Makes the progress of a launch of `size` ranks whose launcher was started at `time`, in milliseconds since the
    /// epoch.
    pub fn new(size: u32, time: i64) -> Self {
        let mut new = Self {
            size,
            ..Self::default()
        };
        new.enter(LaunchState::Starting, "", time);
        new
    }

    /// Returns the state, and the reason of the end.
    pub fn state(&self) -> (LaunchState, &str) {
        (self.state, &self.reason)
    }

    /// Returns the result, once the launch has ended.
    pub fn result(&self) -> Option<&LaunchResult> {
        match self.state {
            LaunchState::Ended => self.result.as_ref(),
            _ => None,
        }
    }

    /// Returns the ranks, as far as they are known.
    pub fn ranks(&self) -> Vec<RankInfo> {
        (0..)
            .zip(&self.ranks)
            .map(|(rank, info)| info.rank_info(rank))
            .collect()
    }

    /// Remembers why its launcher is about to end it.
    pub fn abort(&mut self, reason: &str) {
        self.abort.get_or_insert_with(|| reason.into());
    }

    /// Takes a record of its launcher, other than output, of time `now`.
    pub fn take(&mut self, record: StatusRecord<'_>, now: i64) {
        match record {
            StatusRecord::Job(job) => self.job(job, now),
            StatusRecord::Rank(rank) => self.rank(&rank, now),
            StatusRecord::Warning { message } => {
                self.push(ProgressChange::Warning((*message).into(), now))
            }
            StatusRecord::Result(outcome) => {
                let (kind, message, rank) = match outcome.cause {
                    Some(cause) => {
                        let speaker = cause.place.map(|place| place.speaker);
                        let speaker = speaker.filter(|speaker| speaker.job.is_initial());
                        let rank = speaker.map(|speaker| speaker.rank.0);
                        (cause.kind.into_owned(), cause.message, rank)
                    }
                    None => Default::default(),
                };
                self.result = Some(LaunchResult {
                    exit_code: outcome.exit_code.into(),
                    kind,
                    message,
                    rank,
                });
            }
            StatusRecord::Node(_)
            | StatusRecord::Spawned(_)
            | StatusRecord::NodeLeft(_)
            | StatusRecord::SpawnReply(_)
            | StatusRecord::ResizeReply(_)
            | StatusRecord::Fence(_)
            | StatusRecord::Output(_)
            | StatusRecord::Log(_)
            | StatusRecord::Bindings(_)
            | StatusRecord::Other => {}
        }
    }

    fn job(&mut self, job: record::PlannedJob<'_>, now: i64) {
        let state = match job.state {
            record::JobState::Planned => LaunchState::Planned,
            record::JobState::Running => LaunchState::Running,
            record::JobState::Ending => LaunchState::Ending,
            record::JobState::Killing => LaunchState::Killing,
            record::JobState::Other => return,
        };
        if state == LaunchState::Planned {
            let unknown = RankProgress {
                time: now,
                ..RankProgress::default()
            };
            self.ranks.resize(self.size as usize, unknown);
        }
        let cause = job.cause.map(|cause| cause.message);
        self.enter(state, &cause.unwrap_or_default(), now);
    }

    fn rank(&mut self, change: &record::RankChange<'_>, now: i64) {
        let state = match change.state {
            record::RankState::Started => RankState::Started,
            record::RankState::Connected => RankState::Connected,
            record::RankState::Finalized => RankState::Finalized,
            record::RankState::Ended => RankState::Ended,
            record::RankState::NotStarted => RankState::NotStarted,
            record::RankState::Planned | record::RankState::Other => return,
        };
        let (place, end) = (&change.place, change.end.clone().unwrap_or_default());
        let record::RankId { job, rank } = place.speaker;
        let now_is = RankProgress {
            job: job.0,
            node: place.node,
            app: place.app,
            pid: change.pid.unwrap_or(0),
            state,
            end: match (end.code, end.signal) {
                (Some(code), _) => RankExitState::Code(code),
                (None, Some(signal)) => RankExitState::Signal(signal),
                (None, None) => RankExitState::Unknown,
            },
            time: now,
        };
        if job.is_initial() {
            let Some(known) = self.ranks.get_mut(rank.index()) else {
                return;
            };
            *known = now_is;
        }
        self.push(ProgressChange::Rank(rank.0, now_is));
    }

    /// Notes the end of the launcher. `lost` describes it, and is used if the launcher has not reported a result.
    pub fn end(&mut self, lost: &str, now: i64) {
        let mut outcome = self.result.take().unwrap_or_else(|| LaunchResult {
            exit_code: -1,
            kind: "launcher_lost".into(),
            message: lost.into(),
            rank: None,
        });
        // A job that failed before it was ended keeps its own cause.
        if let Some(reason) = &self.abort
            && ["interrupted", "launcher_lost"].contains(&&*outcome.kind)
        {
            outcome.kind = "abort_requested".into();
            outcome.message = format!("ended by AbortProcesses: {reason}");
            outcome.rank = None;
        }
        let message = outcome.message.clone();
        self.result = Some(outcome);
        self.enter(LaunchState::Ended, &message, now);
    }

    fn enter(&mut self, state: LaunchState, reason: &str, now: i64) {
        self.state = state;
        self.reason = reason.into();
        self.changed_at = now;
        let change = ProgressChange::Launch(state, Arc::clone(&self.reason), now);
        self.push(change);
    }

    fn push(&mut self, change: ProgressChange) {
        if self.log.len() >= LOG + LOG_PER_RANK * self.ranks.len() {
            let half = self.log.len() / 2;
            self.log.drain(..half);
            self.base += half as u64;
        }
        self.log.push_back(change);
    }

    /// Returns the next events of a watcher: the current state if the cursor is new or too old, then at most about `most`
    /// changes. More may be available. No event follows the end of the launch.
    pub fn news(&self, cursor: &mut Cursor, most: usize) -> Vec<WatchEvent> {
        let next = self.base + self.log.len() as u64;
        let Some(at) = cursor.0.filter(|at| *at >= self.base) else {
            cursor.0 = Some(next);
            return self.present();
        };
        let skip = usize::try_from(at - self.base).expect("a place in a list in memory");
        let news: Vec<_> = self
            .log
            .iter()
            .skip(skip)
            .take(most)
            .map(ProgressChange::to_event)
            .collect();
        cursor.0 = Some(at + news.len() as u64);
        news
    }

    fn present(&self) -> Vec<WatchEvent> {
        let known = (0..)
            .zip(&self.ranks)
            .filter(|(_, rank)| rank.state != RankState::Unspecified)
            .map(|(number, rank)| ProgressChange::Rank(number, *rank).to_event());
        let launch = ProgressChange::Launch(self.state, Arc::clone(&self.reason), self.changed_at)
            .to_event();
        // The end of a launch comes last, in the order that a watcher saw at the time.
        let mut events: Vec<_> = match self.state {
            LaunchState::Ended => known.chain([launch]).collect(),
            _ => std::iter::once(launch).chain(known).collect(),
        };
        for event in &mut events {
            event.past = true;
        }
        events
    }

    /// Whether a watcher has got all events of the launch.
    pub fn is_over(&self, cursor: Cursor) -> bool {
        self.state == LaunchState::Ended && cursor.0 == Some(self.base + self.log.len() as u64)
    }

    /// Returns the end, once it is known, in as many parts as it takes.
    pub fn complete(&self, launch: &str, allocation: &str) -> Vec<LaunchCompleteNotification> {
        let Some(result) = self.result() else {
            return Vec::new();
        };
        let ranks: Vec<_> = (0..)
            .zip(&self.ranks)
            .map(|(rank, info)| info.exit(rank))
            .collect();
        let mut parts: Vec<&[RankExitStatus]> = ranks.chunks(COMPLETE_RANKS).collect();
        if parts.is_empty() {
            parts.push(&[]);
        }
        let last = parts.len() - 1;
        let notification =
            |(index, ranks): (usize, &[RankExitStatus])| LaunchCompleteNotification {
                launch_id: launch.to_owned(),
                allocation_id: allocation.to_owned(),
                success: result.exit_code == 0,
                ranks: ranks.to_vec(),
                error_message: result.message.clone(),
                exit_code: result.exit_code,
                cause: result.kind.clone(),
                cause_rank: result.rank,
                more: index < last,
            };
        parts.into_iter().enumerate().map(notification).collect()
    }

    /// Returns the time of the last change of the state.
    pub fn changed_at(&self) -> i64 {
        self.changed_at
    }
}

impl RankProgress {
    fn exit(&self, rank: u32) -> RankExitStatus {
        let (exit_code, signal) = match self.end {
            RankExitState::Unknown => (-1, 0),
            RankExitState::Code(code) => (code.into(), 0),
            RankExitState::Signal(signal) => (128 + signal, signal),
        };
        RankExitStatus {
            rank,
            exit_code,
            signaled: signal != 0,
            signal,
        }
    }

    fn rank_info(&self, rank: u32) -> RankInfo {
        let ended = matches!(self.state, RankState::Ended | RankState::NotStarted);
        RankInfo {
            rank,
            node: self.node,
            app: self.app,
            pid: self.pid,
            state: self.state.into(),
            exit: ended.then(|| self.exit(rank)),
            spawned_job: self.job,
        }
    }
}

impl ProgressChange {
    fn to_event(&self) -> WatchEvent {
        let (time_ms, event) = match self {
            Self::Launch(state, reason, time) => {
                let change = LaunchChange {
                    state: (*state).into(),
                    reason: reason.to_string(),
                };
                (*time, Event::Launch(change))
            }
            Self::Rank(rank, info) => (info.time, Event::Rank(info.rank_info(*rank))),
            Self::Warning(text, time) => (*time, Event::Warning(text.to_string())),
        };
        WatchEvent {
            time_ms,
            past: false,
            event: Some(event),
        }
    }
}

#[cfg(test)]
mod tests;
