//! Fences between nodes as a node's core uses them: which nodes take part, and the ranks that are missing in
//! them.
//!
//! Rule: for a PMIx fence libpmix reports only that all local clients have entered, not which ones: if a node's server has made no upcall, any of its clients may be missing. Source:
//! `pmix_server.h`, `fence_nb`.

use std::sync::Arc;
use std::time::Duration;

use crate::fence::id::ParticipantRanks;
use crate::fence::{
    FenceAction, FenceDurations, FenceEngine, FenceEvent, FenceFailure, FenceId, FenceResult,
    FenceSeries, FenceTiming, NodeSet, Participants, TimeoutSource,
};
use crate::job::clock::Moment;
use crate::job::ids::{JobIndex, NodeId, NodeRank, Rank};
use crate::job::missing_ranks::{MissingRankInfo, MissingRanks};
use crate::job::outcome::{FailureCause, FenceKind, LateFence};
use crate::job::proc::Proc;
use crate::node::context::NodeContext;
use crate::node::context::node_effect::{FenceRequester, NodeEffect};
use crate::node::context::pmi_fences::{collective_of, series};
use crate::node::context::pmi_state::PmixState;
use crate::node::context::upcalls::{connect_answer, fence_answer};
use crate::node::event::{NodeAction, NodeNotice, NodeReport, PeerMessage};
use crate::node::node_service::NodeService;
use crate::pmi::pmi_collective::{CollectiveScope, PmiCollective};

/// Whether every participant of a fence on this node has ended.
pub(in crate::node) fn has_no_local_participant(
    cx: &NodeContext,
    participants: &Participants,
) -> bool {
    participants.entries().all(|(nspace, ranks)| {
        let Some((job, member)) = cx.find_job(nspace.as_str()) else {
            return true;
        };
        let here = member.context.process_map.ranks_on(cx.node);
        let takes_part = |rank: &Rank| match ranks {
            ParticipantRanks::All => true,
            ParticipantRanks::Runs(runs) => runs
                .iter()
                .any(|run| (run.first..=run.last_rank).contains(rank)),
        };
        let mut members = here.filter(takes_part);
        members.all(|rank| cx.exited.contains(&cx.jobs.global(job, rank)))
    })
}

/// Returns the participants of a barrier or ring, and their nodes.
pub(in crate::node) fn barrier_series(
    cx: &NodeContext,
    job: JobIndex,
    collective: &PmiCollective,
) -> (FenceSeries, NodeSet) {
    let member = cx.jobs.get(job).expect("a job with ranks in a barrier");
    if *collective == PmiCollective::WORLD {
        return member.world.clone();
    }
    let ranks = &member.context.process_map;
    let nodes = match collective {
        PmiCollective::Barrier {
            scope: CollectiveScope::Ranks(members),
            ..
        } => NodeSet::new(members.iter().filter_map(|rank| ranks.node_of(*rank))),
        PmiCollective::Barrier {
            scope: CollectiveScope::Node,
            ..
        } => NodeSet::new([cx.node]),
        _ => Some(member.world.1.clone()),
    };
    let nodes = nodes.expect("a process that entered it has a node");
    (series(&member.context.nspace, collective), nodes)
}

/// Returns the local processes that take part in a barrier or ring and have not entered it.
pub(in crate::node) fn missing_from(
    cx: &NodeContext,
    job: &str,
    collective: &PmiCollective,
) -> Vec<NodeRank> {
    let member = cx.find_job(job).map(|(_, member)| member);
    let server = member.and_then(|member| Some((member.first, member.pmi.as_ref()?)));
    let Some((first, server)) = server else {
        return Vec::new();
    };
    let absent = server.absent_from(collective).into_iter();
    absent.map(|local| NodeRank(first.0 + local.0)).collect()
}

fn absent_from(cx: &NodeContext, job: &str, collective: &PmiCollective) -> MissingRanks {
    let mut absences = MissingRanks::default();
    for rank in missing_from(cx, job, collective) {
        if let Some((local, server)) = cx.pmi_server(rank) {
            let (last, overdue) = server.state(local).whereabouts();
            absences.add(absent(cx, rank, last), overdue);
        }
    }
    absences
}

