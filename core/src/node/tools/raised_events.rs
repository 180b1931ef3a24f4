//! PMIx events that the host raises: start and end of a spawned job, the death of a rank, the loss and the departure of a
//! node.
//!
//! Rule: an event whose source is the server itself comes back to its host as one that a client
//! raised; so the source is always a process that the event is about. Source: `PMIx_Notify_event`,
//! seen with 4.2.2 and 5.0.11.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::job::ids::{GlobalRank, JobIndex, NodeId, Nspace, Rank};
use crate::job::outcome::RankEnd;
use crate::node::context::NodeContext;
use crate::node::context::node_effect::NodeEffect;
use crate::node::event::Notification;
use crate::pmix::keys;
use crate::pmix::value::{Array, DataRange, Info, PmixProc, PmixRank, Status, Value};
use crate::queries::{JobEndStatus, NodeQueryResult, ProcessState, worst};

/// Returns the end of a job whose ranks have ended, from the results of its nodes. `at` is the index of the job in the
/// query.
pub(in crate::node) fn end_of_job<'a>(
    results: impl IntoIterator<Item = &'a NodeQueryResult>,
    at: usize,
) -> JobEndStatus {
    let mut lives = Vec::new();
    for result in results {
        match result {
            NodeQueryResult::Part(part) => {
                let processes = part.jobs.get(at).into_iter().flatten();
                lives.extend(processes.map(|one| (Some(one.rank), one.life)));
            }
            NodeQueryResult::Lost | NodeQueryResult::Nothing => {
                lives.push((None, ProcessState::Planned))
            }
        }
    }
    worst(lives)
}

/// Converts the end of a job to its PMIx status.
pub(in crate::node) fn status_of_end(worst: JobEndStatus) -> Status {
    match worst.map(|(_, life)| life) {
        None => Status::SUCCESS,
        Some(ProcessState::Ended { end, .. }) => match end {
            RankEnd::Signal(_) => Status::ERR_JOB_ABORTED_BY_SIG,
            RankEnd::Code(0) => Status::ERR_JOB_TERM_WO_SYNC,
            RankEnd::Code(_) => Status::ERR_JOB_NON_ZERO_TERM,
        },
        Some(ProcessState::Planned | ProcessState::Running | ProcessState::Connected) => {
            Status::ERR_JOB_ABORTED
        }
    }
}

/// Returns the event for the end of a job.
pub(in crate::node) fn job_ended(nspace: &Nspace, worst: JobEndStatus) -> Arc<Notification> {
    let mut infos = vec![Info::new(
        keys::JOB_TERM_STATUS,
        Value::Status(status_of_end(worst)),
    )];
    let code = match worst {
        None => Some(0),
        Some((_, ProcessState::Ended { end, .. })) => Some(end.exit_code()),
        Some(_) => None,
    };
    infos.extend(code.map(|code| Info::new(keys::EXIT_CODE, Value::Int(code.into()))));
    let rank = worst.and_then(|(rank, _)| rank).map(PmixRank::from);
    job_event(
        Status::EVENT_JOB_END,
        nspace,
        rank.unwrap_or(PmixRank::WILDCARD),
        infos,
    )
}

/// Returns an event about a job, or about one of its processes.
fn job_event(
    code: Status,
    nspace: &Nspace,
    affected: PmixRank,
    more: Vec<Info>,
) -> Arc<Notification> {
    let affected = PmixProc::new(nspace, affected);
    let mut infos = vec![Info::new(keys::EVENT_AFFECTED_PROC, Value::Proc(affected))];
    infos.extend(more);
    // Open MPI's default handler ends the process.
    infos.push(Info::new(keys::EVENT_NON_DEFAULT, Value::Bool(true)));
    Arc::new(Notification {
        code,
        source: PmixProc::new(nspace, Rank(0)),
        range: DataRange::SESSION,
        infos,
    })
}

/// Raises the event that all processes of a job run that was spawned from here.
pub(in crate::node) fn raise_job_start(nspace: &Nspace, cx: &mut NodeContext) {
    if cx.sidecar.is_offered() {
        let event = job_event(
            Status::EVENT_JOB_START,
            nspace,
            PmixRank::WILDCARD,
            Vec::new(),
        );
        cx.raise(event);
    }
}

/// Raises the event that a spawned job has ended, whose nodes have reported how.
pub(in crate::node) fn raise_job_end(
    job: JobIndex,
    results: &BTreeMap<NodeId, NodeQueryResult>,
    cx: &mut NodeContext,
) {
    let processes = results.values().filter_map(|result| match result {
        NodeQueryResult::Part(part) => Some(part.jobs.iter().flatten()),
        NodeQueryResult::Lost | NodeQueryResult::Nothing => None,
    });
    // The failure to start a job is only in the reply to its requester.
    if !processes
        .flatten()
        .all(|one| one.life == ProcessState::Planned)
    {
        cx.raise(job_ended(
            &cx.job(job).nspace,
            end_of_job(results.values(), 0),
        ));
    }
}

