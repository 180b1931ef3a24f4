//! Timeline of a launch from its status stream: when hosts joined, ranks started and fences were released, and the
//! statistics of these; no I/O.
//!
//! All times are of the launcher's clock, in microseconds since the start of the run. Events of other hosts reach it a
//! little later than they happened; times within a fence are the hosts' own.

mod advice;
mod spans;
mod summary;
#[cfg(test)]
mod tests;
mod trace;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Serialize, Serializer};

use crate::job::outcome::signal_name;
use crate::job::usage::ResourceUsage;
use crate::record::{
    AppRecord, CauseRecord, EndRecord, FenceRecord, HostBindings, JobState, PlannedJob,
    RankBinding, RankChange, RankId, RankState, ResultRecord, SpawnRecord, StatusRecord,
};
use crate::wording::json_problem;
pub use spans::{ExportedSpans, Span, SpanAttribute, spans};
pub use summary::{Breakdown, PartKind, breakdown, summary};
pub use trace::trace;

/// Fences that are kept; of more, the first ones are.
const FENCES: usize = 4096;

/// Warnings that are kept; of more, the first ones are.
const WARNINGS: usize = 200;

/// A launch. See the module.
#[derive(Debug, Default, Serialize)]
pub struct Timeline {
    pub job: String,
    /// Number of ranks of the first job.
    pub size: u32,
    /// The version of wireup that ran it; empty in streams that lack it.
    pub wireup: String,
    /// Command line of the launch.
    pub command: Option<String>,
    /// The interfaces that were offered.
    pub offered: Vec<String>,
    /// Version of the launcher's libpmix.
    pub libpmix: Option<String>,
    pub apps: Vec<AppRecord>,
    /// By number of the node.
    pub hosts: BTreeMap<u32, TimelineHost>,
    /// Whether the plan has virtual nodes; `None` in streams that lack it.
    #[serde(skip)]
    virtual_nodes: Option<bool>,
    #[serde(serialize_with = "values")]
    pub ranks: BTreeMap<RankId, RankTimes>,
    pub fences: Vec<ReleasedFence>,
    /// Number of fences that are not in `fences`.
    pub more_fences: u64,
    pub spawns: Vec<Spawn>,
    pub warnings: Vec<(u64, String)>,
    /// Time at which the plan was made.
    pub planned: Option<u64>,
    /// Time at which all ranks of the initial job had been started.
    pub running: Option<u64>,
    /// Time at which wireup began to end the launch, because of a failure or by request.
    pub ending: Option<u64>,
    pub outcome: Option<TimelineEnd>,
}

fn values<S: Serializer>(ranks: &BTreeMap<RankId, RankTimes>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(ranks.values())
}

/// A host of the launch.
#[derive(Debug, Default, Serialize)]
pub struct TimelineHost {
    pub name: String,
    /// Time at which the host joined the launch; `None` without agents.
    pub joined: Option<u64>,
    /// Number of fences of several hosts at which this host arrived last.
    #[serde(rename = "last")]
    pub last_arrivals: u32,
    /// Time for which all other hosts waited for it alone in these fences.
    pub held_up: u64,
}

/// Times at which a rank changed its state.
#[derive(Debug, Default, Serialize)]
pub struct RankTimes {
    /// Names the job, unless it is the first, and the rank.
    pub name: String,
    pub node: u32,
    pub app: u32,
    pub pid: Option<i32>,
    pub started: Option<u64>,
    pub connected: Option<u64>,
    /// Time at which its program was loaded: its contact with PMI, or its start if no rank of the program contacted PMI.
    pub loaded: Option<u64>,
    pub finalized: Option<u64>,
    #[serde(rename = "ended")]
    pub exited: Option<u64>,
    #[serde(flatten)]
    pub how: EndRecord,
    /// Resources that the rank's process has used, once it has ended.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub usage: Option<ResourceUsage>,
    /// The CPUs it was bound to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// The kind of failure that ended it, if one did.
    pub cause: Option<String>,
}