fn absent_from_pmix(cx: &NodeContext, id: &FenceId, collect: bool) -> MissingRanks {
    let mut absences = MissingRanks::default();
    let mut here = 0;
    for (local, state) in (0..).map(NodeRank).zip(&cx.pmix_states) {
        let name = cx.name_of(cx.process(local));
        if !id.series.participants.contains(&name) {
            continue;
        }
        here += 1;
        let (last, overdue) = match state {
            PmixState::Connected => continue,
            PmixState::Absent => ("never contacted PMIx", false),
            PmixState::Stayed => ("has ended without PMIx", true),
            PmixState::Finalized => ("finalized", false),
            PmixState::Died => ("has ended", true),
        };
        absences.add(absent(cx, local, last.to_owned()), overdue);
    }
    if absences.is_empty() && here > 0 {
        absences.nodes.add(cx.node, 0);
        // The first fence of all comes at once after the start, and a rank that exchanges data is in the middle of
        // it. Before a later barrier a rank may have work to do.
        absences.overdue = id.generation == 0 || collect;
    }
    absences
}

fn absent(cx: &NodeContext, local: NodeRank, last: String) -> MissingRankInfo {
    let last_contact = cx.last_contact[local.index()];
    MissingRankInfo {
        rank: cx.process(local),
        last_request: last,
        idle: last_contact.map(|at| cx.now.duration_since(at)),
    }
}

/// Ranks that take part.
fn size_of(cx: &NodeContext, participants: &Participants) -> u32 {
    let size = |job: &str| {
        let job = cx.find_job(job);
        job.map_or(0, |(_, member)| member.context.process_map.size())
    };
    let ranks = participants.entries().map(|(name, ranks)| match ranks {
        ParticipantRanks::All => size(name.as_str()),
        ParticipantRanks::Runs(runs) => runs.iter().map(|r| r.last_rank.0 - r.first.0 + 1).sum(),
    });
    ranks.sum()
}

/// Returns the timing of a completed fence on this node. The ranks of a barrier wait in it, so the rank with the
/// latest contact entered last.
fn fence_passed(cx: &NodeContext, id: FenceId, nodes: u32, times: FenceDurations) -> NodeReport {
    let is_pmi = collective_of(&id.series).is_some();
    let here = (0..).map(NodeRank).zip(&cx.last_contact);
    let members = here.filter(|(local, _)| {
        let name = cx.name_of(cx.process(*local));
        is_pmi && id.series.participants.contains(&name)
    });
    let last = members.max_by_key(|(_, contact)| **contact);
    NodeReport::FenceTiming(Box::new(FenceTiming {
        ranks: size_of(cx, &id.series.participants),
        last_arrival: last.map(|(local, _)| cx.process(local)),
        id,
        nodes,
        times,
    }))
}

/// Returns the failure cause of the job when a fence failed; `None` if the program handles the failure, or if the
/// failure follows from another one that fails the job.
pub(in crate::node) fn fence_cause(
    ticket: &FenceRequester,
    ranks: u32,
    failure: &FenceFailure,
) -> Option<FailureCause> {
    let kind = match ticket {
        FenceRequester::Pmix(_) | FenceRequester::Connect(_) => FenceKind::Pmix,
        FenceRequester::Pmi(..) | FenceRequester::Released => FenceKind::Pmi,
    };
    match failure {
        FenceFailure::TornDown { .. }
        | FenceFailure::PeerLost { .. }
        | FenceFailure::Withdrawn { .. } => None,
        FenceFailure::Timeout { kind: by, .. } if *by == TimeoutSource::Program => None,
        FenceFailure::Timeout {
            waited, absences, ..
        } => Some(FailureCause::FenceTimeout(Box::new(LateFence {
            kind,
            waited: *waited,
            ranks,
            absences: (**absences).clone(),
        }))),
        other if kind == FenceKind::Pmi => Some(FailureCause::FenceFailed {
            error: other.to_string(),
        }),
        _ => None,
    }
}

/// Fences as a node takes part in them.
pub(in crate::node) struct Fences {
    pub(in crate::node) engine: FenceEngine<FenceRequester>,
    /// Results of fences that have failed the job. They are withheld while the ranks are inspected.
    withheld_results: Vec<(FenceRequester, FenceResult)>,
}

impl Fences {
    pub(in crate::node) fn new(engine: FenceEngine<FenceRequester>) -> Self {
        Self {
            engine,
            withheld_results: Vec::new(),
        }
    }

    /// Whether a fence or connection of this node's processes needs this one.
    pub(in crate::node) fn are_waiting_for(&self, proc: &Proc) -> bool {
        self.engine.has_waiters() && self.engine.waits_for(proc)
    }

    /// Executes an order of the engine.
    pub(in crate::node) fn execute(
        &mut self,
        output: FenceAction<FenceRequester>,
        cx: &mut NodeContext,
    ) {
        match output {
            FenceAction::Send { to, message } => {
                cx.send(to, PeerMessage::Fence(message));
            }
            FenceAction::SendAll(message) => {
                let message = PeerMessage::Fence(message);
                cx.order(NodeAction::SendEveryPeer(message));
            }
            FenceAction::Complete { ticket, result } => {
                self.ended(ticket, result, cx);
            }
            FenceAction::Describe { id, collect } => {
                self.describe(id, collect, cx);
            }
            FenceAction::Passed { id, nodes, times } => {
                let passed = fence_passed(cx, id, nodes, times);
                cx.order(NodeAction::ReportToLauncher(passed));
            }
            FenceAction::Waits {
                id,
                waited,
                absences,
            } => self.report_late(&id, waited, absences, cx),
        }
    }