/// Nodes are lost. Every remaining node gets this event itself, so it is not forwarded.
pub(in crate::node) fn raise_lost_nodes(nodes: &[NodeId], cx: &mut NodeContext) {
    if !cx.sidecar.is_offered() {
        return;
    }
    let own = cx.node;
    for &node in nodes.iter().filter(|node| **node != own) {
        let processes = cx.jobs.processes_on(node);
        let processes: Vec<PmixProc> = processes
            .map(|process| PmixProc::from(&cx.name_of(process)))
            .collect();
        // A node without processes concerns no client.
        let Some(source) = processes.first().cloned() else {
            continue;
        };
        let affected = processes.into_iter().map(Value::Proc).collect();
        let mut event = node_event(Status::EVENT_NODE_DOWN, node, source, cx);
        let affected = Array::new(affected).map(Value::Array);
        event
            .infos
            .extend(affected.map(|procs| Info::new(keys::EVENT_AFFECTED_PROCS, procs)));
        cx.leave(NodeEffect::Notify(Arc::new(event)));
    }
}

/// Raises the events that nodes have left the launch. Every remaining node gets them itself, so they are not forwarded.
pub(in crate::node) fn raise_left_nodes(nodes: &[NodeId], cx: &mut NodeContext) {
    if !cx.sidecar.is_offered() {
        return;
    }
    for &node in nodes {
        // libpmix does not notify the source of an event.
        let source = PmixProc::new(&cx.launch().nspace, PmixRank::UNDEF);
        let event = node_event(Status::EVENT_NODE_OFFLINE, node, source, cx);
        cx.leave(NodeEffect::Notify(Arc::new(event)));
    }
}

/// Returns an event about a node.
fn node_event(code: Status, node: NodeId, source: PmixProc, cx: &NodeContext) -> Notification {
    let mut infos = vec![
        Info::new(keys::NODEID, Value::Uint32(node.0)),
        // Open MPI's default handler ends the process.
        Info::new(keys::EVENT_NON_DEFAULT, Value::Bool(true)),
    ];
    let host = cx.host_name(node);
    infos.extend(host.map(|host| Info::new(keys::HOSTNAME, Value::String(host.into()))));
    Notification {
        code,
        source,
        range: DataRange::SESSION,
        infos,
    }
}

/// Returns the event for the death of a process; `None` if the job does not continue.
pub(in crate::node) fn death_event(
    cx: &NodeContext,
    process: GlobalRank,
    end: RankEnd,
) -> Option<Notification> {
    if !cx.policy.tolerant || !cx.sidecar.is_offered() {
        return None;
    }
    let proc = PmixProc::from(&cx.name_of(process));
    let code = match end {
        RankEnd::Code(0) => Status::ERR_PROC_TERM_WO_SYNC,
        // Also for signals: fault-tolerant MPIs listen for this event.
        _ => Status::ERR_PROC_ABORTED,
    };
    let infos = vec![
        Info::new(keys::EVENT_AFFECTED_PROC, Value::Proc(proc.clone())),
        Info::new(keys::EXIT_CODE, Value::Int(end.exit_code().into())),
        // Open MPI's default handler ends the process.
        Info::new(keys::EVENT_NON_DEFAULT, Value::Bool(true)),
    ];
    Some(Notification {
        code,
        source: proc,
        range: DataRange::NAMESPACE,
        infos,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queries::{NodeQueryReply, QueriedProcess};

    fn part(ends: &[(RankEnd, bool)]) -> NodeQueryResult {
        let process = |(end, connected): &(RankEnd, bool)| QueriedProcess {
            rank: Rank(0),
            pid: Some(1),
            executable: Vec::new(),
            life: ProcessState::Ended {
                end: *end,
                connected: *connected,
            },
            memory: None,
        };
        NodeQueryResult::Part(NodeQueryReply {
            jobs: vec![ends.iter().map(process).collect()],
            server: None,
            uri: Default::default(),
        })
    }

    #[test]
    fn job_end_status_is_worst_of_its_processes() {
        let good = (RankEnd::Code(0), false);
        let silent = (RankEnd::Code(0), true);
        let bad = (RankEnd::Code(3), false);
        let killed = (RankEnd::Signal(9), true);
        for (results, status) in [
            (vec![part(&[good]), part(&[])], Status::SUCCESS),
            (vec![part(&[good, silent])], Status::ERR_JOB_TERM_WO_SYNC),
            (
                vec![part(&[bad]), part(&[silent])],
                Status::ERR_JOB_NON_ZERO_TERM,
            ),
            (
                vec![part(&[bad]), NodeQueryResult::Lost],
                Status::ERR_JOB_ABORTED,
            ),
            (
                vec![NodeQueryResult::Lost, part(&[bad, killed, good])],
                Status::ERR_JOB_ABORTED_BY_SIG,
            ),
        ] {
            let worst = end_of_job(&results, 0);
            assert_eq!(status_of_end(worst), status, "{results:?}");
        }
    }
}
