//! State of one job of a launch in the backend of a host.

use std::sync::Arc;

use super::RankIo;
use super::registered_resources::RegisteredResources;
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

/// State of one job of a launch in the backend of a host.
pub(super) struct LocalJob {
    /// Data of the job that is the same on all nodes.
    context: Arc<JobContext>,
    /// Plan for this host; `None` for a job that cannot run here and whose ranks are not started.
    plan: Option<Arc<HostPlan>>,
    /// Directories of the job, by local node; empty without sidecars.
    pub(super) directories: Vec<NodeDirectories>,
    /// Environment of the ranks from the sidecar, by local node; `None` until the sidecar has registered the job.
    pub(super) envs: Vec<Option<ForkEnv>>,
    /// Threads that start its ranks; `None` after all starts were reported.
    pub(super) starter: Option<RankStarter>,
    /// Number of local ranks whose start is not reported yet.
    pub(super) unreported: u32,
    /// Input and output of its ranks, until the sidecar has registered the job.
    pub(super) io: Option<RankIo>,
    /// Whether the start of all its local ranks was reported.
    pub(super) start_reported: bool,
    /// Whether the job has failed and ranks that are still being started must be killed.
    pub(super) dropped: bool,
    /// Staged files of its local ranks.
    pub(super) staged_files: UnpackedFiles,
    /// Resources that its local ranks have registered.
    pub(super) registered: RegisteredResources,
    /// Name of the container that was made for its local ranks.
    pub(super) container: Option<Nspace>,
}

impl LocalJob {
    /// Creates a job with this number of local ranks and nodes, none of which is started.
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
            registered: RegisteredResources::default(),
            container: None,
        }
    }

    /// Creates a job that cannot run on this host.
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
            registered: RegisteredResources::default(),
            container: None,
        }
    }

    /// Replaces the plan of the initial job, after hosts have joined the launch.
    pub(super) fn grow(&mut self, plan: &Arc<HostPlan>) {
        self.context = Arc::clone(&plan.job);
        self.plan = Some(Arc::clone(plan));
    }

    /// Returns the plan, if the job can run on this host.
    pub(super) fn runnable_plan(&self) -> Option<&Arc<HostPlan>> {
        self.plan.as_ref()
    }

    /// Whether its ranks are offered PMIx.
    pub(super) fn uses_pmix(&self) -> bool {
        self.runnable_plan().is_some_and(|plan| plan.offer.pmix)
    }

    /// Returns the environment of the ranks from the sidecar of a local node.
    pub(super) fn env(&self, node: usize) -> Option<&ForkEnv> {
        self.envs[node].as_ref().filter(|_| self.uses_pmix())
    }

    pub(super) fn nspace(&self) -> &Nspace {
        &self.context.nspace
    }

    /// Returns the nspace of the parent job.
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
