//! Properties of the ranks' PMI clients that are found in their processes and shared memory, and not in their requests.

use super::mpich_segment::MpichSegments;
use super::step_context::StepContext;
use crate::inspect::group_clients::GroupClients;
use crate::plan::planned_jobs::{HasPlan as _, Plans as _};
use wireup_core::job::ids::{GlobalRank, JobIndex, NodeId};
use wireup_core::node::event::NodeEvent;
use wireup_sys::channel::Channel;

/// Detects properties of PMI clients that they do not send.
#[derive(Debug, Default)]
pub(super) struct PmiClients {
    /// Detection of clients that accept PMI 1.2.
    group_clients: GroupClients,
    /// Segments of MPICH's shared memory.
    segments: MpichSegments,
}

impl PmiClients {
    /// Detects the kind of a client before its first PMI request is handled.
    pub(super) fn identify(
        &mut self,
        cx: &StepContext,
        rank: GlobalRank,
    ) -> Option<NodeEvent<'static>> {
        let (node, local) = cx.place(rank);
        if cx.node(node).core.has_pmi_session(local) {
            return None;
        }
        let running = cx.slot(rank).running()?;
        let pid = running.pmi.as_ref().and_then(Channel::sender)?;
        let known = cx.look_up(rank);
        let (plan, number) = cx.jobs.plan_of(known);
        let app = (known.job(), plan.job.app_map.appnum_of(number));
        let has_groups = self.group_clients.contain(pid, app);
        let rank = local;
        Some(NodeEvent::PmiClient { rank, has_groups })
    }

    /// Records the segment of a job on a node, whose ranks wait in a barrier of PMI.
    pub(super) fn record_segment(&mut self, cx: &StepContext, node: NodeId, job: JobIndex) {
        if let Some(job) = cx.jobs.get(job).map(|job| &job.plan().job)
            && let Some(number) = job.process_map.mapped_number(node)
        {
            self.segments.record(job.nspace.as_str(), number);
        }
    }

    /// Returns whether a rank has left `MPI_Finalize` without a PMI finalize. MPICH sends it from an atexit handler, which
    /// `_exit(2)`, `quick_exit(3)` and `execve(2)` skip.
    pub(super) fn finalized(
        &mut self,
        cx: &StepContext,
        rank: GlobalRank,
    ) -> Option<NodeEvent<'static>> {
        let (node, local) = cx.place(rank);
        let others = cx.node(node).core.sessions_beside(local)?;
        let job = &cx.jobs.plan_of(cx.look_up(rank)).0.job;
        let number = job.process_map.mapped_number(node)?;
        let sessions = self.segments.sessions(job.nspace.as_str(), number)?;
        (sessions <= others).then_some(NodeEvent::PmiFinalized { rank: local })
    }
}
