//! Makes the plan of one host from the launcher's decisions: searches for the files that its ranks need.
//!
//! ```text
//!  the user's job    HostPlan::new ─────────────────────────────────────┐
//!                    HostPlan::resolve ──────┐                           ▼
//!                                            ├─▶ JobPlan::resolve_on ─▶ JobPlan::complete ─▶ HostPlan
//!  a spawned job     SpawnedJobPlan::resolve ┘
//! ```

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::app_start::{AppError, InspectionSite, resolve_app};
use super::host_binding::HostBindingError;
use super::interface_offer::host_parts;
use super::rank_count::SizeError;
use super::{
    AppPlan, AppStart, HostPlan, JobPlan, StagedFiles, host_binding, node_grant, rank_count,
};
use crate::inspect::DetectedInterface;
use crate::inspect::ldso::Loader;
use crate::plan::container_root::{ContainerRoot, run_in_root};
use crate::plan::host_scope::HostScope;
use crate::plan::inherited_context::InheritedContext;
use crate::plan::packed_files::Owner;
use crate::plan::reasons::OfferReason;
use wireup_core::container;
use wireup_core::failure::{CommandError, RequestError};
use wireup_core::job::ids::{AppNum, NodeId};
use wireup_core::job::spec::{AppRequest, JobSpec};
use wireup_core::node::JobContext;
use wireup_sys::machine_slots::SlotLimits;

/// Error: the plan of a job that the launcher sent is inconsistent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("inconsistent plan of the job from the launcher; use one version of wireup on all hosts")]
pub(crate) struct PlanMismatch;

impl RequestError for PlanMismatch {}

/// Error because of which a job cannot run on a host.
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
    /// The files of a PMIx server were not found.
    #[error(transparent)]
    ServerFiles(CommandError),
    /// Ranks of a spawned job need a PMIx server on a host without one.
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

/// Host on which jobs are resolved.
pub(super) struct HostSite {
    /// Nodes that the host is; `None` in a launcher of other hosts, whose findings are only displayed.
    pub(super) scope: Option<HostScope>,
    pub(super) inheritance: Arc<InheritedContext>,
    /// Root directory of the ranks here, if they run in an image.
    pub(super) container_root: Option<ContainerRoot>,
    pub(super) slots: SlotLimits,
    /// Hard limit of the number of open descriptors.
    pub(super) descriptors: u64,
}

impl HostSite {
    /// Node of the host, if it is one of several hosts.
    fn node(&self) -> Option<NodeId> {
        self.scope.and_then(HostScope::node)
    }

    /// Purpose for which an application with these ranks is inspected.
    fn purpose(
        &self,
        job: &JobContext,
        ranks: &Range<u32>,
        in_image: bool,
        is_spawned: bool,
    ) -> InspectionSite {
        match self.scope {
            // Ranks in an image do not execute this machine's program of that name.
            None if in_image => InspectionSite::Bystander,
            None => InspectionSite::Launcher,
            Some(scope) if !scope.has(&job.process_map, ranks) => InspectionSite::Bystander,
            Some(_) if is_spawned => InspectionSite::Child,
            Some(HostScope::Whole) => InspectionSite::Alone,
            Some(HostScope::Node(_)) => InspectionSite::Node,
        }
    }
}

impl HostPlan {
    /// Makes the plan of one node of a job on several hosts: searches for the files that its ranks
    /// need.
    ///
    /// `inheritance` is the launcher's, with the additions of the node ([`InheritedContext::on_node`]);
    /// `staged_files` were sent and stored; `descriptors` is the hard limit of the number of open
    /// descriptors here, `container_root` the root directory of ranks that run in an image.
    ///
    /// # Errors
    /// [`CommandError`] with the reason and the remedy. The text is the same on every node with
    /// this problem, for [`by_node`](crate::report::failures::by_node).
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
            scope: Some(HostScope::Node(node)),
            inheritance: Arc::new(inheritance),
            container_root,
            slots: SlotLimits::detect(),
            descriptors,
        };
        let plan = decided.resolve_on(site, spec, staged_files, None)?;
        node_grant::check_fabric(&plan)?;
        Ok(plan)
    }
}

