//! One job of a launch, as the backend of a host sees it.

use std::sync::Arc;

use super::RankIo;
use crate::plan::HostPlan;
use crate::plan::directory::NodeDirectories;
use crate::plan::packed_files::UnpackedFiles;
use crate::plan::planned_jobs::HasPlan;
use crate::start_ranks::RankStarter;
use wireup_core::job::ids::Nspace;
use wireup_core::job::job_table::HasProcessMap;
use wireup_core::job::process_map::ProcessMap;
use wireup_core::node::JobContext;
use wireup_core::pmix::sidecar_protocol::ForkEnv;

/// See the module.
pub(super) struct LocalJob {
    /// The common data about it.
    context: Arc<JobContext>,
    /// Nothing for a job that cannot run here, of which no rank is started.
    plan: Option<Arc<HostPlan>>,
    /// By node here, when there is a sidecar.
    pub(super) directories: Vec<NodeDirectories>,
    /// By node here: what the ranks get from the sidecar, once it knows the job.
    pub(super) envs: Vec<Option<ForkEnv>>,
    /// What starts its ranks, until all have been reported.
    pub(super) starter: Option<RankStarter>,
    /// Ranks here whose start has not been reported yet.
    pub(super) unreported: u32,
    /// Input and output of its ranks, while they wait for the sidecar.
    pub(super) io: Option<RankIo>,
    /// The start of all its local ranks was reported.
    pub(super) start_reported: bool,
    /// It has failed: ranks that still start must be killed.
    pub(super) dropped: bool,
    /// Staged files of its local ranks.
    pub(super) staged_files: UnpackedFiles,
    /// The name of the container that was made for its ranks here.
    pub(super) container: Option<Nspace>,
}

impl LocalJob {
    /// A job with this number of local ranks and nodes, none of which is started.
    pub(super) fn new(
        plan: Arc<HostPlan>,
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
            start_reported: false,
            dropped: false,
            staged_files: UnpackedFiles::default(),
            container: None,
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
            start_reported: false,
            dropped: true,
            staged_files: UnpackedFiles::default(),
            container: None,
        }
    }
}

impl LocalJob {
    /// The first job, where others have joined the launch.
    pub(super) fn grow(&mut self, plan: &Arc<HostPlan>) {
        self.context = Arc::clone(&plan.job);
        self.plan = Some(Arc::clone(plan));
    }
}

impl LocalJob {
    /// The plan of a job that can run here.
    pub(super) fn runnable_plan(&self) -> Option<&Arc<HostPlan>> {
        self.plan.as_ref()
    }

    /// Whether its ranks are offered PMIx.
    pub(super) fn uses_pmix(&self) -> bool {
        self.runnable_plan().is_some_and(|plan| plan.offer.pmix)
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
        self.context.requester.parent().map(|parent| &parent.nspace)
    }
}

impl HasProcessMap for LocalJob {
    fn ranks(&self) -> &ProcessMap {
        &self.context.process_map
    }
}

impl HasPlan for LocalJob {
    fn plan(&self) -> &Arc<HostPlan> {
        let plan = self.plan.as_ref();
        plan.expect("a job that cannot run here has no processes")
    }
}
