//! Job tables of a launch whose jobs have plans.

use std::sync::Arc;

use crate::plan::HostPlan;
use wireup_core::job::ids::Rank;
use wireup_core::job::job_table::{HasProcessMap, JobTable, KnownRank};
use wireup_core::job::process_map::ProcessMap;

/// Jobs of a launch with their plans on this host.
pub type Jobs = JobTable<Arc<HostPlan>>;

impl HasProcessMap for HostPlan {
    fn ranks(&self) -> &ProcessMap {
        &self.job.process_map
    }
}

/// Entry of a job table that contains the job's plan.
pub trait HasPlan: HasProcessMap {
    fn plan(&self) -> &Arc<HostPlan>;
}

impl HasPlan for Arc<HostPlan> {
    fn plan(&self) -> &Arc<HostPlan> {
        self
    }
}

/// Lookups by process in a job table with plans.
pub trait Plans {
    /// Plan of a process's job, and the rank of the process in that job.
    fn plan_of(&self, process: KnownRank) -> (&Arc<HostPlan>, Rank);

    /// Host name of a process.
    fn host_of(&self, process: KnownRank) -> &str;
}

impl<T: HasPlan> Plans for JobTable<T> {
    fn plan_of(&self, process: KnownRank) -> (&Arc<HostPlan>, Rank) {
        let job = self
            .get(process.job())
            .expect("a known rank is from this table");
        (job.plan(), process.rank())
    }

    fn host_of(&self, process: KnownRank) -> &str {
        self.first().plan().node_name(process.node())
    }
}
