//! What a node makes of a spawned job, with its own plan of the first one.

use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use super::{SpawnedJobPlan, refuse};
use crate::failure::CommandError;
use crate::plan::app_start::{AppError, InspectionSite};
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

    /// Makes the plan of one node, or of this machine as all nodes: searches for the files that its
    /// ranks need. `first` is the first job's plan there.
    ///
    /// # Errors
    /// [`SpawnFailure`] with the reason and the remedy; on one of several hosts it names the host.
    pub fn resolve(
        &self,
        first: &HostPlan,
        node: Option<NodeId>,
    ) -> Result<HostPlan, SpawnFailure> {
        let limit = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
        let resolved = self.resolve_within(first, node, limit);
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
    ) -> Result<HostPlan, HostPlanError> {
        self.check(first)?;
        let site = host_site(first, node, descriptors);
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
        let site = host_site(first, None, u64::MAX);
        let (decided, spec) = (self.decided(&first.job_plan), self.spec(&first.spec));
        decided.check(&spec, None)?;
        let found = resolve_apps(
            &decided.job,
            &spec,
            &decided.app_plans,
            &site,
            &[],
            decided.template_app(first),
            |_| InspectionSite::Launcher,
        )?;
        Ok(HostPlan {
            job_plan: decided,
            spec,
            inheritance: site.inheritance,
            apps: found.into_iter().map(|(app, _)| app).collect(),
            container_root: site.container_root,
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

/// The host of a plan of the first job.
fn host_site(first: &HostPlan, node: Option<NodeId>, descriptors: u64) -> HostSite {
    HostSite {
        node,
        inheritance: Arc::clone(&first.inheritance),
        container_root: first.container_root.clone(),
        slots: first.slots.clone(),
        descriptors,
    }
}
