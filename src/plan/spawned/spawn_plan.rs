//! What a node makes of a spawned job, with its own plan of the first one.

use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use super::{SpawnedJobPlan, refuse};
use crate::failure::{CommandError, RequestError};
use crate::plan::app_start::{AppError, InspectionSite};
use crate::plan::container_root::ContainerRoot;
use crate::plan::host_plan::{HostPlanError, HostSite, PlanMismatch, resolve_apps};
use crate::plan::reasons::InterfaceOffer;
use crate::plan::{HostPlan, JobPlan, pattern};
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

/// A spawned job whose container does not exist.
#[derive(Debug, thiserror::Error)]
#[error("the container of its ranks was not made, or is removed; spawn again")]
struct NoContainer;

impl RequestError for NoContainer {}

impl SpawnedJobPlan {
    /// The decisions for all nodes of the launch, whose first job is that of `first`.
    pub fn decided(&self, first: &JobPlan) -> JobPlan {
        JobPlan {
            launch: Arc::clone(&first.launch),
            job: self.context(first),
            app_plans: self.app_plans.clone(),
            offer: InterfaceOffer {
                // A tool has a PMIx server, whatever the interface of the first job is.
                pmix: first.offer.pmix || self.job.parent_tool.is_some(),
                ..first.offer.clone()
            },
            oversubscribed: self.oversubscribed,
            origin: Some(self.origin.clone()),
        }
    }

    /// The job on all nodes of the launch: others may have joined since it was decided.
    fn context(&self, first: &JobPlan) -> Arc<JobContext> {
        let nodes = first.job.process_map.nodes();
        match self.job.process_map.nodes() == nodes {
            true => Arc::clone(&self.job),
            false => Arc::new(self.job.with_nodes(nodes)),
        }
    }

    /// The request, as the user would have given it for a first job. Input of the
    /// launcher stays with that; this job's comes from processes, if from anywhere.
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

    /// The nodes that have to be prepared for it: those of its ranks that may lack files, or on which a container is made for
    /// it. `plan` is the decided one.
    pub(crate) fn nodes_to_prepare(&self, plan: &JobPlan) -> Vec<NodeId> {
        match &self.container {
            None => plan.nodes_with_offers(&self.staged_files),
            Some(_) => {
                let map = &plan.job.process_map;
                map.node_ids()
                    .filter(|node| map.local_size(*node) > 0)
                    .collect()
            }
        }
    }

    /// Makes the plan of one node, or of this machine as all nodes: searches for the files that its
    /// ranks need. `first` is the first job's plan there, `inside` what the job's ranks see if they run in an image.
    ///
    /// # Errors
    /// [`SpawnFailure`] with the reason and the remedy; on one of several hosts it names the host.
    pub fn resolve(
        &self,
        first: &HostPlan,
        node: Option<NodeId>,
        inside: Option<ContainerRoot>,
    ) -> Result<HostPlan, SpawnFailure> {
        let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let resolved = self.resolve_within(first, node, limit, inside);
        resolved.map_err(|error| {
            let mut failure = SpawnFailure::from(error);
            if let Some(name) = node.and_then(|node| first.node_names.get(node.index())) {
                failure.text = format!("on {name}: {}", failure.text);
            }
            failure
        })
    }

    pub(super) fn resolve_within(
        &self,
        first: &HostPlan,
        node: Option<NodeId>,
        descriptors: u64,
        inside: Option<ContainerRoot>,
    ) -> Result<HostPlan, HostPlanError> {
        self.check(first)?;
        let has_ranks = |node| self.job.process_map.local_size(node) > 0;
        if self.container.is_some() && inside.is_none() && node.is_none_or(has_ranks) {
            return Err(HostPlanError::Container(NoContainer.into()));
        }
        let site = host_site(first, node, inside, descriptors);
        let (decided, spec) = (self.decided(&first.job_plan), self.spec(&first.spec));
        decided.resolve_on(site, spec, &self.staged_files, Some(first))
    }

    /// Makes the plan of a launcher with all ranks on other hosts: local findings are only for
    /// messages.
    ///
    /// # Errors
    /// [`SpawnFailure`] for what can run nowhere.
    pub fn launcher_plan(&self, first: &HostPlan) -> Result<HostPlan, SpawnFailure> {
        Ok(self.inspect_on_launcher(first)?)
    }

    fn inspect_on_launcher(&self, first: &HostPlan) -> Result<HostPlan, HostPlanError> {
        self.check(first)?;
        let site = host_site(first, None, first.container_root.clone(), u64::MAX);
        let (decided, spec) = (self.decided(&first.job_plan), self.spec(&first.spec));
        decided.check(&spec, None)?;
        let image = self.container.as_ref();
        // What this machine has under the name of a program is not what ranks in an image find.
        let purpose = match image.and_then(|container| container.image.as_ref()) {
            Some(_) => InspectionSite::Bystander,
            None => InspectionSite::Launcher,
        };
        let found = resolve_apps(
            &decided.job,
            &spec,
            &decided.app_plans,
            &site,
            &[],
            decided.template_app(first),
            |_| purpose,
        )?;
        Ok(HostPlan {
            job_plan: decided,
            spec,
            inheritance: site.inheritance,
            apps: found.into_iter().map(|(app, _)| app).collect(),
            container_root: None,
            sidecar_files: first.sidecar_files.clone(),
            sidecar_unavailable: first.sidecar_unavailable.clone(),
            binding: None,
            slots: site.slots,
            notes: Vec::new(),
            warnings: Vec::new(),
        })
    }

    /// Refuses a plan from a link that does not fit the first job's.
    fn check(&self, first: &HostPlan) -> Result<(), PlanMismatch> {
        let fits = self.job.process_map.nodes() <= first.job.process_map.nodes()
            && self.origin.template_app.index() < first.apps.len();
        if fits { Ok(()) } else { Err(PlanMismatch) }
    }
}

/// The host of a plan of the first job, whose ranks of another job see `container_root`.
fn host_site(
    first: &HostPlan,
    node: Option<NodeId>,
    container_root: Option<ContainerRoot>,
    descriptors: u64,
) -> HostSite {
    HostSite {
        node,
        inheritance: Arc::clone(&first.inheritance),
        container_root,
        slots: first.slots.clone(),
        descriptors,
    }
}
