//! Properties of the ranks' PMI clients that are found in their processes and shared memory, and not in their requests.

use super::mpich_segment::SegmentWatch;
use super::step_context::StepContext;
use crate::inspect::group_clients::GroupClients;
use crate::plan::planned_jobs::Plans as _;
use wireup_core::job::ids::GlobalRank;
use wireup_core::node::event::NodeEvent;
use wireup_sys::channel::Channel;

/// Detects properties of PMI clients that they do not send.
#[derive(Debug, Default)]
pub(super) struct PmiClients {
    /// Detection of clients that accept PMI 1.2.
    group_clients: GroupClients,
    /// Watch of MPICH's shared memory; created for the first client that sends its PMI finalize at process exit.
    segments: Option<SegmentWatch>,
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
        let has_groups = self.group_clients.contain(pid);
        let rank = local;
        Some(NodeEvent::PmiClient { rank, has_groups })
    }

    /// Starts the watch at a rank's request: a library of this kind creates its segment after the request that identifies it.
    pub(super) fn watch_segments(&mut self, cx: &StepContext, rank: GlobalRank) {
        let (node, local) = cx.place(rank);
        if self.segments.is_none() && cx.node(node).core.sessions_beside(local).is_some() {
            self.segments = SegmentWatch::start().ok();
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
        let segments = self.segments.as_mut()?;
        let sessions = segments.sessions(job.nspace.as_str(), number)?;
        (sessions <= others).then_some(NodeEvent::PmiFinalized { rank: local })
    }
}
