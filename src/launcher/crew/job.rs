//! One job of a launch, as the crew of a host sees it.

use std::sync::Arc;

use crate::agent::start::Starter;
use crate::job::rank_map::RankMap;
use crate::job::roster::Placed;
use crate::launcher::directory::NodeDirectories;
use crate::launcher::jobs::Planned;
use crate::launcher::plan::Plan;
use crate::pmix::control::ForkEnv;

use super::RankIo;

/// See the module.
pub(super) struct Job {
    plan: Arc<Plan>,
    /// By node here, when there is a sidecar.
    pub(super) directories: Vec<NodeDirectories>,
    /// By node here: what the ranks get from the sidecar, once it knows the job.
    pub(super) envs: Vec<Option<ForkEnv>>,
    /// What starts its ranks, until all have been reported.
    pub(super) starter: Option<Starter>,
    /// Ranks here whose start has not been reported yet.
    pub(super) unreported: u32,
    /// What its ranks read and write, while they wait for the sidecar.
    pub(super) io: Option<RankIo>,
}

impl Job {
    /// A job with so many ranks here, on so many nodes of this host, none of which is started.
    pub(super) fn new(
        plan: Arc<Plan>,
        ranks: u32,
        nodes: usize,
        directories: Vec<NodeDirectories>,
    ) -> Self {
        Self {
            plan,
            directories,
            envs: vec![None; nodes],
            starter: None,
            unreported: ranks,
            io: None,
        }
    }
}

impl Placed for Job {
    fn ranks(&self) -> &RankMap {
        &self.plan.job.ranks
    }
}

impl Planned for Job {
    fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }
}
