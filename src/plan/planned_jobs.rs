//! The jobs of a launch with their plans.

use std::sync::Arc;

use crate::plan::Plan;
use wireup_core::job::ids::{GlobalRank, Rank};
use wireup_core::job::rank_placement::RankMap;
use wireup_core::job::roster::{Placed, Roster};

/// See the module.
pub type Jobs = Roster<Arc<Plan>>;

impl Placed for Plan {
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

/// What a roster of jobs with plans knows of a process.
pub trait Plans {
    /// The plan of its job, and its rank there.
    fn plan_of(&self, process: GlobalRank) -> (&Arc<Plan>, Rank);

    /// Name of its host.
    fn host_of(&self, process: GlobalRank) -> &str;
}

impl<T: Planned> Plans for Roster<T> {
    fn plan_of(&self, process: GlobalRank) -> (&Arc<Plan>, Rank) {
        let (job, rank) = self.identity(process);
        let job = self.get(job).expect("found in the roster");
        (job.plan(), rank)
    }

    fn host_of(&self, process: GlobalRank) -> &str {
        &self.first().plan().node_names[self.home_of(process).index()]
    }
}
