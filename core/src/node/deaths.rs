//! Where the others go on when processes die ([`Terms::survives`](super::Terms)): who is dead, and what
//! completes without them.

use super::NodeCore;
use super::node_context::NodeContext;
use crate::fence::id::Ranks;
use crate::fence::{FenceInput, Participants};
use crate::job::ids::{GlobalRank, NodeId};
use crate::job::outcome::RankEnd;

/// How the processes of a lost node are said to have ended.
const WITH_ITS_NODE: RankEnd = RankEnd::Signal(9);

impl NodeCore {
    /// A process of the launch has died, here or elsewhere.
    pub(super) fn died(&mut self, process: GlobalRank) {
        if let Some((job, rank)) = self.cx.jobs.find(process)
            && let Some(member) = self.cx.jobs.get_mut(job)
            && let Some(server) = &mut member.pmi
        {
            server.died(rank);
        }
        self.fence(FenceInput::ProcessDied);
    }

    /// Nodes are lost, and their processes with them. Every remaining node is notified, so no node forwards
    /// it to others.
    pub(super) fn died_with_nodes(&mut self, nodes: &[NodeId]) {
        if !self.cx.terms.survives {
            return;
        }
        let own = self.cx.node;
        for &node in nodes.iter().filter(|node| **node != own) {
            let processes: Vec<GlobalRank> = self.cx.jobs.processes_on(node).collect();
            for process in processes {
                self.died(process);
                if let Some(event) = self.cx.death(process, WITH_ITS_NODE) {
                    self.notify(&event);
                }
            }
        }
    }
}

impl NodeContext {
    /// Whether none of the participants of a fence that live here is left.
    pub(super) fn is_vacant(&self, participants: &Participants) -> bool {
        participants.entries().all(|(nspace, ranks)| {
            let Some((job, member)) = self.job_named(nspace.as_str()) else {
                return true;
            };
            let here = member.context.ranks.ranks_on(self.node);
            let takes_part = |rank: &crate::job::ids::Rank| match ranks {
                Ranks::All => true,
                Ranks::Runs(runs) => runs.iter().any(|run| (run.first..=run.last).contains(rank)),
            };
            let mut members = here.filter(takes_part);
            members.all(|rank| self.ended.contains(&self.jobs.global(job, rank)))
        })
    }
}
