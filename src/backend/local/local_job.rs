//! One job of a launch, as the backend of a host sees it.

use std::sync::Arc;

use super::RankIo;
use crate::plan::Plan;
use crate::plan::directory::NodeDirectories;
use crate::plan::packed_files::Unpacked;
use crate::plan::planned_jobs::Planned;
use crate::sys::start_ranks::Starter;
use wireup_core::job::ids::Nspace;
use wireup_core::job::rank_placement::RankMap;
use wireup_core::job::roster::Placed;
use wireup_core::node::JobContext;
use wireup_core::pmix::control::ForkEnv;

/// See the module.
pub(super) struct LocalJob {
    /// The common data about it.
    context: Arc<JobContext>,
    /// Nothing for a job that cannot run here, of which no rank is started.
    plan: Option<Arc<Plan>>,
    /// By node here, when there is a sidecar.
    pub(super) directories: Vec<NodeDirectories>,
    /// By node here: what the ranks get from the sidecar, once it knows the job.
    pub(super) envs: Vec<Option<ForkEnv>>,
    /// What starts its ranks, until all have been reported.
    pub(super) starter: Option<Starter>,
    /// Ranks here whose start has not been reported yet.
    pub(super) unreported: u32,
    /// Input and output of its ranks, while they wait for the sidecar.
    pub(super) io: Option<RankIo>,
    /// The start of all its local ranks was reported.
    pub(super) told: bool,
    /// It has failed: ranks that still start must be killed.
    pub(super) dropped: bool,
    /// Staged files of its local ranks.
    pub(super) staged_files: Unpacked,
}

impl LocalJob {
    /// A job with this number of local ranks and nodes, none of which is started.
    pub(super) fn new(
        plan: Arc<Plan>,
        ranks: u32,
        nodes: usize,
        directories: Vec<NodeDirectories>,
    ) -> Self {
        Self {
            context: Arc::clone(&plan.job),
            plan: Some(plan),
            directories,
            envs: vec![None; nodes],
            starter: None,
            unreported: ranks,
            io: None,
            told: false,
            dropped: false,
            staged_files: Unpacked::default(),
        }
    }

    /// A job that cannot run here.
    pub(super) fn refused(context: Arc<JobContext>) -> Self {
        Self {
            context,
            plan: None,
            directories: Vec::new(),
            envs: Vec::new(),
            starter: None,
            unreported: 0,
            io: None,
            told: false,
            dropped: true,
            staged_files: Unpacked::default(),
        }
    }
}

impl LocalJob {
    /// The first job, where others have joined the launch.
    pub(super) fn grow(&mut self, plan: &Arc<Plan>) {
        self.context = Arc::clone(&plan.job);
        self.plan = Some(Arc::clone(plan));
    }
}

impl LocalJob {
    /// The plan of a job that can run here.
    pub(super) fn known(&self) -> Option<&Arc<Plan>> {
        self.plan.as_ref()
    }

    /// Whether its ranks are offered PMIx.
    pub(super) fn uses_pmix(&self) -> bool {
        self.known().is_some_and(|plan| plan.offer.pmix)
    }

    /// What a rank gets from the sidecar of a node here.
    pub(super) fn env(&self, node: usize) -> Option<&ForkEnv> {
        self.envs[node].as_ref().filter(|_| self.uses_pmix())
    }

    pub(super) fn nspace(&self) -> &Nspace {
        &self.context.nspace
    }

    /// The name of the parent's job.
    pub(super) fn parent(&self) -> Option<&Nspace> {
        self.context.parent.as_ref().map(|parent| &parent.nspace)
    }
}

impl Placed for LocalJob {
    fn ranks(&self) -> &RankMap {
        &self.context.ranks
    }
}

impl Planned for LocalJob {
    fn plan(&self) -> &Arc<Plan> {
        let plan = self.plan.as_ref();
        plan.expect("a job that cannot run here has no processes")
    }
}
