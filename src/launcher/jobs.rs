//! The jobs of a launch with their plans, and the words by which their processes are named.

use std::sync::Arc;

use super::plan::Plan;
use crate::job::ids::{GlobalRank, JobNumber, NodeId, Rank};
use crate::job::rank_map::RankMap;
use crate::job::roster::{Placed, Roster};

/// See the module.
pub type Jobs = Roster<Arc<Plan>>;

impl Placed for Arc<Plan> {
    fn ranks(&self) -> &RankMap {
        &self.job.ranks
    }
}

/// Something that belongs to a job of a launch.
pub trait Planned: Placed {
    /// The job's plan.
    fn plan(&self) -> &Arc<Plan>;
}

impl Planned for Arc<Plan> {
    fn plan(&self) -> &Arc<Plan> {
        self
    }
}

impl<T: Planned> Roster<T> {
    /// The job a process belongs to, and its rank there.
    pub fn plan_of(&self, process: GlobalRank) -> (&Arc<Plan>, Rank) {
        let (job, rank) = self.identity(process);
        let job = self.get(job).expect("found in the roster");
        (job.plan(), rank)
    }

    /// Number of the job a process belongs to, and its rank there.
    pub fn identity(&self, process: GlobalRank) -> (JobNumber, Rank) {
        self.find(process)
            .expect("the loop only knows processes of the launch")
    }

    /// Where a process lives.
    pub fn home_of(&self, process: GlobalRank) -> NodeId {
        self.node_of(process)
            .expect("the loop only knows processes of the launch")
    }

    /// Name of the host a process lives on.
    pub fn host_of(&self, process: GlobalRank) -> &str {
        &self.first().plan().node_names[self.home_of(process).index()]
    }

    /// A process in words: `rank 3`, or `rank 3 of spawned job 1`.
    pub fn name_of(&self, process: GlobalRank) -> String {
        match self.identity(process) {
            (JobNumber(0), rank) => format!("rank {rank}"),
            (job, rank) => format!("rank {rank} of spawned job {job}"),
        }
    }
}