    /// Finds the local ranks that are missing in a fence.
    fn describe(&self, id: FenceId, collect: bool, cx: &mut NodeContext) {
        if cx.policy.survives && has_no_local_participant(cx, &id.series.participants) {
            return cx.leave(NodeEffect::Fence(FenceEvent::Vacant { id }));
        }
        let absences = match collective_of(&id.series) {
            Some((job, collective)) => absent_from(cx, job.as_str(), &collective),
            None => absent_from_pmix(cx, &id, collect),
        };
        cx.leave(NodeEffect::Fence(FenceEvent::Described { id, absences }));
    }

    /// Reports a late fence to the launcher. Only the node that detects it first does this, once per job.
    fn report_late(
        &self,
        id: &FenceId,
        waited: Duration,
        absences: MissingRanks,
        cx: &mut NodeContext,
    ) {
        let pmi = collective_of(&id.series).is_some();
        let late = LateFence {
            kind: if pmi { FenceKind::Pmi } else { FenceKind::Pmix },
            waited,
            ranks: size_of(cx, &id.series.participants),
            absences,
        };
        cx.order(NodeAction::ReportToLauncher(NodeReport::FenceLate(late)));
    }

    fn ended(&mut self, ticket: FenceRequester, result: FenceResult, cx: &mut NodeContext) {
        if let Err(failure) = &result {
            let ranks = match &ticket {
                FenceRequester::Pmi(job, collective) => {
                    let (series, _) = barrier_series(cx, *job, collective);
                    size_of(cx, &series.participants)
                }
                _ => cx.jobs.size(),
            };
            let cause = fence_cause(&ticket, ranks, failure);
            let late = matches!(cause, Some(FailureCause::FenceTimeout(_)));
            cx.actions
                .extend(cause.map(|cause| NodeAction::Notify(NodeNotice::Failed(cause))));
            if late && cx.policy.shown {
                return self.withheld_results.push((ticket, result));
            }
        }
        answer(ticket, result, cx);
    }

    /// Answers the requesters of fences that have failed the launch, at its end.
    pub(in crate::node) fn answer_held(&mut self, cx: &mut NodeContext) {
        for (ticket, result) in std::mem::take(&mut self.withheld_results) {
            answer(ticket, result, cx);
        }
    }
}

impl NodeService for Fences {
    fn next_deadline(&self) -> Option<Moment> {
        self.engine.next_deadline()
    }

    fn tick(&mut self, cx: &mut NodeContext) {
        cx.leave(NodeEffect::Fence(FenceEvent::Tick));
    }

    fn node_lost(&mut self, node: NodeId, reason: &Arc<str>, cx: &mut NodeContext) {
        let reason = Arc::clone(reason);
        cx.leave(NodeEffect::Fence(FenceEvent::PeerLost { node, reason }));
    }

    fn tear_down(&mut self, cx: &mut NodeContext) {
        cx.leave(NodeEffect::Fence(FenceEvent::Teardown));
        cx.leave(NodeEffect::HeldFences);
    }
}

/// Answers those of this node that wait in a fence.
fn answer(ticket: FenceRequester, result: FenceResult, cx: &mut NodeContext) {
    match ticket {
        FenceRequester::Pmi(job, collective) => {
            release_pmi(job, &collective, &result, cx);
        }
        FenceRequester::Pmix(id) => fence_answer(cx, id, result),
        FenceRequester::Connect(id) => connect_answer(cx, id, result),
        FenceRequester::Released => {}
    }
}

/// Answers the PMI ranks of this node in a barrier or ring.
fn release_pmi(
    job: JobIndex,
    collective: &PmiCollective,
    result: &FenceResult,
    cx: &mut NodeContext,
) {
    let mut outcome = Ok(());
    cx.with_pmi(job, |server| match result {
        Ok(released) => outcome = server.released(collective, Ok(&released.data)),
        Err(FenceFailure::Withdrawn { .. }) => server.begin_again(collective),
        Err(failure) => outcome = server.released(collective, Err(&failure.to_string())),
    });
    if let Err(error) = outcome {
        let error = error.to_string();
        cx.report(NodeNotice::Failed(FailureCause::FenceFailed { error }));
    }
}

#[cfg(test)]
mod tests;