impl JobPlan {
    /// Makes the plan of a host from the launcher's decisions: searches for the files that its ranks of the job need. For a
    /// spawned job `initial` is the host's plan of the initial job, whose PMIx server serves all jobs.
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
        self.check(&spec, site.node())?;
        self.check_room(&spec, &site)?;
        if let Some(node) = site.node() {
            self.oversubscribed = site.slots.exceeded_by(self.processes_on(node));
        }
        let template = initial.and_then(|initial| self.template_app(initial));
        let (job, plans) = (&self.job, &self.app_plans);
        let found = resolve_apps(job, &spec, plans, &site, staged_files, template)?;
        self.complete(site, spec, found, initial)
    }

    /// Makes the plan of a host from the resolved applications: searches for the files of the PMIx server, and
    /// binds the ranks. For a spawned job `initial` is the host's plan of the initial job.
    ///
    /// If one machine is all nodes, has no PMIx server, and no program is known to need PMIx, PMIx is not offered.
    ///
    /// # Errors
    /// [`HostPlanError`] with the reason and the remedy.
    pub(super) fn complete(
        mut self,
        site: HostSite,
        spec: JobSpec,
        found: FoundApps,
        initial: Option<&HostPlan>,
    ) -> Result<HostPlan, HostPlanError> {
        let FoundApps { apps, loaders } = found;
        let (sidecar_files, sidecar_unavailable) = match (initial, site.scope) {
            (Some(initial), _) => {
                self.check_server(initial, site.node(), &apps)?;
                let unavailable = initial.sidecar_unavailable.clone();
                (initial.sidecar_files.clone(), unavailable)
            }
            (None, Some(scope)) if self.offer.pmix => {
                match host_parts(&spec, &apps, &loaders, &site.inheritance) {
                    Ok(files) => (Some(files), None),
                    // Refused later, if ranks that are spawned here need PMIx.
                    Err(failure) if scope.node().is_some_and(|node| self.is_idle(node)) => {
                        (None, Some(failure.to_string()))
                    }
                    Err(failure)
                        if scope == HostScope::Whole && self.may_do_without_pmix(&apps) =>
                    {
                        self.offer.pmix = false;
                        self.offer.without_pmix = Some(failure.to_string());
                        (None, None)
                    }
                    Err(failure) => return Err(HostPlanError::ServerFiles(failure)),
                }
            }
            (None, _) => (None, None),
        };
        let libpmix = sidecar_files.as_ref().map(|files| &*files.libpmix.path);
        let bind = |scope| host_binding::bind(&spec, &self, scope, initial, libpmix);
        let binding = site.scope.map(bind).transpose()?.flatten();
        if site.scope.is_some() {
            // Only a launcher of other hosts still needs them: it sends them.
            self.app_plans = Vec::new();
        }
        Ok(HostPlan {
            job_plan: self,
            scope: site.scope,
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

    /// Whether no program is known to need PMIx.
    fn may_do_without_pmix(&self, apps: &[AppStart]) -> bool {
        let mut wants = apps.iter().map(|app| app.detected.wants);
        matches!(self.offer.why, OfferReason::Unknown(_))
            && !wants.any(|wants| wants == DetectedInterface::Pmix)
    }

    /// Application of the initial job whose settings apply to this spawned job.
    pub(super) fn template_app<'a>(&self, initial: &'a HostPlan) -> Option<&'a AppStart> {
        let origin = self.origin.as_ref()?;
        initial.apps.get(origin.template_app.index())
    }

    /// Checks that a plan that was received is consistent.
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

    /// Refuses more ranks than the slots and descriptors of a host allow.
    fn check_room(&self, spec: &JobSpec, site: &HostSite) -> Result<(), SizeError> {
        match site.scope {
            None => Ok(()),
            Some(HostScope::Node(node)) if self.is_idle(node) => Ok(()),
            Some(HostScope::Node(node)) => {
                let processes = self.processes_on(node);
                rank_count::check_node(spec, node, processes, &site.slots, site.descriptors)
            }
            Some(HostScope::Whole) => {
                let nodes = self.job.process_map.node_ids();
                let processes = nodes.map(|node| self.processes_on(node)).sum();
                rank_count::check_all_here(processes, site.descriptors)
            }
        }
    }

    /// Refuses ranks of a spawned job that need PMIx on a node without a PMIx server.
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

    /// Whether a node has ranks of an application.
    pub(super) fn has_app(&self, node: NodeId, app: AppNum) -> bool {
        let ranks = self.job.app_map.ranks_of(app);
        HostScope::Node(node).has(&self.job.process_map, &ranks)
    }

    /// Whether a node has no ranks of the job.
    fn is_idle(&self, node: NodeId) -> bool {
        self.job.process_map.local_size(node) == 0
    }
}

/// Applications of a job that a host has resolved.
pub(super) struct FoundApps {
    pub(super) apps: Vec<AppStart>,
    /// Dynamic loader of each application, with the environment of its ranks.
    loaders: Vec<Loader>,
}

/// Searches for the files that the ranks of each application of a job need. A spawned job without variables of its own gets
/// those of the `template`.
pub(super) fn resolve_apps(
    job: &JobContext,
    spec: &JobSpec,
    plans: &[AppPlan],
    site: &HostSite,
    staged_files: &[StagedFiles],
    template: Option<&AppStart>,
) -> Result<FoundApps, HostPlanError> {
    type Found = Result<(AppStart, Loader), HostPlanError>;
    let in_image = spec.container.image.is_some();
    let resolve = |number: AppNum, request: &AppRequest, plan: &AppPlan| -> Found {
        let mut env = match (&plan.variables, template) {
            (None, Some(template)) => template.base_env.clone(),
            (variables, _) => {
                let mut env = variables.clone().unwrap_or_default();
                if site.node().is_some() {
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
        if let Some((staged_files, node)) = staged_files.get(number.index()).zip(site.node()) {
            let owner = Owner {
                job: &job.nspace,
                node,
                app: number,
            };
            staged_files.apply(owner, &mut request, &mut env);
        }
        let ranks = job.app_map.ranks_of(number);
        let purpose = site.purpose(job, &ranks, in_image, template.is_some());
        let count = plan.count;
        let inheritance = &*site.inheritance;
        let found = run_in_root(site.container_root.as_ref(), move || {
            Ok(resolve_app(
                &request,
                ranks,
                count,
                env,
                inheritance,
                purpose,
                in_image,
            ))
        });
        Ok(found.map_err(HostPlanError::Container)??)
    };
    let all = (0..).map(AppNum).zip(&spec.apps).zip(plans);
    let found = all.map(|((number, request), plan)| resolve(number, request, plan));
    let (apps, loaders) = found.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    Ok(FoundApps { apps, loaders })
}
