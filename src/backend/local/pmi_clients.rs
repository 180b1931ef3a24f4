//! The PMI clients of ranks, as far as their processes and their shared memory say more than their requests.

use super::mpich_segment::SegmentWatch;
use super::step_context::StepContext;
use crate::inspect::group_clients::GroupClients;
use crate::plan::planned_jobs::Plans as _;
use wireup_core::job::ids::GlobalRank;
use wireup_core::node::event::NodeEvent;
use wireup_sys::channel::Channel;

/// Finds out about PMI clients what they do not send.
#[derive(Debug, Default)]
pub(super) struct PmiClients {
    /// Clients that take PMI 1.2.
    group_clients: GroupClients,
    /// Shared memory of an MPICH that sends its finalize when processes exit, once one has been seen.
    segments: Option<SegmentWatch>,
}

impl PmiClients {
    /// Finds out what kind of client sends the start of PMI, before that is read.
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

    /// A rank has made a request: its library makes its segment after that by which it is recognised.
    pub(super) fn watch_segments(&mut self, cx: &StepContext, rank: GlobalRank) {
        let (node, local) = cx.place(rank);
        if self.segments.is_none() && cx.node(node).core.sessions_beside(local).is_some() {
            self.segments = SegmentWatch::start().ok();
        }
    }

    /// Finds out whether a rank has left `MPI_Finalize` without a finalize of PMI: MPICH sends that from
    /// an atexit handler, which `_exit(2)`, `quick_exit(3)` and `execve(2)` pass over.
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
