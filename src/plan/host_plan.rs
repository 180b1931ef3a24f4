//! The plan of one node, made from what the launcher has decided: the node searches for the files that its ranks need.
//!
//! ```text
//!  the user's job    HostPlan::resolve ──────┐
//!                                            ├─▶ JobPlan::resolve_on ─▶ HostPlan or HostPlanError
//!  a spawned job     SpawnedJobPlan::resolve ┘
//! ```

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::app_start::{AppError, AppRanks, InspectionSite, resolve_app};
use super::host_binding::HostBindingError;
use super::interface_offer::host_parts;
use super::rank_count::SizeError;
use super::{AppPlan, AppStart, HostPlan, JobPlan, StagedFiles, host_binding, libpmix, rank_count};
use crate::failure::{CommandError, RequestError};
use crate::inspect::DetectedInterface;
use crate::inspect::ldso::Loader;
use crate::plan::container_root::{ContainerRoot, run_in_root};
use crate::plan::inherited_context::InheritedContext;
use crate::plan::machine_slots::SlotLimits;
use crate::plan::packed_files::Owner;
use wireup_core::container;
use wireup_core::job::ids::{AppNum, NodeId};
use wireup_core::job::spec::{AppRequest, JobSpec};
use wireup_core::node::JobContext;

/// An inconsistent description of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the launcher's description of the job contradicts itself; use one version of wireup everywhere"
)]
pub(crate) struct PlanMismatch;

impl RequestError for PlanMismatch {}

