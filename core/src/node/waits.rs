//! The fences in which the processes of a node wait, for people who look at a launch.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{NodeCore, PmixState, fences};
use crate::job::clock::Moment;
use crate::job::ids::NodeRank;

/// A fence in which a process waits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FenceWait {
    /// Its kind, as the status stream names it, its sequence number and its participants.
    pub fence: String,
    /// How long the first process of the node has waited in it.
    pub waiting: Duration,
}

impl NodeCore {
    /// The processes here that wait in a fence or barrier. Of a fence of PMIx, libpmix tells when all processes of a node
    /// have entered it, so until then none of them is known to wait.
    pub fn fence_waits(&self, now: Moment) -> BTreeMap<NodeRank, FenceWait> {
        let mut waits = BTreeMap::new();
        for (id, since) in self.fences.engine.waited_in() {
            let wait = FenceWait {
                fence: format!(
                    "{} {} of {}",
                    id.series.kind.name(),
                    id.generation,
                    id.series.participants
                ),
                waiting: now.since(since),
            };
            let absent = fences::collective_of(&id.series)
                .map(|(job, collective)| self.cx.missing_from(job.as_str(), &collective));
            for (rank, state) in (0..).map(NodeRank).zip(&self.cx.pmix) {
                let takes_part = || {
                    let name = self.cx.name_of(self.cx.process(rank));
                    id.series.participants.contains(&name)
                };
                let waits_here = match &absent {
                    Some(absent) => !absent.contains(&rank) && takes_part(),
                    None => *state == PmixState::Connected && takes_part(),
                };
                if waits_here {
                    waits.insert(rank, wait.clone());
                }
            }
        }
        waits
    }

    /// Number of fences and barriers that were released here. Those of PMIx whose processes are all of this node are
    /// libpmix's own, and not among them.
    pub fn fences_released(&self) -> u64 {
        self.fences.engine.released()
    }
}