/// A fence, and when it was released.
#[derive(Debug, Serialize)]
pub struct ReleasedFence {
    pub released: u64,
    #[serde(flatten)]
    pub fence: FenceRecord<'static>,
}

/// A job that was spawned, and when.
#[derive(Debug, Serialize)]
pub struct Spawn {
    pub at: u64,
    #[serde(flatten)]
    pub job: SpawnRecord<'static>,
}

/// End of the launch: time, exit code and cause.
#[derive(Debug, Serialize)]
pub struct TimelineEnd {
    pub at: u64,
    pub exit_code: u8,
    /// Wall-clock times, in UTC.
    pub began: String,
    #[serde(rename = "ended")]
    pub end: String,
    pub cause: Option<CauseRecord<'static>>,
    /// The name of the cause's signal.
    pub signal_name: Option<&'static str>,
    /// Advice to the user, if the record does not have the reason of the failure.
    pub advice: Option<String>,
}

/// A line that belongs to no status stream.
#[derive(Debug, thiserror::Error)]
#[error("line {number} is not a record of a status stream (`wireup run --json`): {}", json_problem(.error))]
pub struct InvalidLine {
    /// Line number, counted from 1.
    pub number: usize,
    pub error: serde_json::Error,
}

impl Timeline {
    /// Reads a stream; an incomplete one counts as far as it goes.
    ///
    /// # Errors
    /// [`InvalidLine`], unless it is the last line and has no end.
    pub fn read(stream: &[u8]) -> Result<Self, InvalidLine> {
        let mut timeline = Self::default();
        let lines = stream.split_inclusive(|byte| *byte == b'\n');
        for (index, line) in lines.enumerate() {
            match StatusRecord::read(line) {
                Ok((time, record)) => {
                    timeline.take(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), record);
                }
                Err(_) if !line.ends_with(b"\n") => {}
                Err(error) => {
                    let number = index + 1;
                    return Err(InvalidLine { number, error });
                }
            }
        }
        timeline.find_loaded();
        Ok(timeline)
    }

    fn find_loaded(&mut self) {
        let ranks = self.ranks.iter();
        let in_contact: BTreeSet<_> = ranks
            .filter(|(_, rank)| rank.connected.is_some())
            .map(|(speaker, rank)| (speaker.job, rank.app))
            .collect();
        for (speaker, rank) in &mut self.ranks {
            rank.loaded = match in_contact.contains(&(speaker.job, rank.app)) {
                true => rank.connected,
                false => rank.started,
            };
        }
    }

    fn take(&mut self, at: u64, record: StatusRecord<'static>) {
        match record {
            StatusRecord::Job(job) => self.job(at, job),
            StatusRecord::Node(node) => {
                let host = self.hosts.entry(node.node).or_default();
                host.name = node.host.into_owned();
                host.joined = Some(at);
            }
            StatusRecord::Rank(change) => self.rank(at, change),
            StatusRecord::Bindings(bindings) => self.bindings(bindings),
            StatusRecord::Spawned(job) => self.spawns.push(Spawn { at, job }),
            StatusRecord::Fence(fence) => self.fence(at, *fence),
            StatusRecord::Warning { message } => {
                if self.warnings.len() < WARNINGS {
                    self.warnings.push((at, message.into_owned()));
                }
            }
            StatusRecord::Result(outcome) => self.result(at, *outcome),
            StatusRecord::NodeLeft(_)
            | StatusRecord::SpawnReply(_)
            | StatusRecord::ResizeReply(_)
            | StatusRecord::Output(_)
            | StatusRecord::Log(_)
            | StatusRecord::Other => {}
        }
    }

    fn job(&mut self, at: u64, job: PlannedJob<'static>) {
        match job.state {
            JobState::Planned => self.planned = Some(at),
            JobState::Running => self.running = Some(at),
            JobState::Ending | JobState::Killing => self.ending = self.ending.or(Some(at)),
            JobState::Other => {}
        }
        let Some(plan) = job.plan.map(|plan| *plan) else {
            return;
        };
        self.job = plan.job.into_owned();
        self.size = plan.size;
        self.offered = plan
            .offered
            .into_iter()
            .map(|name| name.into_owned())
            .collect();
        self.wireup = plan.wireup.into_owned();
        self.command = plan.command;
        self.libpmix = plan.libpmix;
        self.apps = plan.apps;
        self.virtual_nodes = plan.virtual_nodes;
        for node in plan.nodes {
            self.hosts.entry(node.node).or_default().name = node.host.into_owned();
        }
    }

    fn rank(&mut self, at: u64, change: RankChange<'static>) {
        let rank = self.ranks.entry(change.place.speaker).or_default();
        rank.name = change.place.speaker.to_string();
        rank.node = change.place.node;
        rank.app = change.place.app;
        rank.pid = change.pid.or(rank.pid);
        let host = self.hosts.entry(rank.node).or_default();
        if host.name.is_empty() {
            host.name = change.place.host.into_owned();
        }
        match change.state {
            RankState::Started => rank.started = Some(at),
            RankState::Connected => rank.connected = rank.connected.or(Some(at)),
            RankState::Finalized => rank.finalized = Some(at),
            RankState::Ended => rank.exited = Some(at),
            RankState::Planned | RankState::NotStarted | RankState::Other => {}
        }
        if let Some(end) = change.end {
            rank.how = end;
        }
        rank.usage = change.usage.or(rank.usage);
    }

    fn bindings(&mut self, bindings: HostBindings<'static>) {
        for RankBinding { rank, cpus } in bindings.ranks {
            let speaker = RankId::from((bindings.spawned_job, rank));
            let known = self.ranks.entry(speaker).or_default();
            known.name = speaker.to_string();
            known.node = bindings.node;
            known.cpus = Some(cpus.into_owned());
        }
    }

    fn fence(&mut self, released: u64, fence: FenceRecord<'static>) {
        if let [last, second, ..] = &fence.last_nodes[..] {
            let host = self.hosts.entry(last.node).or_default();
            host.last_arrivals += 1;
            host.held_up += last.behind_us.saturating_sub(second.behind_us);
        }
        match self.fences.len() < FENCES {
            true => self.fences.push(ReleasedFence { released, fence }),
            false => self.more_fences += 1,
        }
    }

    fn result(&mut self, at: u64, outcome: ResultRecord<'static>) {
        for result in outcome.ranks {
            if let Some(rank) = self.ranks.get_mut(&result.place.speaker) {
                rank.cause = result.cause.map(|cause| cause.into_owned());
            }
        }
        let signal = outcome.cause.as_ref().and_then(|cause| cause.signal);
        self.outcome = Some(TimelineEnd {
            at,
            signal_name: signal.and_then(signal_name),
            exit_code: outcome.exit_code,
            began: outcome.start,
            end: outcome.end,
            cause: outcome.cause,
            advice: None,
        });
        let advice = advice::connectivity_advice(self);
        if let Some(outcome) = &mut self.outcome {
            outcome.advice = advice;
        }
    }

    /// Returns the time of the last record.
    fn end(&self) -> u64 {
        let ranks = self.ranks.values();
        let ended = ranks.filter_map(|rank| rank.exited.or(rank.connected).or(rank.started));
        let ended = ended.max().unwrap_or_default();
        self.outcome.as_ref().map_or(ended, |outcome| outcome.at)
    }

    /// Whether its nodes are virtual ones of one machine (`--virtual-nodes`), which no network connects.
    pub fn has_virtual_nodes(&self) -> bool {
        let none_joined = || self.hosts.values().all(|host| host.joined.is_none());
        self.hosts.len() > 1 && self.virtual_nodes.unwrap_or_else(none_joined)
    }

    /// Returns the name of a host.
    fn host(&self, node: u32) -> &str {
        self.hosts.get(&node).map_or("?", |host| &host.name)
    }

    /// Returns the host for which the others waited longest in fences, if they waited.
    pub fn slowest_host(&self) -> Option<&TimelineHost> {
        let hosts = self.hosts.values().filter(|host| host.held_up > 0);
        hosts.max_by_key(|host| host.held_up)
    }
}