/// A problem because of which a job cannot run on a host.
#[derive(Debug, thiserror::Error)]
pub(super) enum HostPlanError {
    #[error(transparent)]
    Mismatch(#[from] PlanMismatch),
    #[error(transparent)]
    Size(#[from] SizeError),
    #[error(transparent)]
    App(#[from] AppError),
    #[error(transparent)]
    Container(CommandError),
    /// The files of a PMIx server are not found.
    #[error(transparent)]
    ServerFiles(CommandError),
    /// The ranks need a PMIx server where there is none.
    #[error(transparent)]
    WithoutServer(CommandError),
    #[error(transparent)]
    Binding(#[from] HostBindingError),
}

impl From<HostPlanError> for CommandError {
    fn from(error: HostPlanError) -> Self {
        match error {
            HostPlanError::Mismatch(error) => error.into(),
            HostPlanError::Size(error) => error.into(),
            HostPlanError::App(error) => error.into(),
            HostPlanError::Container(error)
            | HostPlanError::ServerFiles(error)
            | HostPlanError::WithoutServer(error) => error,
            HostPlanError::Binding(error) => error.into(),
        }
    }
}

/// A host on which jobs are resolved.
pub(super) struct HostSite {
    /// The only node that it is; nothing if it is all nodes of the launch.
    pub(super) node: Option<NodeId>,
    pub(super) inheritance: Arc<InheritedContext>,
    /// The root directory of the ranks here, if they run in an image.
    pub(super) container_root: Option<ContainerRoot>,
    pub(super) slots: SlotLimits,
    /// Hard limit of open descriptors.
    pub(super) descriptors: u64,
}

impl HostPlan {
    /// Makes the plan of one node of a job on several hosts: searches for the files that its ranks
    /// need.
    ///
    /// `inheritance` is the launcher's, with what the node itself adds ([`InheritedContext::on_node`]);
    /// `staged_files` are those that were sent and stored; `descriptors` is the hard limit of open
    /// descriptors here, `container_root` what ranks here see if they run in an image.
    ///
    /// # Errors
    /// [`CommandError`] with the reason and the remedy, in words that are the same on every node with
    /// this problem: see [`by_node`](crate::report::failures::by_node).
    pub(crate) fn resolve(
        decided: JobPlan,
        spec: JobSpec,
        inheritance: InheritedContext,
        node: NodeId,
        staged_files: &[StagedFiles],
        descriptors: u64,
        container_root: Option<ContainerRoot>,
    ) -> Result<Self, CommandError> {
        let site = HostSite {
            node: Some(node),
            inheritance: Arc::new(inheritance),
            container_root,
            slots: SlotLimits::detect(),
            descriptors,
        };
        let plan = decided.resolve_on(site, spec, staged_files, None)?;
        plan.check_fabric(node)?;
        Ok(plan)
    }
}

impl JobPlan {
    /// Makes the plan of a host: searches for what its ranks of the job need. For a spawned job `initial` is the host's
    /// plan of the initial job, whose PMIx server serves all jobs.
    ///
    /// # Errors
    /// [`HostPlanError`] with the reason and the remedy.
    pub(super) fn resolve_on(
        mut self,
        site: HostSite,
        spec: JobSpec,
        staged_files: &[StagedFiles],
        initial: Option<&HostPlan>,
    ) -> Result<HostPlan, HostPlanError> {
        self.check(&spec, site.node)?;
        self.check_room(&spec, &site)?;
        if let Some(node) = site.node {
            self.oversubscribed = site.slots.exceeded_by(self.processes_on(node));
        }
        let starting = match initial {
            Some(_) => InspectionSite::Child,
            None => InspectionSite::Node,
        };
        let purpose = |app| {
            let ranks = self.job.app_map.ranks_of(app);
            match site.node.is_none_or(|node| self.has(node, &ranks)) {
                true => starting,
                false => InspectionSite::Bystander,
            }
        };
        let found = resolve_apps(
            &self.job,
            &spec,
            &self.app_plans,
            &site,
            staged_files,
            initial.and_then(|initial| self.template_app(initial)),
            purpose,
        )?;
        let (apps, loaders): (Vec<AppStart>, Vec<Loader>) = found.into_iter().unzip();
        let (sidecar_files, sidecar_unavailable) = match initial {
            Some(initial) => {
                self.check_server(initial, site.node, &apps)?;
                let unavailable = initial.sidecar_unavailable.clone();
                (initial.sidecar_files.clone(), unavailable)
            }
            None if self.offer.pmix => {
                match host_parts(&spec, &apps, &loaders, &site.inheritance) {
                    Ok(files) => (Some(files), None),
                    // Processes spawned here may notice.
                    Err(failure) if site.node.is_some_and(|node| self.is_idle(node)) => {
                        (None, Some(failure.to_string()))
                    }
                    Err(failure) => return Err(HostPlanError::ServerFiles(failure)),
                }
            }
            None => (None, None),
        };
        let libpmix = libpmix(sidecar_files.as_ref());
        let binding = host_binding::bind(&spec, &self, site.node, initial, libpmix)?;
        self.app_plans = Vec::new();
        Ok(HostPlan {
            job_plan: self,
            spec,
            inheritance: site.inheritance,
            apps,
            container_root: site.container_root,
            sidecar_files,
            sidecar_unavailable,
            binding,
            slots: site.slots,
            notes: Vec::new(),
            warnings: Vec::new(),
        })
    }

    /// The program of the initial job that a spawned job takes its settings from.
    pub(super) fn template_app<'a>(&self, initial: &'a HostPlan) -> Option<&'a AppStart> {
        let origin = self.origin.as_ref()?;
        initial.apps.get(origin.template_app.index())
    }

    /// Checks that a plan from a link is consistent.
    ///
    /// # Errors
    /// [`PlanMismatch`] otherwise.
    pub(crate) fn check(&self, spec: &JobSpec, node: Option<NodeId>) -> Result<(), PlanMismatch> {
        let (apps, nodes) = (spec.apps.len(), self.job.process_map.nodes() as usize);
        let last = AppNum(u32::try_from(apps).unwrap_or(0).saturating_sub(1));
        let has_variables = |app: &AppPlan| self.origin.is_some() || app.variables.is_some();
        let fits = apps > 0
            && self.app_plans.len() == apps
            && self.app_plans.iter().all(has_variables)
            && self.job.app_map.ranks_of(last).end == self.job.process_map.size()
            && self.node_names.len() == nodes
            && node.is_none_or(|node| spec.layout.hosts.len() == nodes && node.index() < nodes);
        if fits { Ok(()) } else { Err(PlanMismatch) }
    }

    /// Refuses what the cores and descriptors of a host do not allow.
    fn check_room(&self, spec: &JobSpec, site: &HostSite) -> Result<(), SizeError> {
        match site.node {
            Some(node) if self.is_idle(node) => Ok(()),
            Some(node) => {
                let processes = self.processes_on(node);
                rank_count::check_node(spec, node, processes, &site.slots, site.descriptors)
            }
            None => {
                let nodes = self.job.process_map.node_ids();
                let processes = nodes.map(|node| self.processes_on(node)).sum();
                rank_count::check_all_here(processes, site.descriptors)
            }
        }
    }

    /// Refuses ranks of a spawned job that need a PMIx server on a node that has none.
    fn check_server(
        &self,
        initial: &HostPlan,
        node: Option<NodeId>,
        apps: &[AppStart],
    ) -> Result<(), HostPlanError> {
        let mut wants = apps.iter().map(|app| app.detected.wants);
        let need = !initial.offer.pmi || wants.any(|wants| wants == DetectedInterface::Pmix);
        match &initial.sidecar_unavailable {
            Some(problem) if need && node.is_some_and(|node| !self.is_idle(node)) => {
                let problem = CommandError::request(problem.as_str());
                Err(HostPlanError::WithoutServer(problem))
            }
            _ => Ok(()),
        }
    }

    /// Whether no rank is on a node.
    fn is_idle(&self, node: NodeId) -> bool {
        self.job.process_map.local_size(node) == 0
    }

    /// Whether one of these ranks is on a node.
    pub(super) fn has(&self, node: NodeId, ranks: &Range<u32>) -> bool {
        self.job
            .process_map
            .ranks_on(node)
            .any(|rank| ranks.contains(&rank.0))
    }
}

/// Searches for what the ranks of each application of a job need. A spawned job may have the variables of a `template`;
/// `purpose` is the reason for which an application is looked at.
pub(super) fn resolve_apps(
    job: &JobContext,
    spec: &JobSpec,
    plans: &[AppPlan],
    site: &HostSite,
    staged_files: &[StagedFiles],
    template: Option<&AppStart>,
    purpose: impl Fn(AppNum) -> InspectionSite,
) -> Result<Vec<(AppStart, Loader)>, HostPlanError> {
    type Found = Result<(AppStart, Loader), HostPlanError>;
    let in_image = spec.container.image.is_some();
    let resolve = |number: AppNum, request: &AppRequest, plan: &AppPlan| -> Found {
        let mut env = match (&plan.variables, template) {
            (None, Some(template)) => template.base_env.clone(),
            (variables, _) => {
                let mut env = variables.clone().unwrap_or_default();
                if site.node.is_some() {
                    site.inheritance.add_local(request, &mut env);
                }
                if let Some(root) = site.container_root.as_ref().filter(|_| in_image) {
                    container::environment(&mut env, &root.env);
                }
                env
            }
        };
        let changes = request.env_changes.iter();
        changes.for_each(|change| change.apply(&mut env));
        let mut request = Cow::Borrowed(request);
        if let Some((staged_files, node)) = staged_files.get(number.index()).zip(site.node) {
            let owner = Owner {
                job: &job.nspace,
                node,
                app: number,
            };
            staged_files.apply(owner, &mut request, &mut env);
        }
        let ranks = AppRanks {
            ranks: job.app_map.ranks_of(number),
            count: plan.count,
        };
        let purpose = purpose(number);
        let inheritance = &*site.inheritance;
        let found = run_in_root(site.container_root.as_ref(), move || {
            Ok(resolve_app(
                &request,
                ranks,
                env,
                inheritance,
                purpose,
                in_image,
            ))
        });
        Ok(found.map_err(HostPlanError::Container)??)
    };
    let all = (0..).map(AppNum).zip(&spec.apps).zip(plans);
    all.map(|((number, request), plan)| resolve(number, request, plan))
        .collect()
}
