//! The jobs of a launch with their plans.

use std::sync::Arc;

use crate::plan::HostPlan;
use wireup_core::job::ids::Rank;
use wireup_core::job::job_table::{HasProcessMap, JobTable, KnownRank};
use wireup_core::job::process_map::ProcessMap;

/// See the module.
pub type Jobs = JobTable<Arc<HostPlan>>;

impl HasProcessMap for HostPlan {
    fn ranks(&self) -> &ProcessMap {
        &self.job.process_map
    }
}

/// Something that belongs to a job of a launch.
pub trait HasPlan: HasProcessMap {
    /// The job's plan.
    fn plan(&self) -> &Arc<HostPlan>;
}

impl HasPlan for Arc<HostPlan> {
    fn plan(&self) -> &Arc<HostPlan> {
        self
    }
}

/// What a roster of jobs with plans knows of a process.
pub trait Plans {
    /// The plan of its job, and its rank there.
    fn plan_of(&self, process: KnownRank) -> (&Arc<HostPlan>, Rank);

    /// Name of its host.
    fn host_of(&self, process: KnownRank) -> &str;
}

impl<T: HasPlan> Plans for JobTable<T> {
    fn plan_of(&self, process: KnownRank) -> (&Arc<HostPlan>, Rank) {
        let job = self.get(process.job()).expect("found in the roster");
        (job.plan(), process.rank())
    }

    fn host_of(&self, process: KnownRank) -> &str {
        self.first().plan().node_name(process.node())
    }
}
