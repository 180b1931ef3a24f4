//! Makes a node's plan of a spawned job, from the launcher's and the node's own plan of the initial job.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use super::{SpawnedJobPlan, refuse};
use crate::plan::app_start::AppError;
use crate::plan::container_root::ContainerRoot;
use crate::plan::host_plan::{HostPlanError, HostSite, PlanMismatch};
use crate::plan::host_scope::HostScope;
use crate::plan::reasons::InterfaceOffer;
use crate::plan::{HostPlan, JobPlan, pattern};
use wireup_core::failure::CommandError;
use wireup_core::job::ids::NodeId;
use wireup_core::job::spawn::{SpawnFailure, SpawnFailureKind};
use wireup_core::job::spec::{DebugSpec, JobSpec};
use wireup_core::node::JobContext;

impl From<HostPlanError> for SpawnFailure {
    fn from(error: HostPlanError) -> Self {
        let kind = match &error {
            HostPlanError::Size(_) | HostPlanError::Binding(_) => SpawnFailureKind::NoSlots,
            HostPlanError::WithoutServer(_) | HostPlanError::App(AppError::NeededFile(_)) => {
                SpawnFailureKind::NotSupported
            }
            HostPlanError::App(AppError::SpawnedWdir { .. }) => SpawnFailureKind::NotExecutable,
            HostPlanError::App(error) => match error.program_code() {
                Some(127) => SpawnFailureKind::NotFound,
                Some(126) => SpawnFailureKind::NotExecutable,
                _ => SpawnFailureKind::Failed,
            },
            HostPlanError::Mismatch(_)
            | HostPlanError::Container(_)
            | HostPlanError::ServerFiles(_) => SpawnFailureKind::Failed,
        };
        refuse(kind, CommandError::from(error))
    }
}

impl SpawnedJobPlan {
    /// Plan of the job for all nodes; `first` is the plan of the initial job.
    pub fn decided(&self, first: &JobPlan) -> JobPlan {
        JobPlan {
            launch: Arc::clone(&first.launch),
            job: self.context(first),
            app_plans: self.app_plans.clone(),
            offer: InterfaceOffer {
                // The node of a tool has a PMIx server, even if PMIx is not offered to the initial job.
                pmix: first.offer.pmix || self.job.requester.tool().is_some(),
                ..first.offer.clone()
            },
            oversubscribed: self.oversubscribed,
            origin: Some(self.origin.clone()),
        }
    }

    /// Context of the job with all present nodes of the launch: nodes may have joined since it was planned.
    fn context(&self, first: &JobPlan) -> Arc<JobContext> {
        let nodes = first.job.process_map.nodes();
        match self.job.process_map.nodes() == nodes {
            true => Arc::clone(&self.job),
            false => Arc::new(self.job.with_nodes(nodes)),
        }
    }

    /// Request in the form of a user's for an initial job; `first` is that of the initial job. The launcher's standard input is
    /// for the initial job alone; a spawned job gets input only from processes that push it.
    pub fn spec(&self, first: &JobSpec) -> JobSpec {
        let mut spec = first.clone();
        spec.apps.clone_from(&self.requests);
        spec.psets.clear();
        spec.layout.runs.clear();
        if let Some(container) = &self.container {
            spec.container.uenvs.extend_from_slice(&container.uenvs);
            spec.container.image = container.image.clone();
        }
        spec.binding = self.binding.clone();
        spec.layout.oversubscribe = self.oversubscribe;
        spec.stdio.pty = None;
        spec.impi = None;
        spec.debug = DebugSpec {
            stop_on_exec: self.job.debug.on_exec.clone(),
            stop_in_init: self.job.debug.in_init.clone(),
            ..DebugSpec::default()
        };
        spec.stdio.stdin = self.input;
        spec.stdio.output = spec.stdio.output.map(pattern::with_job);
        spec.notes.clear();
        spec
    }

    /// Nodes whose step daemons must prepare the job: those that may lack files of its ranks, or on which a container is made
    /// for it. `first` is the plan of the initial job.
    pub(crate) fn nodes_to_prepare(&self, first: &JobPlan) -> BTreeSet<NodeId> {
        let plan = self.decided(first);
        let nodes = match &self.container {
            None => plan.nodes_with_offers(&self.staged_files),
            Some(_) => {
                let map = &plan.job.process_map;
                let nodes = map.node_ids();
                nodes.filter(|node| map.local_size(*node) > 0).collect()
            }
        };
        let serving = nodes.into_iter().map(|node| first.serving_node(node));
        serving.collect()
    }

    /// Makes this host's plan of the job: searches for the files that its ranks need. `first` is the host's plan of the initial
    /// job, `inside` the root directory of ranks that run in an image. A launcher of other hosts uses the result only for
    /// messages.
    ///
    /// # Errors
    /// [`SpawnFailure`] with the reason and the remedy; on one of several hosts the text has the name of the host.
    pub fn resolve(
        &self,
        first: &HostPlan,
        inside: Option<ContainerRoot>,
    ) -> Result<HostPlan, SpawnFailure> {
        let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let resolved = self.resolve_within(first, limit, inside);
        resolved.map_err(|error| {
            let mut failure = SpawnFailure::from(error);
            if let Some(node) = first.scope.and_then(HostScope::node) {
                failure.text = format!("on {}: {}", first.node_name(node), failure.text);
            }
            failure
        })
    }

    pub(super) fn resolve_within(
        &self,
        first: &HostPlan,
        descriptors: u64,
        inside: Option<ContainerRoot>,
    ) -> Result<HostPlan, HostPlanError> {
        self.check(first)?;
        let map = &self.job.process_map;
        let has_ranks = |scope: HostScope| scope.size(map) > 0;
        if self.container.is_some() && inside.is_none() && first.scope.is_some_and(has_ranks) {
            return Err(HostPlanError::Container(CommandError::request(
                "the container of the job does not exist: it was not created or has been removed; spawn again",
            )));
        }
        let site = HostSite {
            scope: first.scope,
            inheritance: Arc::clone(&first.inheritance),
            container_root: inside,
            slots: first.slots.clone(),
            descriptors,
        };
        let (decided, spec) = (self.decided(&first.job_plan), self.spec(&first.spec));
        decided.resolve_on(site, spec, &self.staged_files, Some(first))
    }

    /// Refuses a plan that was received and does not fit that of the initial job.
    fn check(&self, first: &HostPlan) -> Result<(), PlanMismatch> {
        let fits = self.job.process_map.nodes() <= first.job.process_map.nodes()
            && self.origin.template_app.index() < first.apps.len();
        if fits { Ok(()) } else { Err(PlanMismatch) }
    }
}
