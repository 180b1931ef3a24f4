//! `wireup ps --json`.

use serde::Serialize;

use super::{node_of, state_of};
use crate::backend::job_label::LabelPlacement;
use crate::jobs::{self, LocalJobInfo};
use wireup_core::printable;

/// A job as scripts see it.
#[derive(Serialize)]
struct JobRecord<'a> {
    /// Name, null while no process of the job shows it.
    job: Option<&'a str>,
    /// The unambiguous beginning of its digits.
    short: Option<&'a str>,
    /// Process id of the launcher, null when it is gone or on another host.
    pid: Option<i32>,
    uid: u32,
    state: &'static str,
    /// The job of which the launcher is a process.
    within: Option<&'a str>,
    ranks_alive: usize,
    /// Ranks of jobs that its processes have spawned.
    spawned_alive: usize,
    size: Option<u32>,
    node_count: Option<u32>,
    /// The nodes with running ranks on this machine.
    nodes: Vec<String>,
    /// Part of a job on several hosts that is on this machine; null for a job on this machine alone.
    part: Option<PartRecord<'a>>,
    elapsed: f64,
    command: Vec<String>,
    ranks: Vec<RankRecord<'a>>,
}

/// The part of a job that a machine has.
#[derive(Serialize)]
struct PartRecord<'a> {
    /// Whether the launcher is here.
    launcher: bool,
    /// All nodes of the job, in order.
    hosts: Vec<&'a str>,
    /// Nodes of the job on this machine.
    nodes: Vec<NodeRecord<'a>>,
}

/// A node of a job on several hosts.
#[derive(Serialize)]
struct NodeRecord<'a> {
    /// Number of the node, from 0.
    node: Option<u32>,
    /// Number of nodes.
    of: Option<u32>,
    host: Option<&'a str>,
    /// Process id of its step.
    pid: i32,
    /// The ranks it was given.
    ranks: Vec<u32>,
}

fn part(job: &LocalJobInfo) -> Option<PartRecord<'_>> {
    if !job.is_on_several_hosts() {
        return None;
    }
    let placements = job.placement.iter();
    let hosts = placements.flat_map(LabelPlacement::present_hosts);
    let nodes = job.nodes_here().map(|(step, host)| NodeRecord {
        node: step.node.map(|node| node.0),
        of: job.node_count,
        host,
        pid: step.process.pid,
        ranks: job.ranks_of(step).collect(),
    });
    Some(PartRecord {
        launcher: job.launcher.is_some(),
        hosts: hosts.collect(),
        nodes: nodes.collect(),
    })
}

/// A rank as scripts see it.
#[derive(Serialize)]
struct RankRecord<'a> {
    /// Job index as in the status stream; only present if the job was spawned.
    #[serde(skip_serializing_if = "is_first")]
    spawned_job: u32,
    rank: u32,
    node: Option<u32>,
    host: Option<&'a str>,
    pid: i32,
    state: &'static str,
    cpu: f64,
    memory: u64,
    command: Vec<String>,
}

fn is_first(job: &u32) -> bool {
    *job == 0
}

/// The jobs as a JSON array.
pub(super) fn json<'a>(jobs: impl Iterator<Item = (Option<&'a str>, &'a LocalJobInfo)>) -> String {
    let lossy = |words: &[std::ffi::OsString]| -> Vec<String> {
        let texts = words.iter().map(|word| word.to_string_lossy().into_owned());
        texts.collect()
    };
    let rank_record = |rank: &'a jobs::Rank| {
        let (node, host) = node_of(rank);
        RankRecord {
            spawned_job: rank.spawned_job,
            rank: rank.rank,
            node,
            host,
            pid: rank.process.pid,
            state: state_of(&rank.process),
            cpu: rank.cpu.as_secs_f64(),
            memory: rank.resident,
            command: lossy(&rank.command),
        }
    };
    let records: Vec<JobRecord<'a>> = jobs
        .map(|(short, job)| JobRecord {
            job: job.name.as_deref(),
            short,
            pid: job.launcher.as_ref().map(|launcher| launcher.pid),
            uid: job.uid,
            state: job.state.as_str(),
            within: job.within.as_deref(),
            ranks_alive: job.first_ranks().count(),
            spawned_alive: job.ranks.len() - job.first_ranks().count(),
            size: job.size,
            node_count: job.node_count,
            nodes: job.nodes().into_iter().map(|(_, name)| name).collect(),
            part: part(job),
            elapsed: job.elapsed.as_secs_f64(),
            command: lossy(&job.command),
            ranks: job.ranks.iter().map(rank_record).collect(),
        })
        .collect();
    let mut text = printable::json(&records).expect("text and numbers only");
    text.push('\n');
    text
}
